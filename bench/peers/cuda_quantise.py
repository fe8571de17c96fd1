#!/usr/bin/env python3
"""Measures quantisation to fp8 (e4m3) on one GPU beside a copy that moves the same number of bytes, in one run.

Usage: bench/peers/cuda_quantise.py LIBTILEWISE [--out FILE.json] [--rounds N]

Each row: an input (1, 131072, 8, D) of one dtype, with a scale for each 128 rows, for each head, or for the whole; "hadamard": with
the random orthogonal matrix of `incoherent`. A call is timed between two events; calls and copies take turns over three inputs, which
together exceed the L2 cache, and the figure is the median. `of_copy` counts the bytes that one pass reads and writes.
Before that, the stored numbers times their scales are compared with the input: the largest error, relative to the largest of its scale.
"""
import argparse
import ctypes
import json
import pathlib
import statistics
import sys

import torch
from cuda_forward import set_tensor, tw

TOKENS, HEADS, INPUTS = 131072, 8, 3
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SCALES = {"block": (1, HEADS, TOKENS // 128), "head": (1, HEADS), "tensor": (1,)}
SEED = 7


class Quantisation(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("layout", ctypes.c_int32), ("fixed_scales", ctypes.c_int32),
                ("incoherent", ctypes.c_int32), ("reserved", ctypes.c_int32), ("seed", ctypes.c_uint64),
                ("input", tw.Tensor), ("output", tw.Tensor), ("descale", tw.Tensor), ("cu_seqlens", tw.Tensor),
                ("saturated", tw.Tensor)]


class Task:
    def __init__(self, library, x, scales, hadamard):
        self.output = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device="cuda")
        self.descale = torch.full(SCALES[scales], float("nan"), device="cuda")
        self._task, self._executor = Quantisation(), tw.Executor()
        library._lib.tilewise_quantisation_init(ctypes.byref(self._task))
        library._lib.tilewise_executor_init(ctypes.byref(self._executor))
        self._executor.stream = torch.cuda.current_stream().cuda_stream
        self._task.incoherent, self._task.seed = int(hadamard), SEED
        for name, tensor in (("input", x), ("output", self.output), ("descale", self.descale)):
            set_tensor(self._task, name, tensor)
        self.run = library.checked(library._lib.tilewise_quantise, ctypes.byref(self._task), ctypes.byref(self._executor))


def relative_error(task, x):
    """The largest difference from x, relative to 448 times the scale; e4m3 rounds by at most a 28th of that."""
    task.run()
    torch.cuda.synchronize()
    scale = task.descale.double()
    if task.descale.dim() == 3:
        scale = scale.repeat_interleave(128, 2).transpose(1, 2)[..., None]
    elif task.descale.dim() == 2:
        scale = scale[:, None, :, None]
    return ((task.output.double() * scale - x.double()).abs() / (448 * scale)).max().item()


def medians(calls, rounds):
    marks = {name: [] for name in calls}
    for i in range(rounds):
        for name, own in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            own[i % INPUTS]()
            end.record()
            marks[name].append((begin, end))
    torch.cuda.synchronize()
    return {name: statistics.median(b.elapsed_time(e) for b, e in pairs) * 1e-3 for name, pairs in marks.items()}


def measure(library, dtype, dim, rounds):
    inputs = [torch.randn(1, TOKENS, HEADS, dim, device="cuda").to(DTYPES[dtype]) for _ in range(INPUTS)]
    moved = inputs[0].numel() * (DTYPES[dtype].itemsize + 1)
    copies = [(torch.empty(moved // 2, dtype=torch.uint8, device="cuda"), torch.empty(moved // 2, dtype=torch.uint8, device="cuda"))
              for _ in inputs]
    tasks = {f"{scales}{'-hadamard' * hadamard}": [Task(library, x, scales, hadamard) for x in inputs]
             for scales in SCALES for hadamard in (False, True)}
    errors = {name: relative_error(own[0], inputs[0]) for name, own in tasks.items() if not name.endswith("hadamard")}
    if not all(error <= 1 / 28 + 1e-6 for error in errors.values()):
        raise SystemExit(f"{dtype} D {dim}: the stored numbers are wrong: {errors}")
    calls = {name: [task.run for task in own] for name, own in tasks.items()}
    calls["copy"] = [lambda to=to, source=source: to.copy_(source) for source, to in copies]
    medians(calls, INPUTS)
    seconds = medians(calls, rounds)
    row = {"row": f"{dtype}-D{dim}", "bytes": moved, "seconds": seconds, "max_error": errors,
           "of_copy": {name: seconds["copy"] / s for name, s in seconds.items() if name != "copy"}}
    print(f"{row['row']:<10}copy {moved / seconds['copy'] * 1e-12:.2f} TB/s  " + "  ".join(
        f"{name} {seconds[name] * 1e6:.0f} us ({share:.2f})" for name, share in row["of_copy"].items()), flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    library = tw.Library(options.library)
    torch.manual_seed(1)
    results = [measure(library, dtype, dim, options.rounds) for dtype in DTYPES for dim in (64, 128, 256)]
    if options.out:
        document = {"version": library.version(), "command": " ".join(sys.argv),
                    "machine": {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda},
                    "rounds": options.rounds, "rows": results}
        pathlib.Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
