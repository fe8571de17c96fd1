#!/usr/bin/env python3
"""Forward on one GPU beside PyTorch's cuDNN and flash back ends, in the same run.

Usage: bench/peers/cuda_forward.py LIBTILEWISE [--out FILE.json] [--rounds N] [--rows NAME...] [--kernel NAME]

Each row: B*S = 16384 tokens, H*D = 2048, random normal inputs, layout (B, S, H, D). The contenders take turns, every run
between two events on one stream that is never empty; the figure is the median. Before that, results are compared with
attention in fp32: the largest error of each contender beside that of plain attention in 16 bits.
Flops: 4 B H Sq Sk D, half of it under a causal mask. GEMM: torch.matmul of 8192^3 in bf16, in turns with the others.
Then packed documents beside a dense batch of the same lengths, and a window of 1024 keys beside all of them, counted by the
area of the 128 x 128 tiles that some pair of is visible.
"""
import argparse
import ctypes
import json
import pathlib
import statistics
import sys

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "python"))
import tilewise_ctypes as tw  # noqa: E402

TOKENS, WIDTH, GEMM = 16384, 2048, 8192
TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
CUDA = 1


def rows():
    for dtype in ("bf16", "fp16"):
        for dim in (64, 128, 256):
            for length in (512, 1024, 2048, 4096, 8192, 16384):
                for causal in (False, True):
                    if dtype == "bf16" or length == 8192:
                        name = f"{dtype}-D{dim}-S{length}{'-causal' if causal else ''}"
                        yield name, dtype, dim, length, causal, WIDTH // dim
    yield "bf16-D128-S8192-gqa4", "bf16", 128, 8192, False, WIDTH // 128 // 4
    yield "bf16-D128-S8192-causal-gqa4", "bf16", 128, 8192, True, WIDTH // 128 // 4


class Tilewise:
    """A plan over torch tensors (B, S, H, D) on the GPU, run on torch's current stream; with `lengths` (T, H, D)."""

    def __init__(self, library, q, k, v, causal, kernel, window=-1, lengths=None):
        self._lib = library._lib
        self.out = torch.empty_like(q)
        lse_shape = (q.shape[0], q.shape[2], q.shape[1]) if lengths is None else (q.shape[1], q.shape[0])
        self.lse = torch.empty(lse_shape, dtype=torch.float32, device=q.device)
        self._problem = library.problem()
        self._problem.causal = int(causal)
        self._problem.window_left = window
        self._tensors = {"q": q, "k": k, "v": v, "out": self.out, "lse": self.lse}
        if lengths is not None:
            starts = torch.tensor([0] + lengths, device=q.device).cumsum(0).to(torch.int32)
            self._tensors |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
            self._problem.max_seqlen_q = self._problem.max_seqlen_k = max(lengths)
        for name, tensor in self._tensors.items():
            set_tensor(self._problem, name, tensor)
        self._plan, options = ctypes.c_void_p(), tw.PlanOptions()
        self._lib.tilewise_plan_options_init(ctypes.byref(options))
        options.kernel = kernel.encode() if kernel else None
        library._check(self._lib.tilewise_plan_create(tw.FORWARD, ctypes.byref(self._problem), ctypes.byref(options),
                                                      ctypes.byref(self._plan)))
        size = ctypes.c_size_t()
        library._check(self._lib.tilewise_plan_workspace(self._plan, ctypes.byref(size), None))
        self.workspace_bytes = size.value
        self._workspace = torch.empty(max(size.value, 1), dtype=torch.uint8, device=q.device)
        self._executor = tw.Executor()
        self._lib.tilewise_executor_init(ctypes.byref(self._executor))
        self._executor.stream = torch.cuda.current_stream().cuda_stream
        arguments = (self._plan, ctypes.byref(self._problem), ctypes.c_void_p(self._workspace.data_ptr()),
                     ctypes.c_size_t(size.value), ctypes.byref(self._executor))
        self.run = library.checked(self._lib.tilewise_plan_run, *arguments)

    def kernel(self):
        return self._lib.tilewise_plan_kernel(self._plan).decode()

    def __del__(self):
        self._lib.tilewise_plan_destroy(self._plan)


def set_tensor(problem, name, tensor):
    target = getattr(problem, name)
    target.data = tensor.data_ptr()
    target.dtype = tw.DTYPES[str(tensor.dtype).removeprefix("torch.")]
    target.rank = tensor.dim()
    target.device, target.device_index = CUDA, tensor.device.index
    for d in range(tensor.dim()):
        target.shape[d], target.strides[d] = tensor.shape[d], tensor.stride(d)


def torch_backend(backend, q, k, v, causal):
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    grouped = q.shape[2] != k.shape[2]

    def run():
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(*heads_first, is_causal=causal, enable_gqa=grouped)
    return run


def contenders(library, q, k, v, causal, kernel):
    ours = Tilewise(library, q, k, v, causal, kernel)
    return ours, {"tilewise": ours.run,
                  "cudnn": torch_backend(SDPBackend.CUDNN_ATTENTION, q, k, v, causal),
                  "flash": torch_backend(SDPBackend.FLASH_ATTENTION, q, k, v, causal)}


def inputs(batch, length, heads, kv_heads, dim, dtype):
    make = lambda h: torch.randn(batch, length, h, dim, device="cuda", dtype=torch.float32).to(TORCH_DTYPES[dtype])
    return make(heads), make(kv_heads), make(kv_heads)


def plain(q, k, v, causal, dtype):
    """Attention with every intermediate in `dtype`; (B, S, H, D), and lse."""
    q, k, v = (x.to(dtype).transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], device="cuda").triu(1).bool(), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2), scores.logsumexp(-1)


def compare(library, dtype, dim, length, causal, kernel):
    """The largest error of each against fp32; raises if ours is over twice that of plain attention in 16 bits."""
    q, k, v = inputs(2, length, 4, 2, dim, dtype)
    exact, lse = plain(q, k, v, causal, torch.float32)
    error = lambda x: (x.float() - exact).abs().max().item()
    ours, runs = contenders(library, q, k, v, causal, kernel)
    ours.out.fill_(float("nan"))
    errors = {"plain": error(plain(q, k, v, causal, TORCH_DTYPES[dtype])[0])}
    for name, run in runs.items():
        out = run()
        torch.cuda.synchronize()
        errors[name] = error(ours.out if name == "tilewise" else out.transpose(1, 2))
    errors["tilewise lse"] = (ours.lse - lse).abs().max().item()
    if not (errors["tilewise"] <= 2 * errors["plain"] + 1e-5 and errors["tilewise lse"] <= 1e-5 * max(1, lse.abs().max())):
        raise SystemExit(f"{dtype} D {dim} S {length} causal {causal}: wrong: {errors}")
    return errors


def medians(runs, rounds):
    """Median seconds of each function: in turns, on a stream that the host stays ahead of."""
    for run in runs.values():
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    marks = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            marks[name].append((begin, end))
    torch.cuda.synchronize()
    return {name: statistics.median(b.elapsed_time(e) for b, e in pairs) * 1e-3 for name, pairs in marks.items()}


def packed_rows(library, kernel, rounds):
    """Documents of 1024 tokens each, and of lengths from 256 to 1792, beside a dense batch (16, 1024)."""
    mixed = [256 + 96 * i for i in (3, 14, 7, 0, 11, 5, 16, 9, 2, 13, 6, 10, 1, 15, 8)]
    mixed.append(TOKENS - sum(mixed))
    for dim in (64, 128):
        heads = WIDTH // dim
        q, k, v = inputs(16, 1024, heads, heads, dim, "bf16")
        flat = [x.view(TOKENS, heads, dim) for x in (q, k, v)]
        for causal in (False, True):
            plans = {"dense": (Tilewise(library, q, k, v, causal, kernel), [1024] * 16)}
            for name, lengths in (("packed", [1024] * 16), ("mixed", mixed)):
                plans[name] = (Tilewise(library, *flat, causal, kernel, lengths=lengths), lengths)
            plans["dense"][0].run()
            plans["packed"][0].run()
            torch.cuda.synchronize()
            if not torch.equal(plans["dense"][0].out.view(-1), plans["packed"][0].out.view(-1)):
                raise SystemExit("packed documents differ from the dense batch")
            seconds = medians({name: plan.run for name, (plan, _) in plans.items()}, rounds)
            rate = {name: sum(n * n for n in plans[name][1]) * 4 * WIDTH / (2 if causal else 1) / s * 1e-12
                    for name, s in seconds.items()}
            name = f"bf16-D{dim}-packed{'-causal' if causal else ''}"
            print(f"{name:<32}" + "  ".join(f"{who} {r:.0f}" for who, r in rate.items())
                  + f"   packed / dense {rate['packed'] / rate['dense']:.2f}", flush=True)
            yield {"row": name, "lengths": mixed, "seconds": seconds, "tflops": rate}


def window_row(library, kernel, rounds, length=16384, window=1024, tile=128):
    """A causal window of `window` keys beside no mask, per visited area."""
    q, k, v = inputs(TOKENS // length, length, 16, 16, 128, "bf16")
    plans = {"window": Tilewise(library, q, k, v, True, kernel, window=window - 1),
             "full": Tilewise(library, q, k, v, False, kernel)}
    visible = sum(min(i + 1, window) for i in range(length))
    visited = sum(tile * tile * (t - max(t * tile - window + 1, 0) // tile + 1) for t in range(length // tile))
    seconds = medians({name: plan.run for name, plan in plans.items()}, rounds)
    area = {"window": visited, "full": length * length}
    rate = {name: 4 * WIDTH * (TOKENS // length) * area[name] / s * 1e-12 for name, s in seconds.items()}
    print(f"{'bf16-D128-S16384-window1024':<32}window {rate['window']:.0f}  full {rate['full']:.0f} per visited area"
          f"   {rate['window'] / rate['full']:.2f}; visible / visited {visible / visited:.2f}", flush=True)
    return {"row": "bf16-D128-S16384-window1024", "visible": visible, "visited": visited, "seconds": seconds,
            "tflops_of_visited": rate}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", nargs="*")
    parser.add_argument("--kernel")
    options = parser.parse_args()
    library = tw.Library(options.library)
    torch.manual_seed(1)
    checks = []
    for dtype in TORCH_DTYPES:
        for dim in (64, 128, 256):
            for length in (129, 1000):
                for causal in (False, True):
                    checks.append({"dtype": dtype, "D": dim, "S": length, "causal": causal,
                                   "max_error": compare(library, dtype, dim, length, causal, options.kernel)})
    print(f"{len(checks)} comparisons with fp32: all within twice the error of plain attention")
    a, b = (torch.randn(GEMM, GEMM, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    results = []
    print(f"{'row':<32}{'tilewise':>10}{'cudnn':>8}{'flash':>8}{'gemm':>8}   TFLOP/s; tilewise / cudnn, / gemm")
    for name, dtype, dim, length, causal, kv_heads in rows():
        if options.rows and name not in options.rows:
            continue
        q, k, v = inputs(TOKENS // length, length, WIDTH // dim, kv_heads, dim, dtype)
        ours, runs = contenders(library, q, k, v, causal, options.kernel)
        seconds = medians(runs | {"gemm": lambda: torch.matmul(a, b)}, options.rounds)
        flops = 4 * TOKENS * length * WIDTH / (2 if causal else 1)
        rate = {who: (2 * GEMM ** 3 if who == "gemm" else flops) / s * 1e-12 for who, s in seconds.items()}
        results.append({"row": name, "kernel": ours.kernel(), "seconds": seconds, "tflops": rate})
        print(f"{name:<32}{rate['tilewise']:>10.0f}{rate['cudnn']:>8.0f}{rate['flash']:>8.0f}{rate['gemm']:>8.0f}"
              f"   {rate['tilewise'] / rate['cudnn']:.2f} {rate['tilewise'] / rate['gemm']:.2f}", flush=True)
    others = []
    if not options.rows:
        others = [*packed_rows(library, options.kernel, options.rounds),
                  window_row(library, options.kernel, options.rounds)]
    if options.out:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                   "cudnn": torch.backends.cudnn.version(), "cuda": torch.version.cuda}
        document = {"version": library.version(), "command": " ".join(sys.argv), "machine": machine,
                    "rounds": options.rounds, "checks": checks, "rows": results, "others": others}
        pathlib.Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
