"""Messages over torch.distributed: gloo connections of our own between the ranks of any process group.

The group lends its store, in which the ranks find each other and post notices. Connections of our own keep a program's
messages apart from ours, and the group usable after a failure.
"""

from __future__ import annotations

import contextlib
import datetime
import queue
import threading
import time
import weakref
from typing import Any, Optional, Sequence

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from tilewise.distributed._engine import GRACE, Broken, Engine, Message, RankError, RankTimeout

_FOREVER = datetime.timedelta(days=365)
_LAST_TAG = 32767  # no message has it


def _seconds(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=min(max(seconds, 1e-3), 3e7))


class _Transfer:
    """Gloo cannot be asked whether a message has arrived, so a thread waits for one after the other."""

    def __init__(self, works: list[tuple[int, Any]]) -> None:
        self._works = works
        self._finished = 0
        self._broken: Optional[Broken] = None
        self._end = threading.Event()

    def run(self) -> None:
        for peer, work in self._works:
            try:
                work.wait(_FOREVER)
            except RuntimeError as error:
                self._broken = Broken(peer, str(error).splitlines()[0])
                break
            self._finished += 1
        self._end.set()

    def wait(self, seconds: float) -> bool:
        if not self._end.wait(seconds):
            return False
        if self._broken is not None:
            raise self._broken
        return True

    def awaited(self) -> list[int]:
        return list(dict.fromkeys(peer for peer, _ in self._works[self._finished :]))


def _serve(transfers: queue.SimpleQueue[Optional[_Transfer]]) -> None:
    while (transfer := transfers.get()) is not None:
        transfer.run()
        del transfer  # and with it the memory of its messages


class GlooTransport:
    """A rank's connections and its store."""

    any_thread = True

    def __init__(self, group: Any, timeout: float) -> None:
        self.rank, self.size = group.rank(), group.size()
        self._store = PrefixStore("tilewise.distributed", group.get_group_store())
        self._roll_call(timeout)
        try:
            self._gloo: Any = dist.ProcessGroupGloo(self._store, self.rank, self.size, _seconds(timeout))
        except RuntimeError as error:
            reason = f"rank {self.rank} cannot connect to all ranks"
            self.post("failed", f"{self.rank} {reason}")
            raise RankError(f"connecting the ranks: {reason} of {self.size}: {error}", self.rank) from error
        self._running: Optional[_Transfer] = None
        self._transfers: queue.SimpleQueue[Optional[_Transfer]] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._transfers,), name="tilewise.distributed", daemon=True).start()
        weakref.finalize(self, self._transfers.put, None)

    def _roll_call(self, timeout: float) -> None:
        """Connecting would wait for all ranks without a name for the one that does not come."""
        limit = time.monotonic() + timeout
        self._store.set(f"here/{self.rank}", "")
        names = [f"here/{peer}" for peer in range(self.size)]
        while (notice := self.read("failed")) is None:
            if self._store.check(names):
                return
            if time.monotonic() >= limit:
                peer = next((peer for peer, name in enumerate(names) if not self._store.check([name])), self.rank)
                self.post("failed", f"{peer} rank {peer} did not answer within {timeout:g} s")
            time.sleep(0.02)
        rank, _, reason = notice.partition(" ")
        raise RankTimeout(f"connecting the ranks: {reason}, says rank {self.rank} of {self.size}", int(rank))

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Transfer:
        works = []
        for messages, post in ((receives, self._gloo.recv), (sends, self._gloo.send)):
            for memory, peer, tag in messages:
                if memory.nbytes == 0:
                    continue
                try:
                    works.append((peer, post([torch.frombuffer(memory, dtype=torch.uint8)], peer, tag)))
                except RuntimeError as error:
                    works.append((peer, _Lost(error)))
        self._running = _Transfer(works)
        self._transfers.put(self._running)
        return self._running

    def post(self, name: str, text: str) -> None:
        try:
            self._store.compare_set(name, "", text)
        except RuntimeError:  # its server has gone
            pass

    def read(self, name: str) -> Optional[str]:
        try:
            return self._store.get(name).decode() if self._store.check([name]) else None
        except RuntimeError:
            return None

    def close(self) -> None:
        # A time-out closes all connections of gloo, and with them ends all messages.
        peer = (self.rank + 1) % self.size
        try:
            self._gloo.recv([torch.empty(1, dtype=torch.uint8)], peer, _LAST_TAG).wait(_seconds(0))
        except RuntimeError:
            pass
        if self._running is not None:
            with contextlib.suppress(Broken):
                self._running.wait(GRACE)


class _Lost:
    """A message that could not even be started."""

    def __init__(self, error: RuntimeError) -> None:
        self._error = error

    def wait(self, timeout: datetime.timedelta) -> None:
        raise self._error


_ENGINES: weakref.WeakKeyDictionary[Any, Engine] = weakref.WeakKeyDictionary()


def engine_of(group: Any, timeout: float) -> Engine:
    """The engine of a process group. Collective the first time."""
    if group not in _ENGINES:
        _ENGINES[group] = Engine(GlooTransport(group, timeout))
    return _ENGINES[group]
