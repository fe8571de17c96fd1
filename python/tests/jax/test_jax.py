"""tilewise.jax against jax.nn.dot_product_attention and against the NumPy functions."""

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from cases import OPTIONS, add_option, options_of, tensors

import tilewise

if not Path(tilewise.__file__).with_name("libtilewise_jax.so").exists():
    pytest.skip("this build of tilewise has no handlers for XLA", allow_module_level=True)

import jax.numpy as jnp  # noqa: E402

import tilewise.jax as tj  # noqa: E402

# Two computations of the same numbers in float32: the largest difference, relative to the largest result.
CLOSE = 1e-5
SHAPES = {"square": (2, 33, 33, 4, 4, 32), "grouped": (2, 17, 50, 4, 2, 32), "one head": (1, 40, 19, 3, 1, 16)}


def qkv(rng: np.random.Generator, shape: str) -> tuple[Any, Any, Any]:
    batch, rows, keys, heads, kv_heads, dim = SHAPES[shape]
    sizes = ((batch, rows, heads, dim), (batch, keys, kv_heads, dim), (batch, keys, kv_heads, dim))
    return tuple(jnp.asarray(rng.standard_normal(size), jnp.float32) for size in sizes)


def assert_near(result: Any, expected: Any, tolerance: float = CLOSE) -> None:
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        error, limit = float(np.abs(a - b).max(initial=0)), tolerance * max(1, float(np.abs(b).max(initial=0)))
        assert error <= limit


def options(rng: np.random.Generator, shape: str) -> dict[str, dict[str, Any]]:
    """Options of jax.nn.dot_product_attention. No row is left without a key, where the two differ by design."""
    batch, rows, keys, heads, _, _ = SHAPES[shape]
    mask = rng.random((batch, 1, rows, keys)) < 0.6
    mask[..., 0] = True
    return {
        "plain": {},
        "causal": {"is_causal": True},
        "scale": {"scale": 0.3},
        "bias": {"bias": jnp.asarray(rng.standard_normal((1, heads, rows, keys)), jnp.float32)},
        "mask": {"mask": jnp.asarray(mask)},
        "window": {"local_window_size": (max(rows, keys), 3), "is_causal": False},
        "one window": {"local_window_size": max(rows, keys)},
        "keys": {"key_value_seq_lengths": jnp.asarray(rng.integers(1, keys + 1, batch), jnp.int32)},
        "both lengths": {
            "query_seq_lengths": jnp.asarray(rng.integers(1, rows + 1, batch), jnp.int32),
            "key_value_seq_lengths": jnp.asarray(rng.integers(1, keys + 1, batch), jnp.int32),
        },
        "residual": {"return_residual": True, "is_causal": True},
    }


NAMES = list(options(np.random.default_rng(0), "square"))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("jit", [False, True])
def test_same_as_jax_nn(name: str, shape: str, jit: bool, rng: np.random.Generator) -> None:
    arrays, given = qkv(rng, shape), options(rng, shape)[name]
    ours = lambda q, k, v: tj.dot_product_attention(q, k, v, **given)  # noqa: E731
    assert_near((jax.jit(ours) if jit else ours)(*arrays), jax.nn.dot_product_attention(*arrays, **given))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_jax_nn(name: str, shape: str, rng: np.random.Generator) -> None:
    arrays, given = qkv(rng, shape), options(rng, shape)[name]

    def loss(function: Any) -> Any:
        def value(q: Any, k: Any, v: Any, bias: Any) -> Any:
            result = function(q, k, v, **{**given, "bias": bias})
            return sum((jnp.sin(leaf) ** 2).sum() for leaf in jax.tree.leaves(result))

        return value

    bias = given.get("bias", jnp.zeros((1, 1, *(arrays[i].shape[1] for i in (0, 1))), jnp.float32))
    expected = jax.grad(loss(jax.nn.dot_product_attention), (0, 1, 2, 3))(*arrays, bias)
    assert_near(jax.grad(loss(tj.dot_product_attention), (0, 1, 2, 3))(*arrays, bias), expected, 3 * CLOSE)
    assert_near(jax.jit(jax.grad(loss(tj.dot_product_attention), (0, 1, 2, 3)))(*arrays, bias), expected, 3 * CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_no_rank_is_promoted(name: str, rng: np.random.Generator) -> None:
    arrays, given = qkv(rng, "grouped"), options(rng, "grouped")[name]
    expected = tj.dot_product_attention(*arrays, **given)
    with jax.numpy_rank_promotion("raise"):
        assert_near(tj.dot_product_attention(*arrays, **given), expected)
        loss = lambda *a: sum(leaf.sum() for leaf in jax.tree.leaves(tj.dot_product_attention(*a, **given)))  # noqa: E731
        jax.grad(loss, (0, 1, 2))(*arrays)


@pytest.mark.parametrize("option", [name for name in OPTIONS if name != "slices"])  # int64: JAX has it on request only
def test_no_rank_of_an_option_is_promoted(option: str, rng: np.random.Generator) -> None:
    case = tensors(rng, "float32")
    add_option(case, option, rng)
    arrays = [case[name] for name in ("q", "k", "v")]
    with jax.numpy_rank_promotion("raise"):
        jax.grad(lambda *a: tj.attention(*a, **options_of(case)).sum(), (0, 1, 2))(*arrays)


def test_bytes_are_a_mask(rng: np.random.Generator) -> None:
    arrays, shown = qkv(rng, "grouped"), rng.random((2, 1, 17, 50)) < 0.6
    expected = tj.attention(*arrays, mask=shown)
    for mask in (shown.astype(np.uint8), np.where(shown, np.uint8(7), np.uint8(0))):
        assert np.array_equal(tj.attention(*arrays, mask=mask), expected)
        assert np.array_equal(jax.jit(lambda m: tj.attention(*arrays, mask=m))(mask), expected)


def test_import_without_handlers_says_what_to_do(tmp_path: Path) -> None:
    package = Path(tilewise.__file__).parent
    shutil.copytree(package, tmp_path / "tilewise", ignore=shutil.ignore_patterns("libtilewise_jax*", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-c", "import tilewise.jax"], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    for words in ("ImportError: tilewise.jax", "no handlers for XLA", "jaxlib was not installed", "pip install"):
        assert words in done.stderr


def test_one_sequence_without_a_batch(rng: np.random.Generator) -> None:
    q, k, v = (x[0] for x in qkv(rng, "grouped"))
    assert_near(tj.dot_product_attention(q, k, v), jax.nn.dot_product_attention(q, k, v))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("option", [name for name in OPTIONS if name != "slices"])  # int64: the test after this one
def test_bits_of_the_numpy_functions(option: str, dtype: str, rng: np.random.Generator) -> None:
    case = tensors(rng, dtype)
    add_option(case, option, rng)
    q, k, v, dout = (case[name] for name in ("q", "k", "v", "dout"))
    given = options_of(case)
    out, lse = tilewise.attention_forward(q, k, v, **given)
    results, pull = jax.vjp(lambda *a: tj.attention_forward(*a, **given), q, k, v)
    assert np.array_equal(np.asarray(results[0]), out) and np.array_equal(np.asarray(results[1]), lse)
    dlse = case.get("dlse", np.zeros_like(lse))
    expected = tilewise.attention_backward(dout, q, k, v, out, lse, dlse=dlse, **given)
    for gradient, other in zip(pull((jnp.asarray(dout), jnp.asarray(dlse))), expected[:3]):
        assert np.array_equal(np.asarray(gradient), other)


def test_slices_and_float64(seed: int) -> None:
    """Runs in an interpreter of its own, because jax_enable_x64 holds for the whole process."""
    script = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parents[1] / "support")!r}, {str(Path(__file__).parents[3] / "tests/python")!r}]
import jax
jax.config.update("jax_enable_x64", True)
import numpy as np, tilewise, tilewise.jax as tj
from cases import add_option, options_of, tensors
rng = np.random.default_rng({seed})
case = tensors(rng, "float64")
for option in ("slices", "sink", "bias"):
    add_option(case, option, rng)
q, k, v = case["q"], case["k"], case["v"]
given = options_of(case)
out, lse = tilewise.attention_forward(q, k, v, **given)
ours = jax.jit(lambda *a: tj.attention_forward(*a, **given))(q, k, v)
assert np.array_equal(ours[0], out) and np.array_equal(ours[1], lse) and ours[1].dtype == np.float64
print("fine")
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert result.returncode == 0 and result.stdout == "fine\n", result.stderr


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (None, 0, 0), (2, 1, 0)])
def test_vmap(axes: tuple, rng: np.random.Generator) -> None:
    arrays = qkv(rng, "grouped")
    stacked = [x if axis is None else jnp.stack([x, 2 * x, -x], axis) for x, axis in zip(arrays, axes)]
    alone = lambda *a: tj.attention_forward(*a, causal=True)  # noqa: E731
    mapped = jax.vmap(alone, axes)(*stacked)
    for i in range(3):
        picked = [x if axis is None else jnp.take(x, i, axis) for x, axis in zip(stacked, axes)]
        for result, expected in zip(mapped, alone(*picked)):
            assert np.array_equal(result[i], expected)


# What is mapped, and whether a problem holds one sequence or two. With one, operands that all problems share become one
# more batch of stride 0; what a larger batch cannot express runs one problem after another.
MAPPED = {
    "all": (0, 0, 0), "queries": (0, None, None), "keys": (None, 0, 0), "values": (None, None, 0)
}  # fmt: skip


@pytest.mark.parametrize("is_option_mapped", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("option", [name for name in OPTIONS if name not in ("plain", "slices")])
def test_vmap_with_options(option: str, is_option_mapped: bool, rng: np.random.Generator) -> None:
    for batch in (1, 2):
        axes = MAPPED[list(MAPPED)[rng.integers(len(MAPPED))]]
        check_vmap(option, is_option_mapped, axes, batch, rng)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("axes", MAPPED.values(), ids=MAPPED)
def test_vmap_over_some_operands(axes: tuple, batch: int, rng: np.random.Generator) -> None:
    check_vmap("plain", False, axes, batch, rng)


def check_vmap(option: str, is_option_mapped: bool, axes: tuple, batch: int, rng: np.random.Generator) -> None:
    """Results, and the gradients of q, k, v and, where they are, bias, sink and slopes: index for index."""
    cases = [tensors(rng, "float32", (batch, 17, 40, 4, 2, 24, 16)) for _ in range(3)]
    for case in cases:
        add_option(case, option, rng)
    given = [options_of(case) for case in cases]
    named = {name: value for name, value in given[0].items() if isinstance(value, np.ndarray)}
    fixed = {name: value for name, value in given[0].items() if name not in named}
    names = ["q", "k", "v", *named]
    in_axes = [*axes, *((0 if is_option_mapped else None) for _ in named)]
    values = [[case[name] for name in ("q", "k", "v")] + [g[name] for name in named] for case, g in zip(cases, given)]
    arrays = [
        np.stack([own[i] for own in values]) if axis == 0 else values[0][i] for i, axis in enumerate(in_axes)
    ]
    learned = [i for i, name in enumerate(names) if name in ("q", "k", "v", "bias", "sink", "alibi_slopes")]

    def result(*each: Any) -> Any:
        def loss(*own: Any) -> Any:
            at = dict(zip(learned, own))
            q, k, v, *rest = (at.get(i, x) for i, x in enumerate(each))
            out, lse = tj.attention_forward(q, k, v, **dict(zip(named, rest)), **fixed)
            return (jnp.sin(out) * out).sum() + jnp.where(jnp.isfinite(lse), lse, 0).sum(), (out, lse)

        return jax.grad(loss, tuple(range(len(learned))), has_aux=True)(*(each[i] for i in learned))

    mapped = jax.jit(jax.vmap(result, in_axes))(*arrays)
    for i in range(3):
        alone = result(*(x[i] if axis == 0 else x for x, axis in zip(arrays, in_axes)))
        for found, expected in zip(jax.tree.leaves(mapped), jax.tree.leaves(alone), strict=True):
            found, expected = np.asarray(found[i]), np.asarray(expected)
            assert np.array_equal(np.isinf(found), np.isinf(expected))
            finite = np.isfinite(expected)
            assert_near(found[finite], expected[finite], 3 * CLOSE)


def test_vmap_of_vmap_with_mask_bias_and_gradient(rng: np.random.Generator) -> None:
    q, k, v = qkv(rng, "grouped")
    q, k = jnp.stack([q, 2 * q]), jnp.stack([k, -k, 0.5 * k])
    mask = jnp.asarray(rng.random((2, 17, 50)) < 0.7)
    bias = jnp.asarray(rng.standard_normal((3, 4, 17, 50)), jnp.float32)

    def loss(function: Any) -> Any:
        grad = jax.grad(lambda q, k, m, b: (function(q, k, v, bias=b[None], mask=m[None, None]) ** 2).sum(), (0, 1, 3))
        return jax.jit(jax.vmap(jax.vmap(grad, (None, 0, None, 0)), (0, None, 0, None)))

    assert_near(loss(tj.dot_product_attention)(q, k, mask, bias),
                loss(jax.nn.dot_product_attention)(q, k, mask, bias), 3 * CLOSE)  # fmt: skip


def test_vmap_draws_dropout_as_alone(rng: np.random.Generator) -> None:
    arrays = [jnp.stack([x, x]) for x in qkv(rng, "square")]
    mapped = jax.vmap(lambda *a: tj.attention(*a, dropout_p=0.4, dropout_seed=3))(*arrays)
    assert np.array_equal(mapped[0], mapped[1])
    alone = tilewise.attention(*(np.asarray(x[0]) for x in arrays), dropout_p=0.4, dropout_seed=3)
    assert np.array_equal(mapped[0], alone)


def test_packed_batches(rng: np.random.Generator) -> None:
    q, k, v = (x[0] for x in qkv(rng, "square"))
    starts = jnp.asarray([0, 7, 7, 33], jnp.int32)
    ours = jax.jit(lambda *a: tj.attention(*a, cu_seqlens_q=starts, cu_seqlens_k=starts, causal=True))(q, k, v)
    for b in range(3):
        part = slice(int(starts[b]), int(starts[b + 1]))
        if part.start < part.stop:
            assert_near(ours[part], jax.nn.dot_product_attention(q[part], k[part], v[part], is_causal=True))


def test_inside_scan_and_remat(rng: np.random.Generator) -> None:
    q, k, v = qkv(rng, "square")

    def network(function: Any, q: Any) -> Any:
        layer = jax.checkpoint(lambda x: function(x, k, v, is_causal=True))
        return jax.lax.scan(lambda x, _: (layer(x) + x, None), q, None, length=3)[0].sum()

    assert_near(jax.grad(lambda q: network(tj.dot_product_attention, q))(q),
                jax.grad(lambda q: network(jax.nn.dot_product_attention, q))(q), 1e-4)  # fmt: skip


def test_no_row_without_keys_is_nan(rng: np.random.Generator) -> None:
    q, k, v = qkv(rng, "square")
    mask = jnp.ones((33, 33), bool).at[5].set(False)
    value, gradient = jax.value_and_grad(lambda q: tj.attention(q, k, v, mask=mask).sum())(q)
    assert jnp.isfinite(value) and jnp.isfinite(gradient).all() and (gradient[:, 5] == 0).all()


def test_tracing_needs_no_memory() -> None:
    """2 TB each of Q, K and V, of which nothing is allocated."""
    shape = jax.ShapeDtypeStruct((1, 2**32, 8, 64), jnp.bfloat16)
    out, lse = jax.eval_shape(lambda q: tj.attention_forward(q, q, q, causal=True), shape)
    assert out.shape == shape.shape and lse.shape == (1, 8, 2**32)


def test_signature_is_that_of_jax_nn() -> None:
    def parameters(function: Any) -> list[tuple]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    assert parameters(tj.dot_product_attention) == parameters(jax.nn.dot_product_attention)


def test_bad_input(rng: np.random.Generator) -> None:
    q, k, v = qkv(rng, "square")
    with pytest.raises(ValueError, match="k: head dimension is 8, must be q's 32"):
        jax.jit(tj.attention)(q, k[..., :8], v)
    with pytest.raises(ValueError, match="q: rank is 0"):
        tj.attention(1.0, k, v)
    with pytest.raises(ValueError, match="softcap"):
        tj.attention(q, k, v, softcap=-1.0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'causl'"):
        tj.attention(q, k, v, causl=True)
    with pytest.raises(TypeError, match="softmax_scale: is a traced value"):
        jax.jit(lambda s: tj.attention(q, k, v, softmax_scale=s))(0.5)
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(lambda s: jax.grad(lambda x: (tj.attention(q * x, k, v) ** 2).sum())(s))(1.0)
    for value, words in ((jnp.inf, "softmax_scale: is inf, must be finite"), (jnp.nan, "softmax_scale: is nan")):
        with pytest.raises(ValueError, match=words):
            tj.attention(q, k, v, softmax_scale=value)
    with pytest.raises(ValueError, match="scale: is inf, must be finite"):
        tj.dot_product_attention(q, k, v, scale=float("inf"))
    with pytest.raises(ValueError, match="max_seqlen_q: is -1"):
        tj.attention(q, k, v, max_seqlen_q=-1)
    with pytest.raises(TypeError, match="dropout_seed: is -1"):
        tj.attention(q, k, v, dropout_p=0.5, dropout_seed=-1)
    for window in (-1, (-1, 3), (1.5, 0), (1, 2, 3), (None, 1)):
        with pytest.raises(ValueError, match="local_window_size: is"):
            tj.dot_product_attention(q, k, v, local_window_size=window)
    with pytest.raises(TypeError, match=r"window_size: is 3, must be a pair"):
        tj.attention(q, k, v, window_size=3)
    with pytest.raises(TypeError, match="both 'window' and 'window_size'"):
        tj.attention(q, k, v, window_size=(3, 0), window=(1, 0))
    with pytest.raises(TypeError, match="causal: is 'no', must be True or False"):
        tj.attention(q, k, v, causal="no")
    with pytest.raises(TypeError, match="is_causal: is 'no', must be True or False"):
        tj.dot_product_attention(q, k, v, is_causal="no")
    with pytest.raises(ValueError, match="^key: head dimension is 8"):
        tj.dot_product_attention(q, k[..., :8], v)
    with pytest.raises(ValueError, match="mask: dtype is fp32, must be bool"):
        tj.attention(q, k, v, mask=jnp.ones((33, 33), jnp.float32))
    with pytest.raises(Exception, match="[Mm]asked array"):
        tj.attention(np.ma.array(q), k, v)
    with pytest.raises(ValueError, match="implementation"):
        tj.dot_product_attention(q, k, v, implementation="cudnn")
    starts = jnp.asarray([0, 50, 33], jnp.int32)
    with pytest.raises(Exception, match="cu_seqlens_q"):  # contents are known when it runs
        jax.block_until_ready(tj.attention(q[0], k[0], v[0], cu_seqlens_q=starts, cu_seqlens_k=starts))
