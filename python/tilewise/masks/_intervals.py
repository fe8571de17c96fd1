"""Masks as ranges: for each column the rows that see it, or for each row the keys that it sees.

A table of ranges is int64 (n, 3), rows (line, begin, end), sorted, in which ranges of a line neither overlap nor touch.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from tilewise.masks._bands import Slice, as_list, band_slices
from tilewise.masks._checks import MOST, lengths_of_axes, slices_of_heads


def united(ranges: np.ndarray) -> np.ndarray:
    """The table of ranges (n, 3) that may overlap, in any order."""
    ranges = ranges[ranges[:, 1] < ranges[:, 2]]
    line, begin, end = ranges[np.lexsort((ranges[:, 1], ranges[:, 0]))].T
    if len(line) == 0:
        return np.empty((0, 3), np.int64)
    # Lines follow each other on one axis, with a gap, so that one running maximum serves all.
    places, number = np.unique(line, return_inverse=True)
    shift = number * (int(end.max()) + 2)
    reached = np.maximum.accumulate(end + shift)
    first = np.flatnonzero(np.concatenate(([True], (begin + shift)[1:] > reached[:-1])))
    last = np.concatenate((first[1:], [len(line)])) - 1
    return np.stack((places[number[first]], begin[first], reached[last] - shift[last]), 1)


def ranges_of(slices: np.ndarray, *, by_row: bool) -> np.ndarray:
    """What each slice of (N, 5 or 6) shows to each row or, without by_row, each column: (n, 3), not united."""
    q0, q1, k0, k1, kind = slices[:, :5].T
    lower = np.where(kind & 2, k0 - q0, -2 * MOST)
    upper = np.where(kind & 1, k1 - q1, 2 * MOST)
    if not by_row:  # j - i in lower..upper is i - j in -upper..-lower
        q0, q1, k0, k1, lower, upper = k0, k1, q0, q1, -upper, -lower
    counts = q1 - q0
    of = np.repeat(np.arange(len(slices)), counts)
    line = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts) + q0[of]
    begin = np.maximum(k0[of], line + lower[of])
    end = np.minimum(k1[of], line + upper[of] + 1)
    return np.stack((line, begin, np.maximum(begin, end)), 1)


class _Run:
    """Columns whose rows are one band: the first row stays, then falls; the end falls, then stays."""

    def __init__(self, column: int, top: int, bottom: int) -> None:
        self.first = (column, top, bottom)
        self.last = self.first
        self.top_falls = False
        self.bottom_stays = False

    def takes(self, top: int, bottom: int) -> bool:
        """Whether the next column, whose edges are at most one row further down, continues the run."""
        falls, stays = top > self.last[1], bottom == self.last[2]
        return (falls or not self.top_falls) and (stays or not self.bottom_stays)

    def add(self, top: int, bottom: int) -> None:
        """Continues the run by a column."""
        self.top_falls |= top > self.last[1]
        self.bottom_stays |= bottom == self.last[2]
        self.last = (self.last[0] + 1, top, bottom)

    def slices(self) -> list[Slice]:
        (column, top, bottom), (last, last_top, last_bottom) = self.first, self.last
        lower = column - bottom + 1 if last_bottom > bottom else None
        upper = last - last_top if last_top > top else None
        return band_slices((top, last_bottom), (column, last + 1), lower, upper)


def bands_of_columns(columns: np.ndarray) -> np.ndarray:
    """The slices (N, 5) of a table of columns. They do not overlap."""
    slices: list[Slice] = []
    open_runs: dict[tuple[int, int], _Run] = {}  # by the edges in the column before
    previous = -2
    bounds = np.flatnonzero(np.diff(columns[:, 0])) + 1
    for of_column in np.split(columns, bounds) if len(columns) else []:
        column = int(of_column[0, 0])
        waiting, open_runs = open_runs, {}
        for _, top, bottom in of_column.tolist():
            run = None
            for edges in ((top, bottom), (top - 1, bottom - 1), (top - 1, bottom), (top, bottom - 1)):
                if column == previous + 1 and edges in waiting and waiting[edges].takes(top, bottom):
                    run = waiting.pop(edges)
                    run.add(top, bottom)
                    break
            open_runs[(top, bottom)] = run or _Run(column, top, bottom)
        for run in waiting.values():
            slices += run.slices()
        previous = column
    for run in open_runs.values():
        slices += run.slices()
    return as_list(sorted(slices))


def heads_of(slices: np.ndarray) -> list[int]:
    """The heads that a list (N, 6) names, or [-1]."""
    return sorted(set(slices[slices[:, 5] >= 0, 5].tolist())) or [-1]


def of_head(slices: np.ndarray, head: int) -> np.ndarray:
    """The slices (N, 6) that a head has: its own and those of all."""
    return slices[(slices[:, 5] == -1) | (slices[:, 5] == head)]


def to_mask(slices: Any, q_len: int, k_len: Optional[int] = None, *, heads: Optional[int] = None) -> np.ndarray:
    """The boolean mask of a list, bool (Sq, Sk), or (H, Sq, Sk) with heads = H: what `mask=` takes.

    heads: how many query heads; needed if the list names heads.
    """
    rows, keys = lengths_of_axes(q_len, k_len)
    found, count = slices_of_heads(slices, rows, keys, heads)
    mask = np.zeros((max(count, 1), rows, keys), bool)
    for head in range(len(mask)):
        for row, begin, end in ranges_of(of_head(found, head), by_row=True).tolist():
            mask[head, row, begin:end] = True
    return mask[0] if heads is None else mask


def columns_of_mask(mask: np.ndarray) -> np.ndarray:
    """The table of columns of a boolean mask (Sq, Sk)."""
    padded = np.zeros((mask.shape[1], mask.shape[0] + 2), np.int8)
    padded[:, 1:-1] = mask.T
    edges = np.diff(padded, axis=1)
    (line, begin), (_, end) = np.nonzero(edges == 1), np.nonzero(edges == -1)
    return np.stack((line, begin, end), 1)


def from_mask(mask: Any) -> np.ndarray:
    """A list that shows what a boolean mask (Sq, Sk) or (H, Sq, Sk) does, exactly: int64 (N, 5), or (N, 6) with heads.

    Rectangles, triangles and bands are found; a mask without such structure takes up to one slice for each run of
    visible rows of each column. The slices of a head do not overlap.
    """
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.ndim not in (2, 3):
        raise ValueError(f"mask: has dtype {array.dtype} and shape {array.shape}, must be bool of 2 or 3 dimensions")
    if array.ndim == 2:
        return bands_of_columns(columns_of_mask(array))
    return with_heads([bands_of_columns(columns_of_mask(head)) for head in array])


def with_heads(lists: list[np.ndarray]) -> np.ndarray:
    """A list (n, 5) for each head as one, int64 (N, 6)."""
    rows = [np.insert(one, 5, head, axis=1) for head, one in enumerate(lists)]
    return np.concatenate([np.empty((0, 6), np.int64), *rows])


def disjoint(slices: np.ndarray) -> np.ndarray:
    """`slices` (N, 5) themselves if no two show the same pair, else other slices (M, 5) of the same mask."""
    columns = ranges_of(slices, by_row=False)
    joined = united(columns)
    if np.diff(columns[:, 1:]).sum() == np.diff(joined[:, 1:]).sum():
        return slices
    return bands_of_columns(joined)
