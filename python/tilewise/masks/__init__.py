"""Masks that people write, as lists of slices for `slices=`: NumPy arrays, int64 (N, 5), rows q0 q1 k0 k1 kind.

    from tilewise import masks
    out = tilewise.attention(q, k, v, slices=masks.prefix_lm(4096, prefix=512))

Lengths are those of one sequence, or of the token axes of packed tensors; lists of several masks are joined by
np.concatenate, and a key is visible if any of their slices shows it. Arguments may be tensors of PyTorch on the CPU;
tilewise.torch takes torch.from_numpy(list). Errors name the argument, its value and the limit.

The other forms of masks: boolean ones (to_mask, from_mask), MagiAttention's ranges, FlashMask's column intervals and
FlexAttention's BlockMask. docs/masks.md has pictures of all.
"""

from tilewise.masks._block_mask import from_block_mask, to_block_mask
from tilewise.masks._constructors import (
    block_causal,
    block_sparse,
    causal,
    dilated,
    documents,
    global_window,
    per_head,
    prefix_lm,
    shared_question,
    sliding_window,
)
from tilewise.masks._flashmask import from_flashmask, to_flashmask
from tilewise.masks._intervals import from_mask, to_mask
from tilewise.masks._magi import from_magi, to_magi

__all__ = [
    "block_causal",
    "block_sparse",
    "causal",
    "dilated",
    "documents",
    "from_block_mask",
    "from_flashmask",
    "from_magi",
    "from_mask",
    "global_window",
    "per_head",
    "prefix_lm",
    "shared_question",
    "sliding_window",
    "to_block_mask",
    "to_flashmask",
    "to_magi",
    "to_mask",
]
