"""Masks that tilewise.masks makes, each with what it says in words: a function of (i, j) that uses nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tilewise import masks

Case = tuple[str, np.ndarray, np.ndarray, int]  # name, slices, the boolean mask, the most slices


def boolean(rows: int, keys: int, sees: Callable[[int, int], bool]) -> np.ndarray:
    """The mask (rows, keys) of a function."""
    return np.array([[bool(sees(i, j)) for j in range(keys)] for i in range(rows)], bool).reshape(rows, keys)


def _number(starts: np.ndarray, token: int) -> int:
    """The document that a token belongs to."""
    return int(np.searchsorted(starts, token, "right")) - 1


def _in_window(i: int, j: int, d: int, left: int, right: int) -> bool:
    return (left < 0 or j >= i + d - left) and (right < 0 or j <= i + d + right)


def of_one_sequence(rng: np.random.Generator) -> Iterator[Case]:
    """The masks of a sequence of random lengths, 0 among them."""
    rows, keys = rng.integers(0, 24, 2).tolist()
    left, right = rng.integers(-1, 12, 2).tolist()
    prefix = int(rng.integers(0, keys + 1))
    step = int(rng.integers(1, 6))
    for alignment, d in (("bottom_right", keys - rows), ("top_left", 0)):
        made = masks.causal(rows, keys, alignment=alignment)
        most = 2 if d == 0 and rows > keys else 1
        yield f"causal {alignment}", made, boolean(rows, keys, lambda i, j: j <= i + d), most
        window = masks.sliding_window(rows, keys, window_size=(left, right), alignment=alignment)
        yield f"window {alignment}", window, boolean(rows, keys, lambda i, j: _in_window(i, j, d, left, right)), 3
        most = max(left, 0) + max(right, 0) + 1
        made = masks.dilated(rows, keys, left=max(left, 0), right=max(right, 0), step=step, alignment=alignment)
        offsets = {m * step for m in range(-max(left, 0), max(right, 0) + 1)}
        yield f"dilated {alignment}", made, boolean(rows, keys, lambda i, j: j - i - d in offsets), most
    sees = boolean(rows, keys, lambda i, j: j < prefix or j <= i + keys - rows)
    yield "prefix_lm", masks.prefix_lm(rows, keys, prefix=prefix), sees, 2


def of_one_axis(rng: np.random.Generator) -> Iterator[Case]:
    """The masks of as many queries as keys: blocks, a shared question, global tokens."""
    lengths = rng.integers(0, 9, rng.integers(0, 6))
    starts = np.concatenate(([0], np.cumsum(lengths)))
    length, count = int(starts[-1]), int((lengths > 0).sum())
    past = int(rng.integers(0, 3))

    def number(token: int) -> int:
        return _number(starts, token)

    sees = boolean(length, length, lambda i, j: number(j) <= number(i))
    yield "block_causal", masks.block_causal(lengths=lengths), sees, count
    near = {i: range(max(int(starts[max(number(i) - past, 0)]), 0), int(starts[number(i) + 1])) for i in range(length)}
    sees = boolean(length, length, lambda i, j: j in near[i])
    yield "block_causal past", masks.block_causal(starts, past=past), sees, count
    question = int(rng.integers(0, 9))
    whole = question + length

    def asks(i: int, j: int) -> bool:
        return j <= i and (j < question or number(i - question) == number(j - question))

    most = max(count + 1, 1) if count > 1 else 1
    yield "shared_question", masks.shared_question(question, lengths), boolean(whole, whole, asks), most
    left, right = rng.integers(-1, 8, 2).tolist()
    first = int(rng.integers(0, length + 1))
    made = masks.global_window(length, global_tokens=first, window_size=(left, right))
    sees = boolean(length, length, lambda i, j: i < first or j < first or _in_window(i, j, 0, left, right))
    yield "global_window", made, sees, 5
    made = masks.global_window(length, global_tokens=first, window_size=(left, right), causal=True)
    sees = boolean(length, length, lambda i, j: j <= i and (j < first or _in_window(i, j, 0, left, 0)))
    yield "global_window causal", made, sees, 3


def of_documents(rng: np.random.Generator) -> Iterator[Case]:
    """Packed documents, with keys of their own or those of the queries."""
    count = int(rng.integers(0, 5))
    lengths, lengths_k = rng.integers(0, 9, (2, count))
    starts, starts_k = (np.concatenate(([0], np.cumsum(list_))) for list_ in (lengths, lengths_k))
    left, right = rng.integers(-1, 6, 2).tolist()
    full = ((lengths > 0) & (lengths_k > 0)).sum()

    def sees(causal: bool, top_left: bool, i: int, j: int) -> bool:
        b = _number(starts, i)
        if b != _number(starts_k, j):
            return False
        d = 0 if top_left else lengths_k[b] - lengths[b]
        return _in_window(i - starts[b], j - starts_k[b], d, left, 0 if causal else right)

    size = (int(starts[-1]), int(starts_k[-1]))
    for causal in (False, True):
        for alignment in ("bottom_right", "top_left"):
            made = masks.documents(
                starts, lengths_k=lengths_k, causal=causal, window_size=(left, right), alignment=alignment
            )
            wanted = boolean(*size, lambda i, j: sees(causal, alignment == "top_left", i, j))
            yield f"documents {causal} {alignment}", made, wanted, 3 * full
    made = masks.documents(lengths=lengths, causal=True)
    wanted = boolean(size[0], size[0], lambda i, j: j <= i and _number(starts, i) == _number(starts, j))
    yield "documents causal", made, wanted, int((lengths > 0).sum())


def of_blocks(rng: np.random.Generator) -> Iterator[Case]:
    """Block-sparse masks, those of heads as one tall mask."""
    count_q, count_k = rng.integers(0, 6, 2).tolist()
    bq, bk = rng.integers(1, 6, 2).tolist()
    blocks = rng.random((count_q, count_k)) < rng.random()
    rows = count_q * bq - (int(rng.integers(0, bq)) if count_q else 0)
    keys = count_k * bk - (int(rng.integers(0, bk)) if count_k else 0)
    made = masks.block_sparse(blocks, block_size=(bq, bk), q_len=rows, k_len=keys)
    sees = boolean(rows, keys, lambda i, j: blocks[i // bq, j // bk])
    runs = (np.diff(np.pad(blocks, ((0, 0), (1, 0))).astype(int), axis=1) == 1).sum()
    yield "block_sparse", made, sees, int(runs)


def random_slices(rng: np.random.Generator, rows: int, keys: int, count: int, heads: int = 0) -> np.ndarray:
    """Any slices, which overlap, touch or are empty: (count, 5), or (count, 6) with heads."""
    q, k = np.sort(rng.integers(0, rows + 1, (count, 2))), np.sort(rng.integers(0, keys + 1, (count, 2)))
    columns: list[Any] = [q, k, rng.integers(0, 4, count)]
    return np.column_stack([*columns, rng.integers(-1, heads, count)] if heads else columns)


def drawn(slices: np.ndarray, rows: int, keys: int, head: int = -1) -> np.ndarray:
    """The mask of a list by the definition in docs/semantics.md, pair by pair."""

    def sees(i: int, j: int) -> bool:
        for q0, q1, k0, k1, kind, *own in slices.tolist():
            if not (q0 <= i < q1 and k0 <= j < k1) or (own and own[0] not in (-1, head)):
                continue
            row, key, d = i - q0, j - k0, (k1 - k0) - (q1 - q0)
            if (kind, True) in ((0, True), (1, key <= row + d), (2, key >= row), (3, row <= key <= row + d)):
                return True
        return False

    return boolean(rows, keys, sees)
