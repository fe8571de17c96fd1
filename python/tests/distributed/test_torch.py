"""tilewise.distributed on the ranks of torch.distributed: results of one rank, and failures that name a rank."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import rank_cases  # noqa: E402
import tilewise.distributed as ring  # noqa: E402
from ranks import Ranks  # noqa: E402
from tilewise.distributed._group import Group  # noqa: E402

SCHEDULES = ("contiguous", "zigzag", "striped", "automatic")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(4)
    yield started
    started.stop()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_results_are_those_of_one_rank(ranks: Ranks, size: int) -> None:
    for number, case in enumerate(rank_cases.CASES):
        # Every case meets every schedule with some number of ranks; shards differ in length.
        schedule = SCHEDULES[(number + size) % 4]
        if schedule == "striped" and case in rank_cases.NOT_STRIPED:
            schedule = "contiguous"
        ranks.run(rank_cases.equals_one_rank, case, schedule, torch.float64, 1e-12, size=size)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_causal_mask_in_every_schedule(ranks: Ranks, schedule: str) -> None:
    ranks.run(rank_cases.equals_one_rank, "causal", schedule, torch.float64, 1e-12)
    ranks.run(rank_cases.equals_one_rank, "causal", schedule, torch.float32, 2e-5)
    ranks.run(rank_cases.equals_one_rank, "causal", schedule, torch.bfloat16, 4e-2)


def test_ranks_without_tokens(ranks: Ranks) -> None:
    ranks.run(rank_cases.equals_one_rank, "causal", "contiguous", torch.float64, 1e-12, 3, 2)
    ranks.run(rank_cases.equals_one_rank, "plain", "zigzag", torch.float64, 1e-12, 0, 9)


def test_other_arguments(ranks: Ranks) -> None:
    ranks.run(rank_cases.without_sums, size=2)


@pytest.mark.parametrize("length", [3, 16, 37])
@pytest.mark.parametrize("schedule", SCHEDULES[:3])
def test_tokens_are_cut_and_joined(ranks: Ranks, schedule: str, length: int) -> None:
    for size in (1, 3):
        held = ranks.run(rank_cases.cuts_and_joins, schedule, length, size=size)
        assert sorted(sum(held, [])) == list(range(length))


def test_shards_of_another_schedule_are_refused(ranks: Ranks) -> None:
    messages = ranks.run(rank_cases.wrong_shards, size=3)
    assert set(messages) == {"x: rank 0 has 3 of 12 tokens, must have 4 (contiguous)"}


def test_every_rank_refuses_a_problem_that_differs(ranks: Ranks) -> None:
    results = ranks.run(rank_cases.refuses, size=3)
    expected = [
        ("ValueError", "rank 1 passes another problem: window_left is 3, on rank 0 -1", ""),
        ("ValueError", "rank 1 has refused its problem", "TypeError"),
        ("ValueError", "", "TypeError"),
        ("ValueError", "rank 1 has refused its problem", "ValueError"),
        ("ValueError", "rank 1 has refused its problem", "ValueError"),
        ("ValueError", "rank 1 has refused its problem", "ValueError"),
        ("NotImplementedError", "slices: not supported", ""),
        ("", "", ""),
    ]
    for rank, found in enumerate(results):
        for (kind, _, message, _), (others, text, its_own) in zip(found, expected, strict=True):
            own = rank == 1 and its_own
            assert kind == (its_own if own else others)
            assert own or text in message


@pytest.mark.parametrize("before", [0, 1])
def test_a_rank_that_does_not_call_is_named(ranks: Ranks, before: int) -> None:
    """The first time, connections are made; later they are there."""
    for rank, found in enumerate(ranks.run(rank_cases.stays_away, before, size=3)):
        assert all(result[0] == "" for result in found[:before])
        if rank != 1:
            assert found[before][0] == "RankTimeout"
        for kind, culprit, message, seconds in found[before:]:
            assert kind in ("RankTimeout", "RankError") and culprit == 1
            assert "rank 1 did not answer within 1 s" in message
            assert seconds < 30


def test_a_rank_that_gives_up_is_named(ranks: Ranks) -> None:
    for kind, culprit, message, seconds in ranks.run(rank_cases.fails_while_running, size=3):
        assert (kind, culprit) == ("RankError", 1) and "rank 1" in message and seconds < 30


def test_a_rank_that_dies_is_named() -> None:
    mortal = Ranks(3)
    found = mortal.run(rank_cases.dies)
    mortal.stop()
    assert found[1] is None
    for first, second in (found[0], found[2]):
        kind, culprit, message, seconds = second
        assert first[0] == "" and (kind, culprit) == ("RankError", 1)
        assert "the connection to rank 1 is lost" in message and seconds < 30


def test_example_trains_as_on_one_rank(ranks: Ranks) -> None:
    one = Ranks(1)
    [alone] = one.run(rank_cases.example_losses)
    one.stop()
    assert alone[-1] < alone[0] - 1
    for losses in ranks.run(rank_cases.example_losses):
        torch.testing.assert_close(losses, alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["automatic", "ring", None])
def test_names_of_schedules(name: str | None) -> None:
    with pytest.raises((ValueError, TypeError), match="schedule"):
        ring.positions(5, group=Group(0, 1, None, None), schedule=name)
