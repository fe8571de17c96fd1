#!/usr/bin/env python3
"""Compares forward on one GPU with PyTorch's cuDNN and flash back ends (fp32: its memory-efficient one), in one run.

Usage: bench/peers/cuda_forward.py LIBTILEWISE [--out FILE.json] [--rounds N] [--rows PATTERN...] [--kernel NAME]
           [--beside NAME=LIBTILEWISE...] [--rivals NAME...]
Example: bench/peers/cuda_forward.py libtilewise.so --rows 'bf16-D128-*' --kernel cuda_sm80

Each row: B*S = 16384 tokens, H*D = 2048, random normal inputs, layout (B, S, H, D). The contenders take turns, every run
between two events on one stream that is never empty; the figure is the median. Before that, results are compared with
attention in fp64: the largest error of each contender, and that of plain attention in the inputs' type.
Flops: 4 B H Sq Sk D, half of it under a causal mask. GEMM: torch.matmul of 8192^3 in bf16 (fp32: without TF32), in turns
with the others; FMA, for fp32: sequences of multiply-adds in registers, compiled by CuPy.
Then packed documents are compared with a dense batch of the same lengths, and a window of 1024 keys with no window, by the
area of the 128 x 128 tiles that have a visible pair. Runs of both take about the same time: the window is called as many times
as its share of that area allows. The time of a single call, which takes a fifteenth, is given too; it includes the two events
and depends on the clock rate after the previous run.
"""
import argparse
import ctypes
import fnmatch
import functools
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
WINDOW = "bf16-D128-S16384-window1024"
TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
CUDA = 1
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}
RIVALS = {"bf16": ("cudnn", "flash"), "fp16": ("cudnn", "flash"), "fp32": ("efficient",)}


def rows():
    for dtype in ("bf16", "fp16"):
        for dim in (64, 128, 256):
            for length in (512, 1024, 2048, 4096, 8192, 16384):
                for causal in (False, True):
                    if dtype == "bf16" or length == 8192:
                        name = f"{dtype}-D{dim}-S{length}{'-causal' if causal else ''}"
                        yield name, dtype, dim, length, causal, WIDTH // dim
    for dim in (64, 128, 256):
        for length in (1024, 4096, 16384):
            for causal in (False, True):
                yield f"fp32-D{dim}-S{length}{'-causal' if causal else ''}", "fp32", dim, length, causal, WIDTH // dim
    yield "bf16-D128-S8192-gqa4", "bf16", 128, 8192, False, WIDTH // 128 // 4
    yield "bf16-D128-S8192-causal-gqa4", "bf16", 128, 8192, True, WIDTH // 128 // 4


class Tilewise:
    """A plan over torch tensors (B, S, H, D) on the GPU, run on torch's current stream; with `lengths` (T, H, D).

    `used` (B): the number of keys in use. others: more tensors of the problem, by name."""

    def __init__(self, library, q, k, v, causal, kernel, window=-1, lengths=None, used=None, out_dtype=None, others=None,
                 softcap=0.0):
        self._lib = library._lib
        self.out = torch.empty_like(q, dtype=out_dtype)
        lse_shape = (q.shape[0], q.shape[2], q.shape[1]) if lengths is None else (q.shape[1], q.shape[0])
        self.lse = torch.empty(lse_shape, dtype=torch.float32, device=q.device)
        self._problem = library.problem()
        self._problem.causal = int(causal)
        self._problem.window_left = window
        self._problem.softcap = softcap
        self._tensors = {"q": q, "k": k, "v": v, "out": self.out, "lse": self.lse} | (others or {})
        if lengths is not None:
            starts = torch.tensor([0] + lengths, device=q.device).cumsum(0).to(torch.int32)
            self._tensors |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
            self._problem.max_seqlen_q = self._problem.max_seqlen_k = max(lengths)
        if used is not None:
            self._tensors["seqused_k"] = used
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


def contenders(libraries, rivals, q, k, v, causal, kernel):
    """Plans by library, of which the first is this version, and what everybody runs."""
    ours = {name: Tilewise(library, q, k, v, causal, kernel) for name, library in libraries.items()}
    return ours, {name: plan.run for name, plan in ours.items()} | {
        name: torch_backend(BACKENDS[name], q, k, v, causal) for name in rivals}


def products(dtype):
    """The matrix product that bounds a row, and its flops."""
    a, b = (torch.randn(GEMM, GEMM, device="cuda", dtype=TORCH_DTYPES[dtype]) for _ in range(2))
    return lambda: torch.matmul(a, b), 2 * GEMM ** 3


def multiply_adds(chains=16, steps=4096):
    """Returns a function that runs as many fp32 multiply-adds as the card can do, and their flops."""
    import cupy  # imported here: only the rows in fp32 need it
    source = """
    extern "C" __global__ void chains(float x, float y, float* out) {
      float sum[%d];
      for (int i = 0; i < %d; ++i) sum[i] = threadIdx.x + i;
      for (int step = 0; step < %d; ++step) {
        #pragma unroll
        for (int i = 0; i < %d; ++i) sum[i] = fmaf(sum[i], x, y);
      }
      float all = 0;
      for (int i = 0; i < %d; ++i) all += sum[i];
      if (all == 12345) *out = all;
    }""" % (chains, chains, steps, chains, chains)
    kernel = cupy.RawKernel(source, "chains")
    blocks, threads = 8 * torch.cuda.get_device_properties(0).multi_processor_count, 256
    out = cupy.zeros(1, dtype=cupy.float32)
    arguments = (cupy.float32(0.999), cupy.float32(0.001), out)
    # The kernel runs on CuPy's default stream, which is also torch's.
    return lambda: kernel((blocks,), (threads,), arguments), 2 * blocks * threads * chains * steps


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


def compare(libraries, dtype, dim, length, causal, kernel):
    """The largest error of each against fp64; raises if ours is over twice that of plain attention in `dtype`."""
    # The memory-efficient back end does not support groups of heads.
    kv_heads = 4 if "efficient" in RIVALS[dtype] else 2
    q, k, v = inputs(2, length, 4, kv_heads, dim, dtype)
    exact, lse = plain(q, k, v, causal, torch.float64)
    error = lambda x: (x.double() - exact).abs().max().item()
    ours, runs = contenders(libraries, RIVALS[dtype], q, k, v, causal, kernel)
    for plan in ours.values():
        plan.out.fill_(float("nan"))
    errors = {"plain": error(plain(q, k, v, causal, TORCH_DTYPES[dtype])[0])}
    for name, run in runs.items():
        out = run()
        torch.cuda.synchronize()
        errors[name] = error(ours[name].out if name in ours else out.transpose(1, 2))
    for name, plan in ours.items():
        errors[f"{name} lse"] = (plan.lse - lse).abs().max().item()
        if not (errors[name] <= 2 * errors["plain"] + 1e-5 and errors[f"{name} lse"] <= 1e-5 * max(1, lse.abs().max())):
            raise SystemExit(f"{dtype} D {dim} S {length} causal {causal}: {name} is wrong: {errors}")
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


def repeat(run, times):
    for _ in range(times):
        run()


def each(libraries, whats):
    """(what is measured, library) by its name in a row: that of the first library has no prefix."""
    return {what if name == "tilewise" else f"{name} {what}": (what, library)
            for name, library in libraries.items() for what in whats}


def packed_row(libraries, kernel, rounds, dim, causal):
    """Compares documents of 1024 tokens each, and of lengths from 256 to 1792, with a dense batch (16, 1024)."""
    mixed = [256 + 96 * i for i in (3, 14, 7, 0, 11, 5, 16, 9, 2, 13, 6, 10, 1, 15, 8)]
    mixed.append(TOKENS - sum(mixed))
    lengths = {"dense": [1024] * 16, "packed": [1024] * 16, "mixed": mixed}
    heads = WIDTH // dim
    q, k, v = inputs(16, 1024, heads, heads, dim, "bf16")
    flat = [x.view(TOKENS, heads, dim) for x in (q, k, v)]
    names = each(libraries, lengths)
    plans = {name: Tilewise(library, q, k, v, causal, kernel) if what == "dense"
             else Tilewise(library, *flat, causal, kernel, lengths=lengths[what])
             for name, (what, library) in names.items()}
    for plan in plans.values():
        plan.run()
    torch.cuda.synchronize()
    for name, (what, _) in names.items():
        beside = plans[name.replace("packed", "dense")]
        if what == "packed" and not torch.equal(beside.out.view(-1), plans[name].out.view(-1)):
            raise SystemExit(f"{name} documents differ from the dense batch")
    seconds = medians({name: plan.run for name, plan in plans.items()}, rounds)
    rate = {name: sum(n * n for n in lengths[what]) * 4 * WIDTH / (2 if causal else 1) / seconds[name] * 1e-12
            for name, (what, _) in names.items()}
    row = f"bf16-D{dim}-packed{'-causal' if causal else ''}"
    print(f"{row:<32}" + "  ".join(f"{who} {r:.0f}" for who, r in rate.items())
          + f"   packed / dense {rate['packed'] / rate['dense']:.2f}", flush=True)
    return {"row": row, "lengths": mixed, "seconds": seconds, "tflops": rate}


def window_row(libraries, kernel, rounds, length=16384, window=1024, tile=128):
    """Compares a causal window of `window` keys with no mask, per visited area."""
    q, k, v = inputs(TOKENS // length, length, 16, 16, 128, "bf16")
    visible = sum(min(i + 1, window) for i in range(length))
    visited = sum(tile * tile * (t - max(t * tile - window + 1, 0) // tile + 1) for t in range(length // tile))
    area = {"window": visited, "full": length * length, "alone": visited}
    calls = {"window": length * length // visited, "full": 1, "alone": 1}
    names = each(libraries, area)
    plans = {name: Tilewise(library, q, k, v, what != "full", kernel, window=-1 if what == "full" else window - 1)
             for name, (what, library) in names.items()}
    seconds = medians({name: functools.partial(repeat, plans[name].run, calls[what]) for name, (what, _) in names.items()}, rounds)
    seconds = {name: seconds[name] / calls[what] for name, (what, _) in names.items()}
    rate = {name: 4 * WIDTH * (TOKENS // length) * area[what] / seconds[name] * 1e-12 for name, (what, _) in names.items()}
    print(f"{WINDOW:<32}" + "  ".join(f"{who} {r:.0f}" for who, r in rate.items()) + " per visited area"
          f"   {rate['window'] / rate['full']:.2f} (alone {rate['alone'] / rate['full']:.2f}); "
          f"visible / visited {visible / visited:.2f}", flush=True)
    return {"row": WINDOW, "visible": visible, "visited": visited, "calls": calls["window"], "seconds": seconds,
            "tflops_of_visited": rate}


def other_rows():
    """Name, and what measures it."""
    for dim in (64, 128):
        for causal in (False, True):
            yield (f"bf16-D{dim}-packed{'-causal' if causal else ''}",
                   functools.partial(packed_row, dim=dim, causal=causal))
    yield WINDOW, window_row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", nargs="*", metavar="PATTERN")
    parser.add_argument("--kernel")
    parser.add_argument("--beside", nargs="*", default=[], metavar="NAME=LIBRARY", help="other builds, in turns")
    parser.add_argument("--rivals", nargs="*", choices=BACKENDS, help="default: all that know the inputs' type")
    options = parser.parse_args()
    library = tw.Library(options.library)
    builds = (pair.split("=", 1) for pair in options.beside)
    libraries = {"tilewise": library} | {name: tw.Library(path) for name, path in builds}
    torch.manual_seed(1)
    matches = lambda row: not options.rows or any(fnmatch.fnmatchcase(row[0], pattern) for pattern in options.rows)
    chosen = [row for row in rows() if matches(row)]
    checks = []
    for dtype in sorted({row[1] for row in chosen}):
        for dim in (64, 128, 256):
            for length in (129, 1000):
                for causal in (False, True):
                    checks.append({"dtype": dtype, "D": dim, "S": length, "causal": causal,
                                   "max_error": compare(libraries, dtype, dim, length, causal, options.kernel)})
    print(f"{len(checks)} comparisons with fp64: all within twice the error of plain attention")
    results = []
    print("TFLOP/s, and what Tilewise is of each")
    for name, dtype, dim, length, causal, kv_heads in chosen:
        q, k, v = inputs(TOKENS // length, length, WIDTH // dim, kv_heads, dim, dtype)
        rivals = RIVALS[dtype] if options.rivals is None else options.rivals
        ours, runs = contenders(libraries, rivals, q, k, v, causal, options.kernel)
        bounds = {"gemm": products(dtype)} | ({"fma": multiply_adds()} if dtype == "fp32" else {})
        seconds = medians(runs | {who: run for who, (run, _) in bounds.items()}, options.rounds)
        flops = dict.fromkeys(runs, 4 * TOKENS * length * WIDTH / (2 if causal else 1))
        flops |= {who: count for who, (_, count) in bounds.items()}
        rate = {who: flops[who] / s * 1e-12 for who, s in seconds.items()}
        results.append({"row": name, "kernel": ours["tilewise"].kernel(), "seconds": seconds, "tflops": rate})
        print(f"{name:<30}{ours['tilewise'].kernel():<12}{rate['tilewise']:>6.1f}  "
              + "  ".join(f"{who} {r:.1f} ({rate['tilewise'] / r:.2f})" for who, r in rate.items() if who != "tilewise"),
              flush=True)
    others = [measure(libraries, options.kernel, options.rounds) for _, measure in filter(matches, other_rows())]
    if options.out:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                   "cudnn": torch.backends.cudnn.version(), "cuda": torch.version.cuda}
        document = {"version": library.version(), "command": " ".join(sys.argv), "machine": machine,
                    "rounds": options.rounds, "checks": checks, "rows": results, "others": others}
        pathlib.Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
