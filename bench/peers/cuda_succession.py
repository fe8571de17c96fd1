#!/usr/bin/env python3
"""Measures forward on one GPU among other kernels of its stream (PDL), for several builds in turns.

Usage: bench/peers/cuda_succession.py LIBTILEWISE --beside NAME=LIBTILEWISE... [--rounds N] [--out FILE.json]

Each build runs, between two events: one call by itself; fourteen calls, one after another; eight calls, each after a product
of (4096, 2048) by (2048, 2048) in bf16; eight calls, each after an addition to a million floats. The figure is the median of
the rounds, per call, in microseconds, including the preceding kernel. Every build must give the same bits, also directly
after its own calls. Then the time of the host for a call (one sequence of 128 tokens, 2 heads of 64), which no call
waits for: the best of the rounds, a hundred calls each.
"""
import argparse
import functools
import json
import pathlib
import sys
import time

import torch

import cuda_forward as forward
from cuda_forward import tw

SHAPES = {  # B, S, H, D, causal, window
    "D128-S16384-window1024": (1, 16384, 16, 128, True, 1024),
    "D128-S8192-causal": (2, 8192, 16, 128, True, None),
    "D128-S1024-causal": (16, 1024, 16, 128, True, None),
    "D128-S512": (32, 512, 16, 128, False, None),
    "D128-S512-causal": (32, 512, 16, 128, True, None),
    "D64-S512-causal": (32, 512, 32, 64, True, None),
    "D128-B1-S512-causal": (1, 512, 16, 128, True, None),
}


def repeat(times, *runs):
    for _ in range(times):
        for run in runs:
            run()


def successions():
    """By name: how many calls, and what stands before each."""
    a, b = (torch.randn(rows, 2048, device="cuda", dtype=torch.bfloat16) for rows in (4096, 2048))
    x = torch.zeros(1 << 20, device="cuda")
    return {"alone": (1, ()), "behind itself": (14, ()), "behind a product": (8, (lambda: torch.matmul(a, b),)),
            "behind an addition": (8, (lambda: x.add_(1),))}


def row(libraries, rounds, name):
    batch, length, heads, dim, causal, window = SHAPES[name]
    q, k, v = forward.inputs(batch, length, heads, heads, dim, "bf16")
    plans = {build: forward.Tilewise(library, q, k, v, causal, None, window=-1 if window is None else window - 1)
             for build, library in libraries.items()}
    first = next(iter(plans.values()))
    first.run()
    torch.cuda.synchronize()
    expected = first.out.clone()
    result = {"row": name, "microseconds": {}}
    for what, (calls, before) in successions().items():
        seconds = forward.medians({build: functools.partial(repeat, calls, *before, plan.run) for build, plan in plans.items()},
                                  rounds)
        result["microseconds"][what] = {build: s / calls * 1e6 for build, s in seconds.items()}
    for build, plan in plans.items():
        if not torch.equal(plan.out, expected):
            raise SystemExit(f"{name}: {build} gives other bits than the first")
    print(f"{name:<24}" + "  ".join(f"{what} " + ", ".join(f"{t:.1f}" for t in times.values())
                                    for what, times in result["microseconds"].items()), flush=True)
    return result


def host_microseconds(libraries, rounds, calls=100):
    q, k, v = forward.inputs(1, 128, 2, 2, 64, "bf16")
    plans = {build: forward.Tilewise(library, q, k, v, False, None) for build, library in libraries.items()}
    best = {}
    for _ in range(rounds):
        for build, plan in plans.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            repeat(calls, plan.run)
            taken = (time.perf_counter() - begin) / calls * 1e6
            best[build] = min(taken, best.get(build, taken))
    torch.cuda.synchronize()
    print("host: " + ", ".join(f"{t:.2f}" for t in best.values()), flush=True)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--beside", nargs="*", default=[], metavar="NAME=LIBRARY", help="other builds, in turns")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out")
    options = parser.parse_args()
    builds = (pair.split("=", 1) for pair in options.beside)
    libraries = {"tilewise": tw.Library(options.library)} | {name: tw.Library(path) for name, path in builds}
    torch.manual_seed(1)
    print("microseconds of a call: " + ", ".join(libraries))
    rows = [row(libraries, options.rounds, name) for name in SHAPES]
    host = host_microseconds(libraries, options.rounds)
    if options.out:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
        document = {"command": " ".join(sys.argv), "machine": machine, "rounds": options.rounds, "rows": rows,
                    "host_microseconds": host}
        pathlib.Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
