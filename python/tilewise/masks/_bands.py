"""The rows and keys of one band as the fewest slices, from which all constructors are made."""

from __future__ import annotations

from typing import Iterable, Optional

import numpy as np

FULL, CAUSAL, INVERSE_CAUSAL, BAND = range(4)

Slice = tuple[int, int, int, int, int]  # q0, q1, k0, k1, kind


def band_slices(
    rows: tuple[int, int], keys: tuple[int, int], lower: Optional[int] = None, upper: Optional[int] = None
) -> list[Slice]:
    """The pairs (i, j) of rows[0] <= i < rows[1], keys[0] <= j < keys[1] and i + lower <= j <= i + upper.

    None is unbounded. At most three slices: the rows are cut where an edge of the band leaves the rectangle.
    """
    (first, end), (k0, k1) = rows, keys
    if upper is not None:
        first = max(first, k0 - upper)
    if lower is not None:
        end = min(end, k1 - lower)
    if first >= end or k0 >= k1 or (lower is not None and upper is not None and lower > upper):
        return []
    lower_row = end if lower is None else k0 - lower  # there the lower edge meets k0; it moves in the rows after it
    upper_row = first if upper is None else k1 - 1 - upper  # there the upper edge meets k1; it moves in the rows before
    slices = []
    while first < end:
        lower_moves = first >= lower_row
        upper_moves = first < upper_row
        stop = min(end, end if lower_moves else lower_row + 1, upper_row + 1 if upper_moves else end)
        begin = first + lower if lower_moves else k0  # type: ignore[operator]
        last = stop + upper if upper_moves else k1  # type: ignore[operator]
        kind = (CAUSAL if upper_moves else FULL) | (INVERSE_CAUSAL if lower_moves else FULL)
        slices.append((first, stop, begin, last, kind))
        first = stop
    return slices


def as_list(slices: Iterable[Slice]) -> np.ndarray:
    """int64 (N, 5), without the slices that show nothing because they have no rows or no keys."""
    rows = [s for s in slices if s[0] < s[1] and s[2] < s[3]]
    return np.array(rows, np.int64).reshape(len(rows), 5)
