"""flash-attn's functions on float8 of the CPU, against tilewise.torch on the numbers times their scales."""

from typing import Any

import pytest
import tilewise
import tilewise.compat.flash_attn as fa2
import tilewise.compat.flash_attn_interface as fa3
import torch
from tilewise.torch import attention

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def stored(length: int, dtype: torch.dtype = E4M3) -> tuple[torch.Tensor, torch.Tensor]:
    """(3, length, 2, 16), and its scales (3, 2)."""
    values, descale = tilewise.quantise(torch.randn(3, length, 2, 16), dtype, scales="head")
    return values, descale


def numbers(values: torch.Tensor, descale: torch.Tensor) -> torch.Tensor:
    return values.float() * descale[:, None, :, None]


def test_dense_and_packed_take_the_descales_of_flash_attn_3() -> None:
    (k, k_descale), (v, v_descale) = stored(13), stored(13)
    q, q_descale = tilewise.quantise(torch.randn(3, 9, 4, 16), scales="head", kv_heads=2)
    scales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    wide = [numbers(q, q_descale.repeat_interleave(2, 1)), numbers(k, k_descale), numbers(v, v_descale)]
    out = fa3.flash_attn_func(q, k, v, causal=True, **scales)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), attention(*wide, causal=True), rtol=1e-2, atol=1e-2)
    starts = [torch.arange(4) * length for length in (9, 13)]
    packed = fa3.flash_attn_varlen_func(*(t.flatten(0, 1) for t in (q, k, v)), *starts, 9, 13, causal=True, **scales)
    assert torch.equal(packed.view(out.shape), out)


def test_qkvpacked_takes_the_descales() -> None:
    (k, k_descale), (v, v_descale) = stored(13), stored(13)
    scales = {"q_descale": k_descale, "k_descale": k_descale, "v_descale": v_descale}
    qkv = torch.stack([tensor.view(torch.uint8) for tensor in (k, k, v)], 2).view(E4M3)
    assert torch.equal(fa3.flash_attn_qkvpacked_func(qkv, **scales), fa3.flash_attn_func(k, k, v, **scales))


def in_pages(rows: torch.Tensor, table: torch.Tensor, size: int) -> torch.Tensor:
    """The rows of each sequence in the pages that the table names."""
    pages = torch.zeros(int(table.max()) + 1, size, *rows.shape[2:], dtype=torch.uint8)
    pages[table.long()] = rows.view(torch.uint8).unflatten(1, (-1, size))
    return pages.view(rows.dtype)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("store", ["rows", "cache_batch_idx", "cache_leftpad", "pages"])
@pytest.mark.parametrize("new", [0, 2])
def test_a_cache_grows_and_is_read(new: int, store: str, dtype: torch.dtype) -> None:
    lengths = torch.tensor([5, 9, 1], dtype=torch.int32)
    (k, k_descale), (v, v_descale) = stored(12, dtype), stored(12, dtype)
    q, fresh = torch.randn(3, 2, 4, 16), [torch.randn(3, new, 2, 16) / 2 for _ in "kv"]
    given: dict[str, Any] = {"k_descale": k_descale, "v_descale": v_descale, "cache_seqlens": lengths, "causal": True}
    used, first = lengths + new, torch.zeros(3, dtype=torch.int32)
    order = torch.tensor([2, 0, 1])
    rows = order if store == "cache_batch_idx" else torch.arange(3)
    caches = [tensor.view(torch.uint8).clone().view(dtype) for tensor in (k, v)]
    if store == "cache_batch_idx":
        given["cache_batch_idx"] = order.int()
    if store == "cache_leftpad":
        given["cache_leftpad"] = first = torch.tensor([1, 0, 1], dtype=torch.int32)
    if store == "pages":
        given["block_table"] = torch.tensor([[4, 1, 0], [2, 6, 3], [8, 7, 5]], dtype=torch.int32)
        caches = [in_pages(tensor, given["block_table"], 4) for tensor in caches]
    if new:
        given |= dict(zip("kv", fresh, strict=True))
    out = fa2.flash_attn_with_kvcache(q, *caches, **given)
    for b, row in enumerate(rows.tolist()):
        begin, end = int(first[b]), int(used[b])
        wide = []
        for old, descale, added in zip((k, v), (k_descale, v_descale), fresh, strict=True):
            scale = descale[b][:, None]
            rounded = (added[b] / scale).to(dtype).float() * scale
            kept = old[row, : int(lengths[b])].float() * scale
            wide.append(torch.cat((kept, rounded))[None, begin:end])
        torch.testing.assert_close(out[b : b + 1], attention(q[b : b + 1], *wide, causal=True), **CLOSE)


@pytest.mark.parametrize(("name", "dtype"), [("fp8", E4M3), ("fp8_e4m3", E4M3), ("fp8_e5m2", E5M2)])
def test_a_cache_of_bytes_is_what_its_name_says(name: str, dtype: torch.dtype) -> None:
    (k, k_descale), (v, v_descale) = stored(12, dtype), stored(12, dtype)
    q, scales = torch.randn(3, 2, 4, 16).bfloat16(), {"k_descale": k_descale, "v_descale": v_descale}
    wanted = fa2.flash_attn_with_kvcache(q, k, v, **scales)
    for caches in ((k, v), (k.view(torch.uint8), v.view(torch.uint8))):
        assert torch.equal(fa2.flash_attn_with_kvcache(q, *caches, kv_cache_dtype=name, **scales), wanted)
    assert torch.equal(fa3.flash_attn_with_kvcache(q, k, v, **scales), wanted)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype: is 'int8', must be one of auto, fp8"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "k_cache: dtype is torch.float8_e4m3fn, must be torch.uint8 or"),
        ({"k_descale": torch.ones(2)}, "k_descale: shape is (2,), must be (1) or (B, Hk) = (3, 2)"),
        ({"v_descale": torch.ones(3, 2, 1)}, "v_descale: shape is (3, 2, 1)"),
        ({"k_descale": torch.zeros(1)}, "is 0, must be"),
        ({"v_descale": torch.tensor([-1.0])}, "is -1, must be"),
        ({"k_descale": torch.tensor([float("nan")])}, "is nan, must be"),
        ({"v_descale": torch.tensor([float("inf")])}, "is inf, must be"),
    ],
)
def test_refusals_come_before_the_cache_is_written(given: dict[str, Any], words: str) -> None:
    (k, _), (v, _) = stored(12), stored(12)
    before = [tensor.view(torch.uint8).clone() for tensor in (k, v)]
    fresh = torch.randn(3, 1, 2, 16)
    with pytest.raises((ValueError, RuntimeError)) as raised:
        fa2.flash_attn_with_kvcache(torch.randn(3, 2, 4, 16), k, v, fresh, fresh, cache_seqlens=3, **given)
    assert words in str(raised.value)
    assert all(torch.equal(tensor.view(torch.uint8), old) for tensor, old in zip((k, v), before, strict=True))


def test_caches_have_one_dtype() -> None:
    (k, _), (v, _) = stored(12), stored(12, E5M2)
    with pytest.raises(ValueError, match="v_cache: dtype is torch.float8_e5m2, must be k_cache's"):
        fa2.flash_attn_with_kvcache(torch.randn(3, 2, 4, 16), k, v)
