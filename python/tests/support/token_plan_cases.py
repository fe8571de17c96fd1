"""What the tests of token plans run on ranks: the balanced schedule beside one rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import rank_cases
import tilewise.distributed as ring
import tilewise.torch
import torch
import torch.distributed as dist
from random_slices import HEADS, random_slices

DOCUMENTS = [0, 2, 2, 19, 23, 40, 41]
# The lengths of the whole, and the mask. Slices are drawn, for all heads or for one each.
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "slices": (41, 41, {"slices": 5}),
    "slices of queries and keys": (41, 67, {"slices": 5}),
    "slices of heads": (41, 41, {"slices": 6}),
    "causal documents": (41, 41, {"cu_seqlens_q": DOCUMENTS, "causal": True}),
    "documents": (41, 31, {"cu_seqlens_q": DOCUMENTS, "cu_seqlens_k": [0, 9, 10, 10, 25, 31, 31]}),
    "window": (41, 41, {"window_size": (9, 3)}),
    "causal from the top left": (41, 67, {"causal": True, "alignment": "top_left"}),
    "one token": (1, 1, {"causal": True}),
}


def mask_of(case: str, seed: int) -> tuple[int, int, dict[str, Any]]:
    """The lengths of the whole and the mask, the same on every rank."""
    q_len, k_len, mask = CASES[case]
    mask = {name: torch.tensor(value) if name[:2] == "cu" else value for name, value in mask.items()}
    if "slices" in mask:
        mask["slices"] = torch.from_numpy(random_slices(np.random.default_rng(seed), q_len, k_len, mask["slices"]))
    return q_len, k_len, mask


def equals_one_rank(
    group: Any, case: str, seed: int, dtype: torch.dtype, tolerance: float, dense: bool = False
) -> None:
    """Results and gradients of the ranks are those of one rank in fp64."""
    q_len, k_len, mask = mask_of(case, seed)
    torch.manual_seed(seed)
    shapes = {"q": (q_len, HEADS, 12), "k": (k_len, 2, 12), "v": (k_len, 2, 8)}
    values = {name: torch.randn(shape, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}
    exact = {name: x.double().clone().requires_grad_() for name, x in values.items()}
    sink = torch.randn(HEADS)
    options = {"softmax_scale": -0.4, "softcap": 3.0}
    whole_mask = dict(mask)
    if "slices" not in mask:  # a packed batch
        whole_mask.setdefault("cu_seqlens_q", torch.tensor([0, q_len]))
        same = whole_mask["cu_seqlens_q"]
        whole_mask.setdefault("cu_seqlens_k", same if k_len == q_len else torch.tensor([0, k_len]))
    exact["sink"] = sink.clone().requires_grad_()
    out, lse = tilewise.torch.attention(**exact, **whole_mask, **options, return_lse=True)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    ((out * dout).sum() + (lse * dlse).sum()).backward()

    heads = HEADS if case == "slices of heads" else None
    plan = ring.TokenPlan(q_len, k_len, group=group, heads=heads, **mask)

    def mine(name: str, x: torch.Tensor) -> torch.Tensor:
        return plan.dispatch(x, side="keys" if name in "kv" else "queries", dim=1 if name == "lse" else 0)

    batch = (slice(None),) if not dense else (None,)
    own = {name: mine(name, x)[batch].clone().requires_grad_() for name, x in values.items()}
    own["sink"] = sink.clone().requires_grad_()
    found, sums = ring.attention(**own, **options, token_plan=plan, return_lse=True)
    assert found.dtype == dtype and found.dim() == own["q"].dim()
    ((found * mine("q", dout)[batch]).sum() + (sums * mine("lse", dlse)[batch]).sum()).backward()
    dist.all_reduce(own["sink"].grad, group=group)

    def compare(name: str, ours: torch.Tensor, theirs: torch.Tensor, limit: float) -> None:
        torch.testing.assert_close(
            ours.double(), theirs.double()[batch] if ours.dim() > 1 else theirs.double(), rtol=limit, atol=limit,
            msg=lambda text: f"{case}, {name}: {text}",
        )  # fmt: skip

    compare("out", found, mine("q", out), tolerance)
    compare("lse", sums, mine("lse", lse), tolerance)
    for name in shapes:
        compare(f"d{name}", own[name].grad, mine(name, exact[name].grad), tolerance)
    compare("dsink", own["sink"].grad, exact["sink"].grad, max(tolerance, 1e-5))  # a sink is float32 always


def moves_tokens(group: Any, case: str, seed: int) -> tuple[list[int], list[int]]:
    """dispatch() and undispatch() are inverses, and positions() says the same; returns these, of queries and keys."""
    q_len, k_len, mask = mask_of(case, seed)
    plan = ring.TokenPlan(q_len, k_len, group=group, heads=HEADS, **mask)
    found = []
    for side, length in (("queries", q_len), ("keys", k_len)):
        places = plan.positions(side)
        for dtype in (torch.bfloat16, torch.float64, torch.bool):
            x = torch.randn(2, length, 3).to(dtype)
            dist.broadcast(x, 0, group=group)
            for whole, dim in ((x, 1), (x[0].contiguous(), 0), (x.mT.contiguous(), -1)):
                own = plan.dispatch(whole, side=side, dim=dim)
                assert torch.equal(own, whole.index_select(dim, places))
                assert torch.equal(plan.undispatch(own, side=side, dim=dim), whole)
        found.append(places.tolist())
    if "cu_seqlens_q" in mask:
        counted = torch.cat([torch.arange(n) for n in mask["cu_seqlens_q"].diff().tolist()])
        local = plan.positions(cu_seqlens=mask["cu_seqlens_q"])
        assert torch.equal(local, counted[plan.positions()])
    return found[0], found[1]


def joins_with_gradients(group: Any, length: int) -> None:
    """The gradient of tokens that are joined, of losses that are those of each rank, or the same on all."""
    size, rank = group.size(), group.rank()
    plan = ring.TokenPlan(length, causal=True, group=group)
    schedule = {"group": group, "schedule": "zigzag", "dim": 0}
    ways = (
        (plan.dispatch, plan.undispatch),
        (lambda x: ring.shard(x, **schedule), lambda x, **rest: ring.unshard(x, **schedule, **rest)),
    )
    torch.manual_seed(0)
    x = torch.randn(length, 3, dtype=torch.float64)
    weights = torch.randn(size, length, 3, dtype=torch.float64)
    for cut, join in ways:
        for sum_gradients, expected in ((True, weights.sum(0)), (False, weights[rank])):
            own = cut(x).clone().requires_grad_()
            (join(own, sum_gradients=sum_gradients) * weights[rank]).sum().backward()
            torch.testing.assert_close(own.grad, cut(expected), rtol=0, atol=1e-14)
        rounded = cut(x).bfloat16().requires_grad_()
        (join(rounded) * weights[rank].bfloat16()).sum().backward()
        exact = weights.bfloat16().double().sum(0)
        torch.testing.assert_close(rounded.grad, cut(exact).bfloat16(), rtol=2**-8, atol=0)  # rounded once


def wrong_rows(group: Any) -> str:
    """undispatch() of rows that are not those of the plan: rank 1 has one too few."""
    plan = ring.TokenPlan(40, causal=True, group=group)
    rows = plan.info_of().q_rows - (group.rank() == 1)
    try:
        plan.undispatch(torch.zeros(rows, 2))
    except ValueError as error:
        return str(error)
    return ""


def refuses(group: Any) -> list[tuple[str, int | None, str, float]]:
    """Rank 1 passes something else than the others, call after call; the last one is right."""
    odd = group.rank() == 1
    plan, other = (ring.TokenPlan(30, causal=True, group=group, stages=stages) for stages in (1, 2))
    window = ring.TokenPlan(30, window_size=(4, 0), group=group)
    elsewhere = ring.TokenPlan(30, causal=True, size=group.size(), rank=2)
    x = torch.randn(plan.info_of().q_rows, 2, 8)
    common = {"q": x, "k": x, "v": x, "causal": None, "schedule": None, "group": group, "token_plan": plan}

    def raised(**arguments: Any) -> tuple[str, int | None, str, float]:
        return rank_cases.raised(**{**common, **arguments})

    return [
        raised(token_plan=other if odd else plan),
        raised(token_plan=window if odd else plan),
        raised(**{"token_plan": None, "schedule": "contiguous", "q_len": 30, "k_len": 30} if odd else {}),
        raised(**{"token_plan": elsewhere} if odd else {}),
        raised(**{"causal": True} if odd else {}),
        raised(**{"q": x[1:]} if odd else {}),
        raised(schedule="zigzag"),
        raised(q_len=31),
        raised(token_plan=None, schedule="balanced"),
        raised(dropout_p=0.5, dropout_seed=1),
        raised(q=x[None].repeat(2, 1, 1, 1), k=x[None].repeat(2, 1, 1, 1), v=x[None].repeat(2, 1, 1, 1)),
        raised(),
    ]
