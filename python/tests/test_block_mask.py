"""tilewise.masks and FlexAttention's BlockMask: both ways, against PyTorch's own functions."""

from __future__ import annotations

from typing import Any

import mask_cases
import numpy as np
import pytest

import tilewise
from tilewise import masks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
flex = pytest.importorskip("torch.nn.attention.flex_attention", reason="PyTorch has no FlexAttention")


def shown(block_mask: Any) -> np.ndarray:
    """(H, Sq, Sk) as FlexAttention's kernels see it: full blocks, and mask_mod in partial ones."""
    heads, rows, keys = block_mask.kv_indices.shape[1], *block_mask.seq_lengths
    mask = flex.create_mask(block_mask.mask_mod, 1, heads, rows, keys, "cpu")[0].numpy()
    result = np.zeros_like(mask)
    for full in (False, True):
        counts = block_mask.full_kv_num_blocks if full else block_mask.kv_num_blocks
        indices = block_mask.full_kv_indices if full else block_mask.kv_indices
        if counts is None:
            continue
        (bq, bk) = block_mask.BLOCK_SIZE
        for head, row in np.ndindex(heads, counts.shape[2]):
            for column in indices[0, head, row, : counts[0, head, row]].tolist():
                block = (head, slice(row * bq, (row + 1) * bq), slice(column * bk, (column + 1) * bk))
                result[block] = True if full else mask[block]
    return result


def mask_mod(mask: np.ndarray) -> Any:
    """The function of a boolean mask (H, Sq, Sk)."""
    table = torch.from_numpy(mask)
    return lambda b, h, q_idx, kv_idx: table[h, q_idx, kv_idx]


def test_lists_become_the_block_mask_that_pytorch_makes(rng: np.random.Generator) -> None:
    for heads in (None, 1, 2, 2, 2):
        rows, keys = rng.integers(1, 60, 2).tolist()
        slices = mask_cases.random_slices(rng, rows, keys, 3, heads=heads or 0)
        mask = masks.to_mask(slices, rows, keys, heads=heads or 1)
        made = masks.to_block_mask(slices, rows, keys, heads=heads, block_size=16)
        if made.kv_indices.shape[1] < len(mask):  # no slice named a head
            mask = mask[:1]
        wanted = flex.create_block_mask(mask_mod(mask), 1, len(mask), rows, keys, "cpu", 16)
        for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
            assert torch.equal(getattr(made, name), getattr(wanted, name)), name
        for name in ("kv", "full_kv"):
            counts, own, other = (getattr(made, f"{name}_num_blocks"), getattr(made, f"{name}_indices"),
                                  getattr(wanted, f"{name}_indices"))  # fmt: skip
            used = torch.arange(own.shape[-1]) < counts[..., None]
            assert torch.equal(own[used], other[used])
        np.testing.assert_array_equal(shown(made), mask)
        np.testing.assert_array_equal(flex.create_mask(made.mask_mod, 1, len(mask), rows, keys, "cpu")[0], mask)


@pytest.mark.parametrize("most_pairs", [0, 2**9, 2**22])
def test_any_list_returns(most_pairs: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewise.masks._block_mask.MOST_PAIRS", most_pairs)
    for _ in range(4):
        rows, keys = rng.integers(1, 60, 2).tolist()
        slices = mask_cases.random_slices(rng, rows, keys, 3)
        returned = masks.from_block_mask(masks.to_block_mask(slices, rows, keys, block_size=8))
        np.testing.assert_array_equal(masks.to_mask(returned, rows, keys), masks.to_mask(slices, rows, keys))


def test_block_masks_return(rng: np.random.Generator) -> None:
    for heads in (1, 1, 2):
        rows, keys = rng.integers(1, 60, 2).tolist()
        noise = rng.random((heads, rows, keys)) < 0.5
        noise[:, : rows // 2] = True
        block_mask = flex.create_block_mask(mask_mod(noise), 1, heads, rows, keys, "cpu", (16, 8))
        slices = masks.from_block_mask(block_mask)
        np.testing.assert_array_equal(masks.to_mask(slices, rows, keys, heads=heads), noise)
        returned = masks.from_block_mask(masks.to_block_mask(slices, rows, keys, heads=heads))
        np.testing.assert_array_equal(masks.to_mask(returned, rows, keys, heads=heads), noise)


def test_block_masks_become_few_slices() -> None:
    def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx >= kv_idx

    found = masks.from_block_mask(flex.create_block_mask(causal, None, None, 300, 300, "cpu"))
    np.testing.assert_array_equal(found, masks.causal(300))
    documents = masks.documents(lengths=[100, 40, 130], causal=True)
    np.testing.assert_array_equal(masks.from_block_mask(masks.to_block_mask(documents, 270)), documents)


def test_lists_of_blocks_decide_before_mask_mod() -> None:
    """Full blocks are visible, whatever it says, and pairs outside of the listed blocks are not."""
    counts, columns = torch.tensor([[[2, 1]]], dtype=torch.int32), torch.tensor([[[[0, 2], [2, 0]]]], dtype=torch.int32)
    columns = torch.cat((columns, columns[..., :1]), -1)  # three columns, of which two and one are used
    listed, none = (counts, columns), (torch.zeros_like(counts), torch.zeros_like(columns))
    nothing = {"BLOCK_SIZE": 4, "mask_mod": lambda b, h, q, k: q < 0, "seq_lengths": (7, 10)}
    blocks = [[0, 4, 0, 4, 0], [0, 7, 8, 10, 0]]
    full = flex.BlockMask.from_kv_blocks(*none, *listed, **nothing)
    np.testing.assert_array_equal(masks.from_block_mask(full), blocks)
    partial = flex.BlockMask.from_kv_blocks(*listed, BLOCK_SIZE=4, seq_lengths=(7, 10))  # its mask_mod shows all
    np.testing.assert_array_equal(masks.from_block_mask(partial), blocks)


def test_tensors_are_arguments() -> None:
    starts = torch.tensor([0, 3, 8], dtype=torch.int32)
    np.testing.assert_array_equal(masks.documents(starts), masks.documents(lengths=[3, 5]))
    listed = torch.from_numpy(masks.documents(starts, causal=True))
    assert torch.equal(torch.from_numpy(masks.to_mask(listed, 8)).tril(), torch.from_numpy(masks.to_mask(listed, 8)))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_and_tilewise_agree(rng: np.random.Generator) -> None:
    slices = masks.global_window(70, global_tokens=5, window_size=(9, 4))
    q, k, v = (torch.from_numpy(rng.standard_normal((1, 2, 70, 16))) for _ in range(3))
    theirs = flex.flex_attention(q, k, v, block_mask=masks.to_block_mask(slices, 70, block_size=32))
    ours = tilewise.attention(q, k, v, slices=slices, layout="bhsd")
    np.testing.assert_allclose(np.asarray(ours), theirs.numpy(), rtol=0, atol=1e-12)


def test_bad_input_is_refused_by_name() -> None:
    two = flex.create_block_mask(lambda b, h, q, k: q >= b, 2, None, 8, 8, "cpu")
    with pytest.raises(ValueError, match="block_mask: has 2 batches, must have 1"):
        masks.from_block_mask(two)
    with pytest.raises(ValueError, match="q_len, k_len: are 0 and 8, must be at least 1"):
        masks.to_block_mask([], 0, 8)
    with pytest.raises(ValueError, match="block_size: is 0, must be 1 to"):
        masks.to_block_mask([], 8, 8, block_size=0)
    with pytest.raises(ValueError, match=r"slices\[0\]: head is 1, must be -1"):
        masks.to_block_mask([[0, 1, 0, 1, 0, 1]], 8, 8)
