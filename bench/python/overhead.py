"""Measures the cost of a call from Python when there is almost nothing to compute: one query, one key, one head.

Usage: overhead.py [--device cpu|cuda] [RESULT.json]

The contenders take turns for a number of rounds; each time is that of the fastest round, which other work on the
machine disturbs least. PyTorch and JAX are measured where they are installed. On CUDA (PyTorch only) both the time
until a call returns and the time until the device has completed a round of calls are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any, Callable

import ml_dtypes
import numpy as np

import tilewise

ROUNDS, CALLS = 60, 1000
CALLS_ON_CUDA = 50  # fewer than the device's queue holds, or a call would wait for an earlier one
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
    """Calls through DLPack, and PyTorch's own operator for comparison."""
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
    """Compiled calls, and JAX's own function for comparison."""
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


def cuda_contenders() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """{name: (context, call)}: the operator, the layers above it, and PyTorch's own back ends for comparison; bf16."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import tilewise.torch

    q, k, v = (torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    wide = [x.float() for x in (q, k, v)]
    learned = [x.clone().requires_grad_() for x in (q, k, v)]
    sdpa, attention = torch.nn.functional.scaled_dot_product_attention, tilewise.torch.attention
    operator = torch.ops.tilewise.attention_forward.default
    back_ends = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}

    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "tilewise.torch.attention": (torch.no_grad, lambda: attention(q, k, v)),
        "tilewise.torch.attention, fp32": (torch.no_grad, lambda: attention(*wide)),
        "tilewise.torch.attention, with autograd": (torch.enable_grad, lambda: attention(*learned)),
        "torch.ops.tilewise.attention_forward": (torch.inference_mode, lambda: operator(q, k, v, *[None] * 9)),
        "torch tensors: tilewise.attention": (torch.no_grad, lambda: tilewise.attention(q, k, v)),
        "scaled_dot_product_attention": (torch.no_grad, lambda: sdpa(*turned)),
        "scaled_dot_product_attention, enable_sdpa()": (tilewise.torch.sdpa, lambda: sdpa(*turned)),
    }
    for name, back_end in back_ends.items():
        only = lambda back_end=back_end: sdpa_kernel(back_end)  # noqa: E731
        calls[f"scaled_dot_product_attention, {name}"] = (only, lambda: sdpa(*turned))
    return {name: call for name, call in calls.items() if does_it(name, *call)}


def does_it(name: str, context: Callable[[], Any], call: Callable[[], Any]) -> bool:
    """Returns whether a contender supports the problem (cuDNN does not support every one), and makes its first call."""
    try:
        with context():
            call()
    except RuntimeError as error:
        print(f"{name}: {str(error).splitlines()[0]}")
        return False
    return True


def least_times_on_cuda() -> tuple[dict[str, float], dict[str, float]]:
    """{name: microseconds a call} until it returns, and until the device has done it."""
    import torch

    calls = cuda_contenders()
    returned, done = (dict.fromkeys(calls, float("inf")) for _ in range(2))
    for _ in range(ROUNDS):
        for name, (context, call) in calls.items():
            with context():
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(CALLS_ON_CUDA):
                    call()
                middle = time.perf_counter()
                torch.cuda.synchronize()
                end = time.perf_counter()
            returned[name] = min(returned[name], (middle - start) / CALLS_ON_CUDA * 1e6)
            done[name] = min(done[name], (end - start) / CALLS_ON_CUDA * 1e6)
    return returned, done


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
    """The versions of what was measured."""
    modules = ("numpy", "torch", "jax")
    found = {name: sys.modules[name].__version__ for name in modules if name in sys.modules}
    return {"python": platform.python_version(), "tilewise": tilewise.__version__, **found}


def cpu_name() -> str:
    """The processor's name, according to the system."""
    return next(line for line in tilewise.info().splitlines() if line.startswith("cpu ")).removeprefix("cpu").strip()


def rounded(times: dict[str, float]) -> dict[str, float]:
    """For people."""
    return {name: round(value, 2) for name, value in times.items()}


def measure_on_cuda() -> dict[str, Any]:
    """Prints as it goes."""
    import torch

    returned, done = least_times_on_cuda()
    for name in returned:
        print(f"{name:<50} {returned[name]:7.2f} us, {done[name]:7.2f} us until it is done")
    return {
        "device": torch.cuda.get_device_name(),
        "dtype": "bfloat16",
        "calls_a_round": CALLS_ON_CUDA,
        "microseconds": rounded(returned),
        "microseconds_until_done": rounded(done),
    }


def measure_on_cpu() -> dict[str, Any]:
    """Prints as it goes."""
    times = least_times()
    for name, microseconds in times.items():
        print(f"{name:<45} {microseconds:7.2f} us")
    return {"calls_a_round": CALLS, "microseconds": rounded(times)}


def main() -> None:
    """Measures, prints, and writes the file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("result", nargs="?", type=Path)
    arguments = parser.parse_args()
    found = measure_on_cuda() if arguments.device == "cuda" else measure_on_cpu()
    about = {"cpu": cpu_name(), "cpus": len(os.sched_getaffinity(0)), "versions": versions()}
    if arguments.result:
        result = {"shape": list(SHAPE), "rounds": ROUNDS, **about, **found}
        arguments.result.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
