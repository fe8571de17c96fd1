"""A cache in pages: (N, page size, Hk, D), and for each sequence a row of block_table that names its pages in order."""

from typing import Any

import torch

from tilewise.compat import _contents

Tensor = torch.Tensor


def check(pages: Tensor, block_table: Tensor, used: Tensor) -> None:
    """Raises ValueError for a length or a page that is not there, where contents are known. used (B): keys in use.

    Pages behind a sequence's end are never looked at, and may be any number.
    """
    if not _contents.are_known(pages):
        return
    count, size = pages.shape[:2]
    first = torch.arange(block_table.shape[1], device=block_table.device) * size
    in_use = block_table[first < used[:, None]]
    _contents.check(
        [
            _contents.Limits("a length of block_table's sequences", used, 0, block_table.shape[1] * size),
            _contents.Limits("block_table", in_use, 0, count - 1),
        ]
    )


def stored(k_pages: Tensor, v_pages: Tensor, block_table: Tensor, used: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """k and v as attention() takes them, and where their sequences are. Copies, of what check() has passed."""
    if not _contents.are_known(k_pages):
        k, v = (_in_order(pages, block_table) for pages in (k_pages, v_pages))
        return k, v, {"seqused_k": used}
    size = k_pages.shape[1]
    counts = (used.long() + size - 1) // size  # (B)
    columns = torch.arange(block_table.shape[1], device=block_table.device)
    in_use = block_table[columns < counts[:, None]]  # (pages in use)
    starts = torch.nn.functional.pad(counts.cumsum(0) * size, (1, 0))
    k, v = (pages.index_select(0, in_use).flatten(0, 1) for pages in (k_pages, v_pages))
    return k, v, {"cu_seqlens_k": starts, "max_seqlen_k": block_table.shape[1] * size, "seqused_k": used}


def _in_order(pages: Tensor, block_table: Tensor) -> Tensor:
    """Gathers all pages of each sequence, one after another: (B, pages * page size, Hk, D).

    Entries behind a sequence's end may hold anything; they are read from the first page and masked by its length.
    """
    chosen = block_table.long()
    chosen = chosen.masked_fill((chosen < 0) | (chosen >= pages.shape[0]), 0)
    return pages[chosen].flatten(1, 2)
