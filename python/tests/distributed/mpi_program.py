"""What test_mpi.py runs on several processes: tilewise.distributed on communicators of mpi4py, with NumPy arrays."""

import time

import numpy as np
import tilewise
import tilewise.distributed as ring
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
LENGTH = 37


def equals_one_rank(schedule: str, dtype: type, tolerance: float, packed: bool, **options: object) -> None:
    """Results and gradients are those of one rank."""
    rng = np.random.default_rng(0)
    batch = () if packed else (2,)
    shapes = ((4, 12), (2, 12), (2, 8), (4, 8))
    q, k, v, dout = (rng.standard_normal((*batch, LENGTH, *shape)).astype(dtype) for shape in shapes)
    out, lse = tilewise.attention_forward(q, k, v, **options)
    want = ["dq", "dk", "dv", *(f"d{name}" for name in ("sink", "alibi_slopes") if name in options)]
    gradients = tilewise.attention_backward(dout, q, k, v, out, lse, want=want, **options)

    def mine(x: np.ndarray, dim: int = 0 if packed else 1) -> np.ndarray:
        return ring.shard(x, group=WORLD, schedule=schedule, dim=dim)

    own = [mine(x) for x in (q, k, v)]
    common = {"group": WORLD, "schedule": schedule, **options}
    found, sums = ring.attention_forward(*own, **common)
    results = ring.attention_backward(mine(dout), *own, found, sums, want=want, **common)
    assert np.array_equal(found, ring.attention(*own, **common)) and found.dtype == dtype
    pairs = [(found, mine(out)), (sums, mine(lse, lse.ndim - 1))]
    pairs += [(getattr(results, name), mine(getattr(gradients, name))) for name in want[:3]]
    pairs += [(getattr(results, name), getattr(gradients, name)) for name in want[3:]]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=tolerance, atol=tolerance)


def test_results() -> None:
    heads = np.linspace(-1, 1, 4, dtype=np.float32)
    starts = np.array([0, 2, 2, 30, LENGTH])
    for schedule in ("contiguous", "zigzag", "striped"):
        equals_one_rank(schedule, np.float64, 1e-12, False, causal=True)
        equals_one_rank(schedule, np.float32, 2e-5, False, window_size=(9, 3), sink=heads)
        equals_one_rank(schedule, np.float64, 1e-12, True, cu_seqlens_q=starts, cu_seqlens_k=starts, causal=True)
    equals_one_rank("zigzag", np.float64, 1e-12, False, causal=True, alibi_slopes=np.abs(heads))


def test_tokens() -> None:
    x = np.random.default_rng(0).standard_normal((2, LENGTH, 3))
    for schedule in ("contiguous", "zigzag", "striped"):
        places = ring.positions(LENGTH, group=WORLD, schedule=schedule)
        own = ring.shard(x, group=WORLD, schedule=schedule)
        assert np.array_equal(own, x[:, places])
        assert np.array_equal(ring.unshard(own, group=WORLD, schedule=schedule), x)
    assert ring.choose_schedule(LENGTH, group=WORLD, causal=True) == ("zigzag" if WORLD.size > 1 else "contiguous")


def test_token_plans() -> None:
    """The balanced schedule of slices that overlap, and leave rows out: results and gradients of one rank."""
    slices = np.array([[0, 20, 0, 37, 1], [3, 30, 5, 18, 3], [25, 33, 9, 41, 2], [30, 35, 2, 3, 0]])
    rng = np.random.default_rng(0)
    q, k, v, dout = (
        rng.standard_normal(shape) for shape in ((LENGTH, 4, 12), (44, 2, 12), (44, 2, 8), (LENGTH, 4, 8))
    )
    sink = {"sink": np.linspace(-1, 1, 4, dtype=np.float32)}
    out, lse = tilewise.attention_forward(q, k, v, slices=slices, **sink)
    gradients = tilewise.attention_backward(dout, q, k, v, out, lse, slices=slices, **sink)

    plan = ring.TokenPlan(LENGTH, 44, slices=slices, group=WORLD)
    elsewhere = ring.TokenPlan(LENGTH, 44, slices=slices, size=WORLD.size, rank=WORLD.rank)  # made without a group
    assert np.array_equal(plan.positions(), elsewhere.positions()) and plan.info == elsewhere.info
    own_q, own_dout = plan.dispatch(q), plan.dispatch(dout)
    own_k, own_v = plan.dispatch(k, side="keys"), plan.dispatch(v, side="keys")
    found, sums = ring.attention_forward(own_q, own_k, own_v, token_plan=plan, **sink)
    again = ring.attention(own_q, own_k, own_v, token_plan=elsewhere, schedule="balanced", group=WORLD, **sink)
    results = ring.attention_backward(own_dout, own_q, own_k, own_v, found, sums, token_plan=plan, **sink)
    pairs = [(found, plan.dispatch(out)), (again, plan.dispatch(out)), (sums, plan.dispatch(lse, dim=1))]
    pairs += [(plan.undispatch(found), out), (plan.undispatch(sums, dim=1), lse)]
    pairs += [(plan.undispatch(results.dq), gradients.dq)]
    pairs += [(plan.undispatch(getattr(results, d), side="keys"), getattr(gradients, d)) for d in ("dk", "dv")]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(results.dsink, gradients.dsink, rtol=1e-12, atol=1e-12)


def failure(comm: MPI.Comm, timeout: float, **options: object) -> tuple[str, object, str]:
    x = np.ones((1, 5, 2, 8))
    start = time.monotonic()
    try:
        ring.attention(x, x, x, group=comm, schedule="contiguous", causal=True, timeout=timeout, **options)
    except Exception as error:
        assert time.monotonic() - start < 30
        return type(error).__name__, getattr(error, "rank", None), str(error)
    return "", None, ""


def test_problems_that_differ() -> None:
    kind, _, message = failure(WORLD, 60, window_size=(3 if WORLD.rank == 1 else -1, 0))
    assert kind == "ValueError" and "rank 1 passes another problem: window_left is 3" in message
    kind, _, message = failure(WORLD, 60, **{"no_option": 1} if WORLD.rank == 1 else {})
    assert kind == ("TypeError" if WORLD.rank == 1 else "ValueError")
    assert failure(WORLD, 60)[0] == ""


def test_a_rank_that_does_not_call(before: int) -> None:
    """Rank 1 makes only `before` calls in time. Afterwards MPI is as usable as before."""
    comm = WORLD.Dup()
    for _ in range(before):
        assert failure(comm, 60)[0] == ""
    if WORLD.rank != 1:
        kind, rank, message = failure(comm, 1)
        assert (kind, rank) == ("RankTimeout", 1) and "rank 1 did not answer within 1 s" in message
    WORLD.barrier()
    kind, rank, _ = failure(comm, 1)
    assert kind in ("RankTimeout", "RankError") and (rank == 1 or before == 0)
    other = WORLD.Dup()
    assert failure(other, 60)[0] == ""


if __name__ == "__main__":
    test_results()
    test_tokens()
    test_token_plans()
    if WORLD.size > 1:
        test_problems_that_differ()
        test_a_rank_that_does_not_call(0)
        test_a_rank_that_does_not_call(1)
    WORLD.barrier()
    if WORLD.rank == 0:
        print("all is well")
