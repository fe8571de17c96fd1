"""The functions below flash-attn 2's differentiable ones: no gradient, and the backward pass as a call of its own."""

from typing import Any

import torch
from tilewise.compat._call import (
    dense_options,
    dense_probabilities,
    number,
    packed_options,
    packed_probabilities,
    refuse,
)
from tilewise.compat._contents import ArgumentError
from tilewise.torch import attention
from tilewise.torch._attention import _dropout_state, window_pair
from tilewise.torch._schema import BACKWARD

Tensor = torch.Tensor
Forward = tuple[Tensor, Tensor, Tensor, Tensor]


def _flash_attn_forward(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool, window_size_left: int,
    window_size_right: int, softcap: float, alibi_slopes: Tensor | None, return_softmax: bool,
) -> Forward:  # fmt: skip
    """q (B, Sq, H, D), k and v (B, Sk, Hk, D).

    Returns out, lse (B, H, Sq), the signed probabilities (empty unless return_softmax and dropout), and the seed and
    offset of dropout, (2) int64 on the CPU.
    """
    state, seeds = _seeds(dropout_p)
    with torch.no_grad():
        options = dense_options(
            q, k, softmax_scale, causal, (window_size_left, window_size_right), softcap, alibi_slopes, False
        )
        out, lse = attention(q, k, v, **options, **seeds, return_lse=True)
        shown = dense_probabilities(q, k, options, seeds if return_softmax else {})
    return out, lse, shown, state


def _flash_attn_varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float, softmax_scale: float | None, causal: bool, window_size_left: int = -1,
    window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Tensor | None = None, return_softmax: bool = False,
    block_table: Tensor | None = None, leftpad_k: Tensor | None = None, seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
) -> Forward:  # fmt: skip
    """q (Tq, H, D), k and v (Tk, Hk, D) or pages. As above, with lse (H, Tq). What belongs to no sequence is always 0,
    as zero_tensors asks."""
    refuse(leftpad_k=leftpad_k is not None, return_softmax=return_softmax and dropout_p > 0 and block_table is not None)
    state, seeds = _seeds(dropout_p)
    with torch.no_grad():
        k, v, options = packed_options(
            q, k, v, (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), softmax_scale, causal,
            (window_size_left, window_size_right), softcap, alibi_slopes, False, block_table, seqused_k,
        )  # fmt: skip
        out, lse = attention(q, k, v, **options, **seeds, return_lse=True)
        shown = packed_probabilities(q, k, cu_seqlens_q, cu_seqlens_k, options, seeds if return_softmax else {})
    return out, lse, shown, state


def _flash_attn_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, dropout_p: float, softmax_scale: float | None, causal: bool,
    window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Tensor | None, deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Writes the gradients that are given. out and softmax_lse may be those of more keys than k and v are (ring
    attention). Returns rowsum(dout * out), (B, H, Sq) float32."""
    window = (window_size_left, window_size_right)
    options = (
        softmax_scale, causal, *window_pair(window), False, softcap, dropout_p, -1, -1, False, deterministic, False,
    )  # fmt: skip
    tensors = (None, None, alibi_slopes, None, None, None, None, None, _state(dropout_p, rng_state))
    _write_gradients((dq, dk, dv), dout, q, k, v, out, softmax_lse, tensors, options)
    return (dout.float() * out.float()).sum(-1).transpose(1, 2)


def _flash_attn_varlen_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float, softmax_scale: float | None, causal: bool, window_size_left: int,
    window_size_right: int, softcap: float, alibi_slopes: Tensor | None, deterministic: bool,
    rng_state: Tensor | None = None, zero_tensors: bool = False,
) -> Tensor:  # fmt: skip
    """As above, of packed sequences; returns (H, Tq) float32. Gradients of what belongs to no sequence are always 0."""
    lengths = (number("max_seqlen_q", max_seqlen_q), number("max_seqlen_k", max_seqlen_k))
    window = (window_size_left, window_size_right)
    options = (
        softmax_scale, causal, *window_pair(window), False, softcap, dropout_p,
        *(-1 if length is None else length for length in lengths), False, deterministic, False,
    )  # fmt: skip
    state = _state(dropout_p, rng_state)
    tensors = (None, None, alibi_slopes, None, cu_seqlens_q, cu_seqlens_k, None, None, state)
    _write_gradients((dq, dk, dv), dout, q, k, v, out, softmax_lse, tensors, options)
    return (dout.float() * out.float()).sum(-1).transpose(0, 1)


def _seeds(dropout_p: float) -> tuple[Tensor, dict[str, Any]]:
    """What the forward pass returns of its dropout, and that as options."""
    if dropout_p == 0.0:
        return torch.zeros(2, dtype=torch.int64), {}
    state = _dropout_state(None, 0)
    seed, offset = state.tolist()
    return state, {"dropout_p": dropout_p, "dropout_seed": seed, "dropout_offset": offset}


def _state(dropout_p: float, rng_state: Tensor | None) -> Tensor | None:
    if dropout_p == 0.0:
        return None
    if rng_state is None:
        raise ArgumentError("rng_state: is absent, must be what the forward pass returned, with dropout_p")
    return rng_state.cpu()


def _write_gradients(
    gradients: tuple[Tensor | None, Tensor | None, Tensor | None], dout: Tensor, q: Tensor, k: Tensor, v: Tensor,
    out: Tensor, lse: Tensor, tensors: tuple[Any, ...], options: tuple[Any, ...],
) -> None:  # fmt: skip
    """tensors and options: as the operator lists them."""
    wanted = sum(bit for bit, gradient in zip((1, 2, 4), gradients, strict=True) if gradient is not None)
    if wanted == 0:
        return
    with torch.no_grad():
        found = BACKWARD(dout.to(q.dtype), None, q, k, v, out, lse, *tensors, *options, gradients=wanted)
        for gradient, value in zip(gradients, found, strict=False):
            if gradient is not None:
                gradient.copy_(value)
