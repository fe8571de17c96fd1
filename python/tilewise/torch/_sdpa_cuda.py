"""Tilewise as one of PyTorch's implementations of flash attention on CUDA, named "tilewise".

PyTorch chooses its back end as always, but asks flash attention first (it prefers cuDNN on Hopper); where that is taken,
the forward pass is ours if our fast kernels cover it, and PyTorch's own kernel answers the rest. The backward pass is
PyTorch's: it reads our output and log-sum-exp.
"""

import contextlib
import math
import warnings
from typing import Any

import torch

from tilewise.torch._schema import FORWARD

NAME = "tilewise"
_LARGEST_HEAD_DIM = 256  # the largest of the fast CUDA kernels; docs/cuda.md

_handle: "_Handle | None" = None
_order: list[int] | None = None  # the order of PyTorch's back ends before ours came first


class _Handle:
    """The kernels that stand in PyTorch's place; remove() puts PyTorch's back."""

    def __init__(self) -> None:
        self._library: torch.library.Library | None = torch.library.Library("aten", "IMPL")
        self._dense = torch.library.get_kernel("aten::_scaled_dot_product_flash_attention", "CUDA")
        self._packed = torch.library.get_kernel("aten::_flash_attention_forward", "CUDA")
        with warnings.catch_warnings():  # PyTorch warns that a kernel is replaced, which is intended
            warnings.simplefilter("ignore", UserWarning)
            self._library.impl(
                "_scaled_dot_product_flash_attention", self._run_dense, "CUDA", with_keyset=True
            )
            self._library.impl("_flash_attention_forward", self._run_packed, "CUDA", with_keyset=True)

    def remove(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _run_dense(
        self,
        keys: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:
        """q, k, v (B, H, S, D). A causal square has one alignment; PyTorch sends no other."""
        square = query.shape[2] == key.shape[2]
        ours = _is_ours(query, key, value, scale)
        if dropout_p != 0.0 or return_debug_mask or (is_causal and not square) or not ours:
            return self._dense.call_boxed(
                keys, query, key, value, dropout_p, is_causal, return_debug_mask, scale=scale
            )
        out, lse = _forward(query, key, value, *[None] * 9, scale, is_causal, -1, -1, False, 0.0, 0.0, -1, -1, True)
        return (out, lse, None, None, query.shape[2], key.shape[2], *_no_dropout(query))

    def _run_packed(
        self,
        keys: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cum_seq_q: torch.Tensor | None,
        cum_seq_k: torch.Tensor | None,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        return_debug_mask: bool,
        *,
        scale: float | None = None,
        window_size_left: int | None = None,
        window_size_right: int | None = None,
        seqused_k: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        **later: Any,
    ) -> tuple[Any, ...]:
        """q, k, v packed (T, H, D) with cum_seq, or dense (B, S, H, D). Bottom-right, as flash attention is."""
        ours = dropout_p == 0.0 and not return_debug_mask and _is_ours(query, key, value, scale)
        if not ours or any(option is not None for option in later.values()):
            return self._packed.call_boxed(
                keys, query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask,
                scale=scale, window_size_left=window_size_left, window_size_right=window_size_right,
                seqused_k=seqused_k, alibi_slopes=alibi_slopes, **later,
            )  # fmt: skip
        left = -1 if window_size_left is None else window_size_left
        right = -1 if window_size_right is None else window_size_right
        packed = cum_seq_q is not None
        out, lse = _forward(
            query, key, value, None, None, alibi_slopes, None, cum_seq_q, cum_seq_k, seqused_k, None, None, scale,
            is_causal, left, right, False, 0.0, 0.0, max_q if packed else -1, max_k if packed else -1,
        )  # fmt: skip
        # For a row without keys, PyTorch's backward pass computes its probabilities as exp(-inf - lse) and expects 0.
        return (out, lse.masked_fill_(lse == -math.inf, math.inf), *_no_dropout(query))


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


def _forward(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The operator; what autocast changes has been changed before PyTorch came to a back end."""
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        out, lse = FORWARD(*args)
    return out, lse


def _is_ours(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> bool:
    """What the fast kernels cover: 16-bit, head dimensions that are multiples of 8 up to 256, a finite scale."""
    dtype, dim, value_dim = query.dtype, query.shape[-1], value.shape[-1]
    return (
        (dtype is torch.bfloat16 or dtype is torch.float16)
        and dtype is key.dtype
        and dtype is value.dtype
        and dim % 8 == value_dim % 8 == 0
        and dim <= _LARGEST_HEAD_DIM
        and value_dim <= _LARGEST_HEAD_DIM
        and query.numel() > 0
        and key.numel() > 0
        and value.numel() > 0
        and (scale is None or math.isfinite(scale))
    )


def _no_dropout(query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """PyTorch's other results: memory for the generator's state and offset, which nothing reads, an empty mask."""
    return (
        query.new_empty((2,), dtype=torch.uint64),
        query.new_empty((), dtype=torch.uint64),
        query.new_empty((0,)),
    )


def _register() -> _Handle:
    global _handle
    _handle = _Handle()
    return _handle


def _ask_flash_first() -> None:
    global _order
    if not hasattr(torch._C, "_set_sdp_priority_order"):
        return
    probe = torch.empty(1, 1, 8, 8, dtype=torch.float16, device="cuda")
    with contextlib.suppress(RuntimeError):  # the user has disabled every back end that supports it
        # The first choice would set PyTorch's default order over any other.
        torch._fused_sdp_choice(probe, probe, probe)
    _order = torch._C._get_sdp_priority_order()
    flash = torch.nn.attention.SDPBackend.FLASH_ATTENTION.value
    torch._C._set_sdp_priority_order([flash, *(backend for backend in _order if backend != flash)])


def enable() -> None:
    """Makes "tilewise" the active implementation where this PyTorch has CUDA devices and such a registry."""
    attention = torch.nn.attention
    known = hasattr(attention, "register_flash_attention_impl") and hasattr(torch.library, "get_kernel")
    if not known or not torch.cuda.is_available():
        return
    attention.register_flash_attention_impl(NAME, register_fn=_register)
    attention.activate_flash_attention_impl(NAME)
    _ask_flash_first()


def disable() -> None:
    """Makes PyTorch's own implementation the active one again."""
    global _handle, _order
    if _handle is None:
        return
    if _order is not None:
        torch._C._set_sdp_priority_order(_order)
        _order = None
    restore = getattr(torch.nn.attention, "restore_flash_attention_impl", None)
    if restore is not None:
        restore()
    _handle.remove()
    _handle = None
