"""FlexAttention's BlockMask (torch.nn.attention.flex_attention). PyTorch is imported when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from tilewise.masks._checks import lengths_of_axes, slices_of_heads, whole
from tilewise.masks._intervals import (
    bands_of_columns,
    columns_of_mask,
    heads_of,
    of_head,
    ranges_of,
    united,
    with_heads,
)

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


MOST_PAIRS = 2**22  # that are evaluated at a time: a call of torch.vmap costs as much as some million pairs


def _dense(counts: Any, indices: Any, rows: int, columns: int) -> np.ndarray:
    """bool (heads, rows, columns) of the lists of blocks (1, heads, rows, ...); None: no block."""
    if counts is None:
        return np.zeros((1, rows, columns), bool)
    counts, indices = counts[0].cpu().numpy(), indices[0].cpu().numpy()
    blocks = np.zeros((len(counts), rows, columns), bool)
    listed = np.arange(indices.shape[-1]) < counts[..., None]
    head, row, place = np.nonzero(listed)
    blocks[head, row, indices[head, row, place]] = True
    return blocks


def _of_full_blocks(blocks: np.ndarray, sizes: tuple[int, int], lengths: tuple[int, int]) -> np.ndarray:
    """The columns of full blocks (rows, columns), ranges (n, 3)."""
    row, column = np.nonzero(blocks)
    line = (column[:, None] * sizes[1] + np.arange(sizes[1])).reshape(-1)
    begin = np.repeat(row * sizes[0], sizes[1])
    end = np.minimum(begin + sizes[0], lengths[0])
    return np.stack((line, begin, end), 1)[line < lengths[1]]


def _groups(blocks: np.ndarray, pairs_of_block: int) -> list[tuple[int, int, int, int]]:
    """Rectangles of blocks that cover all that are True, of up to MOST_PAIRS pairs if one row of blocks allows that."""
    groups: list[tuple[int, int, int, int]] = []
    for row in np.flatnonzero(blocks.any(1)).tolist():
        columns = np.flatnonzero(blocks[row])
        begin, end = int(columns[0]), int(columns[-1]) + 1
        if groups:
            r0, _, c0, c1 = groups[-1]
            joined = (r0, row + 1, min(c0, begin), max(c1, end))
            if (joined[1] - r0) * (joined[3] - joined[2]) * pairs_of_block <= MOST_PAIRS:
                groups[-1] = joined
                continue
        groups.append((row, row + 1, begin, end))
    return groups


def _of_partial_blocks(
    blocks: np.ndarray, sizes: tuple[int, int], lengths: tuple[int, int], evaluate: Callable[..., np.ndarray]
) -> list[np.ndarray]:
    """The columns of partial blocks (rows, columns), whose pairs the mask_mod decides: a list of ranges (n, 3)."""
    found = []
    for r0, r1, c0, c1 in _groups(blocks, sizes[0] * sizes[1]):
        q0, q1 = r0 * sizes[0], min(r1 * sizes[0], lengths[0])
        k0, k1 = c0 * sizes[1], min(c1 * sizes[1], lengths[1])
        if q0 < q1 and k0 < k1:
            inside = blocks[r0:r1, c0:c1].repeat(sizes[0], 0).repeat(sizes[1], 1)[: q1 - q0, : k1 - k0]
            found.append(columns_of_mask(evaluate(q0, q1, k0, k1) & inside) + (k0, q0, q0))
    return found


def from_block_mask(block_mask: BlockMask) -> np.ndarray:
    """The slices of a BlockMask, exactly: int64 (N, 5), or (N, 6) if it has one mask for each of several heads.

    A full block is visible, whatever mask_mod says of it, as for FlexAttention's kernels. For partial blocks mask_mod
    is evaluated, some rows of blocks at a time, and from_mask's search finds rectangles, triangles and bands in the whole.
    So the number of slices depends on the mask alone, not on the blocks: a mask_mod without such structure takes up to
    one slice for each run of visible rows of each key. Raises ValueError for several batches, because a list of slices
    is the same for all.
    """
    from torch.nn.attention.flex_attention import create_mask

    batch, heads, rows, columns = block_mask.kv_indices.shape
    if batch != 1:
        raise ValueError(f"block_mask: has {batch} batches, must have 1: a list of slices is the same for every batch")
    sizes, lengths = block_mask.BLOCK_SIZE, block_mask.seq_lengths
    partial = _dense(block_mask.kv_num_blocks, block_mask.kv_indices, rows, columns)
    full = _dense(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, rows, columns)
    device = block_mask.kv_indices.device

    def list_of(head: int) -> np.ndarray:
        def evaluate(q0: int, q1: int, k0: int, k1: int) -> np.ndarray:
            def moved(b: Any, h: Any, q: Any, k: Any) -> Any:
                return block_mask.mask_mod(b, h + head, q + q0, k + k0)

            return create_mask(moved, 1, 1, q1 - q0, k1 - k0, device)[0, 0].cpu().numpy()

        ranges = _of_partial_blocks(partial[head], sizes, lengths, evaluate)
        ranges.append(_of_full_blocks(full[min(head, len(full) - 1)], sizes, lengths))
        return bands_of_columns(united(np.concatenate(ranges)))

    return list_of(0) if heads == 1 else with_heads([list_of(head) for head in range(heads)])


def _table(rows: np.ndarray, q_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Begins and ends (Sq, M) of what each row sees; M is the most ranges of a row, and a range may be empty."""
    counts = np.bincount(rows[:, 0], minlength=q_len)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    edges = np.zeros((2, q_len, max(1, int(counts.max(initial=0)))), np.int64)
    edges[:, rows[:, 0], place] = rows[:, 1:].T
    return edges[0], edges[1]


def _visible_pairs(begins: np.ndarray, ends: np.ndarray, sizes: tuple[int, int], k_len: int) -> np.ndarray:
    """How many pairs of each block are visible, (query blocks, key blocks)."""
    edges = np.arange(-(-k_len // sizes[1]) + 1) * sizes[1]
    counts = []
    for row in range(0, len(begins), sizes[0]):
        begin, end = begins[row : row + sizes[0], :, None], ends[row : row + sizes[0], :, None]
        counts.append(np.diff(np.clip(edges - begin, 0, end - begin).sum((0, 1))))
    return np.array(counts, np.int64).reshape(len(counts), len(edges) - 1)


def _function_of(tables: list[tuple[np.ndarray, np.ndarray]], device: Any) -> Callable[..., Any]:
    """The mask_mod of a table for each head, or of one for all."""
    import torch

    most = max(begins.shape[1] for begins, _ in tables)
    edges = np.zeros((2, len(tables), len(tables[0][0]), most), np.int64)
    for head, table in enumerate(tables):
        edges[:, head, :, : table[0].shape[1]] = table
    begins, ends = torch.from_numpy(edges).to(device)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        head = h if len(tables) > 1 else h * 0
        visible = (kv_idx >= begins[head, q_idx, 0]) & (kv_idx < ends[head, q_idx, 0])
        for place in range(1, most):
            visible = visible | ((kv_idx >= begins[head, q_idx, place]) & (kv_idx < ends[head, q_idx, place]))
        return visible

    return mask_mod


def _listed(blocks: np.ndarray, device: Any) -> tuple[Any, Any]:
    """The number and the columns of the blocks of each row of blocks: int32 (1, heads, rows) and (..., columns)."""
    import torch

    lists = (blocks.sum(-1), np.argsort(~blocks, axis=-1, kind="stable"))
    counts, columns = (torch.from_numpy(numbers.astype(np.int32))[None].to(device) for numbers in lists)
    return counts, columns


def to_block_mask(
    slices: Any,
    q_len: int,
    k_len: Optional[int] = None,
    *,
    heads: Optional[int] = None,
    block_size: int = 128,
    device: Any = "cpu",
) -> BlockMask:
    """FlexAttention's BlockMask of a list, exactly: (1, heads or 1, Sq, Sk) with full and partial blocks.

    heads: how many query heads; needed if the list names heads. The mask_mod compares a key with the ranges of keys
    that its row sees, from a table on `device` whose size is Sq times the most ranges of a row (times the heads if the
    list names some): one range for most masks, and no Sq x Sk memory.
    """
    from torch.nn.attention.flex_attention import BlockMask

    rows, keys = lengths_of_axes(q_len, k_len)
    found, count = slices_of_heads(slices, rows, keys, heads)
    side = whole("block_size", block_size, 1)
    if rows == 0 or keys == 0:
        raise ValueError(f"q_len, k_len: are {rows} and {keys}, must be at least 1: a BlockMask has blocks")
    lists = [of_head(found, head) for head in (range(count) if heads_of(found) != [-1] else [-1])]
    tables = [_table(united(ranges_of(one, by_row=True)), rows) for one in lists]
    pairs = np.stack([_visible_pairs(*table, (side, side), keys) for table in tables])
    full = pairs == side * side
    counts, columns = _listed((pairs > 0) & ~full, device)
    full_counts, full_columns = _listed(full, device)
    mask_mod = _function_of(tables, device)
    return BlockMask.from_kv_blocks(
        counts, columns, full_counts, full_columns, (side, side), mask_mod, seq_lengths=(rows, keys)
    )
