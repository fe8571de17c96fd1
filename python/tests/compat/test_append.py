"""Compares the library's append to a cache with PyTorch's operators, which serve what it cannot."""

import pytest
import tilewise.compat.flash_attn as fa2
import torch
from tilewise.compat import _kvcache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("where", ["rows", "chosen", "pages"])
def test_library_appends_the_bits_of_pytorch(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, interleaved: bool, where: str
) -> None:
    caches = [torch.randn(6, 8, 2, 16).to(dtype) for _ in range(2)]
    q, k, v = (torch.randn(3, 2, heads, 16).to(dtype) for heads in (4, 2, 2))
    angles = torch.randn(20, 6)
    options = {
        "cache_seqlens": torch.tensor([1, 4, 6], dtype=torch.int32), "causal": interleaved,
        "rotary_cos": angles.cos(), "rotary_sin": angles.sin().to(torch.float32), "rotary_interleaved": interleaved,
    }  # fmt: skip
    if where == "chosen":
        options["cache_batch_idx"] = torch.tensor([4, 0, 2], dtype=torch.int32)
    if where == "pages":
        options["block_table"] = torch.tensor([[5, 1], [0, 3], [2, 4]], dtype=torch.int32)
    results = []
    for in_library in (True, False):
        if not in_library:
            monkeypatch.setattr(_kvcache.Call, "_is_for_library", lambda self: False)
            monkeypatch.setattr(_kvcache.Call, "_append", None)
        own = [cache.clone() for cache in caches]
        out = fa2.flash_attn_with_kvcache(q, *own, k, v, **options)
        results.append([out, *own])
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)
