"""The C interface; all arguments by position. tensors: None for one that is absent."""

from typing import Any

from typing_extensions import CapsuleType

version: str
FORWARD: int
BACKWARD: int
QUERIES: int
KEYS: int

class Plan:
    @property
    def kernel(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def workspace_bytes(self) -> int: ...

class Communicator:
    """engine: has exchange(sends, receives, timeout) and abort(), as tilewise.distributed._engine.Engine."""

    def __init__(self, rank: int, size: int, any_thread: bool, engine: Any, /) -> None: ...
    def use(self, nccl: Nccl, /) -> None:
        """Messages of tensors on a device go over NCCL."""

class Nccl:
    """A rank of NCCL, which the ranks with the same id make together."""

    def __init__(self, id: bytes, size: int, rank: int, device: int, /) -> None: ...

def nccl_unique_id() -> bytes: ...

def run(
    operation: int, caller: str, tensors: tuple[Any, ...], options: Any, stream: Any, threads: int | None, /
) -> None: ...
def make_plan(
    operation: int,
    caller: str,
    tensors: tuple[Any, ...],
    options: Any,
    kernel: str | None,
    cpu_target: str | None,
    threads: int | None,
    /,
) -> Plan: ...
def run_plan(
    plan: Plan, caller: str, tensors: tuple[Any, ...], options: Any, workspace: Any, stream: Any, /
) -> None: ...
def run_distributed(
    operation: int,
    caller: str,
    tensors: tuple[Any, ...],
    options: Any,
    communicator: Communicator,
    whole: tuple[str, int, int, float, CapsuleType | None],
    stream: Any,
    threads: int | None,
    /,
) -> None:
    """whole: schedule, q_len, k_len, timeout in seconds, token plan of the balanced schedule."""

def refuse_distributed(communicator: Communicator, timeout: float, /) -> None: ...
def token_ranges(schedule: str, length: int, size: int, rank: int, /) -> list[tuple[int, int, int]]: ...
def choose_schedule(caller: str, options: Any, batch: int, size: int, q_len: int, k_len: int, /) -> str: ...
def make_token_plan(
    caller: str, mask: Any, heads: int | None, sizes: tuple[int, int, int, int, int], /
) -> CapsuleType:
    """sizes: q_len, k_len, number of ranks, chunk_rows, stages."""

def token_plan_info(plan: CapsuleType, /) -> tuple[int, int, int, int, int, int, int, int, float, int]: ...
def token_plan_rank_info(plan: CapsuleType, rank: int, /) -> tuple[int, int, int, int, int]: ...
def token_plan_ranges(plan: CapsuleType, side: int, rank: int, /) -> list[tuple[int, int, int]]: ...
def quantise(
    tensors: tuple[Any, ...], layout: str | None, fixed_scales: bool, seed: int | None, threads: int | None, /
) -> None:
    """tensors: input, output, descale, cu_seqlens, saturated."""

def append(tensors: tuple[Any, ...], interleaved: bool, q_at_end: bool, stream: Any, /) -> None:
    """tensors: k_cache, v_cache, k, v, cu_seqlens_k, cache_seqlens, cache_batch_idx, page_table, rotary_cos, rotary_sin,
    rotary_seqlens, q, q_rotated, cu_seqlens_q.
    """

def kernels(operation: int, /) -> list[str]: ...
def info() -> str: ...
