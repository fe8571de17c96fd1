#!/usr/bin/env python3
"""Compares backward on one GPU with FlashAttention-4 (if installed) and PyTorch's back ends, in one run.

Usage: bench/peers/cuda_backward.py LIBTILEWISE [--out FILE.json] [--rounds N] [--rows PATTERN...] [--kernel NAME]
           [--beside NAME=LIBTILEWISE...] [--rivals NAME...]
Example: bench/peers/cuda_backward.py libtilewise.so --rows 'bf16-D128-*' --rivals flash

Each row: B*S = 16384 tokens, H*D = 2048, random normal inputs, layout (B, S, H, D). Only the gradient call is timed. The
contenders take turns, every run between two events on one stream that is never empty; the figure is the median. Before
that, gradients are compared with those of attention in fp64: the largest error of each contender, and that of plain
attention in the inputs' type.
"tilewise_deterministic": this version with the option of that name.
Flops: 10 B H Sq Sk D, half of it under a causal mask. GEMM: torch.matmul of 8192^3, in turns with the others. In fp32 the
other is PyTorch's memory-efficient back end, beside the rate of multiply-adds in registers (cuda_forward.py).
"""
import argparse
import ctypes
import fnmatch
import json
import pathlib
import sys

import torch

from cuda_forward import (BACKENDS, RIVALS, TOKENS, TORCH_DTYPES, WIDTH, Tilewise, inputs, medians, multiply_adds, plain, products,
                          set_tensor, torch_backend, tw)

GRADIENTS = ("dq", "dk", "dv")


def rows():
    for dtype in ("bf16", "fp16", "fp32"):
        for dim in (64, 128, 256):
            for length in (1024, 4096, 16384):
                for causal in (False, True):
                    if dtype == "bf16" or length == 4096 or (dtype == "fp32" and length == 1024):
                        name = f"{dtype}-D{dim}-S{length}{'-causal' if causal else ''}"
                        yield name, dtype, dim, length, causal, WIDTH // dim
    yield "bf16-D128-S4096-gqa4", "bf16", 128, 4096, False, WIDTH // 128 // 4
    yield "bf16-D128-S4096-causal-gqa4", "bf16", 128, 4096, True, WIDTH // 128 // 4


class Gradient:
    """A plan of the backward pass after a forward run, over torch tensors (B, S, H, D).

    forward: the plan of that run, if it has more than `causal`."""

    def __init__(self, library, q, k, v, dout, causal, kernel, deterministic=False, forward=None):
        self._forward = forward or Tilewise(library, q, k, v, causal, None)
        self._forward.run()
        self._lib = library._lib
        self.results = [torch.full_like(x, float("nan")) for x in (q, k, v)]
        self._problem = self._forward._problem
        self._problem.deterministic = int(deterministic)
        for name, tensor in zip(("dout",) + GRADIENTS, [dout] + self.results):
            set_tensor(self._problem, name, tensor)
        self._plan, options = ctypes.c_void_p(), tw.PlanOptions()
        self._dout = dout
        self._lib.tilewise_plan_options_init(ctypes.byref(options))
        options.kernel = kernel.encode() if kernel else None
        library._check(self._lib.tilewise_plan_create(tw.BACKWARD, ctypes.byref(self._problem), ctypes.byref(options),
                                                      ctypes.byref(self._plan)))
        size = ctypes.c_size_t()
        library._check(self._lib.tilewise_plan_workspace(self._plan, ctypes.byref(size), None))
        self._workspace = torch.empty(max(size.value, 1), dtype=torch.uint8, device=q.device)
        self.run = library.checked(self._lib.tilewise_plan_run, self._plan, ctypes.byref(self._problem),
                                   ctypes.c_void_p(self._workspace.data_ptr()), ctypes.c_size_t(size.value),
                                   ctypes.byref(self._forward._executor))

    def kernel(self):
        return self._lib.tilewise_plan_kernel(self._plan).decode()

    def __del__(self):
        self._lib.tilewise_plan_destroy(self._plan)


def gradient_of(forward, q, k, v, dout):
    """A function that computes the gradients of forward(q, k, v) by autograd, and returns them."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = forward(*leaves)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def fa4(causal):
    from flash_attn.cute import flash_attn_func

    def forward(q, k, v):
        out = flash_attn_func(q, k, v, causal=causal)
        return out[0] if isinstance(out, tuple) else out
    return forward


def rival(name, causal):
    if name == "fa4":
        return fa4(causal)
    return lambda q, k, v: torch_backend(BACKENDS[name], q, k, v, causal)().transpose(1, 2)


def contenders(libraries, rivals, tensors, causal, kernel):
    """Plans by library, of which the first is this version, one of it with fixed bits, and what everybody runs."""
    ours = {name: Gradient(library, *tensors, causal, kernel) for name, library in libraries.items()}
    ours["tilewise_deterministic"] = Gradient(libraries["tilewise"], *tensors, causal, kernel, deterministic=True)
    return ours, {name: plan.run for name, plan in ours.items()} | {
        name: gradient_of(rival(name, causal), *tensors) for name in rivals}


def compare(libraries, rivals, dtype, dim, length, causal, kernel):
    """The largest error of each against fp64; raises if ours is over three times that of plain attention in `dtype`."""
    # The memory-efficient back end does not support groups of heads.
    q, k, v = inputs(2, length, 4, 4 if "efficient" in rivals else 2, dim, dtype)
    dout = torch.randn_like(q)
    reference = lambda kind: gradient_of(lambda *x: plain(*x, causal, kind)[0], q, k, v, dout.to(kind))()
    exact = reference(torch.float64)
    errors = lambda results: [(x.double() - e.double()).abs().max().item() for x, e in zip(results, exact)]
    ours, runs = contenders(libraries, rivals, (q, k, v, dout), causal, kernel)
    table = {"plain": errors(reference(TORCH_DTYPES[dtype]))}
    for name, run in runs.items():
        results = run()
        torch.cuda.synchronize()
        table[name] = errors(ours[name].results if name in ours else results)
    for name in ours:
        for i, gradient in enumerate(GRADIENTS):
            ulps = torch.finfo(TORCH_DTYPES[dtype]).eps * exact[i].abs().max().item()
            if not table[name][i] <= 3 * table["plain"][i] + ulps:
                raise SystemExit(f"{dtype} D {dim} S {length} causal {causal}: {name} {gradient} is wrong: {table}")
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", nargs="*", metavar="PATTERN")
    parser.add_argument("--kernel")
    parser.add_argument("--beside", nargs="*", default=[], metavar="NAME=LIBRARY", help="other builds, in turns")
    parser.add_argument("--rivals", nargs="*", choices=["fa4", *BACKENDS], help="default: all that know the inputs' type")
    options = parser.parse_args()
    library = tw.Library(options.library)
    builds = (pair.split("=", 1) for pair in options.beside)
    libraries = {"tilewise": library} | {name: tw.Library(path) for name, path in builds}
    torch.manual_seed(1)
    matches = lambda row: not options.rows or any(fnmatch.fnmatchcase(row[0], pattern) for pattern in options.rows)
    chosen = [row for row in rows() if matches(row)]
    rivals_of = lambda dtype: RIVALS[dtype] if options.rivals is None else options.rivals
    checks = []
    for dtype, dim in sorted({row[1:3] for row in chosen}):
        for length in (129, 1000):
            for causal in (False, True):
                checks.append({"dtype": dtype, "D": dim, "S": length, "causal": causal, "max_errors":
                               compare(libraries, rivals_of(dtype), dtype, dim, length, causal, options.kernel)})
    print(f"{len(checks)} comparisons with fp64: all within three times the error of plain attention")
    results = []
    print("TFLOP/s, and what Tilewise is of each")
    for name, dtype, dim, length, causal, kv_heads in chosen:
        q, k, v = inputs(TOKENS // length, length, WIDTH // dim, kv_heads, dim, dtype)
        tensors = (q, k, v, torch.randn_like(q))
        ours, runs = contenders(libraries, rivals_of(dtype), tensors, causal, options.kernel)
        bounds = {"gemm": products(dtype)} | ({"fma": multiply_adds()} if dtype == "fp32" else {})
        seconds = medians(runs | {who: run for who, (run, _) in bounds.items()}, options.rounds)
        flops = dict.fromkeys(runs, 10 * TOKENS * length * WIDTH / (2 if causal else 1))
        flops |= {who: count for who, (_, count) in bounds.items()}
        rate = {who: flops[who] / s * 1e-12 for who, s in seconds.items()}
        results.append({"row": name, "kernel": ours["tilewise"].kernel(), "seconds": seconds, "tflops": rate})
        print(f"{name:<30}{ours['tilewise'].kernel():<12}{rate['tilewise']:>6.1f}  "
              + "  ".join(f"{who} {r:.1f} ({rate['tilewise'] / r:.2f})" for who, r in rate.items() if who != "tilewise"),
              flush=True)
    if options.out:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                   "cudnn": torch.backends.cudnn.version(), "cuda": torch.version.cuda}
        document = {"version": library.version(), "command": " ".join(sys.argv), "machine": machine,
                    "rounds": options.rounds, "checks": checks, "rows": results}
        pathlib.Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
