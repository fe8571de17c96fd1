#!/usr/bin/env python3
"""Compares forward in fp8 (e4m3) on one GPU with FlashAttention-3 (the wheel fa3-fwd) and an fp8 product, in one run.

Usage: bench/peers/cuda_fp8.py LIBTILEWISE [--out FILE.json] [--rounds N] [--rows PATTERN...] [--beside NAME=LIBTILEWISE...]

Each row: B*S = 16384 tokens, H*D = 2048, random normal inputs with a scale for each head, out in bf16, layout (B, S, H, D).
The contenders take turns, every run between two events on one stream; the figure is the median. Rows of S 1024 run from CUDA
graphs of ten calls, so that no host counts. Flops: 4 B H Sq Sk D, half of it under a causal mask. gemm: a product of 8192^3
in e4m3. bf16: this library on the same numbers in bf16.

Before that, results are compared with attention in fp64 of the same stored numbers: the largest error, which may be twice
that of attention with 256 exp(score - max) rounded to e4m3, the mean error, and that of lse, which may be 2e-3. Values with
a mean show whether long sums in fp8 lose their last bits in one direction.

rmse: the error of out against exact attention of the numbers before they were rounded. The inputs are those of FlashAttention-3's
paper: N(0, 1), of which 0.1 % have N(0, 100) added; B 1, S 1024, H 4, D 128. It is given for each kind of scale, with a Hadamard
transform and without.
"""
import argparse
import fnmatch
import json
import math
import pathlib
import sys

import torch

from cuda_forward import GEMM, TOKENS, WIDTH, Tilewise, medians, plain, tw

E4M3, LARGEST = torch.float8_e4m3fn, 448.0


def rows():
    for dim in (128, 64):
        for length in (16384, 4096, 1024):
            for causal in (False, True):
                yield f"e4m3-D{dim}-S{length}{'-causal' if causal else ''}", dim, length, causal


def quantise(x, scales):
    """x (B, S, H, D) in e4m3, and what it must be multiplied by: (1), (B, H), or (B, H, blocks of 128 rows)."""
    if scales == "tensor":
        scale = (x.abs().amax() / LARGEST).reshape(1)
        return (x / scale).to(E4M3), scale
    if scales == "head":
        scale = x.abs().amax((1, 3)) / LARGEST
        return (x / scale[:, None, :, None]).to(E4M3), scale
    batch, length, heads, dim = x.shape
    blocks = x.view(batch, length // 128, 128, heads, dim)
    scale = blocks.abs().amax((2, 4)) / LARGEST
    return (blocks / scale[:, :, None, :, None]).to(E4M3).view(x.shape), scale.transpose(1, 2).contiguous()


def dequantise(x, scale):
    return x.to(torch.float64) * scale.to(torch.float64)[:, None, :, None]


class Inputs:
    """q, k and v (B, S, H, D) of fp32 in e4m3, with their scales."""

    def __init__(self, wide, scales="head"):
        self.tensors, self.descales = {}, {}
        for name, x in zip("qkv", wide):
            self.tensors[name], self.descales[f"{name}_descale"] = quantise(x, scales)

    def tilewise(self, library, causal):
        return Tilewise(library, *self.tensors.values(), causal, "cuda_sm90", out_dtype=torch.bfloat16,
                        others={name: scale.float() for name, scale in self.descales.items()})

    def fa3(self, causal):
        """FlashAttention-3 takes scales of (B, Hk)."""
        from fa3_fwd_interface import flash_attn_func  # imported here: before, the device must be there
        batch, _, heads, _ = self.tensors["k"].shape
        descales = {name: (scale if scale.dim() == 2 else scale.reshape(1, 1).expand(batch, heads)).float().contiguous()
                    for name, scale in self.descales.items()}

        def run():
            out = flash_attn_func(*self.tensors.values(), causal=causal, **descales)
            return out[0] if isinstance(out, tuple) else out
        return run


def draw(batch, length, heads, dim, mean=0.0):
    q, k, v = (torch.randn(batch, length, heads, dim, device="cuda") for _ in range(3))
    return q, k, v + mean


def fp8_probs(q, k, v, causal):
    """Attention in fp32 whose probs, 256 exp(score - max), are rounded to e4m3; (B, S, H, D)."""
    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], device="cuda").triu(1).bool(), float("-inf"))
    probs = 256 * (scores - scores.amax(-1, keepdim=True)).exp()
    return ((probs.to(E4M3).float() @ v) / probs.sum(-1, keepdim=True)).transpose(1, 2)


def compare(libraries, dim, length, causal, mean):
    """The errors of each contender against fp64; raises if ours breaks the rule."""
    inputs = Inputs(draw(1, length, 2, dim, mean))
    numbers = [dequantise(x, scale) for x, scale in zip(inputs.tensors.values(), inputs.descales.values())]
    exact, lse = plain(*numbers, causal, torch.float64)
    ours = {name: inputs.tilewise(library, causal) for name, library in libraries.items()}
    for plan in ours.values():
        plan.out.fill_(float("nan"))
        plan.run()
    outs = {name: plan.out for name, plan in ours.items()} | {
        "plain": fp8_probs(*numbers, causal), "fa3": inputs.fa3(causal)()}
    torch.cuda.synchronize()
    errors = {name: {"max": (out.double() - exact).abs().max().item(), "mean": (out.double() - exact).mean().item(),
                     "rms": (out.double() - exact).square().mean().sqrt().item()} for name, out in outs.items()}
    # Two units in the last place of bf16.
    limit = 2 * errors["plain"]["max"] + 2 ** (math.floor(math.log2(exact.abs().max())) - 6)
    for name, plan in ours.items():
        errors[name]["lse"] = (plan.lse - lse).abs().max().item()
        if not (errors[name]["max"] <= limit and errors[name]["lse"] <= 2e-3):
            raise SystemExit(f"D {dim} S {length} causal {causal} mean of V {mean}: {name} is wrong: {errors}")
    return {"D": dim, "S": length, "causal": causal, "mean_of_v": mean, "errors": errors}


def hadamard(x):
    """Rows multiplied by one random orthogonal matrix: signs, then a Hadamard transform."""
    generator = torch.Generator(device="cuda").manual_seed(7)
    shape, dim = x.shape, x.shape[-1]
    x = x * (torch.randint(0, 2, (dim,), generator=generator, device="cuda") * 2 - 1)
    for step in (2 ** i for i in range(int(math.log2(dim)))):
        a, b = x.reshape(*shape[:-1], dim // (2 * step), 2, step).unbind(-2)
        x = torch.stack((a + b, a - b), -2).reshape(shape)
    return x / dim ** 0.5


def rmse(library):
    outliers = lambda: torch.randn(1, 1024, 4, 128, device="cuda") * 10 * (torch.rand(1, 1024, 4, 128, device="cuda") < 1e-3)
    wide = [x + outliers() for x in draw(1, 1024, 4, 128)]
    exact, _ = plain(*wide, False, torch.float64)
    error = lambda out: (out.double() - exact).square().mean().sqrt().item()
    result = {}
    for scales in ("tensor", "head", "block"):
        for rotated in (False, True):
            q, k, v = wide
            inputs = Inputs([hadamard(q), hadamard(k), v] if rotated else wide, scales)
            name = scales + ("-hadamard" if rotated else "")
            try:
                plan = inputs.tilewise(library, False)
            except tw.TilewiseError as refused:
                print(f"rmse of {name}: {refused}")
                continue
            plan.run()
            result[name] = {"tilewise": error(plan.out)}
            if scales != "block":
                result[name]["fa3"] = error(inputs.fa3(False)())
    return result


def captured(run, calls):
    """The function that replays a graph of so many calls. Plans know the stream on which they were made."""
    graph = torch.cuda.CUDAGraph()
    run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(calls):
            run()
    return graph.replay


def product():
    a, b = (torch.randn(GEMM, GEMM, device="cuda").to(E4M3) for _ in range(2))
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)


def measure(libraries, rounds, dim, length, causal):
    wide = draw(TOKENS // length, length, WIDTH // dim, dim)
    inputs = Inputs(wide)
    plans = {name: inputs.tilewise(library, causal) for name, library in libraries.items()}
    plans["bf16"] = Tilewise(libraries["tilewise"], *(x.bfloat16() for x in wide), causal, "cuda_sm90")
    runs = {name: plan.run for name, plan in plans.items()} | {"fa3": inputs.fa3(causal)}
    calls = 10 if length <= 1024 else 1
    if calls > 1:
        runs = {name: captured(run, calls) for name, run in runs.items()}
    seconds = medians(runs | {"gemm": product()}, rounds)
    flops = dict.fromkeys(runs, calls * 4 * TOKENS * length * WIDTH / (2 if causal else 1)) | {"gemm": 2 * GEMM ** 3}
    return {name: flops[name] / s * 1e-12 for name, s in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", nargs="*", metavar="PATTERN")
    parser.add_argument("--beside", nargs="*", default=[], metavar="NAME=LIBRARY", help="other builds, in turns")
    options = parser.parse_args()
    library = tw.Library(options.library)
    builds = (pair.split("=", 1) for pair in options.beside)
    libraries = {"tilewise": library} | {name: tw.Library(path) for name, path in builds}
    torch.manual_seed(1)
    with torch.cuda.stream(torch.cuda.Stream()):  # not the default stream, which cannot be captured
        checks = [compare(libraries, dim, length, causal, mean) for dim in (64, 128) for length in (129, 1000, 8192)
                  for causal in (False, True) for mean in (0.0, 1.0)]
        for check in checks:
            if check["S"] == 8192:
                print(json.dumps(check))
        print(f"{len(checks)} comparisons with fp64: all within the rule")
        errors = rmse(library)
        print("rmse", json.dumps(errors))
        results = []
        print("TFLOP/s, and what Tilewise is of each")
        for name, dim, length, causal in rows():
            if options.rows and not any(fnmatch.fnmatchcase(name, pattern) for pattern in options.rows):
                continue
            rate = measure(libraries, options.rounds, dim, length, causal)
            results.append({"row": name, "tflops": rate, "rmse": errors})
            print(f"{name:<26}{rate['tilewise']:>7.1f}  " + "  ".join(
                f"{who} {r:.1f} ({rate['tilewise'] / r:.2f})" for who, r in rate.items() if who != "tilewise"), flush=True)
    if options.out:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
        document = {"version": library.version(), "command": " ".join(sys.argv), "machine": machine,
                    "rounds": options.rounds, "checks": checks, "rows": results}
        pathlib.Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
