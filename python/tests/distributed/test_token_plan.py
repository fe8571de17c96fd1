"""Token plans without ranks: their figures, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import tilewise.distributed as ring
from formulas import visible
from random_slices import random_slices
from tilewise.distributed._group import Group


def seen(slices: np.ndarray, q_len: int, k_len: int) -> np.ndarray:
    """(q_len, k_len): the pairs of a list of slices."""
    listed = [(*row, -1) for row in slices.tolist()]
    return visible({"q": np.empty((1, q_len, 1, 1)), "slices": listed}, q_len, k_len, 1)[0, 0]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("k_len", [60, 83])
def test_figures_are_those_of_a_matrix(rng: np.random.Generator, size: int, k_len: int) -> None:
    for _ in range(5):
        slices = random_slices(rng, 60, k_len, 5)
        pairs = seen(slices, 60, k_len)
        plans = [ring.TokenPlan(60, k_len, slices=slices, size=size, rank=rank) for rank in range(size)]
        held = {side: [plan.positions(side) for plan in plans] for side in ("queries", "keys")}
        for side, length in (("queries", 60), ("keys", k_len)):
            assert sorted(np.concatenate(held[side]).tolist()) == list(range(length))
        info = plans[0].info
        assert all(plan.info == info for plan in plans) and (info.q_len, info.k_len, info.size) == (60, k_len, size)
        ranks = [plan.info_of() for plan in plans]
        assert ranks == [plans[0].info_of(rank) for rank in range(size)]
        areas, received, sent = [], [], np.zeros(size, int)
        for rank, found in enumerate(ranks):
            rows, keys = held["queries"][rank], held["keys"][rank]
            assert (found.q_rows, found.k_rows) == (len(rows), len(keys))
            needed = np.setdiff1d(np.flatnonzero(pairs[rows].any(0)), keys)
            areas.append(pairs[rows].sum())
            received.append(len(needed))
            sent += [np.isin(needed, owned).sum() for owned in held["keys"]]
        assert [found.area for found in ranks] == areas and info.area == pairs.sum() and info.largest_area == max(areas)
        assert [found.received_rows for found in ranks] == received and info.received_rows == sum(received)
        assert [found.sent_rows for found in ranks] == sent.tolist()
        assert info.area_lower_bound <= max(areas)
        assert info.imbalance == pytest.approx(max(areas) * size / max(pairs.sum(), 1)) or not pairs.any()


def test_choices() -> None:
    plan = ring.TokenPlan(np.int64(100), causal=True, size=4, chunk_rows=5, stages=3)
    assert (plan.info.chunk_rows, plan.info.stages, plan.rank) == (5, 3, 0)
    assert plan.ranges_of(rank=2) == plan.ranges_of("keys", 2)
    assert all((end - begin) % 5 == 0 and stride == 1 for begin, end, stride in plan.ranges_of())
    documents = np.array([0, 40, 100])
    both = ring.TokenPlan(100, cu_seqlens_q=documents, cu_seqlens_k=documents, size=4)
    assert ring.TokenPlan(100, cu_seqlens_q=documents, size=4).info == both.info
    assert both.info.area == 40**2 + 60**2
    per_head = np.array([[0, 100, 0, 100, 0, 1]])
    assert ring.TokenPlan(100, slices=per_head, heads=3, size=4).info.area == 100**2


ONE = Group(0, 1, None, None)  # of one rank, which connects to nobody
SLICE = np.array([[0, 10, 0, 10, 0]])
STARTS = np.array([0, 4, 9])
REFUSED = [
    (ValueError, "slices: given with causal; a slice list is the whole mask",
     lambda: ring.TokenPlan(10, slices=SLICE, causal=True, size=2)),
    (ValueError, "slices[0]: k0..k1 is 0..10, must lie within 0..9",
     lambda: ring.TokenPlan(10, 9, slices=SLICE, size=2)),
    (ValueError, "slices[0]: kind is 4, must be 0 to 3",
     lambda: ring.TokenPlan(10, slices=SLICE + [0, 0, 0, 0, 4], size=2)),
    (ValueError, "slices[0]: head is 3, must be",
     lambda: ring.TokenPlan(10, slices=np.array([[0, 1, 0, 1, 0, 3]]), heads=3, size=2)),
    (ValueError, "slices: dtype is fp64, must be int64", lambda: ring.TokenPlan(10, slices=SLICE * 1.0, size=2)),
    (ValueError, "cu_seqlens_q: covers the tokens 0..9, must cover 0..10",
     lambda: ring.TokenPlan(10, cu_seqlens_q=STARTS, size=2)),
    (ValueError, "q_len: is -1, must be at least 0", lambda: ring.TokenPlan(-1, size=2)),
    (TypeError, "q_len: is '10', must be an integer", lambda: ring.TokenPlan("10", size=2)),
    (TypeError, "k_len: is 1.5, must be an integer", lambda: ring.TokenPlan(1, 1.5, size=2)),
    (ValueError, "size: is 0, must be 1 to 65536", lambda: ring.TokenPlan(10, size=0)),
    (ValueError, "size: is 4294967297, must be at most 2^31 - 1", lambda: ring.TokenPlan(10, size=2**32 + 1)),
    (ValueError, "rank: is 2, must be 0 to 1", lambda: ring.TokenPlan(10, size=2, rank=2)),
    (ValueError, "rank: is -1, must be 0 to 1", lambda: ring.TokenPlan(10, size=2).info_of(-1)),
    (ValueError, "chunk_rows: is -1, must be at least 0", lambda: ring.TokenPlan(10, size=2, chunk_rows=-1)),
    (ValueError, "stages: is -1, must be at least 0", lambda: ring.TokenPlan(10, size=2, stages=-1)),
    (ValueError, "size: is 2, given together with a group", lambda: ring.TokenPlan(10, size=2, group=object())),
    (TypeError, "causal: is 'no', must be True or False", lambda: ring.TokenPlan(10, causal="no", size=2)),
    (ValueError, "side: is 'values', must be 'queries' or 'keys'",
     lambda: ring.TokenPlan(10, size=2).ranges_of("values")),
    (ValueError, "x: has 9 tokens in dimension 1, must have the 10 of the plan",
     lambda: ring.TokenPlan(10, size=2).dispatch(np.zeros((1, 9)), dim=1)),
    (ValueError, "schedule: is 'balanced', must be",
     lambda: ring.shard(np.zeros(3), group=ONE, schedule="balanced", dim=0)),
    (TypeError, "token_plan: is 7, must be a TokenPlan", lambda: ring.attention(None, None, None, token_plan=7)),
    (TypeError, "schedule: is missing", lambda: ring.attention(None, None, None)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "call"), REFUSED, ids=[message for _, message, _ in REFUSED])
def test_what_cannot_be_meant_is_refused_by_name(kind: type, message: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        call()
