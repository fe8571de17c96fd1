"""Lists of slices for masks that people write: int64 (N, 5), rows q0 q1 k0 k1 kind (docs/masks.md has pictures)."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from tilewise.masks._bands import CAUSAL, FULL, Slice, as_list, band_slices
from tilewise.masks._checks import diagonal, lengths_of, lengths_of_axes, slice_list, starts_of, whole, window_sides

Window = Sequence[Optional[int]]  # (left, right), inclusive; -1 or None: no bound


def causal(q_len: int, k_len: Optional[int] = None, *, alignment: str = "bottom_right") -> np.ndarray:
    """A query sees the keys j <= i + d. k_len: that of the queries if None.

    One slice; two for top_left with more queries than keys.
    """
    return sliding_window(q_len, k_len, window_size=(-1, 0), alignment=alignment)


def sliding_window(
    q_len: int, k_len: Optional[int] = None, *, window_size: Window, alignment: str = "bottom_right"
) -> np.ndarray:
    """A query sees the keys i + d - left <= j <= i + d + right; -1 or None is unbounded.

    At most three slices: the rows whose window the first key cuts, those between, and those that the last key cuts.
    """
    rows, keys = lengths_of_axes(q_len, k_len)
    left, right = window_sides(window_size)
    d = diagonal(rows, keys, alignment)
    return as_list(band_slices((0, rows), (0, keys), None if left is None else d - left, _plus(right, d)))


def _plus(side: Optional[int], d: int) -> Optional[int]:
    return None if side is None else side + d


def prefix_lm(q_len: int, k_len: Optional[int] = None, *, prefix: int) -> np.ndarray:
    """Every query sees the first `prefix` keys; beyond them the mask is causal, bottom-right.

    Two slices; one if all queries or none are in the prefix.
    """
    rows, keys = lengths_of_axes(q_len, k_len)
    prefix = whole("prefix", prefix, 0, keys)
    inside = min(max(prefix - (keys - rows), 0), rows)  # the rows whose causal keys are all in the prefix
    return as_list([(0, inside, 0, prefix, FULL), (inside, rows, 0, keys, CAUSAL)])


def documents(
    cu_seqlens: Any = None,
    cu_seqlens_k: Any = None,
    *,
    lengths: Any = None,
    lengths_k: Any = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    alignment: str = "bottom_right",
) -> np.ndarray:
    """Packed documents: a query sees keys of its own document only, all or those that causal and window_size allow.

    cu_seqlens (B + 1): starts of the documents and the end; or lengths (B). The keys have those of the queries unless
    cu_seqlens_k or lengths_k is given. One slice a document that is not empty; with a window at most three.
    """
    q_starts = starts_of("", cu_seqlens, lengths)
    own_keys = cu_seqlens_k is not None or lengths_k is not None
    k_starts = starts_of("_k", cu_seqlens_k, lengths_k) if own_keys else q_starts
    if len(k_starts) != len(q_starts):
        raise ValueError(
            f"cu_seqlens_k: has {len(k_starts) - 1} documents, must have those of the queries, {len(q_starts) - 1}"
        )
    left, right = window_sides(window_size)
    right = 0 if causal else right
    slices: list[Slice] = []
    for q0, q1, k0, k1 in np.stack((q_starts[:-1], q_starts[1:], k_starts[:-1], k_starts[1:]), 1).tolist():
        d = diagonal(q1 - q0, k1 - k0, alignment) + k0 - q0
        slices += band_slices((q0, q1), (k0, k1), None if left is None else d - left, _plus(right, d))
    return as_list(slices)


def block_causal(cu_seqlens: Any = None, *, lengths: Any = None, past: Optional[int] = None) -> np.ndarray:
    """Blocks of tokens, such as the frames of a video: a query sees its own block and those before it.

    cu_seqlens (B + 1): starts of the blocks and the end; or lengths (B). past: how many blocks before its own a query
    sees; all if None. One slice a block that is not empty.
    """
    starts = starts_of("", cu_seqlens, lengths).tolist()
    reach = len(starts) if past is None else whole("past", past)
    return as_list((starts[b], starts[b + 1], starts[max(b - reach, 0)], starts[b + 1], FULL)
                   for b in range(len(starts) - 1))  # fmt: skip


def shared_question(question: int, answers: Any) -> np.ndarray:
    """A question, then answers of the lengths `answers`: each sees the question and itself, causally.

    One slice more than there are answers; one in all for one answer or none.
    """
    question = whole("question", question)
    ends = question + np.concatenate(([0], np.cumsum(lengths_of("answers", answers))))
    starts = [int(end) for end in np.unique(ends)]  # without the answers that are empty
    first = starts[min(1, len(starts) - 1)]  # the end of the first answer: it and the question are one causal block
    slices = [(0, first, 0, first, CAUSAL), (first, starts[-1], 0, question, FULL)]
    return as_list(slices + [(a, b, a, b, CAUSAL) for a, b in zip(starts[1:], starts[2:])])


def global_window(length: int, *, global_tokens: int, window_size: Window, causal: bool = False) -> np.ndarray:
    """A sliding window, and the first `global_tokens` tokens, which see every token and are seen by every one.

    With causal no query sees a later key: the global tokens are what attention sinks are. At most five slices; with
    causal at most three.
    """
    length = whole("length", length)
    first = whole("global_tokens", global_tokens, 0, length)
    left, right = window_sides(window_size)
    lower = None if left is None else -left
    if not causal:
        corner: list[Slice] = [(0, first, 0, length, FULL), (first, length, 0, first, FULL)]
        return as_list(corner + band_slices((first, length), (first, length), lower, right))
    head = length if left is None else min(length, first + left + 1)  # rows whose window reaches the global tokens
    slices: list[Slice] = [(0, head, 0, head, CAUSAL), (head, length, 0, first, FULL)]
    return as_list(slices + band_slices((head, length), (first, length), lower, 0))


def dilated(
    q_len: int, k_len: Optional[int] = None, *, left: int, right: int, step: int, alignment: str = "bottom_right"
) -> np.ndarray:
    """A query sees every `step`-th key around its own: j = i + d + m * step for -left <= m <= right.

    One slice for each m: a diagonal. A kernel visits every tile that one of them crosses.
    """
    rows, keys = lengths_of_axes(q_len, k_len)
    left, right, step = whole("left", left), whole("right", right), whole("step", step, 1)
    d = diagonal(rows, keys, alignment)
    least = max(-left, -((rows - 1 + d) // step))  # beyond these no diagonal meets a pair
    most = min(right, (keys - 1 - d) // step)
    slices: list[Slice] = []
    for m in range(least, most + 1):
        slices += band_slices((0, rows), (0, keys), d + m * step, d + m * step)
    return as_list(slices)


def _runs(row: np.ndarray) -> list[tuple[int, int]]:
    """The ranges of a row of booleans that are True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(np.int8), [0]))))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist()))


def _rectangles(blocks: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Ranges of rows and columns of blocks; equal runs of consecutive rows are one."""
    found = []
    growing: dict[tuple[int, int], int] = {}  # a run of columns, and the row where it began
    for number, row in enumerate([*blocks, np.zeros(blocks.shape[1], bool)]):
        runs = _runs(row)
        ended = growing.keys() - set(runs)
        found += [(growing[run], number, *run) for run in ended]
        growing = {run: growing.get(run, number) for run in runs}
    return sorted(found)


def block_sparse(
    block_mask: Any, *, block_size: Any = 128, q_len: Optional[int] = None, k_len: Optional[int] = None
) -> np.ndarray:
    """Blocks that are visible or not: bool (query blocks, key blocks), or with a mask for each head (H, ...).

    block_size: of both sides, or (rows, keys). q_len, k_len: end in the last block; at its end if None. One slice for
    each run of visible blocks of a block row; equal runs of consecutive block rows are one slice. int64 (N, 6) if there
    are heads.
    """
    blocks = np.asarray(block_mask)
    if blocks.dtype != np.bool_ or blocks.ndim not in (2, 3):
        raise ValueError(
            f"block_mask: has dtype {blocks.dtype} and shape {blocks.shape}, must be bool of 2 or 3 dimensions"
        )
    sizes = (block_size, block_size) if np.ndim(block_size) == 0 else tuple(block_size)
    if len(sizes) != 2:
        raise ValueError(f"block_size: is {block_size!r}, must be a number or (rows, keys)")
    bq, bk = (whole("block_size", size, 1) for size in sizes)
    count_q, count_k = blocks.shape[-2:]
    rows = count_q * bq if q_len is None else whole("q_len", q_len, max(0, count_q - 1) * bq, count_q * bq)
    keys = count_k * bk if k_len is None else whole("k_len", k_len, max(0, count_k - 1) * bk, count_k * bk)
    lists = [
        as_list((r0 * bq, min(r1 * bq, rows), c0 * bk, min(c1 * bk, keys), FULL)
                for r0, r1, c0, c1 in _rectangles(head))
        for head in (blocks[None] if blocks.ndim == 2 else blocks)
    ]  # fmt: skip
    return lists[0] if blocks.ndim == 2 else per_head(lists)


def per_head(lists: Sequence[Any]) -> np.ndarray:
    """One list for each query head as one list, int64 (N, 6); N is the sum of the lengths."""
    rows = [slice_list(one).copy() for one in lists]
    for head, one in enumerate(rows):
        one[:, 5] = head
    return np.concatenate([np.empty((0, 6), np.int64), *rows])
