"""FlashMask's column intervals (arXiv 2410.01359): for each key the rows that do not see it, startend_row_indices.

The last dimension holds, for the key of each column,
    causal          1: LTS                    rows from LTS on are masked
                    2: LTS, LTE               rows LTS..LTE-1
    not causal      2: LTS, UTE               rows from LTS on, and rows before UTE
                    4: LTS, LTE, UTS, UTE     rows LTS..LTE-1 and rows UTS..UTE-1
and with `causal` the rows that see no such key anyway, bottom-right.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from tilewise.masks._checks import lengths_of_axes, slices_of_heads, whole
from tilewise.masks._intervals import bands_of_columns, heads_of, of_head, ranges_of, united, with_heads


def _masked(numbers: np.ndarray, rows: int, causal: bool) -> tuple[np.ndarray, ...]:
    """LTS, LTE, UTS, UTE of each key, within 0..rows."""
    keys, count = numbers.shape
    begin, end = np.zeros(keys, np.int64), np.full(keys, rows)
    if causal and count == 1:
        found = (numbers[:, 0], end, begin, begin)
    elif causal:
        found = (numbers[:, 0], numbers[:, 1], begin, begin)
    elif count == 2:
        found = (numbers[:, 0], end, begin, numbers[:, 1])
    else:
        found = tuple(numbers.T)
    return tuple(np.clip(edge, 0, rows) for edge in found)


def _columns(numbers: np.ndarray, rows: int, causal: bool) -> np.ndarray:
    """The table of columns: the rows that no interval masks."""
    keys = len(numbers)
    lts, lte, uts, ute = _masked(numbers, rows, causal)
    lower_first = lts < uts
    first_begin, first_end = np.where(lower_first, (lts, lte), (uts, ute))
    second_begin, second_end = np.where(lower_first, (uts, ute), (lts, lte))
    second_begin = np.maximum(second_begin, first_end)
    second_end = np.maximum(second_end, second_begin)
    first_row = np.maximum(np.arange(keys) - (keys - rows), 0) if causal else np.zeros(keys, np.int64)
    line = np.arange(keys)
    gaps = ((np.zeros_like(line), first_begin), (first_end, second_begin), (second_end, np.full(keys, rows)))
    return united(np.concatenate([np.stack((line, np.maximum(begin, first_row), end), 1) for begin, end in gaps]))


def from_flashmask(
    startend_row_indices: Any, q_len: Optional[int] = None, *, causal: bool, heads: Optional[int] = None
) -> np.ndarray:
    """The slices of FlashMask's column intervals (1, heads or 1, Sk, 1, 2 or 4), exactly: int64 (N, 5).

    q_len: Sk if None. With one mask for each of several key/value heads, int64 (N, 6); heads: how many query heads they
    serve, as many as there are if None. Batches have lists of their own: pass one at a time. At most three slices for
    each stretch of keys in which every edge stays, or moves down by a row from key to key.
    """
    array = np.asarray(startend_row_indices)
    if array.ndim != 4 or array.shape[0] != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"startend_row_indices: has dtype {array.dtype} and shape {array.shape}, must be whole numbers of shape "
            "(1, heads, Sk, n): one batch at a time"
        )
    _, count, keys, numbers = array.shape
    allowed = (1, 2) if causal else (2, 4)
    if numbers not in allowed or count < 1:
        raise ValueError(
            f"startend_row_indices: has shape {array.shape}, must have {allowed[0]} or {allowed[1]} numbers for a key "
            f"with causal={causal}, and at least one head"
        )
    rows = keys if q_len is None else whole("q_len", q_len)
    lists = [bands_of_columns(_columns(head.astype(np.int64), rows, causal)) for head in array[0]]
    if count == 1:
        return lists[0]
    query_heads = count if heads is None else whole("heads", heads, count)
    if query_heads % count:
        raise ValueError(f"heads: is {query_heads}, must be a multiple of the {count} heads of startend_row_indices")
    return with_heads([lists[head // (query_heads // count)] for head in range(query_heads)])


def _gaps(columns: np.ndarray, first_row: np.ndarray, rows: int) -> list[list[tuple[int, int]]]:
    """For each column the rows from first_row on that do not see it, as ranges."""
    reached = first_row.tolist()
    gaps: list[list[tuple[int, int]]] = [[] for _ in reached]
    for column, begin, end in columns.tolist():
        if begin > reached[column]:
            gaps[column].append((reached[column], begin))
        reached[column] = end
    for column, end in enumerate(reached):
        if end < rows:
            gaps[column].append((end, rows))
    return gaps


def _numbers_of(gaps: list[tuple[int, int]], rows: int) -> tuple[int, int, int, int]:
    """LTS, LTE, UTS, UTE. A single interval is the upper one if it has the first row."""
    if len(gaps) == 2:
        return (*gaps[1], *gaps[0])
    if not gaps:
        return (rows, rows, 0, 0)
    (begin, end) = gaps[0]
    return (rows, rows, begin, end) if begin == 0 else (begin, end, 0, 0)


def to_flashmask(
    slices: Any, q_len: int, k_len: Optional[int] = None, *, causal: bool = False, heads: Optional[int] = None
) -> np.ndarray:
    """FlashMask's startend_row_indices, int32 (1, heads or 1, Sk, n).

    heads: how many query heads; needed if the list names heads, whose masks then follow each other. n is the smallest
    of 1 and 2 with causal, of 2 and 4 without, that is exact. Raises ValueError for a key that more ranges of rows do
    not see, one with causal and two without, and with causal for a slice that shows a key above the diagonal.
    """
    rows, keys = lengths_of_axes(q_len, k_len)
    found, count = slices_of_heads(slices, rows, keys, heads)
    names = [-1] if heads_of(found) == [-1] else list(range(count))
    first_row = np.maximum(np.arange(keys) - (keys - rows), 0) if causal else np.zeros(keys, np.int64)
    numbers = np.empty((len(names), keys, 4), np.int64)
    for place, head in enumerate(names):
        columns = united(ranges_of(of_head(found, head), by_row=False))
        above = columns[:, 1] < first_row[columns[:, 0]]
        if above.any():
            column, row = columns[np.argmax(above), :2].tolist()
            raise ValueError(
                f"slices: show key {column} to row {row}, must be causal (from row {first_row[column]} on)"
            )
        for column, gaps in enumerate(_gaps(columns, np.minimum(first_row, rows), rows)):
            if len(gaps) > (1 if causal else 2):
                raise ValueError(
                    f"slices: {len(gaps)} ranges of rows do not see key {column}, must be at most {1 if causal else 2} "
                    f"with causal={causal}"
                )
            numbers[place, column] = (*gaps[0], 0, 0) if causal and gaps else _numbers_of(gaps, rows)
    lts, lte, uts, ute = np.moveaxis(numbers, -1, 0)
    if causal:
        kept = [lts] if (lte == rows).all() else [lts, lte]
    else:
        kept = [lts, ute] if ((lte == rows) & (uts == 0)).all() else [lts, lte, uts, ute]
    return np.stack(kept, -1).astype(np.int32)[None]
