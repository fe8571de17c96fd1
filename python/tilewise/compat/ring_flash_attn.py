"""ring-flash-attention's functions, with its names, order of arguments, defaults, results and layouts of tokens.

The tokens that rank r of R holds, of the whole sequence or, packed, of every sequence by itself:

    ring_flash_attn_*       range r of R
    zigzag_ring_*           ranges r and 2R - 1 - r of 2R
    stripe_flash_attn_*     tokens r, r + R, r + 2R, ...
    llama3_flash_attn_*     range r of R of the whole packed axis

On the CPU, over any process group of PyTorch. Shards have the same length on every rank. dropout_p, window_size and
alibi_slopes (not with stripes) work as on one rank; deterministic and heads_k_stride change nothing.
"""

# The names and the order of arguments are ring-flash-attention's.
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilewise.compat import _documents
from tilewise.compat._contents import ArgumentError, check_integers
from tilewise.distributed import attention, choose_schedule
from tilewise.distributed._group import TIMEOUT, Group, group_of

Tensor = torch.Tensor
Window = tuple[int, int]
Result = Any  # a tensor, or (out, lse, None)
Functions = tuple[Callable[..., Result], Callable[..., Result], Callable[..., Result]]


def _options(
    dropout_p: float, softmax_scale: float | None, causal: bool, window_size: Window, alibi_slopes: Tensor | None
) -> dict[str, Any]:
    return {
        "dropout_p": dropout_p, "dropout_seed": None, "softmax_scale": softmax_scale, "causal": causal,
        "window_size": window_size, "alibi_slopes": alibi_slopes,
    }  # fmt: skip


def _result(out: Tensor, lse: Tensor, return_attn_probs: bool) -> Result:
    return (out, lse, None) if return_attn_probs else out


# ---- (B, S, H, D) -----------------------------------------------------------------------------------------------


def _dense(name: str, schedule: str) -> Functions:
    """NAME_func, NAME_kvpacked_func and NAME_qkvpacked_func."""

    def func(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
        causal: bool = False, window_size: Window = (-1, -1), alibi_slopes: Tensor | None = None,
        deterministic: bool = False, return_attn_probs: bool = False, group: Any = None,
    ) -> Result:  # fmt: skip
        own = group_of(group)
        options = _options(dropout_p, softmax_scale, causal, window_size, alibi_slopes)
        options |= {"q_len": q.shape[1] * own.size, "k_len": k.shape[1] * own.size}
        out, lse = attention(q, k, v, schedule=schedule, group=own, return_lse=True, **options)
        return _result(out, lse, return_attn_probs)

    def kvpacked_func(
        q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
        window_size: Window = (-1, -1), alibi_slopes: Tensor | None = None, deterministic: bool = False,
        return_attn_probs: bool = False, group: Any = None,
    ) -> Result:  # fmt: skip
        rest = (dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic, return_attn_probs, group)
        k, v = kv.unbind(2)
        return func(q, k, v, *rest)

    def qkvpacked_func(
        qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
        window_size: Window = (-1, -1), alibi_slopes: Tensor | None = None, deterministic: bool = False,
        return_attn_probs: bool = False, group: Any = None,
    ) -> Result:  # fmt: skip
        rest = (dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic, return_attn_probs, group)
        q, k, v = qkv.unbind(2)
        return func(q, k, v, *rest)

    about = f"(B, S, H, D), of tokens that are divided {schedule}; out like q. Collective, in both passes."
    return _named(name, (func, kvpacked_func, qkvpacked_func), about)


def _named(name: str, functions: Functions, about: str) -> Functions:
    for function, tensors in zip(functions, ("q, k, v", "q, kv", "qkv"), strict=True):
        function.__name__ = function.__qualname__ = f"{name}_{function.__name__}"
        function.__doc__ = f"{tensors} {about}"
    return functions


ring_flash_attn_func, ring_flash_attn_kvpacked_func, ring_flash_attn_qkvpacked_func = _dense(
    "ring_flash_attn", "contiguous"
)
zigzag_ring_flash_attn_func, zigzag_ring_flash_attn_kvpacked_func, zigzag_ring_flash_attn_qkvpacked_func = _dense(
    "zigzag_ring_flash_attn", "zigzag"
)
stripe_flash_attn_func, stripe_flash_attn_kvpacked_func, stripe_flash_attn_qkvpacked_func = _dense(
    "stripe_flash_attn", "striped"
)


# ---- (T, H, D), every sequence divided by itself --------------------------------------------------------------------


def _moves(
    own: Group, cu_seqlens: Tensor, zigzag: bool, options: dict[str, Any]
) -> tuple[_documents.Move, _documents.Move, dict[str, Any]]:
    """The way to a schedule of the whole packed axis, the way back, and the options there."""
    check_integers(cu_seqlens=cu_seqlens)
    lengths = cu_seqlens.diff().tolist()
    if zigzag and any(length % 2 for length in lengths):
        raise ArgumentError(f"cu_seqlens: is {cu_seqlens.tolist()}, must be even, for two ranges of each sequence")
    starts = cu_seqlens.cpu().long() * own.size
    total = int(starts[-1])
    mask = {name: options[name] for name in ("causal", "window_size")}
    schedule = choose_schedule(total, group=own, cu_seqlens_q=starts, cu_seqlens_k=starts, **mask)
    theirs = _documents.of_each_sequence(lengths, own.size, zigzag)
    ours = _documents.of_schedule(schedule, total, own.size)
    there, back = _documents.Move(own, theirs, ours, TIMEOUT), _documents.Move(own, ours, theirs, TIMEOUT)
    whole = {"q_len": total, "k_len": total, "cu_seqlens_q": starts, "cu_seqlens_k": starts, "schedule": schedule}
    return there, back, {**options, **whole}


def _varlen(name: str, zigzag: bool) -> Functions:
    """NAME_varlen_func, NAME_varlen_kvpacked_func and NAME_varlen_qkvpacked_func."""

    def varlen_func(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
        softmax_scale: float | None = None, causal: bool = False, window_size: Window = (-1, -1),
        alibi_slopes: Tensor | None = None, deterministic: bool = False, return_attn_probs: bool = False,
        group: Any = None,
    ) -> Result:  # fmt: skip
        own = group_of(group)
        options = _options(dropout_p, softmax_scale, causal, window_size, alibi_slopes)
        there, back, options = _moves(own, cu_seqlens, zigzag, options)
        moved = _documents.Moved.apply(there, back, q, k, v)
        out, lse = attention(*moved, group=own, return_lse=True, **options)
        out, lse = _documents.Moved.apply(back, there, out, lse.t())
        return _result(out, lse.t(), return_attn_probs)

    def varlen_kvpacked_func(
        q: Tensor, kv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
        softmax_scale: float | None = None, causal: bool = False, window_size: Window = (-1, -1),
        alibi_slopes: Tensor | None = None, deterministic: bool = False, return_attn_probs: bool = False,
        group: Any = None,
    ) -> Result:  # fmt: skip
        rest = (dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic, return_attn_probs, group)
        k, v = kv.unbind(1)
        return varlen_func(q, k, v, cu_seqlens, max_seqlen, *rest)

    def varlen_qkvpacked_func(
        qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
        causal: bool = False, window_size: Window = (-1, -1), alibi_slopes: Tensor | None = None,
        deterministic: bool = False, return_attn_probs: bool = False, group: Any = None,
    ) -> Result:  # fmt: skip
        rest = (dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic, return_attn_probs, group)
        q, k, v = qkv.unbind(1)
        return varlen_func(q, k, v, cu_seqlens, max_seqlen, *rest)

    about = "(T, H, D), a part of every sequence; cu_seqlens (B + 1) of these parts. Collective, in both passes."
    return _named(name, (varlen_func, varlen_kvpacked_func, varlen_qkvpacked_func), about)


ring_flash_attn_varlen_func, ring_flash_attn_varlen_kvpacked_func, ring_flash_attn_varlen_qkvpacked_func = _varlen(
    "ring_flash_attn", False
)
(
    zigzag_ring_flash_attn_varlen_func,
    zigzag_ring_flash_attn_varlen_kvpacked_func,
    zigzag_ring_flash_attn_varlen_qkvpacked_func,
) = _varlen("zigzag_ring_flash_attn", True)


# ---- (T, H, D), the packed axis divided as one ----------------------------------------------------------------------


def llama3_flash_attn_prepare_cu_seqlens(
    cu_seqlens: Tensor, causal: bool, rank: int, world_size: int
) -> tuple[Tensor, Tensor, int, int, slice]:
    """cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k and local_k_slice of a rank.

    cu_seqlens (B + 1): of the whole packed axis, whose length world_size divides. The slice holds the keys of the
    sequences that the rank has queries of, in the whole axis; under a causal mask it ends with the rank's queries.
    """
    check_integers(cu_seqlens=cu_seqlens)
    total = int(cu_seqlens[-1])
    if total % world_size != 0 or total == 0:
        raise ArgumentError(f"cu_seqlens[-1]: is {total}, must be a positive multiple of world_size, {world_size}")
    begin, end = total // world_size * rank, total // world_size * (rank + 1)
    first = int(torch.searchsorted(cu_seqlens, begin, right=True)) - 1
    last = int(torch.searchsorted(cu_seqlens, end))
    starts = cu_seqlens[first : last + 1]
    keys = slice(int(starts[0]), end if causal else int(starts[-1]))
    cu_seqlens_q = starts.clamp(begin, end) - begin
    cu_seqlens_k = starts.clamp(max=keys.stop) - keys.start
    return cu_seqlens_q, cu_seqlens_k, int(cu_seqlens_q.diff().max()), int(cu_seqlens_k.diff().max()), keys


def _whole_cu_seqlens(own: Group, cu_seqlens_k: Tensor, local_k_slice: slice, total: int) -> Tensor:
    """Every rank knows where the sequences that it has queries of start; together they know all. Collective."""
    check_integers(cu_seqlens_k=cu_seqlens_k)
    starts = [local_k_slice.start + start for start in cu_seqlens_k[:-1].tolist()]
    most = max(count for (count,) in own.gather([len(starts)], TIMEOUT, "numbers of sequences"))
    padded = starts + starts[-1:] * (most - len(starts))
    found = own.gather(padded, TIMEOUT, "starts of sequences")
    return torch.tensor(sorted({start for row in found for start in row} | {total}), dtype=torch.int64)


def llama3_flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    heads_k_stride: int, local_k_slice: slice, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: Window = (-1, -1), alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False, group: Any = None,
) -> Result:  # fmt: skip
    """q, k, v (T, H, D), this rank's range of the packed axis; the other arguments are those of
    llama3_flash_attn_prepare_cu_seqlens(). Collective, in both passes."""
    own = group_of(group)
    total = q.shape[0] * own.size
    starts = _whole_cu_seqlens(own, cu_seqlens_k, local_k_slice, total)
    options = _options(dropout_p, softmax_scale, causal, window_size, alibi_slopes)
    options |= {"q_len": total, "k_len": total, "cu_seqlens_q": starts, "cu_seqlens_k": starts}
    out, lse = attention(q, k, v, schedule="contiguous", group=own, return_lse=True, **options)
    return _result(out, lse, return_attn_probs)


def llama3_flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    heads_k_stride: int, local_k_slice: slice, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: Window = (-1, -1), alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False, group: Any = None,
) -> Result:  # fmt: skip
    """As above; kv (T, 2, Hk, D)."""
    k, v = kv.unbind(1)
    return llama3_flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, heads_k_stride, local_k_slice,
        dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic, return_attn_probs, group,
    )  # fmt: skip


def llama3_flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    heads_k_stride: int, local_k_slice: slice, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: Window = (-1, -1), alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False, group: Any = None,
) -> Result:  # fmt: skip
    """As above; qkv (T, 3, H, D)."""
    q, k, v = qkv.unbind(1)
    return llama3_flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, heads_k_stride, local_k_slice,
        dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic, return_attn_probs, group,
    )  # fmt: skip
