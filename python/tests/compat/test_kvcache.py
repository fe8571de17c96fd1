"""Compares flash_attn_with_kvcache with the definition: what it writes, what it reads, what it refuses."""

import subprocess
import sys

import pytest
import tilewise.compat.flash_attn as fa2
import tilewise.compat.flash_attn_interface as fa3
import torch
import torch_reference
from tilewise.compat._tokens import rotate

CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def qkv(batch: int = 2, sq: int = 9, sk: int = 13, heads: int = 4, kv_heads: int = 2, dim: int = 16) -> list[torch.Tensor]:
    return [torch.randn(batch, s, h, dim) for s, h in ((sq, heads), (sk, kv_heads), (sk, kv_heads))]


def reference(q, k, v, options):  # noqa: ANN001, ANN201
    names = {"window_size": "window", "softmax_scale": "scale"}
    return torch_reference.attention(q, k, v, **{names.get(name, name): value for name, value in options.items()})


def complex_rotation(x, cos, sin, positions, interleaved):  # noqa: ANN001, ANN201
    """Rotary embedding as a product of complex numbers: x (S, H, D)."""
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half].double(), x[..., 2 * half :]
    pairs = turned.unflatten(-1, (half, 2)) if interleaved else torch.stack(turned.split(half, -1), -1)
    factor = torch.complex(cos[positions].double(), sin[positions].double())[:, None]
    result = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * factor)
    turned = result.flatten(-2) if interleaved else torch.cat(result.unbind(-1), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotation(interleaved: bool) -> None:
    angles = torch.randn(20, 6)
    x, positions = torch.randn(7, 3, 16), torch.randint(0, 20, (7,))
    found = rotate(x, angles.cos(), angles.sin(), positions, interleaved)
    torch.testing.assert_close(found, complex_rotation(x, angles.cos(), angles.sin(), positions, interleaved))


def expected_cache_result(q, keys, values, lengths, leftpad, options):  # noqa: ANN001, ANN201
    """Sequence by sequence over what each cache row holds after appending."""
    outs = []
    for b, length in enumerate(lengths):
        first = 0 if leftpad is None else int(leftpad[b])
        outs.append(reference(q[b : b + 1], keys[b][None, first:length], values[b][None, first:length], options)[0])
    return torch.cat(outs)


STORES = [
    "rows", "cache_batch_idx", "block_table", "cache_leftpad", "block_table, cache_batch_idx",
    "block_table, cache_leftpad", "block_table, cache_batch_idx, cache_leftpad",
]  # fmt: skip


@pytest.mark.parametrize("rotary", [None, True, False], ids=["no rotary", "GPT-J", "NeoX"])
@pytest.mark.parametrize("new", [0, 1, 3])
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (6, 0)}], ids=str)
@pytest.mark.parametrize("interface", [fa2, fa3], ids=["2", "3"])
def test_with_kvcache(interface, options: dict, store: str, new: int, rotary: bool | None) -> None:  # noqa: ANN001
    if rotary is not None and new == 0:
        q, cache = torch.randn(1, 1, 2, 16), torch.randn(1, 4, 2, 16)
        with pytest.raises(ValueError, match="rotary_cos"):
            interface.flash_attn_with_kvcache(q, cache, cache, rotary_cos=torch.ones(4, 8), rotary_sin=torch.ones(4, 8))
        return
    batch, sq, capacity, heads, kv_heads, dim = 3, max(new, 2), 24, 4, 2, 16
    lengths = [5, 12, 20]
    q = torch.randn(batch, sq, heads, dim)
    k_new, v_new = (torch.randn(batch, new, kv_heads, dim) for _ in range(2)) if new else (None, None)
    keywords: dict = {"cache_seqlens": torch.tensor(lengths, dtype=torch.int32), **options}
    leftpad = None
    page = 8
    rows = torch.arange(batch)
    count = 5 if "cache_batch_idx" in store else batch
    if "block_table" in store:
        table = torch.randperm(18)[: count * 3].view(count, 3).int()
        k_cache, v_cache = (torch.randn(18, page, kv_heads, dim) for _ in range(2))
        keywords["block_table" if interface is fa2 else "page_table"] = table
    else:
        k_cache, v_cache = (torch.randn(count, capacity, kv_heads, dim) for _ in range(2))
    if "cache_batch_idx" in store:
        rows = torch.tensor([4, 0, 2])
        keywords["cache_batch_idx"] = rows.int()
    if "cache_leftpad" in store:
        leftpad = torch.tensor([0, 3, 9])
        keywords["cache_leftpad"] = leftpad.int()

    def contents(cache: torch.Tensor) -> list[torch.Tensor]:
        if "block_table" in store:
            return [torch.cat([cache[int(page)] for page in table[row]]) for row in rows]
        return [cache[int(row)].clone() for row in rows]

    keys, values = contents(k_cache), contents(v_cache)
    turned_q, turned_k = q, k_new
    if rotary is not None:
        angles = torch.randn(40, 6)
        cos, sin = angles.cos(), angles.sin()
        keywords |= {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": rotary}
        moves = torch.arange(sq) if options else torch.zeros(sq, dtype=torch.int64)
        turned_q = torch.stack([complex_rotation(q[b], cos, sin, n + moves, rotary) for b, n in enumerate(lengths)])
        turned_k = torch.stack(
            [complex_rotation(k_new[b], cos, sin, n + torch.arange(new), rotary) for b, n in enumerate(lengths)]
        )
    for b, length in enumerate(lengths):
        if new:
            keys[b][length : length + new] = turned_k[b]
            values[b][length : length + new] = v_new[b]

    wanted = expected_cache_result(turned_q, keys, values, [n + new for n in lengths], leftpad, options)
    out, lse = interface.flash_attn_with_kvcache(
        q, k_cache, v_cache, k=k_new, v=v_new, **keywords, return_softmax_lse=True
    )
    torch.testing.assert_close(out.double(), wanted, **CLOSE)
    assert lse.shape == (batch, heads, sq)
    for found, true in ((contents(k_cache), keys), (contents(v_cache), values)):  # written in place, and nothing else
        for a, b in zip(found, true, strict=True):
            torch.testing.assert_close(a, b)


def test_kvcache_with_a_number_and_without_lengths() -> None:
    q, k, v = qkv(sq=1, sk=8)
    whole = fa2.flash_attn_with_kvcache(q, k, v)
    torch.testing.assert_close(whole.double(), torch_reference.attention(q, k, v)[0], **CLOSE)
    part = fa2.flash_attn_with_kvcache(q, k, v, cache_seqlens=3)
    torch.testing.assert_close(part.double(), torch_reference.attention(q, k[:, :3], v[:, :3])[0], **CLOSE)


def test_kvcache_with_packed_queries_and_keys() -> None:
    cu_q, cu_new = torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([0, 1, 4], dtype=torch.int32)
    q, k_new, v_new = torch.randn(3, 4, 16), torch.randn(4, 2, 16), torch.randn(4, 2, 16)
    k_cache, v_cache = torch.randn(2, 12, 2, 16), torch.randn(2, 12, 2, 16)
    keys, values = k_cache.clone(), v_cache.clone()
    keys[0, 5:6], keys[1, 7:10], values[0, 5:6], values[1, 7:10] = k_new[:1], k_new[1:], v_new[:1], v_new[1:]
    out = fa3.flash_attn_with_kvcache(
        q, k_cache, v_cache, k_new, v_new, cache_seqlens=torch.tensor([5, 7], dtype=torch.int32), cu_seqlens_q=cu_q,
        cu_seqlens_k_new=cu_new, max_seqlen_q=2, causal=True,
    )  # fmt: skip
    assert torch.equal(keys, k_cache) and torch.equal(values, v_cache)
    for b, (rows, length) in enumerate(((slice(0, 2), 6), (slice(2, 3), 10))):
        wanted, _ = torch_reference.attention(
            q[None, rows], keys[b : b + 1, :length], values[b : b + 1, :length], causal=True
        )
        torch.testing.assert_close(out[rows].double(), wanted[0], **CLOSE)


# ---- caches that are read in place --------------------------------------------------------------------------------


def chosen_rows(kind: str) -> list[int]:
    return {"in order": [0, 2, 3], "out of order": [3, 0, 2], "twice the same": [2, 0, 2], "all": [0, 1, 2]}[kind]


@pytest.mark.parametrize("queries", ["dense", "packed"])
@pytest.mark.parametrize("layout", ["rows behind each other", "rows apart"])
@pytest.mark.parametrize("padding", [None, [4, 0, 11]])
@pytest.mark.parametrize("kind", ["in order", "out of order", "twice the same", "all"])
def test_chosen_and_padded_rows(kind: str, padding: list[int] | None, layout: str, queries: str) -> None:
    """Where rows can be read in place, and where they cannot; NaN is what no sequence may see."""
    rows, lengths = chosen_rows(kind), [17, 5, 11]
    store = torch.full((2, 4, 40, 2, 16), torch.nan)
    k_cache, v_cache = store[:, :, :20] if layout == "rows apart" else store.view(2, 8, 20, 2, 16)[:, :4]
    for b, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        for cache in (k_cache, v_cache):
            cache[row, 0 if padding is None else padding[b] : length] = torch.randn(1)
            shown = cache[row, :length]
            shown.copy_(torch.where(shown.isnan(), shown, torch.randn_like(shown)))
    if kind == "twice the same":  # the second one sees what both left visible
        k_cache.nan_to_num_(nan=0.5), v_cache.nan_to_num_(nan=0.5)
    q, slopes = torch.randn(3, 2, 4, 16), torch.rand(3, 4)
    options: dict = {"causal": True, "window_size": (6, 0)}
    keywords: dict = {"cache_seqlens": torch.tensor(lengths), "return_softmax_lse": True, **options}
    if kind != "all":
        keywords["cache_batch_idx"] = torch.tensor(rows, dtype=torch.int32)
    if padding is not None:
        keywords["cache_leftpad"] = torch.tensor(padding, dtype=torch.int32)
    if queries == "packed":
        starts = torch.tensor([0, 2, 4, 6], dtype=torch.int32)
        out, lse = fa3.flash_attn_with_kvcache(
            q.flatten(0, 1), k_cache, v_cache, cu_seqlens_q=starts, max_seqlen_q=2, **keywords
        )
        out, lse = out.view(3, 2, 4, 16), lse.view(4, 3, 2).transpose(0, 1)
    else:
        out, lse = fa2.flash_attn_with_kvcache(q, k_cache, v_cache, alibi_slopes=slopes, **keywords)
    for b, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        keys = slice(0 if padding is None else min(padding[b], length), length)
        own = {} if queries == "packed" else {"alibi_slopes": slopes[b]}
        wanted, wanted_lse = reference(q[b : b + 1], k_cache[row][None, keys], v_cache[row][None, keys], options | own)
        torch.testing.assert_close(out[b : b + 1].double(), wanted, **CLOSE)
        torch.testing.assert_close(lse[b : b + 1].double(), wanted_lse, **CLOSE)


GROWTH = """
import torch
from tilewise.compat.flash_attn import flash_attn_with_kvcache as call
peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
q, used = torch.ones(2, 1, 8, 64), torch.tensor([9_000, 2_000])
k, v = (torch.ones(3, 10_000, 8, 64) for _ in range(2))  # 61 MB each
pages = [cache.view(300, 100, 8, 64) for cache in (k, v)]
table = torch.arange(200).view(2, 100)
CALLS = {
    "rows": lambda: call(q, k, v, cache_seqlens=used, cache_batch_idx=torch.tensor([2, 0])),
    "padded": lambda: call(q, k, v, cache_seqlens=used, cache_batch_idx=torch.tensor([2, 0]),
                           cache_leftpad=torch.tensor([7, 0])),
    "pages": lambda: call(q, *pages, cache_seqlens=used, block_table=table),
    "the same row": lambda: call(q, k, v, cache_seqlens=used, cache_batch_idx=torch.tensor([2, 2])),
}
call(q[:1, :, :1], q[:1, :, :1], q[:1, :, :1])  # allocates what a first call keeps
before = peak()
CALLS[%r]()
print((peak() - before) // 1024)
"""


@pytest.mark.parametrize(
    ("way", "least", "most"), [("rows", 0, 10), ("padded", 0, 10), ("pages", 0, 10), ("the same row", 75, 100)]
)
def test_what_is_copied(way: str, least: int, most: int) -> None:
    """Megabytes that the peak grows by: no row and no page (11,000 keys would be 45 MB); of a row twice, both (82)."""
    done = subprocess.run([sys.executable, "-c", GROWTH % way], capture_output=True, text=True, check=True)
    assert least <= int(done.stdout) <= most


# ---- refusals -----------------------------------------------------------------------------------------------------

NEW = {"k": torch.ones(2, 1, 2, 16), "v": torch.ones(2, 1, 2, 16), "cache_seqlens": 3}
ROTARY = {"rotary_cos": torch.ones(3, 8), "rotary_sin": torch.ones(5, 8)}
THREE = torch.tensor([0, 1, 2])
MISTAKES = {
    "k and v: one is given": {"k": NEW["k"]},
    "cache_seqlens: is absent": {**NEW, "cache_seqlens": None},
    "rotary_cos and rotary_sin": {"rotary_cos": torch.ones(13, 8)},
    "rotary_cos: is given without k": {"rotary_cos": torch.ones(13, 8), "rotary_sin": torch.ones(13, 8)},
    "cache_batch_idx: is 3, must be 0 to 2": {
        **NEW, "block_table": torch.zeros(3, 1).int(), "cache_batch_idx": torch.tensor([3, 0])
    },
    "cache_batch_idx: dtype is torch.float32": {**NEW, "cache_batch_idx": torch.zeros(2)},
    "cache_leftpad: dtype is torch.bool": {**NEW, "cache_leftpad": torch.zeros(2, dtype=torch.bool)},
    "cache_seqlens: dtype is torch.float64": {**NEW, "cache_seqlens": torch.tensor([3.9, 4.0], dtype=torch.float64)},
    "block_table: dtype is torch.float32": {**NEW, "block_table": torch.zeros(2, 1)},
    "cache_seqlens: is 14, must be 0 to 13": {"cache_seqlens": torch.tensor([3, 14])},
    "cache_seqlens: is -1, must be 0 to 13": {"cache_seqlens": torch.tensor([-1, 3])},
    "cache_seqlens with k: is 14, must be 0 to 13": {**NEW, "cache_seqlens": 13},
    "cache_batch_idx: is 2, must be 0 to 1": {**NEW, "cache_batch_idx": torch.tensor([0, 2])},
    "cache_batch_idx: is -1, must be 0 to 1": {**NEW, "cache_batch_idx": torch.tensor([-1, 0])},
    "cache_leftpad: is 20, must be 0 to 13": {**NEW, "cache_leftpad": torch.tensor([0, 20])},
    "block_table: is 2, must be 0 to 1": {**NEW, "block_table": torch.tensor([[0], [2]])},
    "block_table: is -3, must be 0 to 1": {"cache_seqlens": 1, "block_table": torch.tensor([[-3], [1]])},
    "a position in rotary_cos: is 3, must be 0 to 2": {**NEW, **ROTARY},
    "cache_seqlens: shape is (3,), must be (2)": {"cache_seqlens": THREE},
    "cache_batch_idx: shape is (3,), must be (2)": {**NEW, "cache_batch_idx": THREE},
    "cache_leftpad: shape is (3,), must be (2)": {**NEW, "cache_leftpad": THREE},
    "block_table: shape is (3, 1), must be (2, any)": {**NEW, "block_table": THREE[:, None]},
    "k: shape is (2, 1, 1, 16), must be (2, any, 2, 16)": {**NEW, "k": torch.ones(2, 1, 1, 16)},
    "v: shape is (2, 2, 2, 16), must be (2, 1, 2, 16)": {**NEW, "v": torch.ones(2, 2, 2, 16)},
    "v_cache: shape is (2, 12, 2, 16), must be (2, 13, 2, any)": {**NEW, "v_cache": torch.ones(2, 12, 2, 16)},
    "v_cache: dtype is torch.float64, must be q's torch.float32": {**NEW, "v_cache": torch.ones(2, 13, 2, 16).double()},
    "k_cache: holds 1 sequences, must hold q's 2": {
        **NEW, "k_cache": torch.ones(1, 13, 2, 16), "v_cache": torch.ones(1, 13, 2, 16)
    },
    "q: shape is (2, 9, 4, 8), must be (any, any, any, 16)": {**NEW, "q": torch.ones(2, 9, 4, 8)},
}  # fmt: skip
MISTAKES_OF_3 = {
    "cu_seqlens_k_new[-1]: is 3, must be 2": {"cu_seqlens_k_new": torch.tensor([0, 1, 3])},
    "cu_seqlens_k_new[0]: is 1, must be 0": {"cu_seqlens_k_new": torch.tensor([1, 1, 2])},
    "a length of cu_seqlens_k_new: is -1, must be 0 to 2": {"cu_seqlens_k_new": torch.tensor([0, 3, 2])},
    "cu_seqlens_k_new: shape is (2,), must be (3)": {"cu_seqlens_k_new": torch.tensor([0, 2])},
}


@pytest.mark.parametrize("message", [*MISTAKES, *MISTAKES_OF_3])
def test_mistakes_are_named_and_nothing_is_written(message: str) -> None:
    q, k, v = qkv()
    given = {"q": q, "k_cache": k, "v_cache": v, **MISTAKES.get(message, {})}
    call = fa2.flash_attn_with_kvcache
    if message in MISTAKES_OF_3:
        call = fa3.flash_attn_with_kvcache
        given |= {**NEW, "k": NEW["k"][0].expand(2, 2, 16), "v": NEW["v"][0].expand(2, 2, 16), **MISTAKES_OF_3[message]}
    before = [cache.clone() for cache in (k, v)]
    with pytest.raises(ValueError) as caught:
        call(**given)
    assert str(caught.value).startswith(message)
    assert torch.equal(before[0], k) and torch.equal(before[1], v)


REFUSED = {
    "softcap: is -1": {"softcap": -1.0},
    "softmax_scale: is nan": {"softmax_scale": float("nan")},
    "window_size: is (-2, 0)": {"window_size": (-2, 0)},
    "window_size: is (1, 2, 3)": {"window_size": (1, 2, 3)},
    "alibi_slopes: shape is (3)": {"alibi_slopes": torch.ones(3)},
    "alibi_slopes: dtype is fp64": {"alibi_slopes": torch.ones(4, dtype=torch.float64)},
    "q: 3 heads, must be a multiple of k's 2": {"q": torch.ones(2, 1, 3, 16)},
}


@pytest.mark.parametrize("store", ["rows", "pages", "packed"])
@pytest.mark.parametrize("message", REFUSED)
def test_options_that_the_library_refuses_write_nothing(message: str, store: str) -> None:
    q, k, v = qkv(sq=1)
    given = {"q": q, "k_cache": k, "v_cache": v, **NEW, **REFUSED[message]}
    call = fa2.flash_attn_with_kvcache
    if store == "pages":
        given["block_table"] = torch.tensor([[1], [0]])
    if store == "packed":
        call = fa3.flash_attn_with_kvcache
        given |= {"q": given["q"].flatten(0, 1), "cu_seqlens_q": torch.tensor([0, 1, 2]), "max_seqlen_q": 1}
        if "alibi_slopes" in given:
            return  # flash-attn 3 has none
    before = [cache.clone() for cache in (k, v)]
    with pytest.raises((RuntimeError, ValueError, TypeError)) as caught:
        call(**given)
    assert message in str(caught.value)
    assert torch.equal(before[0], k) and torch.equal(before[1], v)


def test_a_full_cache_raises_what_flash_attn_raises() -> None:
    q, k, v = qkv(sq=1)
    for call in (fa2.flash_attn_with_kvcache, fa3.flash_attn_with_kvcache):
        with pytest.raises(RuntimeError, match="cache_seqlens with k: is 14, must be 0 to 13"):
            call(q, k, v, NEW["k"], NEW["v"], cache_seqlens=13)
        with pytest.raises(TypeError, match=r"cache_seqlens: is 3\.7, must be an integer"):
            call(q, k, v, cache_seqlens=3.7)


def test_messages_have_the_callers_name_of_the_table() -> None:
    q, k, v = qkv(sq=1)
    for table, words in (
        (torch.tensor([[0], [2]]), "page_table: is 2, must be 0 to 1"),
        (torch.zeros(3, 1).int(), "page_table: shape is (3, 1)"),
        (torch.zeros(2, 1), "page_table: dtype is torch.float32"),
    ):
        with pytest.raises(RuntimeError) as caught:
            fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=3, page_table=table)
        assert str(caught.value).startswith(words)
    with pytest.raises(RuntimeError, match="a length of page_table's sequences: is 14|cache_seqlens: is 14"):
        fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=14, page_table=torch.tensor([[0], [1]]))


def test_pages_after_the_end_may_be_any_number() -> None:
    q, k, v = qkv(sq=1)
    table = torch.tensor([[1, -7], [0, 99]])
    out = fa2.flash_attn_with_kvcache(q, k, v, cache_seqlens=torch.tensor([13, 2]), block_table=table)
    wanted = fa2.flash_attn_with_kvcache(q, k, v, cache_seqlens=torch.tensor([13, 2]), cache_batch_idx=table[:, 0])
    torch.testing.assert_close(out, wanted)


def test_a_page_of_a_packed_batch_that_is_not_there() -> None:
    q, starts, pages = torch.randn(4, 2, 16), torch.tensor([0, 4]), torch.randn(3, 4, 2, 16)
    for table, message in ((torch.tensor([[3]]), "block_table: is 3, must be 0 to 2"),
                           (torch.tensor([[]], dtype=torch.int32), "a length of block_table")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            fa2.flash_attn_varlen_func(q, pages, pages, starts, starts, 4, 4, block_table=table)


def test_traced_calls_do_not_look_at_contents() -> None:
    q, k, v = qkv(sq=1)
    table = {"block_table": torch.tensor([[1], [0]])}
    for more in (
        {}, {"cache_batch_idx": torch.tensor([1, 0])}, table, {**table, "cache_batch_idx": torch.tensor([1, 0])},
        {**table, "cache_leftpad": torch.tensor([1, 2])},
    ):  # fmt: skip
        keywords = {"k": NEW["k"], "v": NEW["v"], "cache_seqlens": torch.tensor([3, 7]), **more}
        caches = [[cache.clone() for cache in (k, v)] for _ in range(2)]
        compiled = torch.compile(fa2.flash_attn_with_kvcache, fullgraph=True, backend="aot_eager")
        found, wanted = compiled(q, *caches[0], **keywords), fa2.flash_attn_with_kvcache(q, *caches[1], **keywords)
        torch.testing.assert_close(found, wanted)
        assert all(torch.equal(a, b) for a, b in zip(*caches, strict=True))
