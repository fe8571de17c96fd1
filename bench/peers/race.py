"""The clock: contenders take turns, and the least time of each counts."""
import gc
import time
from dataclasses import dataclass, field
from itertools import repeat

SETTLE_SECONDS = 0.001
SETTLE_LIMIT = 0.1
SHORTEST_REPETITION = 1e-4  # seconds; shorter calls are timed several at a time
LEAST_ROUNDS = 3
LONG_ROUND = 4.0  # seconds; a round of such long calls is repeated once: noise of that length affects both contenders


@dataclass
class Timing:
    seconds: list = field(default_factory=list)  # one number for each call

    def least(self):
        return min(self.seconds)

    def median(self):
        return sorted(self.seconds)[len(self.seconds) // 2]


def clock_for(threads):
    """(name, function). One thread is timed by the processor time of the process, which leaves out what other processes
    took; several by the time that passed."""
    return ("process CPU time", time.process_time) if threads == 1 else ("wall clock", time.perf_counter)


def settle():
    """Waits until the threads of whoever ran before have stopped spinning."""
    end = time.perf_counter() + SETTLE_LIMIT
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(SETTLE_SECONDS)
        if time.process_time() - before < 0.2 * SETTLE_SECONDS:
            return


def first_turn(call, clock, timing):
    """How many calls make a repetition long enough to be timed."""
    settle()
    calls = 1
    while True:
        seconds = repetition(call, calls, clock)
        if seconds * calls >= SHORTEST_REPETITION or calls >= 1 << 20:
            timing.seconds.append(seconds)
            return calls
        calls *= 2 if seconds <= 0 else max(2, int(SHORTEST_REPETITION / (seconds * calls)) + 1)


def repetition(call, calls, clock):
    start = clock()
    for _ in repeat(None, calls):
        call()
    return (clock() - start) / calls


def turn(call, calls, clock, seconds, timing):
    settle()
    end = time.perf_counter() + seconds
    while True:
        timing.seconds.append(repetition(call, calls, clock))
        if time.perf_counter() >= end:
            return


def first_turns(calls, clock, timings, announce):
    """({name: calls in a repetition}, {name: exception}): a contender may find out in its first run that it cannot."""
    counts, failures = {}, {}
    for name, call in calls.items():
        announce(name)
        try:
            counts[name] = first_turn(call, clock, timings[name])
        except Exception as error:  # recorded, whatever it is
            failures[name] = error
    return counts, failures


def race(calls, clock, budget, least_rounds=LEAST_ROUNDS, announce=lambda name: None):
    """calls: {name: function}. Round robin for `budget` seconds and `least_rounds` rounds (2 if they are long),
    whichever ends later; every round starts with another contender. announce(name): who is about to run for the first time.
    Returns ({name: Timing}, {name: exception})."""
    timings = {name: Timing() for name in calls}
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        counts, failures = first_turns(calls, clock, timings, announce)
        rounds, order = 1, list(counts)
        if time.perf_counter() - start > LONG_ROUND:
            least_rounds = min(least_rounds, 2)
        while order and (rounds < least_rounds or time.perf_counter() - start < budget):
            for name in order:
                turn(calls[name], counts[name], clock, budget / (10 * len(order)), timings[name])
            order, rounds = order[1:] + order[:1], rounds + 1
    finally:
        if gc_was_on:
            gc.enable()
    return {name: timings[name] for name in counts}, failures
