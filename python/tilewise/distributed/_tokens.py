"""Which tokens a rank holds: schedules, positions, and cutting and joining arrays."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from tilewise import _core
from tilewise._options import truth
from tilewise.distributed import _join
from tilewise.distributed._group import TIMEOUT, Group, checked_timeout, group_of
from tilewise.distributed._join import Join, Range


def choose_schedule(length: int, k_len: Optional[int] = None, *, group: Any = None, **mask: Any) -> str:
    """The schedule for a mask: "zigzag" if the rank with the most work then has at least 5 % less, else "contiguous".

    length: tokens of the whole query axis. k_len: of the key axis, if that is another.
    mask: causal, window_size, alignment, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, as in attention().
    Does not communicate: every rank finds the same.
    """
    lists = {"cu_seqlens_q": 1, "cu_seqlens_k": 1, "seqused_q": 0, "seqused_k": 0}  # longer than the batch by
    sequences = [len(mask[name]) - more for name, more in lists.items() if mask.get(name) is not None]
    size = group_of(group).size
    k_len = length if k_len is None else k_len
    return _core.choose_schedule("choose_schedule", mask, (*sequences, 1)[0], size, length, k_len)


def _ranges(schedule: str, length: int, group: Group, rank: int) -> list[Range]:
    others = {"automatic": "ask choose_schedule()", "balanced": "a TokenPlan says which tokens it gives to whom"}
    if schedule in others:
        raise ValueError(
            f"schedule: is {schedule!r}, must be 'contiguous', 'zigzag' or 'striped'; {others[schedule]}"
        )
    return _core.token_ranges(schedule, length, group.size, rank)


def positions(length: int, *, group: Any = None, schedule: str, cu_seqlens: Any = None) -> Any:
    """Where the tokens of this rank stand in the whole axis of `length` tokens, in the order of its rows: int64 (rows).

    They are the positions of position embeddings. cu_seqlens (B + 1): of packed sequences; positions then count from
    the start of each sequence. A tensor if the group is PyTorch's, else a NumPy array.
    """
    own = group_of(group)
    return own.array(counted(_join.positions(_ranges(schedule, length, own, own.rank)), cu_seqlens))


def counted(found: np.ndarray, cu_seqlens: Any) -> np.ndarray:
    """Positions, from the start of each packed sequence if there are any."""
    if cu_seqlens is None:
        return found
    starts = np.asarray(cu_seqlens)
    return found - starts[np.maximum(np.searchsorted(starts, found, "right") - 1, 0)]


def shard(x: Any, *, group: Any = None, schedule: str, dim: int = 1) -> Any:
    """This rank's tokens of x, which every rank holds whole. Does not communicate.

    dim: that of the tokens: 1 of (B, S, ...), 0 of packed (T, ...). Differentiable for tensors of PyTorch. The result
    may be a view of x.
    """
    own = group_of(group)
    return _join.cut(x, _ranges(schedule, x.shape[dim], own, own.rank), dim)


def unshard(
    x: Any, *, group: Any = None, schedule: str, dim: int = 1, timeout: float = TIMEOUT, sum_gradients: bool = True
) -> Any:
    """The whole of which each rank holds the tokens x, on every rank. Collective.

    Differentiable for tensors of PyTorch. sum_gradients: the gradient of x is the sum of those that all ranks have of
    the whole, so that each rank may have its own loss of it; that is one more exchange, which every rank has to run.
    False, if all ranks compute the same loss of the whole: each takes the gradient that it has.

    Raises ValueError on every rank if the shards are not those of the schedule, RankError if a rank fails.
    """
    own = group_of(group)

    def ranges_of(length: int) -> list[list[Range]]:
        return [_ranges(schedule, length, own, rank) for rank in range(own.size)]

    join = Join(own, ranges_of, schedule, dim, checked_timeout(timeout))
    return _join.joined(join, x, truth("sum_gradients", sum_gradients))
