"""The C interface; all arguments by position. tensors: None for one that is absent."""

from typing import Any

version: str
FORWARD: int
BACKWARD: int

class Plan:
    @property
    def kernel(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def workspace_bytes(self) -> int: ...

QUERIES: int
KEYS: int

class TokenPlan:
    """sizes: q_len, k_len, number of ranks, chunk_rows, stages."""

    def __init__(
        self, caller: str, mask: Any, heads: int | None, sizes: tuple[int, int, int, int, int], /
    ) -> None: ...
    def info(self) -> tuple[int, int, int, int, int, int, int, int, float, int]: ...
    def info_of(self, rank: int, /) -> tuple[int, int, int, int, int]: ...
    def ranges_of(self, side: int, rank: int, /) -> list[tuple[int, int, int]]: ...

class Communicator:
    """engine: has exchange(sends, receives, timeout) and abort(), as tilewise.distributed._engine.Engine."""

    def __init__(self, rank: int, size: int, any_thread: bool, engine: Any, /) -> None: ...

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
    whole: tuple[str, int, int, float, TokenPlan | None],
    threads: int | None,
    /,
) -> None:
    """whole: schedule, q_len, k_len, timeout in seconds, token plan of the balanced schedule."""

def refuse_distributed(communicator: Communicator, timeout: float, /) -> None: ...
def token_ranges(schedule: str, length: int, size: int, rank: int, /) -> list[tuple[int, int, int]]: ...
def choose_schedule(caller: str, options: Any, batch: int, size: int, q_len: int, k_len: int, /) -> str: ...
def kernels(operation: int, /) -> list[str]: ...
def info() -> str: ...
