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
def kernels(operation: int, /) -> list[str]: ...
def info() -> str: ...
