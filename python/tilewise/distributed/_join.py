"""Arrays whose tokens are divided between ranks: cut from the whole, and joined to it."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import numpy as np

from tilewise.distributed._group import Group

_TAG = 32765

Range = tuple[int, int, int]  # begin, end, stride


def positions(ranges: Sequence[Range]) -> np.ndarray:
    """The tokens of the ranges, int64, one after the other."""
    return np.concatenate([np.empty(0, np.int64), *(np.arange(*r, dtype=np.int64) for r in ranges)])


def cut(x: Any, ranges: Sequence[Range], dim: int) -> Any:
    """The tokens of the ranges, one after the other. Differentiable for tensors; a view of x if they are one range."""
    before = (slice(None),) * (dim % x.ndim)
    pieces = [x[(*before, slice(*r))] for r in ranges or [(0, 0, 1)]]
    if len(pieces) == 1:
        return pieces[0]
    if isinstance(x, np.ndarray):
        return np.concatenate(pieces, dim)
    import torch

    return torch.cat(pieces, dim)


class Join:
    """The way from the tokens of each rank to the whole."""

    def __init__(
        self, group: Group, ranges_of: Callable[[int], list[list[Range]]], name: str, dim: int, timeout: float
    ) -> None:
        """ranges_of: those of every rank, of a whole of so many tokens. name: of their schedule, for messages."""
        self._group = group
        self._ranges_of = ranges_of
        self._ranges: list[list[Range]] = []
        self._name = name
        self._dim = dim
        self._timeout = timeout

    def whole(self, x: Any) -> Any:
        """The whole of which each rank holds the tokens x, a tensor without a graph or an array of NumPy. Collective.

        Raises ValueError on every rank if one of them holds another number of tokens than its ranges.
        """
        own_rows = np.ascontiguousarray(np.moveaxis(as_numpy(x), self._dim, 0))  # tokens first
        rows = self._checked_rows(len(own_rows))
        shards = [np.empty((count, *own_rows.shape[1:]), own_rows.dtype) for count in rows]
        shards[self._group.rank] = own_rows
        self._exchange([own_rows] * self._group.size, shards, "joining shards")
        whole = np.empty((sum(rows), *own_rows.shape[1:]), own_rows.dtype)
        for held, wanted in zip(shards, self._ranges):
            for r in wanted:
                whole[slice(*r)], held = held[: len(range(*r))], held[len(range(*r)) :]
        return as_given(x, np.ascontiguousarray(np.moveaxis(whole, 0, self._dim)))

    def own(self, whole: Any) -> Any:
        """The tokens of this rank."""
        return cut(whole, self._ranges[self._group.rank], self._dim)

    def summed(self, whole: Any) -> Any:
        """The tokens of this rank in the sum of all ranks' tensors. Collective."""
        import torch

        parts = [cut(whole, ranges, self._dim).contiguous() for ranges in self._ranges]
        received = [torch.empty_like(parts[self._group.rank]) for _ in parts]
        received[self._group.rank] = parts[self._group.rank]
        arrays = [as_numpy(part) for part in received]
        self._exchange([as_numpy(part) for part in parts], arrays, "adding up gradients")
        return torch.stack([as_given(whole, array) for array in arrays]).sum(0)

    def _checked_rows(self, own: int) -> list[int]:
        """The number of tokens that each rank holds."""
        rows = [count for (count,) in self._group.gather([own], self._timeout, "lengths of the shards")]
        self._ranges = self._ranges_of(sum(rows))
        for rank, count in enumerate(rows):
            expected = sum(len(range(*r)) for r in self._ranges[rank])
            if count != expected:
                raise ValueError(
                    f"x: rank {rank} has {count} of {sum(rows)} tokens, must have {expected} ({self._name})"
                )
        return rows

    def _exchange(self, sent: list[np.ndarray], received: list[np.ndarray], activity: str) -> None:
        """Sends each other rank its array, and fills an array from each."""
        peers = [rank for rank in range(self._group.size) if rank != self._group.rank]
        if peers:
            sends = [(as_bytes(sent[peer]), peer, _TAG) for peer in peers]
            receives = [(as_bytes(received[peer]), peer, _TAG) for peer in peers]
            self._group.exchange(sends, receives, self._timeout, activity)


def joined(join: Join, x: Any, sum_gradients: bool) -> Any:
    """The whole of an array or a tensor; with a graph, if x has one."""
    if isinstance(x, np.ndarray):
        return join.whole(x)
    from tilewise.distributed import _autograd

    return _autograd.joined(join, x, sum_gradients)


def as_numpy(x: Any) -> Any:
    """x itself, or a tensor's memory. NumPy has no bfloat16, which goes as int16."""
    if isinstance(x, np.ndarray):
        return x
    import torch

    x = x.cpu()
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()


def as_given(x: Any, array: Any) -> Any:
    """What as_numpy() made, as x is."""
    if isinstance(x, np.ndarray):
        return array
    import torch

    return torch.from_numpy(array).view(x.dtype).to(x.device)


def as_bytes(array: Any) -> memoryview:
    """The memory of a contiguous array."""
    return memoryview(array.reshape(-1).view(np.uint8))
