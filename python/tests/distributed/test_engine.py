"""The engine on a transport that delivers what the test says: which rank is to blame."""

import threading
import time

import pytest
from tilewise.distributed import _engine
from tilewise.distributed._engine import Broken, Engine, RankError, RankTimeout


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engine, "GRACE", 0.4)


class Notices:
    """A store that all ranks share."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}


class Scripted:
    """A rank whose messages never come from `peers`; all others are there at once."""

    any_thread = True

    def __init__(self, rank: int, notices: Notices, peers: list[int], lost: int | None = None) -> None:
        self.rank, self.size = rank, 4
        self.is_closed = False
        self._notices = notices
        self._peers = peers
        self._lost = lost

    def start(self, sends: list, receives: list) -> "Scripted":
        return self

    def wait(self, seconds: float) -> bool:
        if self._lost is not None:
            raise Broken(self._lost, "reset")
        time.sleep(seconds if self._peers else 0)
        return not self._peers

    def awaited(self) -> list[int]:
        return list(self._peers)

    def post(self, name: str, text: str) -> None:
        self._notices.texts.setdefault(name, text)

    def read(self, name: str) -> str | None:
        return self._notices.texts.get(name)

    def close(self) -> None:
        self.is_closed = True


def failures(waits: dict[int, list[int]], timeouts: dict[int, float]) -> dict[int, tuple[bool, int, str]]:
    """The failure of each rank that is in an exchange; waits: for whom."""
    notices = Notices()
    found = {}

    def run(rank: int) -> None:
        transport = Scripted(rank, notices, waits[rank])
        found[rank] = Engine(transport).exchange([], [], timeouts[rank])
        assert transport.is_closed

    threads = [threading.Thread(target=run, args=(rank,)) for rank in waits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_the_silent_rank_is_found_through_those_that_wait_for_it() -> None:
    """0 waits for 3, which waits for 1, which waits for 2, which is in no exchange. Only 0's limit passes."""
    found = failures({0: [3], 3: [1], 1: [2]}, {0: 0.2, 3: 60, 1: 60})
    assert found[0] == (True, 2, "rank 2 did not answer within 0.2 s")
    assert found[3] == found[1] == (False, 2, "rank 2 did not answer within 0.2 s")


def test_ranks_that_wait_for_each_other() -> None:
    assert {failure[1] for failure in failures({0: [1], 1: [0]}, {0: 0.2, 1: 60}).values()} == {1}


def test_a_lost_connection() -> None:
    notices = Notices()
    first = Engine(Scripted(0, notices, [], lost=3))
    assert first.exchange([], [], 60) == (False, 3, "the connection to rank 3 is lost (reset)")
    assert first.exchange([], [], 60) == first.failure
    # Rank 3's end has closed the connections of rank 0, which is what rank 1 sees.
    assert Engine(Scripted(1, notices, [], lost=0)).exchange([], [], 60) == first.failure


def test_abort_reaches_the_others() -> None:
    notices = Notices()
    engine = Engine(Scripted(2, notices, []))
    assert engine.exchange([], [], 60) is None
    engine.abort()
    assert Engine(Scripted(0, notices, [1])).exchange([], [], 60) == (False, 2, "rank 2 has given up")


def test_exceptions_name_the_rank() -> None:
    engine = Engine(Scripted(0, Notices(), [2]))
    engine.exchange([], [], 0.1)
    error = engine.error("text")
    assert isinstance(error, RankTimeout) and isinstance(error, TimeoutError) and error.rank == 2
    with pytest.raises(RankError, match="text"):
        raise error
