"""MagiAttention's ranges: q_ranges (N, 2), k_ranges (N, 2) and attn_type_map (N). Its kinds have the same numbers."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from tilewise.masks._checks import slice_list
from tilewise.masks._intervals import disjoint, heads_of

INT32_MOST = 2**31 - 1


def _column(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(values)
    if array.size == 0:
        array = array.reshape(0, *shape[1:]).astype(np.int64)
    if array.shape != shape or array.dtype.kind not in "iu":
        raise ValueError(f"{name}: has dtype {array.dtype} and shape {array.shape}, must be whole numbers of {shape}")
    return array.astype(np.int64)


def from_magi(q_ranges: Any, k_ranges: Any, attn_type_map: Optional[Any] = None) -> np.ndarray:
    """The slices of MagiAttention's ranges, int64 (N, 5): one for each range. attn_type_map None: all full.

    Pairs that several ranges show count once here; MagiAttention asks for ranges that do not overlap.
    """
    count = len(q_ranges)
    queries = _column("q_ranges", q_ranges, (count, 2))
    keys = _column("k_ranges", k_ranges, (count, 2))
    kinds = np.zeros(count, np.int64) if attn_type_map is None else _column("attn_type_map", attn_type_map, (count,))
    return slice_list(np.column_stack((queries, keys, kinds)))[:, :5]


def to_magi(slices: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(q_ranges, k_ranges, attn_type_map), int32, one row for each slice.

    Slices that overlap are first rewritten to slices that do not, since MagiAttention would count a pair twice. It has
    one mask for all heads: a list that names heads is refused.
    """
    rows = slice_list(slices)
    if heads_of(rows) != [-1]:
        raise ValueError(
            f"slices: name head {heads_of(rows)[0]}, must be for all heads (-1): MagiAttention has no masks per head"
        )
    if rows[:, :4].max(initial=0) > INT32_MOST:
        raise ValueError(f"slices: reach to {rows[:, :4].max()}, must be at most {INT32_MOST}: the ranges are int32")
    found = disjoint(rows[:, :5]).astype(np.int32)
    return found[:, 0:2].copy(), found[:, 2:4].copy(), found[:, 4].copy()
