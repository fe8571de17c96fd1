"""Tilewise in ``torch.nn.functional.scaled_dot_product_attention``, for code that calls PyTorch's function.

On the CPU every eager call that Tilewise can do is answered by it: fp64, fp32, bf16, fp16; boolean and additive masks,
with the gradient of an additive one; ``is_causal`` (top-left, as PyTorch defines it), GQA, dropout, scale, L != S. On
CUDA it is PyTorch's own registry of flash attention implementations that answers (_sdpa_cuda.py). The rest goes
PyTorch's way: other shapes and devices, nested tensors and subclasses, graphs that torch.compile traces, transforms of
torch.func, and code under ``torch.nn.attention.sdpa_kernel`` without the flash back end.
"""

import contextlib
import math
import threading
from collections.abc import Iterator

import torch

from tilewise.torch import _sdpa_cuda
from tilewise.torch._attention import _dropout_state
from tilewise.torch._autograd import forward

_PYTORCH = torch.ops.aten.scaled_dot_product_attention.default
_DTYPES = frozenset((torch.float64, torch.float32, torch.bfloat16, torch.float16))
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))

_lock = threading.Lock()
_library: torch.library.Library | None = None


def _scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """PyTorch's operator, on the CPU. q (B, H, L, E), k (B, Hk, S, E), v (B, Hk, S, Ev), or all (N, L, E)."""
    if not (
        _do_we_run(query)
        and _are_inputs_ours(query, key, value, enable_gqa)
        and _is_mask_ours(query, key, attn_mask, is_causal)
        and 0.0 <= dropout_p < 1.0
        and (scale is None or math.isfinite(scale))
    ):
        return _PYTORCH.decompose(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    single_head = query.dim() == 3
    if single_head:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unsqueeze(1)
    is_mask = attn_mask is not None and attn_mask.dtype == torch.bool
    out, _ = forward(
        query, key, value, attn_mask if is_mask else None, None if is_mask else attn_mask, None, None, None, None, None,
        None, _dropout_state(None, 0) if dropout_p > 0.0 else None, scale, is_causal, -1, -1, True, 0.0, dropout_p, -1,
        -1, True,
    )  # fmt: skip
    return out.squeeze(1) if single_head else out


def _do_we_run(query: torch.Tensor) -> bool:
    """False while a graph is traced (it may be stored on disk), under torch.func, or if the user chose a back end."""
    return (
        type(query) in _PLAIN
        and torch._C._get_flash_sdp_enabled()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch.autograd.forward_ad._current_level < 0
    )


def _are_inputs_ours(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> bool:
    rank = query.dim()
    if rank not in (3, 4) or key.dim() != rank or value.dim() != rank:
        return False
    if not (query.dtype == key.dtype == value.dtype and query.dtype in _DTYPES):
        return False
    if not (query.is_cpu and key.is_cpu and value.is_cpu) or query.is_nested:
        return False
    if 0 in query.shape or 0 in key.shape or 0 in value.shape or key.shape[:-1] != value.shape[:-1]:
        return False
    if query.shape[0] != key.shape[0] or query.shape[-1] != key.shape[-1]:
        return False
    if rank == 3:
        return not enable_gqa
    heads, kv_heads = query.shape[1], key.shape[1]
    return heads == kv_heads or (enable_gqa and heads % kv_heads == 0)


def _is_mask_ours(
    query: torch.Tensor, key: torch.Tensor, attn_mask: torch.Tensor | None, is_causal: bool
) -> bool:
    if attn_mask is None:
        return True
    if is_causal or type(attn_mask) not in _PLAIN or not attn_mask.is_cpu:
        return False
    if attn_mask.dtype not in (torch.bool, query.dtype, torch.float32):
        return False
    full = (*query.shape[:-1], key.shape[-2])
    if not 1 <= attn_mask.dim() <= len(full):
        return False
    return all(size in (1, extent) for size, extent in zip(attn_mask.shape[::-1], full[::-1], strict=False))


def enable_sdpa() -> None:
    """Answers scaled_dot_product_attention with Tilewise in this process, on every thread. Twice is once."""
    global _library
    with _lock:
        if _library is not None:
            return
        library = torch.library.Library("aten", "IMPL")
        for key in ("CPU", "AutogradCPU"):
            library.impl("scaled_dot_product_attention", _scaled_dot_product_attention, key)
        _library = library
        try:
            _sdpa_cuda.enable()
        except BaseException:
            _disable()
            raise


def disable_sdpa() -> None:
    """Gives scaled_dot_product_attention back to PyTorch, bit for bit as it was."""
    with _lock:
        _disable()


def _disable() -> None:
    global _library
    if _library is None:
        return
    _sdpa_cuda.disable()
    _library._destroy()
    _library = None


def sdpa_enabled() -> bool:
    """Returns whether enable_sdpa() is in force."""
    return _library is not None


@contextlib.contextmanager
def sdpa() -> Iterator[None]:
    """``with tilewise.torch.sdpa():`` enables it for a block, and leaves it as it was before."""
    before = sdpa_enabled()
    enable_sdpa()
    try:
        yield
    finally:
        if not before:
            disable_sdpa()
