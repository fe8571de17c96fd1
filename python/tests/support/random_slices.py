"""Lists of slices: masks that a token plan balances."""

from __future__ import annotations

import numpy as np

HEADS = 4  # that slices of heads are drawn for


def random_slices(rng: np.random.Generator, q_len: int, k_len: int, columns: int) -> np.ndarray:
    """Of all kinds; they overlap, and leave rows and keys out."""

    def ends(length: int) -> list[int]:
        return sorted(rng.integers(0, length + 1, 2).tolist())

    rows = [[*ends(q_len), *ends(k_len), rng.integers(4), rng.integers(-1, HEADS)] for _ in range(9)]
    return np.array(rows, np.int64)[:, :columns]
