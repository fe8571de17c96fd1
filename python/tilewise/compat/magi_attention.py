"""MagiAttention's functions, with its names, order of arguments and defaults, on the CPU, for any process group.

    key = magi_attn_flex_key(q_ranges, k_ranges, "causal", length, length, 16, 4, 128, 0, group)
    local_q, local_k, local_v = (dispatch(x, key) for x in (q, k, v))     # (T, H, D) -> this rank's rows
    local_out, meta = calc_attn(local_q, local_k, local_v, key)
    out = undispatch(local_out, key)

A key holds a token plan (tilewise.distributed.TokenPlan). Nothing is padded: ranks may hold different numbers of rows,
as with uneven_shard. Slices that overlap count once. num_heads_q, num_heads_kv, head_dim, head_dim_v and the deprecated
pad_size change nothing.
"""

# The names and the order of arguments are MagiAttention's.
from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from tilewise.compat._call import number
from tilewise.compat._contents import ArgumentError, check_integers
from tilewise.distributed import TokenPlan, attention

Tensor = torch.Tensor


class AttnMaskType(enum.Enum):
    """Which keys of a slice its queries see, in its own coordinates."""

    FULL = "full"
    CAUSAL = "causal"  # aligned to the bottom right
    INVCAUSAL = "inv_causal"  # aligned to the top left: j >= i
    BICAUSAL = "bi_causal"  # both


class AttnRanges(list[tuple[int, int]]):
    """Ranges of tokens, (begin, end) each. A list of pairs or a tensor (N, 2) may be given instead."""

    @classmethod
    def from_ranges(cls, ranges: Iterable[Sequence[int]]) -> AttnRanges:
        """Of pairs."""
        return cls((begin, end) for begin, end in ranges)


@dataclass(frozen=True)
class DispatchConfig:
    """chunk_size: rows that are dealt to a rank together; None: some 16 chunks for each rank."""

    chunk_size: int | None = None
    uneven_shard: bool = True
    alg: None = None


@dataclass(frozen=True)
class OverlapConfig:
    """degree: stages in which a rank receives keys; None: up to 8."""

    degree: int | None = None


@dataclass(frozen=True)
class DistAttnConfig:
    """How a mask is planned."""

    dispatch_config: DispatchConfig = field(default_factory=DispatchConfig)
    overlap_config: OverlapConfig = field(default_factory=OverlapConfig)


@dataclass(frozen=True, eq=False)
class DistAttnRuntimeKey:
    """What dispatch(), calc_attn() and undispatch() need. Made once for a mask."""

    plan: TokenPlan


@dataclass(frozen=True)
class AttnForwardMeta:
    """lse (rows, H), float32, or float64 for inputs of float64."""

    lse: Tensor
    max_logits: None = None


# ---- keys -----------------------------------------------------------------------------------------------------------


def magi_attn_flex_key(
    q_ranges: Any, k_ranges: Any, attn_mask_type: Any, total_seqlen_q: int, total_seqlen_k: int, num_heads_q: int,
    num_heads_kv: int, head_dim: int, pad_size: int, cp_group_or_mesh: Any,
    dist_attn_config: DistAttnConfig = DistAttnConfig(), is_same_source: bool = True, is_q_permutable: bool = True,
    is_k_permutable: bool = True, chunk_size: int | None = None, head_dim_v: int | None = None,
) -> DistAttnRuntimeKey:  # fmt: skip
    """The key of a mask of slices. Does not communicate: every rank makes the same.

    q_ranges, k_ranges: N ranges each, of the whole. attn_mask_type: one for all slices, or a list: "full", "causal",
    "inv_causal", "bi_causal", an AttnMaskType, or the kernels' 0 to 3.
    """
    refused = {"is_same_source": is_same_source, "is_q_permutable": is_q_permutable, "is_k_permutable": is_k_permutable}
    for name, value in refused.items():
        if not value:
            raise NotImplementedError(f"{name}: is {value!r}, must be True; tilewise.distributed.TokenPlan can do it")
    rows, keys = _pairs("q_ranges", q_ranges), _pairs("k_ranges", k_ranges)
    kinds = _kinds(attn_mask_type, len(rows))
    for name, found in (("k_ranges", len(keys)), ("attn_mask_type", len(kinds))):
        if found != len(rows):
            raise ArgumentError(f"{name}: has {found} entries, must have {len(rows)}, as many as q_ranges")
    slices = torch.tensor([(*q, *k, kind) for q, k, kind in zip(rows, keys, kinds, strict=True)])
    mask = {"slices": slices.reshape(-1, 5).long()}
    return _key(mask, total_seqlen_q, total_seqlen_k, cp_group_or_mesh, dist_attn_config, chunk_size)


def magi_attn_varlen_key(
    cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, num_heads_q: int, num_heads_kv: int, head_dim: int, pad_size: int,
    cp_group_or_mesh: Any, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    dist_attn_config: DistAttnConfig = DistAttnConfig(), chunk_size: int | None = None, head_dim_v: int | None = None,
) -> DistAttnRuntimeKey:  # fmt: skip
    """The key of packed sequences, as flash-attn describes them. Does not communicate: every rank makes the same."""
    check_integers(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    mask = {
        "cu_seqlens_q": cu_seqlens_q.cpu(), "cu_seqlens_k": cu_seqlens_k.cpu(), "causal": causal,
        "window_size": window_size,
    }  # fmt: skip
    lengths = int(cu_seqlens_q[-1]), int(cu_seqlens_k[-1])
    return _key(mask, *lengths, cp_group_or_mesh, dist_attn_config, chunk_size)


def _key(
    mask: dict[str, Any], q_len: int, k_len: int, group: Any, config: DistAttnConfig, chunk_size: int | None
) -> DistAttnRuntimeKey:
    if q_len != k_len:
        raise ArgumentError(f"total_seqlen_k: is {k_len}, must be {q_len}, as keys and queries have the same source")
    if getattr(group, "ndim", 1) != 1:
        raise NotImplementedError(f"cp_group_or_mesh: has {group.ndim} dimensions, must have 1")
    dispatching = config.dispatch_config
    if dispatching.alg is not None:
        raise NotImplementedError(f"dist_attn_config.dispatch_config.alg: is {dispatching.alg!r}, must be None")
    if not dispatching.uneven_shard:
        raise NotImplementedError(
            "dist_attn_config.dispatch_config.uneven_shard: is False, must be True; nothing is padded"
        )
    if chunk_size is not None and dispatching.chunk_size not in (None, chunk_size):
        raise ArgumentError(f"chunk_size: is {chunk_size}, but dist_attn_config has {dispatching.chunk_size}")
    rows = dispatching.chunk_size if chunk_size is None else chunk_size
    degree = number("dist_attn_config.overlap_config.degree", config.overlap_config.degree)
    stages = 0 if degree is None else degree or 1  # nothing overlaps in one stage either
    chunk_rows = number("chunk_size", rows) or 0
    return DistAttnRuntimeKey(TokenPlan(q_len, group=group, chunk_rows=chunk_rows, stages=stages, **mask))


def _pairs(name: str, ranges: Any) -> list[tuple[int, int]]:
    if isinstance(ranges, Tensor):
        check_integers(**{name: ranges})
        ranges = ranges.tolist()
    elif hasattr(ranges, "to_naive_ranges"):  # MagiAttention's own
        ranges = ranges.to_naive_ranges()
    try:
        return [(int(begin), int(end)) for begin, end in ranges]
    except (TypeError, ValueError):
        raise ArgumentError(f"{name}: is {ranges!r}, must be ranges (begin, end)") from None


_KINDS = {"full": 0, "causal": 1, "inv_causal": 2, "bi_causal": 3}


def _kinds(given: Any, count: int) -> list[int]:
    """The kinds of slices."""
    if isinstance(given, Tensor):
        given = given.tolist()
    if isinstance(given, (str, int, enum.Enum)):
        given = [given] * count
    kinds = []
    for kind in given:
        value = getattr(kind, "value", kind)
        if value not in _KINDS and value not in _KINDS.values():
            raise ArgumentError(f"attn_mask_type: holds {kind!r}, must be one of {', '.join(_KINDS)} or 0 to 3")
        kinds.append(_KINDS.get(value, value))
    return kinds


# ---- what a key is for ----------------------------------------------------------------------------------------------


class _Dispatched(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: TokenPlan, x: Tensor) -> Tensor:
        ctx.plan = plan
        return plan.dispatch(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, ctx.plan.undispatch(gradient)


def dispatch(x: Tensor, key: DistAttnRuntimeKey, pad_value: float = 0.0) -> Tensor:
    """This rank's rows of x (T, ...), which every rank holds whole.

    As MagiAttention has it, the gradient of x is whole on every rank, which is an exchange in the backward pass.
    pad_value changes nothing, as nothing is padded.
    """
    return _Dispatched.apply(key.plan, x)


def undispatch(x: Tensor, key: DistAttnRuntimeKey, is_partial_grad: bool = False) -> Tensor:
    """The whole (T, ...) of which each rank holds the rows x, on every rank. Collective.

    is_partial_grad: the gradient of x is the sum of what all ranks have; else all ranks are to have the same gradient.
    """
    return key.plan.undispatch(x, sum_gradients=is_partial_grad)


def calc_attn(
    q: Tensor, k: Tensor, v: Tensor, key: DistAttnRuntimeKey, sink: Tensor | None = None,
    softmax_scale: float | None = None, softcap: float = 0.0, return_max_logits: bool = False,
) -> tuple[Tensor, AttnForwardMeta]:  # fmt: skip
    """(out, meta) of this rank's rows q (rows, H, D), k (rows, Hk, D) and v (rows, Hk, Dv). Collective, in both passes.

    sink (S, H): logits that join the denominators, the same on every rank; each rank gets an equal share of its
    gradient, and the sum over the ranks is that of the whole.
    """
    if return_max_logits:
        raise NotImplementedError("return_max_logits: is True, must be False")
    if sink is not None:
        if sink.dim() != 2:
            raise NotImplementedError(f"sink: has {sink.dim()} dimensions, must have 2, (sinks, heads)")
        sink = sink.double().logsumexp(0).float()  # one logit that weighs as much as S
    out, lse = attention(
        q, k, v, token_plan=key.plan, sink=sink, softmax_scale=softmax_scale, softcap=softcap, return_lse=True
    )
    return out, AttnForwardMeta(lse.t())


def get_position_ids(key: DistAttnRuntimeKey) -> Tensor:
    """Where this rank's rows stand in the whole, int64 (rows)."""
    return key.plan.positions()
