#!/usr/bin/env python3
"""Forward on one GPU on data of several kinds: each kind is compared with random normal inputs of the same shape.

Usage: bench/peers/cuda_data.py LIBTILEWISE [--out FILE.json] [--kernels NAME...] [--dtypes bf16 fp16] [--seconds S]
Example: bench/peers/cuda_data.py build/release/libtilewise.so --kernels cuda_sm90

B 2, S 4096, H*D 2048. Time: the median of runs between two events, of as many as S seconds allow (one at least, after a
first one that is not timed). The kinds:
  normal       random normal Q, K, V
  times-64     Q 64 times as large, so that scores have a standard deviation of 64 (times-3000 likewise)
  outliers     one key in 1000, of all heads, is 30 times as large
  rising       scores rise from key to key (falling: they fall)
  huge-v       V of 1e37
  nan-k        one NaN in K (nan-q, inf-v likewise: one number of each sequence's first head)
"""
import argparse
import json
import pathlib
import statistics
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cuda_forward  # noqa: E402

tw = cuda_forward.tw
BATCH, LENGTH, WIDTH = 2, 4096, 2048
KINDS = ("normal", "times-64", "times-3000", "outliers", "rising", "falling", "huge-v", "nan-k", "nan-q", "inf-v")


def data(kind, dim, dtype):
    q, k, v = (torch.randn(BATCH, LENGTH, WIDTH // dim, dim, device="cuda") for _ in range(3))
    if kind.startswith("times-"):
        q *= float(kind.removeprefix("times-"))
    if kind == "outliers":
        k = torch.where(torch.rand(BATCH, LENGTH, 1, 1, device="cuda") < 0.001, 30 * k, k)
    if kind in ("rising", "falling"):
        first, last = (0, 40) if kind == "rising" else (40, 0)
        k = torch.ones_like(k) * torch.linspace(first, last, LENGTH, device="cuda").view(1, -1, 1, 1)
        q = q.abs()
    if kind == "huge-v":
        v *= 1e37 if dtype == torch.bfloat16 else 1e4
    for name, tensor, value in (("nan-q", q, float("nan")), ("nan-k", k, float("nan")), ("inf-v", v, float("inf"))):
        if kind == name:
            tensor[:, LENGTH // 3, 0, 0] = value
    return [x.to(dtype) for x in (q, k, v)]


def median_seconds(run, seconds):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    torch.cuda.synchronize()
    times = []
    while not times or (len(times) < 11 and sum(times) < seconds):
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--out")
    parser.add_argument("--kernels", nargs="*", default=["cuda_sm90", "cuda_sm80"])
    parser.add_argument("--dtypes", nargs="*", default=["bf16"], choices=("bf16", "fp16", "fp32"))
    parser.add_argument("--seconds", type=float, default=0.05)
    options = parser.parse_args()
    library = tw.Library(options.library)
    torch.manual_seed(3)
    results = []
    for kernel in options.kernels:
        for dtype in options.dtypes:
            for dim in (64, 128, 256):
                for causal in (False, True):
                    row = {"row": f"{kernel}-{dtype}-D{dim}{'-causal' if causal else ''}", "seconds": {}, "ratio": {}}
                    for kind in KINDS:
                        tensors = data(kind, dim, cuda_forward.TORCH_DTYPES[dtype])
                        plan = cuda_forward.Tilewise(library, *tensors, causal, kernel)
                        row["seconds"][kind] = median_seconds(plan.run, options.seconds)
                        row["ratio"][kind] = row["seconds"][kind] / row["seconds"]["normal"]
                    results.append(row)
                    print(f"{row['row']:<28}{row['seconds']['normal'] * 1e3:8.3f} ms  "
                          + "  ".join(f"{kind} {row['ratio'][kind]:.2f}" for kind in KINDS[1:]), flush=True)
    if options.out:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
        document = {"version": library.version(), "command": " ".join(sys.argv), "machine": machine, "rows": results}
        pathlib.Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
