"""Token plans on the ranks of torch.distributed: results of one rank, and problems that differ."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import token_plan_cases as cases  # noqa: E402
from ranks import Ranks  # noqa: E402


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(4)
    yield started
    started.stop()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_results_are_those_of_one_rank(ranks: Ranks, seed: int, size: int) -> None:
    for number, case in enumerate(cases.CASES):
        dense = (number + size) % 2 == 0
        ranks.run(cases.equals_one_rank, case, seed + number, torch.float64, 1e-12, dense, size=size)


def test_other_dtypes(ranks: Ranks, seed: int) -> None:
    ranks.run(cases.equals_one_rank, "slices", seed, torch.float32, 2e-5)
    ranks.run(cases.equals_one_rank, "causal documents", seed, torch.bfloat16, 4e-2)


@pytest.mark.parametrize("case", cases.CASES)
def test_tokens_are_dispatched_and_come_back(ranks: Ranks, seed: int, case: str) -> None:
    q_len, k_len, _ = cases.CASES[case]
    held = ranks.run(cases.moves_tokens, case, seed, size=3)
    for side, length in ((0, q_len), (1, k_len)):
        assert sorted(token for places in held for token in places[side]) == list(range(length))


def test_joining_has_gradients(ranks: Ranks) -> None:
    for size in (1, 3):
        ranks.run(cases.joins_with_gradients, 23, size=size)


def test_rows_of_another_plan_are_refused(ranks: Ranks) -> None:
    (message,) = set(ranks.run(cases.wrong_rows, size=3))
    assert re.fullmatch(r"x: rank 1 has \d+ of 39 tokens, must have \d+ \(token plan\)", message)


def test_every_rank_refuses_a_problem_that_differs(ranks: Ranks) -> None:
    refused = ("ValueError", "rank 1 has refused its problem")
    expected = [  # of the other ranks, of rank 1 if that differs
        (("ValueError", "rank 1 passes another problem: the contents of the plan differ"), None),
        (("ValueError", "rank 1 passes another problem: the contents of the plan differ"), None),
        (refused, ("ValueError", "cu_seqlens_q: ")),
        (refused, ("ValueError", "token_plan: is for rank 2 of 3, this is rank 1 of 3")),
        (refused, ("NotImplementedError", "causal: not supported by the balanced schedule, whose token plan has")),
        (refused, ("ValueError", "q: has")),
        (("ValueError", "token_plan: given with the schedule zigzag"), None),
        (("ValueError", "q_len: is 31, must be 0 or that of the token plan, 30"), None),
        (("ValueError", "the balanced schedule needs one"), None),
        (("NotImplementedError", "dropout_p: not supported by the balanced schedule"), None),
        (("NotImplementedError", "q: has B = 2, must have 1 in the balanced schedule"), None),
        (("", ""), None),
    ]
    for rank, found in enumerate(ranks.run(cases.refuses, size=3)):
        for (kind, _, message, _), (others, its_own) in zip(found, expected, strict=True):
            wanted_kind, text = its_own if rank == 1 and its_own is not None else others
            assert kind == wanted_kind and text in message, (rank, kind, message)
