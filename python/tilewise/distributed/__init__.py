"""Exact attention over a sequence that is divided between ranks: ring attention on CPUs.

    import tilewise.distributed as ring

    schedule = ring.choose_schedule(length, causal=True)         # "zigzag": all ranks have the same work
    ids = ring.shard(ids, schedule=schedule)                     # (B, length) -> this rank's tokens
    places = ring.positions(length, schedule=schedule)           # for position embeddings
    out = ring.attention(q, k, v, schedule=schedule, causal=True)    # q (B, rows, H, D); with gradients

With tensors of PyTorch on the default process group of torch.distributed, or ``group=``; with NumPy arrays on
``group=mpi4py.MPI.COMM_WORLD``. docs/distributed.md describes schedules, what is sent, and failures.
"""

from tilewise.distributed._attention import attention, attention_backward, attention_forward
from tilewise.distributed._engine import RankError, RankTimeout
from tilewise.distributed._tokens import choose_schedule, positions, shard, unshard

__all__ = [
    "RankError",
    "RankTimeout",
    "attention",
    "attention_backward",
    "attention_forward",
    "choose_schedule",
    "positions",
    "shard",
    "unshard",
]
