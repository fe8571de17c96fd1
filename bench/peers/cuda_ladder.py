#!/usr/bin/env python3
"""The rungs of the ladder on one GPU, in the same run: attention by matrices in memory, FlashAttention-1, -2 and -3.

Usage: bench/peers/cuda_ladder.py LIBTILEWISE TILEWISE [--out FILE.json] [--rounds N] [--lengths S...]

TILEWISE is the command line of the same build. Each row: bf16, B*S = 16384 tokens, H*D = 2048, random normal inputs. The
kernels take turns, every run between two events on one stream that is never empty; the figure is the median. Before that, the
results of each are compared with attention in fp64 (cuda_forward.py). Flops: 4 B H S S D, half of it under a causal mask.
Extra memory is the workspace of the plan. Bytes between memory and tiles are the closed forms of src/cuda/traffic.h, with the
tiles of `tilewise info --kernels`; for one length they are compared with what `tilewise compare` counts.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys

import torch
from cuda_forward import TOKENS, WIDTH, Tilewise, compare, inputs, medians, tw

RUNGS = ("cuda_standard", "cuda_flash1", "cuda_sm80", "cuda_sm90")
CHECKED_LENGTH = 1000
ELEMENT, PARTIAL, SCORE, PROB = 2, 4, 4, 2  # bytes


def run_json(*command):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def tile_of(tables, kernel, dim, length):
    """Queries and keys of the first row that serves; an H200 has the shared memory of all of them."""
    for row in tables:
        fits = row.get("least_keys", 0) <= length <= row.get("most_keys", length)
        if row["kernel"] == kernel and row["head_dim"] >= dim and fits:
            return row["q_tile"], row["k_tile"]
    raise SystemExit(f"{kernel} has no tiles for D {dim}")


def moved_bytes(tables, kernel, dim, length, causal):
    """Returns the bytes of one head."""
    q_tile, k_tile = tile_of(tables, kernel, dim, length)
    rows = [min(q_tile, length - first) for first in range(0, length, q_tile)]
    ends = [first + count if causal else length for first, count in zip(range(0, length, q_tile), rows)]
    visits = [math.ceil(end / k_tile) for end in ends]  # key tiles that each query tile visits
    keys = 2 * dim * ELEMENT  # of K and V
    if kernel == "cuda_standard":
        scores = length * math.ceil(length / k_tile) * k_tile * (3 * SCORE + 2 * PROB)
        return length * 2 * dim * ELEMENT + len(rows) * length * keys + scores
    if kernel == "cuda_flash1":
        passes = sum(count * n for count, n in zip(rows, visits))
        return length * dim * ELEMENT + length * keys + passes * dim * ELEMENT + 2 * (passes - length) * dim * PARTIAL
    return length * 2 * dim * ELEMENT + sum(min(n * k_tile, length) for n in visits) * keys


def check_bytes(tilewise, tables):
    for dim in (64, 128):
        for causal in (False, True):
            shape = f"1,{CHECKED_LENGTH},{CHECKED_LENGTH},1,1,{dim}"
            table = run_json(tilewise, "compare", "--device", "cuda", "--json", "--shape", shape, "--dtype", "bf16",
                             "--kernels", ",".join(RUNGS), *(["--causal"] if causal else []))
            for row in table["rows"]:
                expected = moved_bytes(tables, row["name"], dim, CHECKED_LENGTH, causal)
                if not row["traffic_bytes"] == row["predicted_traffic_bytes"] == expected:
                    raise SystemExit(f"{row['name']} D {dim} causal {causal}: {row}, not {expected}")


def measure(library, tables, dim, length, causal, rounds):
    batch, heads = TOKENS // length, WIDTH // dim
    q, k, v = inputs(batch, length, heads, heads, dim, "bf16")
    plans = {kernel: Tilewise(library, q, k, v, causal, kernel) for kernel in RUNGS}
    seconds = medians({kernel: plan.run for kernel, plan in plans.items()}, rounds)
    flops = 4 * TOKENS * length * WIDTH / (2 if causal else 1)
    return {"row": f"bf16-D{dim}-S{length}{'-causal' if causal else ''}", "seconds": seconds,
            "tflops": {kernel: flops / s * 1e-12 for kernel, s in seconds.items()},
            "workspace_bytes": {kernel: plan.workspace_bytes for kernel, plan in plans.items()},
            "moved_bytes": {kernel: batch * heads * moved_bytes(tables, kernel, dim, length, causal) for kernel in RUNGS}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("tilewise")
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--lengths", nargs="*", type=int, default=[512 << i for i in range(6)])
    options = parser.parse_args()
    library = tw.Library(options.library)
    torch.manual_seed(1)
    tables = run_json(options.tilewise, "info", "--kernels", "--json")
    check_bytes(options.tilewise, tables)
    checks = [{"kernel": kernel, "D": dim, "causal": causal,
               "max_error": compare({"tilewise": library}, "bf16", dim, CHECKED_LENGTH, causal, kernel)}
              for kernel in RUNGS for dim in (64, 128) for causal in (False, True)]
    print(f"{len(checks)} comparisons with fp64: all within twice the error of plain attention; bytes as counted")
    print(f"{'row':<24}" + "".join(f"{name.removeprefix('cuda_'):>10}" for name in RUNGS)
          + "   TFLOP/s; flash1 / standard, sm80 / flash1, sm90 / sm80; GB moved")
    results = []
    for dim in (64, 128):
        for length in options.lengths:
            for causal in (False, True):
                row = measure(library, tables, dim, length, causal, options.rounds)
                torch.cuda.empty_cache()  # S and P of the next length have another size
                results.append(row)
                rates = list(row["tflops"].values())
                print(f"{row['row']:<24}" + "".join(f"{rate:>10.1f}" for rate in rates) + "   "
                      + " ".join(f"{b / a:.2f}" for a, b in zip(rates, rates[1:])) + "   "
                      + " ".join(f"{n * 1e-9:.2f}" for n in row["moved_bytes"].values()), flush=True)
    if options.out:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
        document = {"version": library.version(), "command": " ".join(sys.argv), "machine": machine,
                    "rounds": options.rounds, "checks": checks, "rows": results}
        pathlib.Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
