"""attention_chunk of flash-attn 3: a row sees the keys of its own chunk, which are counted from the first key."""

import itertools

import pytest
import tilewise.compat.flash_attn_interface as fa3
import torch
import torch_reference
from tilewise.torch import _chunks

CLOSE = {"rtol": 2e-5, "atol": 2e-5}
MASKS = {
    "plain": {}, "causal": {"causal": True}, "window": {"window_size": (4, 2)}, "left": {"window_size": (3, -1)},
    "right": {"window_size": (-1, 1)}, "causal window": {"causal": True, "window_size": (2, 0)},
    "wide": {"causal": True, "window_size": (100, 0)},
}  # fmt: skip
SIZES = [(20, 20), (7, 20), (1, 20), (20, 7), (20, 13), (13, 12), (1, 1), (5, 0), (0, 5)]


def in_chunk(rows: int, keys: int, chunk: int) -> torch.Tensor:
    """(rows, keys) bool."""
    i, j = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)
    return i // chunk == j // chunk


def reference(q, k, v, chunk: int, options: dict):  # noqa: ANN001, ANN201
    names = {"window_size": "window", "softmax_scale": "scale"}
    options = {names.get(name, name): value for name, value in options.items()}
    return torch_reference.attention(q, k, v, mask=in_chunk(q.shape[1], k.shape[1], chunk), **options)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_slices_are_the_mask(size: tuple[int, int]) -> None:
    """Drawn by hand from what docs/semantics.md says of each kind; no key is named twice."""
    rows, keys = size
    for chunk, left, right, first in itertools.product((1, 3, 6, 50), (-1, 0, 2, 5), (-1, 0, 1, 4), (0, 4)):
        drawn = torch.zeros(rows, keys, dtype=torch.int64)
        found = _chunks.slices(rows, keys, chunk, left, right, first=first)
        for q0, q1, k0, k1, kind in found:
            assert 0 <= q0 < q1 <= rows and 0 <= k0 < k1 <= keys
            i, j = torch.arange(q1 - q0)[:, None], torch.arange(k1 - k0)
            d = (k1 - k0) - (q1 - q0)
            shown = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool)
            if kind & 1:
                shown &= j <= i + d
            if kind & 2:
                shown &= j >= i
            drawn[q0:q1, k0:k1] += shown
        i, j = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)
        wanted = ((i + first) // chunk == (j + first) // chunk) & torch_reference.visible(rows, keys, window=(left, right))
        wanted &= i >= 0  # a row before the first key is in no chunk that has keys
        assert torch.equal(drawn, wanted.long()), (chunk, left, right, first)
        assert len(found) <= 3 * (keys // chunk + 2)


@pytest.mark.parametrize("chunk", [1, 6, 64])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_dense(size: tuple[int, int], mask: str, chunk: int) -> None:
    shapes = [(2, size[0], 4, 16), (2, size[1], 2, 16), (2, size[1], 2, 16)]
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    wanted, wanted_lse = reference(q, k, v, chunk, MASKS[mask])
    out, lse = fa3.flash_attn_func(q, k, v, attention_chunk=chunk, **MASKS[mask], return_attn_probs=True)
    torch.testing.assert_close(out.double(), wanted, **CLOSE)
    torch.testing.assert_close(lse.double(), wanted_lse, **CLOSE)
    if size[0] == size[1] > 1:
        packed = torch.stack((q, q, q), 2)
        again = fa3.flash_attn_qkvpacked_func(packed, attention_chunk=chunk, **MASKS[mask])
        assert torch.equal(again, fa3.flash_attn_func(q, q, q, attention_chunk=chunk, **MASKS[mask]))
    dout = torch.randn_like(out)
    for found, true in zip(
        torch.autograd.grad(out, (q, k, v), dout), torch.autograd.grad(wanted, (q, k, v), dout.double()), strict=True
    ):
        torch.testing.assert_close(found, true.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("used", [None, [4, 0, 13]])
@pytest.mark.parametrize("mask", MASKS)
def test_varlen(mask: str, used: list[int] | None) -> None:
    cu_q, cu_k = torch.tensor([0, 4, 4, 15], dtype=torch.int32), torch.tensor([0, 9, 11, 30], dtype=torch.int32)
    q, k, v = torch.randn(15, 4, 16), torch.randn(30, 2, 16), torch.randn(30, 2, 16)
    given = {"attention_chunk": 5, **MASKS[mask]} | ({} if used is None else {"seqused_k": torch.tensor(used)})
    out = fa3.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 11, 19, **given)
    torch.compiler.reset()
    compiled = torch.compile(fa3.flash_attn_varlen_func, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v, cu_q, cu_k, 11, 19, **given), out, **CLOSE)
    lengths = cu_k.diff().tolist() if used is None else used
    for rows, columns, n in zip(torch_reference.sequences(cu_q), torch_reference.sequences(cu_k), lengths, strict=True):
        keys = slice(columns.start, columns.start + n)
        wanted, _ = reference(q[None, rows], k[None, keys], v[None, keys], 5, MASKS[mask])
        torch.testing.assert_close(out[rows].double(), wanted[0], **CLOSE)


@pytest.mark.parametrize("mask", ["plain", "causal", "causal window"])
@pytest.mark.parametrize("store", ["rows", "cache_batch_idx", "cache_leftpad", "page_table", "pages and leftpad"])
@pytest.mark.parametrize("queries", ["dense", "packed"])
def test_with_kvcache(store: str, mask: str, queries: str) -> None:
    lengths, rows, leftpad = [5, 12, 20], [0, 1, 2], [0, 0, 0]
    given: dict = {"cache_seqlens": torch.tensor(lengths), "attention_chunk": 4, **MASKS[mask]}
    k_cache, v_cache = (torch.randn(4, 24, 2, 16) for _ in range(2))
    keys, values = k_cache, v_cache
    if store == "cache_batch_idx":
        rows = [3, 0, 2]
        given["cache_batch_idx"] = torch.tensor(rows)
    if "pages" in store or store == "page_table":
        table = torch.randperm(12)[:9].view(3, 3)
        given["page_table"] = table
        k_cache, v_cache = (cache.reshape(12, 8, 2, 16) for cache in (k_cache, v_cache))
        keys, values = (torch.stack([cache[table[b]].flatten(0, 1) for b in range(3)]) for cache in (k_cache, v_cache))
    if "leftpad" in store:
        leftpad = [1, 0, 6]
        given["cache_leftpad"] = torch.tensor(leftpad)
    q = torch.randn(3, 3, 4, 16)
    if queries == "packed":
        if store == "cache_batch_idx":
            given["cache_batch_idx"] = torch.tensor(rows := [0, 2, 3])
        given |= {"cu_seqlens_q": torch.tensor([0, 3, 6, 9]), "max_seqlen_q": 3}
        out = fa3.flash_attn_with_kvcache(q.flatten(0, 1), k_cache, v_cache, **given).view(q.shape)
    else:
        out = fa3.flash_attn_with_kvcache(q, k_cache, v_cache, **given)
    for b, (row, first, length) in enumerate(zip(rows, leftpad, lengths, strict=True)):
        own = slice(first, length)
        wanted, _ = reference(q[b : b + 1], keys[row][None, own], values[row][None, own], 4, MASKS[mask])
        torch.testing.assert_close(out[b : b + 1].double(), wanted, **CLOSE)


def test_memory_does_not_grow_with_the_square_of_the_length() -> None:
    slices = _chunks.slices(1 << 20, 1 << 20, 8192, -1, 0)
    assert len(slices) == 128 and slices[0] == [0, 8192, 0, 8192, 1]


@pytest.mark.parametrize("chunk", [-1, 1.5, "4"])
def test_other_sizes_are_refused(chunk: object) -> None:
    q = torch.randn(1, 4, 2, 16)
    for call in (fa3.flash_attn_func, fa3.flash_attn_with_kvcache):
        with pytest.raises((TypeError, ValueError), match="attention_chunk: is"):
            call(q, q, q, attention_chunk=chunk)


def test_in_a_graph() -> None:
    q = torch.randn(2, 13, 2, 16)
    compiled = torch.compile(fa3.flash_attn_func, fullgraph=True, backend="aot_eager")
    wanted = fa3.flash_attn_func(q, q, q, causal=True, attention_chunk=5)
    torch.testing.assert_close(compiled(q, q, q, causal=True, attention_chunk=5), wanted, **CLOSE)
