"""A cache of float8: what its dtypes and scales may be, and its rows, which PyTorch copies only as bytes."""

from typing import Any

import torch
from tilewise._quantise import quantise
from tilewise.compat._contents import ArgumentError
from tilewise.torch._schema import FLOAT8

Tensor = torch.Tensor

# Names of vLLM for the dtype of a cache. "auto" is what the tensors say.
_CACHE_DTYPES = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def as_stored(name: str, cache: Tensor, kv_cache_dtype: str) -> Tensor:
    """The cache in the dtype that `kv_cache_dtype` names; it may be given as uint8."""
    if kv_cache_dtype == "auto":
        return cache
    dtype = _CACHE_DTYPES.get(kv_cache_dtype)
    if dtype is None:
        names = ", ".join(("auto", *_CACHE_DTYPES))
        raise ArgumentError(f"kv_cache_dtype: is {kv_cache_dtype!r}, must be one of {names}")
    if cache.dtype not in (torch.uint8, dtype):
        raise ArgumentError(f"{name}: dtype is {cache.dtype}, must be torch.uint8 or {dtype} for {kv_cache_dtype!r}")
    return cache.view(dtype)


def check_caches(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.dtype in FLOAT8 and q.dtype not in FLOAT8:
            continue
        if cache.dtype != q.dtype:
            raise ArgumentError(f"{name}: dtype is {cache.dtype}, must be q's {q.dtype}, or float8 with a wider q")
    if v_cache.dtype != k_cache.dtype:
        raise ArgumentError(f"v_cache: dtype is {v_cache.dtype}, must be k_cache's {k_cache.dtype}")


def check_descales(descales: dict[str, Tensor], batch: int, kv_heads: int) -> None:
    for name, scale in descales.items():
        if tuple(scale.shape) not in ((1,), (batch, kv_heads)):
            raise ArgumentError(f"{name}: shape is {tuple(scale.shape)}, must be (1) or (B, Hk) = ({batch}, {kv_heads})")


def rounded(tokens: Tensor, dtype: torch.dtype, descale: Tensor | None, sequence: Tensor) -> Tensor:
    """tokens (T, Hk, D) in the dtype of a cache, divided by their scales if that is float8.

    sequence (T): of each token, ascending.
    """
    if tokens.dtype == dtype or dtype not in FLOAT8:
        return tokens.to(dtype)
    if descale is None:
        descale = torch.ones(1)
    if descale.dim() == 1:
        return quantise(tokens.contiguous(), dtype, scales="tensor", descale=descale).values
    counts = torch.bincount(sequence, minlength=descale.shape[0])
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return quantise(tokens.contiguous(), dtype, scales="head", descale=descale, cu_seqlens=starts).values


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.dtype in FLOAT8 else tensor


def put(cache: Tensor, where: Any, rows: Tensor) -> None:
    """cache[where] = rows, of one dtype."""
    _bytes(cache)[where] = _bytes(rows)


def take(tensor: Tensor, index: Tensor) -> Tensor:
    """tensor[index] along the first dimension."""
    return _bytes(tensor)[index].view(tensor.dtype)
