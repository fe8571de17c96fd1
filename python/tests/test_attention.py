"""Every option, forward and backward, in every dtype, against formulas in float64."""

import formulas
import numpy as np
import pytest
from cases import DTYPES, OPTIONS, TOLERANCES, add_option, assert_close, options_of, tensors

import tilewise


def check(case: dict, dtype: str) -> None:
    """Forward and backward of the case against the formulas."""
    expected, sizes = formulas.attention(case)
    options = options_of(case)
    q, k, v = case["q"], case["k"], case["v"]
    out, lse = tilewise.attention_forward(q, k, v, **options)
    assert out.dtype == q.dtype
    assert_close("out", out, expected["out"], expected["out"], dtype)
    # LSE is computed in more bits than 16-bit inputs have: the formulas get the rounded inputs too.
    assert_close("lse", lse, expected["lse"], expected["lse"], "float64" if dtype == "float64" else "float32")
    assert np.array_equal(tilewise.attention(q, k, v, **options), out)
    want = [name for name in tilewise.Gradients._fields if name in expected]
    results = tilewise.attention_backward(case["dout"], q, k, v, out, lse, dlse=case.get("dlse"), want=want, **options)
    for name, gradient in results._asdict().items():
        assert (gradient is not None) == (name in expected), name
        if gradient is not None:
            assert_close(name, gradient, expected[name], np.maximum(np.abs(expected[name]), sizes[name]), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_one_option(option: str, dtype: str, rng: np.random.Generator) -> None:
    case = tensors(rng, dtype)
    add_option(case, option, rng)
    check(case, dtype)


@pytest.mark.parametrize("number", range(40))
def test_options_together(number: int, rng: np.random.Generator) -> None:
    dtype = list(DTYPES)[number % len(DTYPES)]
    batch, kv_heads, group = (int(rng.integers(1, limit)) for limit in (4, 3, 4))
    shape = (batch, 33, 50, kv_heads * group, kv_heads, 24, int(rng.choice([3, 64])))
    case = tensors(rng, dtype, shape)
    structured = ["slices"] if rng.random() < 0.2 and shape[3] > 1 else ["causal", "top_left", "window"]
    for option in (*structured, *(set(OPTIONS) - {"plain", "causal", "top_left", "window", "slices"})):
        if rng.random() < 0.4:
            add_option(case, option, rng)
    check(case, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_head_major_layout(dtype: str, rng: np.random.Generator) -> None:
    case = tensors(rng, dtype)
    q, k, v, dout = (case[name] for name in ("q", "k", "v", "dout"))
    out, lse = tilewise.attention_forward(q, k, v, causal=True)
    turned = [np.ascontiguousarray(array.transpose(0, 2, 1, 3)) for array in (q, k, v, dout)]
    turned_out, turned_lse = tilewise.attention_forward(*turned[:3], causal=True, layout="bhsd")
    assert np.array_equal(turned_out.transpose(0, 2, 1, 3), out)
    assert np.array_equal(turned_lse, lse)
    gradients = tilewise.attention_backward(dout, q, k, v, out, lse, causal=True)
    others = tilewise.attention_backward(
        turned[3], *turned[:3], turned_out, turned_lse, causal=True, layout="bhsd"
    )
    for first, second in zip(gradients[:3], others[:3]):
        assert np.array_equal(first, second.transpose(0, 2, 1, 3))


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_is_each_sequence_alone(dtype: str, index: type, rng: np.random.Generator) -> None:
    lengths_q, lengths_k = [7, 0, 23, 1], [9, 4, 23, 0]
    starts_q, starts_k = (np.cumsum([0, *lengths]).astype(index) for lengths in (lengths_q, lengths_k))
    case = tensors(rng, dtype, (1, sum(lengths_q), sum(lengths_k), 4, 2, 40, 16))
    q, k, v, dout = (case[name][0] for name in ("q", "k", "v", "dout"))
    packed = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k, "max_seqlen_q": 23, "max_seqlen_k": 23}
    out, lse = tilewise.attention_forward(q, k, v, causal=True, **packed)
    assert lse.shape == (4, sum(lengths_q))
    gradients = tilewise.attention_backward(dout, q, k, v, out, lse, causal=True, **packed)
    for b in range(len(lengths_q)):
        rows, keys = slice(*starts_q[b : b + 2]), slice(*starts_k[b : b + 2])
        alone = {"q": q[None, rows], "k": k[None, keys], "v": v[None, keys], "dout": dout[None, rows], "causal": True}
        expected, sizes = formulas.attention(alone)
        assert_close("out", out[None, rows], expected["out"], expected["out"], dtype)
        statistics = "float64" if dtype == "float64" else "float32"
        assert_close("lse", lse[None, :, rows], expected["lse"], expected["lse"], statistics)
        for name, part in (("dq", rows), ("dk", keys), ("dv", keys)):
            gradient = getattr(gradients, name)[None, part]
            assert_close(name, gradient, expected[name], np.maximum(np.abs(expected[name]), sizes[name]), dtype)


def test_results_in_float32(rng: np.random.Generator) -> None:
    case = tensors(rng, "bfloat16")
    q, k, v, dout = (case[name] for name in ("q", "k", "v", "dout"))
    expected, sizes = formulas.attention(case)
    out, lse = tilewise.attention_forward(q, k, v, out_dtype="float32")
    assert out.dtype == np.float32
    assert np.abs(out - expected["out"]).max() < TOLERANCES["bfloat16"] * np.abs(expected["out"]).max()
    assert np.any(out.astype(q.dtype).astype(np.float32) != out), "more than q's dtype can hold"
    narrow, _ = tilewise.attention_forward(q, k, v)
    assert_close("out", narrow, expected["out"], expected["out"], "bfloat16")
    gradients = tilewise.attention_backward(dout, q, k, v, narrow, lse, grad_dtype=np.float32, want=("dq", "dv"))
    assert gradients.dq.dtype == gradients.dv.dtype == np.float32
    assert gradients.dk is gradients.dbias is gradients.dsink is None
    assert_close("dq", gradients.dq, expected["dq"], sizes["dq"], "bfloat16")


def test_window_has_two_names_and_none_is_no_bound(rng: np.random.Generator) -> None:
    case = tensors(rng, "float32")
    q, k, v = case["q"], case["k"], case["v"]
    expected = tilewise.attention(q, k, v, window_size=(5, -1))
    assert np.array_equal(tilewise.attention(q, k, v, window=(5, None)), expected)
    assert not np.array_equal(tilewise.attention(q, k, v), expected)


def test_bytes_are_a_mask(rng: np.random.Generator) -> None:
    case = tensors(rng, "float32")
    q, k, v = case["q"], case["k"], case["v"]
    shown = rng.random((2, 1, 33, 50)) < 0.6
    expected = tilewise.attention(q, k, v, mask=shown)
    assert np.array_equal(tilewise.attention(q, k, v, mask=shown.astype(np.uint8)), expected)
    assert np.array_equal(tilewise.attention(q, k, v, mask=np.where(shown, np.uint8(255), np.uint8(0))), expected)


@pytest.mark.parametrize("truth", [True, 1, np.bool_(True), np.array(True), np.int64(1)], ids=repr)
def test_what_counts_as_true(truth: object, rng: np.random.Generator) -> None:
    case = tensors(rng, "float32")
    q, k, v = case["q"], case["k"], case["v"]
    assert np.array_equal(tilewise.attention(q, k, v, causal=truth), tilewise.attention(q, k, v, causal=True))


@pytest.mark.parametrize("falsity", [False, 0, np.bool_(False), np.array(False), np.uint8(0)], ids=repr)
def test_what_counts_as_false(falsity: object, rng: np.random.Generator) -> None:
    case = tensors(rng, "float32")
    q, k, v = case["q"], case["k"], case["v"]
    assert np.array_equal(tilewise.attention(q, k, v, causal=falsity), tilewise.attention(q, k, v))


def test_none_is_the_default(rng: np.random.Generator) -> None:
    case = tensors(rng, "float32")
    q, k, v = case["q"], case["k"], case["v"]
    nothing = dict.fromkeys(tilewise.Options.__annotations__)
    nothing.pop("window")
    assert np.array_equal(tilewise.attention(q, k, v, **nothing), tilewise.attention(q, k, v))


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_nan_reaches_nothing(dtype: str, rng: np.random.Generator) -> None:
    case = tensors(rng, dtype)
    q, k, v = case["q"], case["k"].copy(), case["v"].copy()
    used = np.full(2, 31, np.int32)
    clean = tilewise.attention(q, k, v, seqused_k=used)
    k[:, 31:], v[:, 31:] = np.nan, np.inf
    assert np.array_equal(tilewise.attention(q, k, v, seqused_k=used), clean)
    k[:, 20] = np.nan
    seen = tilewise.attention(q, k, v, causal=True, alignment="top_left")
    assert np.isnan(seen[:, 20:].astype(np.float32)).all() and not np.isnan(seen[:, :20].astype(np.float32)).any()


def scattered(rows: np.ndarray, used: np.ndarray, page_size: int, table: np.ndarray) -> np.ndarray:
    """The rows in use (B, Sk, Hk, D) in pages (N, page size, Hk, D) that the table (B, pages) names; NaN elsewhere."""
    pages = np.full((table.size + 2, page_size, *rows.shape[2:]), np.nan, rows.dtype)
    for b, keys in enumerate(used):
        for j in range(keys):
            pages[table[b, j // page_size], j % page_size] = rows[b, j]
    return pages


@pytest.mark.parametrize("page_size", [1, 3, 16, 64, 200])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 40])
def test_pages_have_the_bits_of_rows(queries: int, dtype: str, page_size: int, rng: np.random.Generator) -> None:
    case = tensors(rng, dtype, (2, queries, 96, 4, 2, 40, 16))
    q, k, v = case["q"], case["k"], case["v"]
    used = np.array([96, 31], np.int32)
    columns = -(-96 // page_size)
    table = rng.permutation(2 * columns).reshape(2, columns).astype(np.int32)
    pages = {name: scattered(rows, used, page_size, table) for name, rows in (("k", k), ("v", v))}
    table[1, -(-31 // page_size) :] = -1  # never looked at
    rows = tilewise.attention(q, k, v, seqused_k=used, causal=True)
    options = {"page_table": table, "seqused_k": used, "causal": True}
    assert np.array_equal(tilewise.attention(q, pages["k"], pages["v"], **options), rows)
    heads_first = {name: np.ascontiguousarray(array.swapaxes(1, 2)) for name, array in {"q": q, **pages}.items()}
    out = tilewise.attention(**heads_first, layout="bhsd", **options)
    assert np.array_equal(out.swapaxes(1, 2), rows)
    plan = tilewise.plan(q, pages["k"], pages["v"], causal=True, page_table=table, seqused_k=used)
    assert np.array_equal(plan(q, pages["k"], pages["v"], page_table=table, seqused_k=used), rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("phi", [[0.0], [1.0, -2.0, 500.0, -500.0], [np.nan]])
def test_phi_changes_no_result(dtype: str, phi: list[float], rng: np.random.Generator) -> None:
    case = tensors(rng, dtype, (2, 2, 700, 4, 2, 40, 16))
    q, k, v = case["q"], case["k"], case["v"]
    plain, lse = tilewise.attention_forward(q, k, v, out_dtype="float32" if dtype != "float64" else None)
    out, with_phi = tilewise.attention_forward(q, k, v, out_dtype=plain.dtype, phi=np.array(phi, np.float32))
    assert np.allclose(out, plain, rtol=0, atol=1e-6) and np.allclose(with_phi, lse, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_without_keys(dtype: str, rng: np.random.Generator) -> None:
    case = tensors(rng, dtype)
    q, k, v, dout = (case[name] for name in ("q", "k", "v", "dout"))
    hidden = np.ones((33, 50), bool)
    hidden[4] = False
    out, lse = tilewise.attention_forward(q, k, v, mask=hidden)
    assert (out[:, 4] == 0).all() and np.isneginf(lse[:, :, 4]).all() and np.isfinite(lse[:, :, 5]).all()
    gradients = tilewise.attention_backward(dout, q, k, v, out, lse, mask=hidden)
    assert (gradients.dq[:, 4] == 0).all() and not np.isnan(gradients.dk.astype(np.float32)).any()


@pytest.mark.parametrize("size", [(0, 3, 5, 2, 2, 8, 8), (2, 0, 5, 2, 2, 8, 8), (2, 3, 0, 2, 1, 8, 4)])
def test_empty(size: tuple[int, ...], rng: np.random.Generator) -> None:
    case = tensors(rng, "float32", size)
    q, k, v, dout = (case[name] for name in ("q", "k", "v", "dout"))
    out, lse = tilewise.attention_forward(q, k, v)
    assert out.shape == dout.shape and lse.shape == (size[0], size[3], size[1])
    if size[2] == 0:
        assert (out == 0).all() and np.isneginf(lse).all()
    gradients = tilewise.attention_backward(dout, q, k, v, out, lse)
    assert [g.shape for g in gradients[:3]] == [q.shape, k.shape, v.shape]


def test_dropout_is_drawn_anew_with_another_seed(rng: np.random.Generator) -> None:
    case = tensors(rng, "float32")
    q, k, v = case["q"], case["k"], case["v"]
    first = tilewise.attention(q, k, v, dropout_p=0.5, dropout_seed=1)
    assert np.array_equal(first, tilewise.attention(q, k, v, dropout_p=0.5, dropout_seed=1))
    assert not np.array_equal(first, tilewise.attention(q, k, v, dropout_p=0.5, dropout_seed=2))
