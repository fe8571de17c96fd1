"""Exchanges of messages with time limits, over any transport; the rank that causes a failure is found and named."""

from __future__ import annotations

import time
from typing import Any, Optional, Protocol, Sequence

# (memory, rank of the peer, tag): memory is a writable memoryview of bytes, which a send only reads.
Message = tuple[memoryview, int, int]
# (the time limit of this rank has passed, rank that caused it, message)
Failure = tuple[bool, int, str]

GRACE = 2.0  # seconds in which a rank that waits in an exchange says for whom
PAUSE = 0.1  # seconds between two looks at the notices


class RankError(RuntimeError):
    """Another rank has failed. ``rank`` says which one. The group cannot be used any more."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class RankTimeout(RankError, TimeoutError):
    """A rank did not answer within the time limit of this one."""


class Broken(Exception):
    """The connection to a rank is lost."""

    def __init__(self, peer: int, reason: str) -> None:
        super().__init__(reason)
        self.peer = peer


class Transfer(Protocol):
    """Messages on their way."""

    def wait(self, seconds: float) -> bool:
        """Returns whether all messages have been sent and received, after at most so many seconds. Raises Broken."""

    def awaited(self) -> list[int]:
        """The peers of messages that are not done, the most certain one first."""


class Transport(Protocol):
    """What an engine works with: messages, and notices that every rank can read at any time."""

    rank: int
    size: int
    any_thread: bool  # another thread than the caller's may use it

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Transfer:
        """Starts all messages together."""

    def post(self, name: str, text: str) -> None:
        """Publishes a notice. The first one of a name stays. Does nothing if that is impossible."""

    def read(self, name: str) -> Optional[str]:
        """The notice of that name, or None."""

    def close(self) -> None:
        """Ends all transfers; their memory is not used any more."""


class Engine:
    """The exchanges of one rank of a group, one at a time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._answered = False  # the question who waits for whom
        self.failure: Optional[Failure] = None
        self.nccl: dict[int, Any] = {}  # by the device

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], timeout: float) -> Optional[Failure]:
        """Returns when all messages have been sent and received, or when a rank has failed. Every later call then
        fails with the same cause."""
        if self.failure is not None or self._hears_of_a_failure():
            return self.failure
        try:
            self._wait(self._transport.start(sends, receives), timeout)
        except Broken as broken:
            self._fail(broken.peer, f"the connection to rank {broken.peer} is lost ({broken})")
        except BaseException:
            self.abort()
            raise
        if self.failure is not None:
            self._transport.close()
        return self.failure

    def abort(self) -> None:
        """Makes the exchanges of all ranks fail, with this rank as the cause."""
        if self.failure is None:
            self._fail(self._transport.rank, f"rank {self._transport.rank} has given up")
            self._transport.close()

    @property
    def any_thread(self) -> bool:
        """Whether another thread than the caller's may call exchange()."""
        return self._transport.any_thread

    def error(self, message: str) -> RankError:
        """The exception for a failed exchange."""
        assert self.failure is not None
        timed_out, rank, _ = self.failure
        return (RankTimeout if timed_out else RankError)(message, rank)

    def _wait(self, transfer: Transfer, timeout: float) -> None:
        limit = time.monotonic() + timeout
        while not transfer.wait(max(0.0, min(PAUSE, limit - time.monotonic()))):
            if self._hears_of_a_failure():
                return
            if time.monotonic() >= limit:
                self._transport.post("question", str(self._transport.rank))
                self._answer(transfer)
                rank = self._silent_rank(transfer)
                self._fail(rank, f"rank {rank} did not answer within {timeout:g} s", timed_out=True)
                return
            if self._transport.read("question") is not None:
                self._answer(transfer)

    def _answer(self, transfer: Transfer) -> None:
        """Says for whom this rank waits."""
        if not self._answered:
            self._answered = True
            self._transport.post(f"waits/{self._transport.rank}", " ".join(map(str, transfer.awaited())))

    def _silent_rank(self, transfer: Transfer) -> int:
        """Follows who waits for whom, from this rank on, to a rank that is in no exchange."""
        limit = time.monotonic() + GRACE
        reached = transfer.awaited()
        for rank in reached:
            while (answer := self._transport.read(f"waits/{rank}")) is None:
                if time.monotonic() >= limit:
                    return rank
                time.sleep(PAUSE / 4)
            reached += [peer for peer in map(int, answer.split()) if peer not in (*reached, self._transport.rank)]
        return reached[0] if reached else self._transport.rank

    def _hears_of_a_failure(self) -> bool:
        """Adopts the failure that a rank has published."""
        if self.failure is None and (notice := self._transport.read("failed")) is not None:
            rank, _, reason = notice.partition(" ")
            self.failure = (False, int(rank), reason)
        return self.failure is not None

    def _fail(self, rank: int, reason: str, timed_out: bool = False) -> None:
        """Publishes a failure, unless another rank has been faster: then its cause is ours."""
        self._transport.post("failed", f"{rank} {reason}")
        if not self._hears_of_a_failure():  # the notices are lost with the rank that keeps them
            self.failure = (timed_out, rank, reason)
        elif timed_out:
            self.failure = (True, *self.failure[1:])  # type: ignore[index]
