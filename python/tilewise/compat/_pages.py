"""A cache in pages: (N, page size, Hk, D), and for each sequence a row of a table that names its pages in order."""

from typing import Any

import torch
from tilewise.compat import _contents
from tilewise.compat._float8 import take

Tensor = torch.Tensor


def check(pages: Tensor, name: str, table: Tensor, used: Tensor) -> None:
    """Raises ArgumentError for a length or a page that is not there, where contents are known.

    name: what the caller calls the table. used (B): keys in use. Pages after a sequence's end are never looked at, and
    may be any number.
    """
    if not _contents.are_known(pages):
        return
    count, size = pages.shape[:2]
    first = torch.arange(table.shape[1], device=table.device) * size
    in_use = table[first < used[:, None]]
    _contents.check(
        [
            _contents.Limits(f"a length of {name}'s sequences", used, 0, table.shape[1] * size),
            _contents.Limits(name, in_use, 0, count - 1),
        ]
    )


def in_place(table: Tensor, used: Tensor) -> dict[str, Any]:
    """The options with which attention() reads the pages where they are. Of what check() has passed."""
    return {"page_table": table.to(torch.int32), "seqused_k": used}


def stored(
    k_pages: Tensor, v_pages: Tensor, table: Tensor, used: Tensor, leftpad: Tensor | None = None
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """k and v as rows, and where their sequences are: for gradients, and for options that in_place() does not combine
    with. Copies, of what check() has passed.

    leftpad (B): at which key of its pages a sequence starts.
    """
    if not _contents.are_known(k_pages):
        k, v = (_in_order(pages, table) for pages in (k_pages, v_pages))
        return k, v, {"seqused_k": used, **padding_mask(leftpad, k.shape[1])}
    size = k_pages.shape[1]
    counts = (used.long() + size - 1) // size  # (B)
    columns = torch.arange(table.shape[1], device=table.device)
    in_use = table[columns < counts[:, None]]  # (pages in use)
    starts = torch.nn.functional.pad(counts.cumsum(0) * size, (1, 0))
    k, v = (take(pages, in_use).flatten(0, 1) for pages in (k_pages, v_pages))
    longest = table.shape[1] * size
    if leftpad is not None:  # a sequence's padding is the end of what lies before it, which seqused_k ends earlier
        skipped = torch.minimum(leftpad.long(), used.long())
        starts = torch.cat((starts[:-1] + skipped, starts[-1:]))
        used, longest = used - skipped, 2 * longest
    return k, v, {"cu_seqlens_k": starts, "max_seqlen_k": longest, "seqused_k": used}


def padding_mask(leftpad: Tensor | None, columns: int) -> dict[str, Any]:
    """{} or a mask (B, 1, 1, columns) of the keys after the padding."""
    if leftpad is None:
        return {}
    return {"mask": (torch.arange(columns, device=leftpad.device) >= leftpad[:, None])[:, None, None]}


def _in_order(pages: Tensor, table: Tensor) -> Tensor:
    """All pages of each sequence, one after the other: (B, pages * page size, Hk, D).

    Entries after a sequence's end may hold anything; they are read from the first page and masked by its length.
    """
    chosen = table.long()
    chosen = chosen.masked_fill((chosen < 0) | (chosen >= pages.shape[0]), 0)
    return take(pages, chosen).flatten(1, 2)
