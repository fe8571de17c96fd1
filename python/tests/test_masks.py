"""tilewise.masks: constructors against what they say in words, the forms of other libraries, bad input."""

from __future__ import annotations

import itertools
from typing import Any, Callable

import mask_cases
import numpy as np
import pytest

import tilewise
from tilewise import masks

FAMILIES = (mask_cases.of_one_sequence, mask_cases.of_one_axis, mask_cases.of_documents, mask_cases.of_blocks)


@pytest.mark.parametrize("family", FAMILIES)
def test_constructors_show_what_they_say(family: Callable[..., Any], rng: np.random.Generator) -> None:
    for _ in range(60):
        for name, slices, wanted, most in family(rng):
            assert slices.dtype == np.int64 and slices.shape[1] == 5, name
            np.testing.assert_array_equal(mask_cases.drawn(slices, *wanted.shape), wanted, err_msg=f"{name}\n{slices}")
            np.testing.assert_array_equal(masks.to_mask(slices, *wanted.shape), wanted, err_msg=name)
            assert len(slices) <= most, f"{name}: {len(slices)} slices, must be at most {most}\n{slices}"


def test_constructors_show_no_pair_twice_and_no_row_nothing(rng: np.random.Generator) -> None:
    for family in FAMILIES:
        for name, slices, wanted, _ in itertools.chain.from_iterable(family(rng) for _ in range(20)):
            shown = [mask_cases.drawn(slices[[row]], *wanted.shape) for row in range(len(slices))]
            assert sum(one.sum() for one in shown) == wanted.sum(), f"{name}\n{slices}"
            for one, (q0, q1) in zip(shown, slices[:, :2]):
                assert one[[q0, q1 - 1]].any(1).all(), f"{name}\n{slices}"


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_that_of_the_boolean_mask(family: Callable[..., Any], rng: np.random.Generator) -> None:
    for name, slices, mask, _ in family(rng):
        rows, keys = mask.shape
        q, k, v = (rng.standard_normal((1, length, 2, 8)) for length in (rows, keys, keys))
        for of_slices, of_mask in zip(
            tilewise.attention_forward(q, k, v, slices=slices), tilewise.attention_forward(q, k, v, mask=mask)
        ):
            np.testing.assert_array_equal(np.isinf(of_slices), np.isinf(of_mask), err_msg=name)
            finite = np.isfinite(of_mask)
            np.testing.assert_allclose(of_slices[finite], of_mask[finite], rtol=0, atol=1e-12, err_msg=name)


def test_heads_have_lists_of_their_own(rng: np.random.Generator) -> None:
    lists = [masks.causal(7, 9), masks.sliding_window(7, 9, window_size=(2, 0)), np.empty((0, 5), np.int64)]
    both = masks.per_head(lists)
    mask = masks.to_mask(both, 7, 9, heads=3)
    for head, one in enumerate(lists):
        np.testing.assert_array_equal(mask[head], mask_cases.drawn(one, 7, 9))
    q, k, v = (rng.standard_normal((1, length, 3, 8)) for length in (7, 9, 9))
    result, wanted = tilewise.attention(q, k, v, slices=both), tilewise.attention(q, k, v, mask=mask)
    np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-12)
    blocks = rng.random((2, 3, 2)) < 0.5
    of_heads = masks.to_mask(masks.block_sparse(blocks, block_size=4), 12, 8, heads=2)
    np.testing.assert_array_equal(of_heads, blocks.repeat(4, 1).repeat(4, 2))


# ---- other forms -------------------------------------------------------------------------------------------------


def test_boolean_masks_return(rng: np.random.Generator) -> None:
    for _ in range(100):
        rows, keys = rng.integers(0, 14, 2).tolist()
        slices = mask_cases.random_slices(rng, rows, keys, 3, heads=2)
        mask = np.stack([mask_cases.drawn(slices, rows, keys, head) for head in range(2)])
        np.testing.assert_array_equal(masks.to_mask(slices, rows, keys, heads=2), mask)
        returned = masks.from_mask(mask)
        np.testing.assert_array_equal(masks.to_mask(returned, rows, keys, heads=2), mask)
        noise = rng.random((rows, keys)) < 0.5
        np.testing.assert_array_equal(masks.to_mask(masks.from_mask(noise), rows, keys), noise)


def test_boolean_masks_become_few_slices() -> None:
    for slices, shape in (
        (masks.causal(100), (100, 100)),
        (masks.sliding_window(100, 90, window_size=(20, 10)), (100, 90)),
        (masks.documents(lengths=[30, 1, 40], causal=True), (71, 71)),
        (masks.block_causal(lengths=[10] * 5), (50, 50)),
    ):
        returned = masks.from_mask(masks.to_mask(slices, *shape))
        assert len(returned) <= len(slices), returned


def test_magi_ranges_return_and_never_overlap(rng: np.random.Generator) -> None:
    overlapping = 0
    for _ in range(100):
        rows, keys = rng.integers(1, 14, 2).tolist()
        slices = mask_cases.random_slices(rng, rows, keys, int(rng.integers(0, 4)))
        q_ranges, k_ranges, kinds = masks.to_magi(slices)
        assert q_ranges.dtype == k_ranges.dtype == kinds.dtype == np.int32
        returned = masks.from_magi(q_ranges, k_ranges, kinds)
        wanted = mask_cases.drawn(slices, rows, keys)
        shown = [mask_cases.drawn(returned[[row]], rows, keys) for row in range(len(returned))]
        np.testing.assert_array_equal(sum(shown, np.zeros((rows, keys), int)), wanted)
        overlapping += not np.array_equal(returned, slices)
    assert 0 < overlapping < 100
    full = masks.from_magi([[0, 3]], [[1, 4]])
    np.testing.assert_array_equal(full, [[0, 3, 1, 4, 0]])


def of_flashmask(numbers: np.ndarray, rows: int, causal: bool) -> np.ndarray:
    """FlashMask's definition, pair by pair: (Sk, n)."""
    keys, count = numbers.shape

    def sees(i: int, j: int) -> bool:
        row = numbers[j].tolist()
        if causal:
            lts, lte, uts, ute = row[0], row[1] if count == 2 else rows, 0, 0
        else:
            lts, lte, uts, ute = (row[0], rows, 0, row[1]) if count == 2 else row
        return not (lts <= i < lte or uts <= i < ute) and (not causal or j <= i + keys - rows)

    return mask_cases.boolean(rows, keys, sees)


@pytest.mark.parametrize(("causal", "count"), [(True, 1), (True, 2), (False, 2), (False, 4)])
def test_flashmask_returns(causal: bool, count: int, rng: np.random.Generator) -> None:
    for _ in range(80):
        rows, keys = rng.integers(1, 12, 2).tolist()
        numbers = rng.integers(-2, rows + 3, (1, 2, keys, count)).astype(np.int32)
        if rng.random() < 0.5:
            numbers = np.sort(numbers, 2)  # with stretches that stay or fall
        slices = masks.from_flashmask(numbers, rows, causal=causal, heads=4)
        wanted = [of_flashmask(numbers[0, head // 2], rows, causal) for head in range(4)]
        np.testing.assert_array_equal(masks.to_mask(slices, rows, keys, heads=4), wanted)
        returned = masks.to_flashmask(slices, rows, keys, causal=causal, heads=4)
        assert returned.dtype == np.int32 and returned.shape[-1] <= count
        for head in range(4 if len(slices) else 0):
            np.testing.assert_array_equal(of_flashmask(returned[0, head], rows, causal), wanted[head])


def test_flashmask_of_masks_that_people_write() -> None:
    documents = masks.documents(lengths=[3, 2], causal=True)
    np.testing.assert_array_equal(masks.to_flashmask(documents, 5, causal=True)[0, 0, :, 0], [3, 3, 3, 5, 5])
    np.testing.assert_array_equal(masks.from_flashmask(masks.to_flashmask(documents, 5), causal=False), documents)
    window = masks.global_window(40, global_tokens=3, window_size=(8, 8))
    returned = masks.from_flashmask(masks.to_flashmask(window, 40), causal=False)
    np.testing.assert_array_equal(masks.to_mask(returned, 40), masks.to_mask(window, 40))
    assert len(returned) <= 7, returned


# ---- bad input ---------------------------------------------------------------------------------------------------

BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: masks.causal(-1), "q_len: is -1, must be 0 to"),
    (lambda: masks.causal(2.5), "q_len: is 2.5, must be a whole number"),
    (lambda: masks.causal(3, 2**60), r"k_len: is 1152921504606846976, must be 0 to 576460752303423488"),
    (lambda: masks.causal(3, alignment="left"), "alignment: is 'left', must be 'bottom_right' or 'top_left'"),
    (lambda: masks.sliding_window(3, window_size=4), r"window_size: is 4, must be \(left, right\)"),
    (lambda: masks.sliding_window(3, window_size=(1, -2)), "window_size: is -2, must be -1 to"),
    (lambda: masks.prefix_lm(3, prefix=4), "prefix: is 4, must be 0 to 3"),
    (lambda: masks.documents(), "cu_seqlens and lengths: neither given, must be one of the two"),
    (lambda: masks.documents([0, 2], lengths=[2]), "cu_seqlens and lengths: both given, must be one of the two"),
    (lambda: masks.documents([0, 2, 1]), r"cu_seqlens\[2\]: is 1, must be 2 \(the previous one\) to"),
    (lambda: masks.documents([1, 2]), r"cu_seqlens\[0\]: is 1, must be 0"),
    (lambda: masks.documents([]), "cu_seqlens: is empty, must begin with 0"),
    (lambda: masks.documents(lengths=[2, -1]), r"lengths\[1\]: is -1, must be 0 to"),
    (lambda: masks.documents(lengths=[0.5]), r"lengths: has dtype float64 and shape \(1,\), must be whole numbers"),
    (lambda: masks.documents([0, 2], [0, 1, 2]), "cu_seqlens_k: has 2 documents, must have those of the queries, 1"),
    (lambda: masks.block_causal(lengths=[1], past=-1), "past: is -1, must be 0 to"),
    (lambda: masks.shared_question(-1, [2]), "question: is -1, must be 0 to"),
    (lambda: masks.shared_question(1, [[2]]), r"answers: has dtype int64 and shape \(1, 1\), must be whole numbers"),
    (lambda: masks.global_window(4, global_tokens=5, window_size=(1, 1)), "global_tokens: is 5, must be 0 to 4"),
    (lambda: masks.dilated(4, left=1, right=0, step=0), "step: is 0, must be 1 to"),
    (lambda: masks.block_sparse([[1]]), r"block_mask: has dtype int64 and shape \(1, 1\), must be bool"),
    (lambda: masks.block_sparse([[True]], q_len=129), "q_len: is 129, must be 0 to 128"),
    (lambda: masks.block_sparse([[True]], block_size=(1, 2, 3)), r"block_size: is \(1, 2, 3\), must be a number or"),
    (lambda: masks.to_mask([[0, 4, 0, 3, 0]], 3, 3), r"slices\[0\]: q0..q1 is 0..4, must lie within 0..3"),
    (lambda: masks.to_mask([[0, 3, 2, 1, 0]], 3, 3), r"slices\[0\]: k0..k1 is 2..1, must lie within 0..3"),
    (lambda: masks.to_mask([[0, 3, 0, 3, 4]], 3, 3), r"slices\[0\]: kind is 4, must be 0 to 3"),
    (lambda: masks.to_mask([[0, 3, 0, 3, 0, 0]], 3, 3), r"slices\[0\]: head is 0, must be -1 \(all\), or heads given"),
    (lambda: masks.to_mask([[0, 3, 0, 3, 0, 2]], 3, 3, heads=2), r"head is 2, must be -1 \(all\), or below heads = 2"),
    (lambda: masks.to_mask([[0, 3, 0]], 3, 3), r"slices: has dtype int64 and shape \(1, 3\), must be whole numbers of"),
    (lambda: masks.from_mask(np.ones((2, 2))), r"mask: has dtype float64 and shape \(2, 2\), must be bool"),
    (lambda: masks.to_magi([[0, 1, 0, 1, 0, 3]]), r"slices: name head 3, must be for all heads \(-1\)"),
    (lambda: masks.to_magi([[0, 1, 0, 2**31, 0]]), "slices: reach to 2147483648, must be at most 2147483647"),
    (lambda: masks.from_magi([[0, 1]], [[0, 1, 2]]), r"k_ranges: has dtype int64 and shape \(1, 3\), must be"),
    (lambda: masks.from_magi([[0, 1]], [[0, 1]], [4]), r"slices\[0\]: kind is 4, must be 0 to 3"),
    (lambda: masks.from_flashmask(np.zeros((2, 1, 3, 1), int), causal=True), r"shape \(2, 1, 3, 1\), must be .* batch"),
    (lambda: masks.from_flashmask(np.zeros((1, 1, 3, 4), int), causal=True), "must have 1 or 2 numbers for a key"),
    (lambda: masks.from_flashmask(np.zeros((1, 2, 3, 1), int), causal=True, heads=3), "is 3, must be a multiple"),
    (lambda: masks.to_flashmask([[1, 2, 0, 1, 0], [3, 4, 0, 1, 0]], 5, 1), "3 ranges of rows"),
    (lambda: masks.to_flashmask([[0, 3, 0, 3, 0]], 3, causal=True), r"slices: show key 1 to row 0, must be causal"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_input_is_refused_by_name(number: int) -> None:
    call, message = BAD[number]
    with pytest.raises((TypeError, ValueError), match=message):
        call()
