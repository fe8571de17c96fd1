"""Messages over mpi4py, on a duplicate of a communicator.

MPI may still read or write the memory of a message that it could not cancel after a failure. So every message has
memory of its own, which the transfer owns.
"""

from __future__ import annotations

import time
from typing import Any, Optional, Sequence

import numpy as np
from mpi4py import MPI

from tilewise.distributed._engine import Broken, Engine, Message, RankTimeout

_NOTICE = 32767  # the tag of notices, and of the roll call
_MOST_BYTES = 2**30  # of a message, whose bytes MPI counts in 32 bits


class _Part:
    """At most 2^30 bytes of a message."""

    def __init__(self, comm: MPI.Comm, memory: memoryview, peer: int, tag: int, receive: bool) -> None:
        self.peer = peer
        self._target = memory if receive else None
        self._buffer = np.empty(memory.nbytes, np.uint8) if receive else np.array(memory, np.uint8)
        start = comm.Irecv if receive else comm.Isend
        self._request = start([self._buffer, memory.nbytes, MPI.BYTE], peer, tag)
        self.done = False

    def test(self) -> bool:
        try:
            self.done = self.done or self._request.Test()
        except MPI.Exception as error:
            raise Broken(self.peer, str(error)) from error
        if self.done and self._target is not None:
            self._target[:] = self._buffer.data
            self._target = None
        return self.done

    def cancel(self) -> None:
        """Ends a receive, unless it is arriving. Sends are left to MPI."""
        if not self.done and self._target is not None:
            self._request.Cancel()


class _Transfer:
    def __init__(self, parts: list[_Part]) -> None:
        self.parts = parts

    def wait(self, seconds: float) -> bool:
        limit = time.monotonic() + seconds
        pause = 0.0
        while not all([part.test() for part in self.parts]):  # a list: every part is tested
            if time.monotonic() >= limit:
                return False
            time.sleep(pause)
            pause = min(pause + 2e-6, 1e-3)
        return True

    def awaited(self) -> list[int]:
        return list(dict.fromkeys(part.peer for part in self.parts if not part.done))


class MpiTransport:
    """A rank of the duplicate. Notices are messages to all other ranks."""

    def __init__(self, comm: MPI.Comm, timeout: float) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.any_thread = MPI.Query_thread() >= MPI.THREAD_MULTIPLE  # abort() may come during an exchange
        self._notices: dict[str, str] = {}
        self._sent: list[tuple[Any, Any]] = []  # requests and the memory of notices
        self._kept: list[_Part] = []  # of transfers that have failed
        self._running: Optional[_Transfer] = None
        _roll_call(comm, timeout)
        self._comm = comm.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Transfer:
        parts = [
            _Part(self._comm, memory[begin : begin + _MOST_BYTES], peer, tag, receive)
            for messages, receive in ((receives, True), (sends, False))
            for memory, peer, tag in messages
            for begin in range(0, max(memory.nbytes, 1), _MOST_BYTES)
        ]
        self._running = _Transfer(parts)
        return self._running

    def post(self, name: str, text: str) -> None:
        if name in self._notices:
            return
        self._notices[name] = text
        message = np.frombuffer(f"{name}\n{text}".encode(), np.uint8)
        for peer in range(self.size):
            if peer != self.rank:
                self._sent.append((self._comm.Isend([message, MPI.BYTE], peer, _NOTICE), message))

    def read(self, name: str) -> Optional[str]:
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, _NOTICE, status):
            message = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._comm.Recv([message, MPI.BYTE], status.Get_source(), _NOTICE)
            other, _, text = message.tobytes().decode().partition("\n")
            self._notices.setdefault(other, text)
        return self._notices.get(name)

    def close(self) -> None:
        if self._running is not None:
            for part in self._running.parts:
                part.cancel()
            self._kept += self._running.parts
            self._running = None


def _roll_call(comm: MPI.Comm, timeout: float) -> None:
    """Duplicating would wait for all ranks without a name for the one that does not come.

    A duplication that does not end would also stop every later one, so that no rank begins it before all ranks have
    said that they have met all ranks.
    """
    limit = time.monotonic() + timeout
    nothing = np.empty(0, np.uint8).data
    peers = [peer for peer in range(comm.size) if peer != comm.rank]
    for _ in ("is there", "has met all"):
        transfer = _Transfer([_Part(comm, nothing, peer, _NOTICE, way) for peer in peers for way in (True, False)])
        if transfer.wait(max(limit - time.monotonic(), 0)):
            continue
        for part in transfer.parts:
            part.cancel()
        peer = transfer.awaited()[0]
        reason = f"rank {peer} did not answer within {timeout:g} s"
        raise RankTimeout(f"connecting the ranks: {reason}, says rank {comm.rank} of {comm.size}", peer)


_ENGINE = MPI.Comm.Create_keyval()


def engine_of(comm: MPI.Comm, timeout: float) -> Engine:
    """The engine of a communicator, which is an attribute of it, as is why there is none. Collective the first time."""
    made: Any = comm.Get_attr(_ENGINE)
    if made is None:
        try:
            made = Engine(MpiTransport(comm, timeout))
        except RankTimeout as error:
            made = error
        comm.Set_attr(_ENGINE, made)
    if isinstance(made, RankTimeout):
        raise RankTimeout(str(made), made.rank)
    return made
