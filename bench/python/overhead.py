"""What a call costs from Python when there is next to nothing to compute: one query, one key, one head.

Usage: overhead.py [RESULT.json]

The contenders take turns for a number of rounds; each time is the least of all rounds, which others' work on the
machine disturbs least. PyTorch and JAX are measured where they are installed.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from typing import Any, Callable

import ml_dtypes
import numpy as np

import tilewise

ROUNDS, CALLS = 60, 1000
SHAPE = (1, 1, 1, 8)  # (B, S, H, D)


def contenders() -> dict[str, Callable[[], Any]]:
    """{name: a call}; all on one query, one key, one head, D = 8."""
    q, k, v, dout = (np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32) for _ in range(4))
    bf16 = [x.astype(ml_dtypes.bfloat16) for x in (q, k, v)]
    out, lse = tilewise.attention_forward(q, k, v)
    dq, dk, dv = (np.empty_like(x) for x in (q, k, v))
    plan = tilewise.plan(q, k, v)
    found: dict[str, Callable[[], Any]] = {
        "numpy: attention": lambda: tilewise.attention(q, k, v),
        "numpy: attention, causal, window, scale": lambda: tilewise.attention(
            q, k, v, causal=True, window_size=(128, 0), softmax_scale=0.3
        ),
        "numpy: attention, out=": lambda: tilewise.attention(q, k, v, out=out),
        "numpy: attention, bfloat16": lambda: tilewise.attention(*bf16),
        "numpy: attention_forward": lambda: tilewise.attention_forward(q, k, v),
        "numpy: attention_backward": lambda: tilewise.attention_backward(dout, q, k, v, out, lse, dq=dq, dk=dk, dv=dv),
        "numpy: plan, out=": lambda: plan(q, k, v, out=out),
    }
    found.update(torch_contenders(q, k, v))
    found.update(jax_contenders(q, k, v))
    return found


def torch_contenders(*arrays: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Through DLPack, and PyTorch's own operator beside it."""
    try:
        import torch
    except ImportError:
        return {}
    q, k, v = (torch.from_numpy(x) for x in arrays)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return {
        "torch tensors: tilewise.attention": lambda: tilewise.attention(q, k, v),
        "torch: scaled_dot_product_attention": lambda: sdpa(*turned),
    }


def jax_contenders(*arrays: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Compiled, and JAX's own function beside it."""
    try:
        import jax

        import tilewise.jax as tj
    except ImportError:
        return {}
    q, k, v = (jax.numpy.asarray(x) for x in arrays)
    ours, theirs = jax.jit(tj.attention), jax.jit(jax.nn.dot_product_attention)
    return {
        "jax.jit: tilewise.jax.attention": lambda: ours(q, k, v).block_until_ready(),
        "jax.jit: jax.nn.dot_product_attention": lambda: theirs(q, k, v).block_until_ready(),
    }


def least_times() -> dict[str, float]:
    """{name: microseconds a call}."""
    calls = contenders()
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            least[name] = min(least[name], (time.perf_counter() - start) / CALLS * 1e6)
    return least


def versions() -> dict[str, str]:
    """Of what was measured."""
    modules = ("numpy", "torch", "jax")
    found = {name: sys.modules[name].__version__ for name in modules if name in sys.modules}
    return {"python": platform.python_version(), "tilewise": tilewise.__version__, **found}


def cpu_name() -> str:
    """As the system calls it."""
    return next(line for line in tilewise.info().splitlines() if line.startswith("cpu ")).removeprefix("cpu").strip()


def main() -> None:
    """Measures, prints, and writes the file if one is named."""
    times = least_times()
    for name, microseconds in times.items():
        print(f"{name:<45} {microseconds:7.2f} us")
    result = {
        "shape": list(SHAPE),
        "rounds": ROUNDS,
        "calls_a_round": CALLS,
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "versions": versions(),
        "microseconds": {name: round(value, 2) for name, value in times.items()},
    }
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
