"""Exact attention over a sequence that is divided between ranks: ring attention on CPUs.

    import tilewise.distributed as ring

    schedule = ring.choose_schedule(length, causal=True)         # "zigzag": all ranks have the same work
    ids = ring.shard(ids, schedule=schedule)                     # (B, length) -> this rank's tokens
    places = ring.positions(length, schedule=schedule)           # for position embeddings
    out = ring.attention(q, k, v, schedule=schedule, causal=True)    # q (B, rows, H, D); with gradients

Any other mask, such as a list of slices, gets a token plan, which deals tokens by what they see:

    plan = ring.TokenPlan(length, slices=slices)
    out = ring.attention(q, k, v, token_plan=plan)               # q = plan.dispatch(...), packed: (rows, H, D)

With tensors of PyTorch on the default process group of torch.distributed, or ``group=``; with NumPy arrays on
``group=mpi4py.MPI.COMM_WORLD``. docs/distributed.md describes schedules, what is sent, and failures.
"""

from tilewise.distributed._attention import attention, attention_backward, attention_forward
from tilewise.distributed._engine import RankError, RankTimeout
from tilewise.distributed._token_plan import RankInfo, TokenPlan, TokenPlanInfo
from tilewise.distributed._tokens import choose_schedule, positions, shard, unshard

__all__ = [
    "RankError",
    "RankInfo",
    "RankTimeout",
    "TokenPlan",
    "TokenPlanInfo",
    "attention",
    "attention_backward",
    "attention_forward",
    "choose_schedule",
    "positions",
    "shard",
    "unshard",
]
