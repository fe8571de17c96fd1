"""Several Python threads at once; the GIL is free while the library computes."""

import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases import tensors

import tilewise


def test_many_threads_at_once(rng: np.random.Generator) -> None:
    problems = [tensors(rng, "float32", (1, 65 + i, 130, 4, 2, 40, 16)) for i in range(8)]
    plans = [tilewise.plan(p["q"], p["k"], p["v"], causal=True) for p in problems]

    def work(index: int) -> list[np.ndarray]:
        p, results = problems[index % 8], []
        for _ in range(5):
            out, lse = tilewise.attention_forward(p["q"], p["k"], p["v"], causal=True)
            results += [out, plans[index % 8](p["q"], p["k"], p["v"])]
            results += tilewise.attention_backward(p["dout"], p["q"], p["k"], p["v"], out, lse, causal=True)[:3]
        return results

    expected = [work(index) for index in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for index, results in enumerate(pool.map(work, range(32))):
            assert all(np.array_equal(a, b) for a, b in zip(results, expected[index % 8]))


def test_one_plan_run_by_many_threads(rng: np.random.Generator) -> None:
    p = tensors(rng, "float32")
    plan = tilewise.plan(p["q"], p["k"], p["v"])
    expected = plan(p["q"], p["k"], p["v"])
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: plan(p["q"], p["k"], p["v"]), range(200)))
    assert all(np.array_equal(result, expected) for result in results)


def test_gil_is_free_while_computing(rng: np.random.Generator) -> None:
    """Another thread goes on: it is never held up for as long as one call computes."""
    q, k, v = (rng.standard_normal((1, 4096, 4, 64)).astype(np.float32) for _ in range(3))
    start = time.perf_counter()
    tilewise.attention(q, k, v, threads=1)
    alone = time.perf_counter() - start
    done, pauses = threading.Event(), []

    def watch() -> None:
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(alone / 100)
            now = time.perf_counter()
            pauses.append(now - last)
            last = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(3):
        tilewise.attention(q, k, v, threads=1)
    done.set()
    watcher.join()
    assert len(pauses) >= 6 and np.median(pauses) < alone / 3, f"one call {alone:.3f} s, pauses {pauses}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_number_of_threads_changes_no_bit(dtype: str, rng: np.random.Generator) -> None:
    p = tensors(rng, dtype, (2, 200, 300, 4, 2, 64, 64))
    runs = []
    for threads in (None, 1, 2, 5):
        out, lse = tilewise.attention_forward(p["q"], p["k"], p["v"], causal=True, threads=threads)
        gradients = tilewise.attention_backward(
            p["dout"], p["q"], p["k"], p["v"], out, lse, causal=True, threads=threads
        )
        runs.append([out, lse, *gradients[:3]])
    for run in runs[1:]:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(runs[0], run))


def test_after_fork() -> None:
    """The pool of threads is made anew in a child."""
    script = """
        import os, numpy as np, tilewise
        x = np.random.default_rng(0).standard_normal((1, 512, 4, 64), dtype=np.float32)
        before = tilewise.attention(x, x, x)
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(tilewise.attention(x, x, x), before) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert np.array_equal(tilewise.attention(x, x, x), before)
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
