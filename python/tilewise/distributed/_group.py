"""Groups of ranks: process groups of PyTorch and communicators of mpi4py."""

from __future__ import annotations

import sys
from typing import Any, Sequence

import numpy as np

from tilewise import _core
from tilewise.distributed._engine import Engine, Message

TIMEOUT = 300.0  # seconds
_GATHER_TAG = 32766  # the messages of attention have smaller tags
_ID_BYTES = 128  # of NCCL


class Group:
    """A rank's view of a group. Its connections are made by the first exchange."""

    def __init__(self, rank: int, size: int, connect: Any, given: Any) -> None:
        self.rank = rank
        self.size = size
        self._connect = connect
        self._given = given
        self._is_mpi = type(given).__module__.startswith("mpi4py")

    def engine(self, timeout: float) -> Engine:
        """What exchanges messages. Collective the first time."""
        return self._connect(self._given, timeout)

    def communicator(self, timeout: float) -> tuple[Any, Any]:
        """The engine, None for a single rank, and a communicator over it for _core."""
        if self.size == 1:
            return None, _core.Communicator(0, 1, True, None)
        engine = self.engine(timeout)
        return engine, _core.Communicator(self.rank, self.size, engine.any_thread, engine)

    def use_device(self, communicator: Any, device: int, timeout: float) -> None:
        """Lets a communicator of this group exchange messages in the memory of a CUDA device, over NCCL. Collective
        the first time. Raises NotImplementedError on every rank if rank 0 finds no NCCL."""
        if self.size == 1:
            return
        made = self.engine(timeout).nccl
        if device not in made:
            own, reason = np.zeros(_ID_BYTES // 8, np.int64), ""
            if self.rank == 0:
                try:
                    own = np.frombuffer(_core.nccl_unique_id(), np.int64)
                except NotImplementedError as error:
                    reason = f": {error}"
            ids = self.gather(own.tolist(), timeout, "joining the ranks over NCCL")
            if not any(ids[0]):
                raise NotImplementedError(f"nccl: rank 0 cannot load it{reason}")
            made[device] = _core.Nccl(np.array(ids[0], np.int64).tobytes(), self.size, self.rank, device)
        communicator.use(made[device])

    def array(self, x: np.ndarray) -> Any:
        """x as the arrays that the group is used with: a tensor, or x itself with mpi4py."""
        if self._is_mpi:
            return x
        import torch

        return torch.from_numpy(x)

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], timeout: float, activity: str) -> None:
        """Sends and receives messages together. Raises RankError."""
        engine = self.engine(timeout)
        failure = engine.exchange(sends, receives, timeout)
        if failure is not None:
            raise engine.error(f"{activity}: {failure[2]}, says rank {self.rank} of {self.size}")

    def gather(self, numbers: Sequence[int], timeout: float, activity: str) -> list[list[int]]:
        """The numbers of every rank, as many on each."""
        rows = np.zeros((self.size, len(numbers)), np.int64)
        rows[self.rank] = numbers
        if self.size > 1:
            memory = [row.view(np.uint8).data for row in rows]
            peers = [peer for peer in range(self.size) if peer != self.rank]
            sends = [(memory[self.rank], peer, _GATHER_TAG) for peer in peers]
            self.exchange(sends, [(memory[peer], peer, _GATHER_TAG) for peer in peers], timeout, activity)
        return rows.tolist()


def group_of(group: Any) -> Group:
    """`group` as a user gives it: a ProcessGroup or DeviceMesh of PyTorch, a communicator of mpi4py, or None, which is
    PyTorch's default group."""
    if isinstance(group, Group):
        return group
    if "mpi4py.MPI" in sys.modules and isinstance(group, sys.modules["mpi4py.MPI"].Comm):
        from tilewise.distributed import _mpi

        return Group(group.rank, group.size, _mpi.engine_of, group)
    if "torch" in sys.modules:
        return _of_pytorch(group)
    raise TypeError(f"group: is {group!r}, must be a process group of PyTorch or a communicator of mpi4py")


def _of_pytorch(group: Any) -> Group:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(
            "group: is a group of PyTorch's, but torch.distributed.init_process_group has not been called; a "
            "communicator of mpi4py may be given instead"
        )
    if group is None:
        group = dist.group.WORLD
    elif hasattr(group, "get_group"):  # DeviceMesh
        group = group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group: is {group!r}, must be a process group of PyTorch that has this rank")
    from tilewise.distributed import _gloo

    return Group(group.rank(), group.size(), _gloo.engine_of, group)


def checked_timeout(timeout: Any) -> float:
    """Seconds, more than 0."""
    if isinstance(timeout, (int, float)) and timeout > 0:
        return float(timeout)
    raise ValueError(f"timeout: is {timeout!r}, must be a number of seconds, more than 0 (math.inf: no limit)")
