"""Attention in chunks: a row at position r sees the keys of its own chunk, from r - r % C to the next multiple of C."""

import torch

Tensor = torch.Tensor


def slices(
    rows: int, keys: int, chunk: int, left: int = -1, right: int = -1, *, first: int = 0, q0: int = 0, k0: int = 0
) -> list[list[int]]:
    """The mask as slices (q0 q1 k0 k1 kind), at most three for each chunk.

    The last row stands at the last key, as everywhere (bottom-right). left and right bound a window besides, -1 is
    unbounded; causal is right = 0. first: the position of key 0, from which chunks are counted. q0, k0: where the
    sequence lies in a packed batch.
    """
    d = keys - rows
    found = []
    for start in range(max(d, 0) + first - (max(d, 0) + first) % chunk - first, keys, chunk):
        low, high = max(start, 0), min(start + chunk, keys)  # the chunk's keys
        begin = max(low, d)  # its rows, by the keys that they stand at: from begin to high
        lower = high if left < 0 else min(max(low + left, begin), high)  # from this row on the window's begin counts
        upper = begin if right < 0 else min(max(high - right, begin), high)  # up to this row the window's end counts
        cuts = sorted({begin, lower, upper, high})
        for r0, r1 in zip(cuts[:-1], cuts[1:], strict=True):
            slopes_low, slopes_high = r0 >= lower, r0 < upper
            found.append(
                [
                    q0 + r0 - d,
                    q0 + r1 - d,
                    k0 + (r0 - left if slopes_low else low),
                    k0 + (r1 + right if slopes_high else high),
                    slopes_high + 2 * slopes_low,  # full, causal, inverse-causal, band
                ]
            )
    return found


def as_tensor(rows: list[list[int]], device: torch.device) -> Tensor:
    """(N, 5) int64. Without any slice nothing is visible, which one empty slice says."""
    return torch.tensor(rows or [[0, 0, 0, 0, 0]], dtype=torch.int64, device=device)


def mask(
    rows: int, columns: int, rows_used: Tensor | int, keys_used: Tensor, chunk: int, leftpad: Tensor | None = None
) -> Tensor:
    """(B, 1, rows, columns) bool, for lengths whose contents are not known. rows_used, keys_used (B), leftpad (B): the
    column at which a sequence's keys start; keys_used counts from there."""
    device = keys_used.device
    positions = torch.arange(rows, device=device) + (keys_used - rows_used)[:, None]  # (B, rows)
    keys = torch.arange(columns, device=device)[None]
    if leftpad is not None:
        keys = keys - leftpad[:, None]
    return (positions // chunk)[:, None, :, None] == (keys // chunk)[:, None, None, :]
