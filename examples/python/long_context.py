"""Long-context attention on a CPU: memory and time against the textbook way, as a plot.

Usage: long_context.py [PLOT.png [RESULT.json]]          (default: long_context.png)

Each measurement is a process of its own, and counts what its memory grew by at its peak during one causal forward pass
over float32 Q, K and V of one sequence, 4 heads, D = 64. The textbook way stores the scores of one head at a time.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time

import numpy as np

import tilewise

HEADS, DIM = 4, 64
LENGTHS = {"textbook": [2**n for n in range(10, 15)], "tilewise": [2**n for n in range(10, 18)]}


def textbook(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """softmax(Q K^T) V with all scores of a head in memory. q, k, v (1, S, H, D)."""
    out = np.empty_like(q)
    length = q.shape[1]
    hidden = np.triu(np.ones((length, length), bool), 1)  # (S, S)
    for head in range(HEADS):
        scores = q[0, :, head] @ k[0, :, head].T  # (S, S)
        scores *= np.float32(1 / math.sqrt(DIM))
        scores[hidden] = -np.inf
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        out[0, :, head] = scores @ v[0, :, head]
    return out


def peak_bytes() -> int:
    """Returns the peak of this process since its start (getrusage would include its parent's)."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def measure(way: str, length: int) -> dict[str, float]:
    """Runs in a process of its own: the peak of memory never goes down."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, length, HEADS, DIM), dtype=np.float32) for _ in range(3))
    attend = textbook if way == "textbook" else lambda *a: tilewise.attention(*a, causal=True)
    attend(*(x[:, :64].copy() for x in (q, k, v)))  # starts the threads and loads the code
    before = peak_bytes()
    start = time.perf_counter()
    out = attend(q, k, v)
    seconds = time.perf_counter() - start
    peak = peak_bytes()
    # Every way needs memory for the result; this is what it needs in addition.
    return {"bytes": max(peak - before - out.nbytes, 0), "seconds": seconds}


def measure_all() -> dict[str, list[tuple[int, float, float]]]:
    """{way: [(length, bytes, seconds)]}"""
    results: dict[str, list[tuple[int, float, float]]] = {way: [] for way in LENGTHS}
    print(f"{'way':<10} {'length':>8} {'memory':>12} {'time':>10}")
    for way, lengths in LENGTHS.items():
        for length in lengths:
            command = [sys.executable, __file__, "--measure", way, str(length)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            results[way].append((length, found["bytes"], found["seconds"]))
            print(f"{way:<10} {length:>8} {found['bytes'] / 2**20:>8.1f} MiB {found['seconds']:>8.3f} s", flush=True)
    return results


def plot(results: dict[str, list[tuple[int, float, float]]], path: str) -> None:
    """Two panels, both axes logarithmic: memory and time over the length."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    panels = (("extra memory (MiB)", 1, 2**20), ("time (s)", 2, 1))
    for axis, (label, column, unit) in zip(axes, panels):
        for (way, rows), colour in zip(results.items(), ("#b3541e", "#1f5fa8")):
            lengths = [row[0] for row in rows]
            # Values below a page would not be visible on a logarithmic axis.
            values = [max(row[column] / unit, 2**-6 if column == 1 else 0) for row in rows]
            axis.plot(lengths, values, "o-", color=colour, label=way)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(LENGTHS["tilewise"], [f"{n // 1024}k" for n in LENGTHS["tilewise"]])
        axis.set_xlabel("sequence length")
        axis.set_ylabel(label)
        axis.grid(True, which="major", alpha=0.3)
        axis.legend(frameon=False)
    figure.suptitle(f"Causal attention on a CPU, float32, {HEADS} heads, D = {DIM}", fontsize=11)
    figure.savefig(path, dpi=110)
    print(f"wrote {path}")


def save(results: dict[str, list[tuple[int, float, float]]], path: str) -> None:
    """Returns what was measured, and where."""
    cpu = next(line for line in tilewise.info().splitlines() if line.startswith("cpu ")).removeprefix("cpu").strip()
    about = {"cpu": cpu, "heads": HEADS, "dim": DIM, "dtype": "float32", "causal": True}
    versions = {"numpy": np.__version__, "tilewise": tilewise.__version__}
    rows = {
        way: [{"length": n, "bytes": extra, "seconds": round(seconds, 4)} for n, extra, seconds in found]
        for way, found in results.items()
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**about, "versions": versions, "results": rows}, file, indent=1)
        file.write("\n")


def main() -> None:
    """Measures, draws, and writes the file if one is named."""
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
        return
    results = measure_all()
    plot(results, sys.argv[1] if len(sys.argv) > 1 else "long_context.png")
    if len(sys.argv) > 2:
        save(results, sys.argv[2])


if __name__ == "__main__":
    main()
