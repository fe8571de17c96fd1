"""Which tokens a rank holds: schedules, positions, and cutting and joining arrays."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from tilewise import _core
from tilewise.distributed._group import TIMEOUT, Group, checked_timeout, group_of

_SHARD_TAG = 32765

Range = tuple[int, int, int]  # begin, end, stride


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
    if schedule == "automatic":
        raise ValueError("schedule: is 'automatic', must be 'contiguous', 'zigzag' or 'striped'; ask choose_schedule()")
    return _core.token_ranges(schedule, length, group.size, rank)


def positions(length: int, *, group: Any = None, schedule: str, cu_seqlens: Any = None) -> Any:
    """Where the tokens of this rank stand in the whole axis of `length` tokens, in the order of its rows: int64 (rows).

    They are the positions of position embeddings. cu_seqlens (B + 1): of packed sequences; positions then count from
    the start of each sequence. A tensor if cu_seqlens or the group is PyTorch's, else a NumPy array.
    """
    own = group_of(group)
    found = np.concatenate([np.arange(*r, dtype=np.int64) for r in _ranges(schedule, length, own, own.rank)])
    if cu_seqlens is not None:
        starts = np.asarray(cu_seqlens)
        found -= starts[np.maximum(np.searchsorted(starts, found, "right") - 1, 0)]
    return _like_group(group, found)


def _like_group(group: Any, array: np.ndarray) -> Any:
    if type(group).__module__.startswith("mpi4py"):
        return array
    import torch

    return torch.from_numpy(array)


def shard(x: Any, *, group: Any = None, schedule: str, dim: int = 1) -> Any:
    """This rank's tokens of x, which every rank holds whole. Does not communicate.

    dim: that of the tokens: 1 of (B, S, ...), 0 of packed (T, ...). Differentiable for tensors of PyTorch. The result
    may be a view of x.
    """
    own = group_of(group)
    before = (slice(None),) * (dim % x.ndim)
    pieces = [x[(*before, slice(*r))] for r in _ranges(schedule, x.shape[dim], own, own.rank)]
    if len(pieces) == 1:
        return pieces[0]
    if isinstance(x, np.ndarray):
        return np.concatenate(pieces, dim)
    import torch

    return torch.cat(pieces, dim)


def unshard(x: Any, *, group: Any = None, schedule: str, dim: int = 1, timeout: float = TIMEOUT) -> Any:
    """The whole of which each rank holds the tokens x, on every rank. Collective; without a gradient.

    Raises ValueError on every rank if the shards are not those of the schedule, RankError if a rank fails.
    """
    own = group_of(group)
    if getattr(x, "requires_grad", False):
        raise NotImplementedError("x: requires a gradient, which unshard() does not compute; detach() it")
    timeout = checked_timeout(timeout)
    own_rows = np.ascontiguousarray(np.moveaxis(_numpy(x), dim, 0))  # tokens first
    rows = [count for (count,) in own.gather([len(own_rows)], timeout, "lengths of the shards")]
    ranges = [_ranges(schedule, sum(rows), own, rank) for rank in range(own.size)]
    for rank, count in enumerate(rows):
        expected = sum(len(range(*r)) for r in ranges[rank])
        if count != expected:
            raise ValueError(f"x: rank {rank} has {count} of {sum(rows)} tokens, must have {expected} ({schedule})")
    shards = [np.empty((count, *own_rows.shape[1:]), own_rows.dtype) for count in rows]
    shards[own.rank] = own_rows
    peers = [rank for rank in range(own.size) if rank != own.rank]
    if peers:
        sends = [(_bytes(own_rows), peer, _SHARD_TAG) for peer in peers]
        own.exchange(sends, [(_bytes(shards[peer]), peer, _SHARD_TAG) for peer in peers], timeout, "joining shards")
    whole = np.empty((sum(rows), *own_rows.shape[1:]), own_rows.dtype)
    for held, wanted in zip(shards, ranges):
        for r in wanted:
            whole[slice(*r)], held = held[: len(range(*r))], held[len(range(*r)) :]
    return _like(x, np.ascontiguousarray(np.moveaxis(whole, 0, dim)))


def _numpy(x: Any) -> Any:
    """x itself, or a tensor's memory. NumPy has no bfloat16, which goes as int16."""
    if isinstance(x, np.ndarray):
        return x
    import torch

    if not x.is_cpu:
        raise NotImplementedError(f"x: is on {x.device}, must be on the CPU")
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()


def _like(x: Any, array: Any) -> Any:
    """What _numpy() made, as x is."""
    if isinstance(x, np.ndarray):
        return array
    import torch

    return torch.from_numpy(array).view(x.dtype)


def _bytes(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))
