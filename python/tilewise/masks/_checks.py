"""What the arguments of masks must be: every error names the argument, its value and the limit."""

from __future__ import annotations

import operator
from typing import Any, Optional, Sequence

import numpy as np

MOST = 2**59  # of lengths and offsets, so that no sum of two leaves int64


def whole(name: str, value: Any, low: int = 0, high: int = MOST) -> int:
    """`value` as an int of low..high."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: is {value!r}, must be a whole number") from None
    if not low <= number <= high:
        raise ValueError(f"{name}: is {number}, must be {low} to {high}")
    return number


def lengths_of_axes(q_len: Any, k_len: Optional[Any]) -> tuple[int, int]:
    """Sq and Sk, which is Sq if it is not given."""
    rows = whole("q_len", q_len)
    return rows, rows if k_len is None else whole("k_len", k_len)


def diagonal(q_len: int, k_len: int, alignment: str) -> int:
    """The offset d of causal and windows."""
    if alignment not in ("bottom_right", "top_left"):
        raise ValueError(f"alignment: is {alignment!r}, must be 'bottom_right' or 'top_left'")
    return k_len - q_len if alignment == "bottom_right" else 0


def window_sides(window_size: Any) -> tuple[Optional[int], Optional[int]]:
    """The keys to the left and to the right; None is unbounded."""
    try:
        sides = tuple(window_size)
    except TypeError:
        sides = ()
    if len(sides) != 2:
        raise ValueError(f"window_size: is {window_size!r}, must be (left, right)")
    found = [None if side is None else whole("window_size", side, -1) for side in sides]
    left, right = (None if side == -1 else side for side in found)
    return left, right


def _numbers(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name}: has dtype {array.dtype} and shape {array.shape}, must be whole numbers of shape (n)")
    return array.astype(np.int64)


def lengths_of(name: str, values: Any) -> np.ndarray:
    """A list of lengths, int64 (n)."""
    array = _numbers(name, values)
    for index, length in enumerate(array.tolist()):
        whole(f"{name}[{index}]", length)
    whole(f"the sum of {name}", sum(array.tolist()))
    return array


def starts_of(suffix: str, cu_seqlens: Any, lengths: Any) -> np.ndarray:
    """The starts of sequences and the end, int64 (n + 1), from cu_seqlens or from lengths: one of the two."""
    starts_name, lengths_name = f"cu_seqlens{suffix}", f"lengths{suffix}"
    if (cu_seqlens is None) == (lengths is None):
        given = "neither" if cu_seqlens is None else "both"
        raise TypeError(f"{starts_name} and {lengths_name}: {given} given, must be one of the two")
    if cu_seqlens is None:
        return np.concatenate(([0], np.cumsum(lengths_of(lengths_name, lengths))))
    starts = _numbers(starts_name, cu_seqlens)
    if len(starts) == 0:
        raise ValueError(f"{starts_name}: is empty, must begin with 0")
    previous = 0
    for index, start in enumerate(starts.tolist()):
        if index == 0 and start != 0:
            raise ValueError(f"{starts_name}[0]: is {start}, must be 0")
        if start < previous or start > MOST:
            raise ValueError(f"{starts_name}[{index}]: is {start}, must be {previous} (the previous one) to {MOST}")
        previous = start
    return starts


def _refuse_slice(index: int, row: Sequence[int], q_len: int, k_len: int, heads: int) -> None:
    q0, q1, k0, k1, kind, head = row
    for name, begin, end, limit in (("q0..q1", q0, q1, q_len), ("k0..k1", k0, k1, k_len)):
        if not 0 <= begin <= end <= limit:
            raise ValueError(f"slices[{index}]: {name} is {begin}..{end}, must lie within 0..{limit}")
    if not 0 <= kind <= 3:
        raise ValueError(f"slices[{index}]: kind is {kind}, must be 0 to 3")
    if not -1 <= head < heads:
        allowed = f"below heads = {heads}" if heads else "heads given: how many query heads there are"
        raise ValueError(f"slices[{index}]: head is {head}, must be -1 (all), or {allowed}")


def slice_list(slices: Any, q_len: int = MOST, k_len: int = MOST, heads: int = MOST) -> np.ndarray:
    """A list of slices as int64 (N, 6); head is -1 in a list of five columns."""
    array = np.asarray(slices)
    if array.size == 0:
        return np.empty((0, 6), np.int64)
    if array.ndim != 2 or array.shape[1] not in (5, 6) or array.dtype.kind not in "iu":
        raise ValueError(
            f"slices: has dtype {array.dtype} and shape {array.shape}, must be whole numbers of shape (N, 5) or (N, 6)"
        )
    rows = np.full((len(array), 6), -1, np.int64)
    rows[:, : array.shape[1]] = array
    q0, q1, k0, k1, kind, head = rows.T
    good = (q0 >= 0) & (q1 >= q0) & (q1 <= q_len) & (k0 >= 0) & (k1 >= k0) & (k1 <= k_len)
    good &= (kind >= 0) & (kind <= 3) & (head >= -1) & (head < heads)
    if not good.all():
        first = int(np.argmin(good))
        _refuse_slice(first, rows[first].tolist(), q_len, k_len, heads)
    return rows


def slices_of_heads(slices: Any, q_len: int, k_len: int, heads: Optional[Any]) -> tuple[np.ndarray, int]:
    """The list as int64 (N, 6), and `heads`; 0 if it is None, and then the list must not name heads."""
    count = 0 if heads is None else whole("heads", heads, 1)
    return slice_list(slices, q_len, k_len, count), count
