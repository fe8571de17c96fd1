"""Packed batches of which every rank has a part of each sequence, and the way to the schedules of an axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from tilewise import _core
from tilewise.distributed._group import Group
from tilewise.distributed._join import as_bytes, as_numpy

Tensor = torch.Tensor


class Layout:
    """Which rank holds each token of an axis: pieces, in ascending order of tokens, and their owners. A rank's rows are
    in that order."""

    def __init__(self, ends: list[int], owners: list[int]) -> None:
        self._ends = np.array(ends, np.int64)
        self._owners = np.array(owners, np.int64)

    def owner(self, tokens: np.ndarray) -> np.ndarray:
        """The ranks that hold the tokens."""
        return self._owners[np.searchsorted(self._ends, tokens, "right")]

    def tokens(self, rank: int) -> np.ndarray:
        """The tokens of a rank, in the order of its rows."""
        begins = np.concatenate(([0], self._ends[:-1]))
        pieces = [np.arange(b, e) for b, e, owner in zip(begins, self._ends, self._owners) if owner == rank]
        return np.concatenate([np.empty(0, np.int64), *pieces])


def of_each_sequence(lengths: list[int], size: int, zigzag: bool) -> Layout:
    """Every sequence is cut by itself. lengths: of a rank's part of each."""
    order = [*range(size), *reversed(range(size))] if zigzag else [*range(size)]
    pieces = [(length * size // len(order), owner) for length in lengths for owner in order]
    return Layout(np.cumsum([rows for rows, _ in pieces]).tolist(), [owner for _, owner in pieces])


def of_schedule(schedule: str, length: int, size: int) -> Layout:
    """The whole axis is cut, contiguous or zigzag."""
    pieces = sorted(
        (begin, end, rank)
        for rank in range(size)
        for begin, end, _ in _core.token_ranges(schedule, length, size, rank)
        if begin < end
    )
    return Layout([end for _, end, _ in pieces], [rank for _, _, rank in pieces])


class Move:
    """Brings rows (T, ...) from one layout to another. Collective."""

    def __init__(self, group: Group, source: Layout, target: Layout, timeout: float) -> None:
        self._group = group
        self._timeout = timeout
        goes_to = target.owner(source.tokens(group.rank))
        comes_from = source.owner(target.tokens(group.rank))
        self._sent = [torch.from_numpy(np.flatnonzero(goes_to == rank)) for rank in range(group.size)]
        self._received = [torch.from_numpy(np.flatnonzero(comes_from == rank)) for rank in range(group.size)]
        self._rows = len(comes_from)

    def __call__(self, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        """All tensors in one exchange; None stays None."""
        sends, receives, moved, arriving = [], [], [], []
        for tag, x in enumerate(tensors):
            result = None if x is None else x.new_empty(self._rows, *x.shape[1:])
            moved.append(result)
            if x is None or result is None:
                continue
            for peer, (going, coming) in enumerate(zip(self._sent, self._received, strict=True)):
                if peer == self._group.rank:
                    result[coming] = x[going]
                    continue
                rows = x.new_empty(len(coming), *x.shape[1:])
                sends.append((as_bytes(as_numpy(x[going].contiguous())), peer, tag))
                receives.append((as_bytes(as_numpy(rows)), peer, tag))
                arriving.append((result, coming, rows))
        if sends:
            self._group.exchange(sends, receives, self._timeout, "moving tokens to another schedule")
        for result, coming, rows in arriving:
            result[coming] = rows
        return tuple(moved)


class Moved(torch.autograd.Function):
    """Tensors in another layout; their gradients come back."""

    @staticmethod
    def forward(ctx: Any, there: Move, back: Move, *tensors: Tensor) -> tuple[Tensor | None, ...]:
        ctx.back = back
        ctx.set_materialize_grads(False)
        return there(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.back(*gradients))
