#!/usr/bin/env python3
"""Measures what the rungs of the ladder move, as the library counts it and as the GPU's counters do (ncu).

Usage: bench/peers/cuda_traffic.py TILEWISE [--out FILE.json] [--lengths S...]

TILEWISE is the command line; ncu (Nsight Compute) must be on PATH and allowed to read the counters. Each row: bf16, B*S = 16384
tokens, H*D = 2048, random normal inputs. "counted" is what `tilewise compare` prints: bytes between memory and tiles. "l2" are
the bytes that the multiprocessors request from the L2, "dram" those between L2 and memory; ncu empties the caches before each launch.
"""
import argparse
import collections
import csv
import io
import json
import pathlib
import subprocess

TOKENS, WIDTH = 16384, 2048
SECTOR = 32  # bytes
METRICS = {"dram": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
           "l2": ("lts__t_sectors_srcunit_tex_op_read.sum", "lts__t_sectors_srcunit_tex_op_write.sum")}
RUNGS = {"cuda_standard": ("scores_forward_kernel", "softmax_kernel", "values_forward_kernel"),
         "cuda_flash1": ("flash1_forward_kernel",), "cuda_sm80": ("sm80::forward_kernel",), "cuda_sm90": ("sm90::forward_kernel",)}
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "sector": SECTOR, "": SECTOR}


def launches(report):
    """Returns the measured bytes of the launches of each kernel: {name: {metric: [bytes...]}}."""
    table = collections.defaultdict(lambda: collections.defaultdict(list))
    lines = report[report.index('"ID"'):]
    for line in csv.DictReader(io.StringIO(lines)):
        value = float(line["Metric Value"].replace(",", "")) * UNITS[line["Metric Unit"]]
        table[line["Kernel Name"]][line["Metric Name"]].append(value)
    return table


def measured(table, kernel):
    total = dict.fromkeys(METRICS, 0.0)
    for part in RUNGS[kernel]:
        names = [name for name in table if part in name]
        if len(names) != 1:
            raise SystemExit(f"{kernel}: {len(names)} kernels are named {part}: {sorted(table)}")
        for place, metrics in METRICS.items():
            total[place] += sum(sum(table[names[0]][m]) / len(table[names[0]][m]) for m in metrics)
    return total


def measure(tilewise, dim, length, causal):
    shape = f"{TOKENS // length},{length},{length},{WIDTH // dim},{WIDTH // dim},{dim}"
    command = [tilewise, "compare", "--device", "cuda", "--json", "--shape", shape, "--dtype", "bf16", "--kernels", ",".join(RUNGS),
               *(["--causal"] if causal else [])]
    counted = {row["name"]: row["traffic_bytes"] for row in json.loads(subprocess.check_output(command, text=True))["rows"]}
    metrics = ",".join(metric for pair in METRICS.values() for metric in pair)
    report = subprocess.check_output(["ncu", "--csv", "--print-kernel-base", "demangled", "--metrics", metrics, *command], text=True)
    table = launches(report)
    return {"row": f"bf16-D{dim}-S{length}{'-causal' if causal else ''}", "counted": counted,
            **{place: {kernel: measured(table, kernel)[place] for kernel in RUNGS} for place in METRICS}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tilewise")
    parser.add_argument("--out")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    options = parser.parse_args()
    rows = []
    for length in options.lengths:
        for causal in (False, True):
            row = measure(options.tilewise, 128, length, causal)
            rows.append(row)
            for kernel in RUNGS:
                places = {place: row[place][kernel] / row["counted"][kernel] for place in METRICS}
                print(f"{row['row']:24} {kernel:14} counted {row['counted'][kernel] / 1e6:9.1f} MB"
                      + "".join(f"   {place} {ratio:5.2f} of it" for place, ratio in places.items()), flush=True)
    if options.out:
        machine = subprocess.check_output(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], text=True)
        result = {"command": "bench/peers/cuda_traffic.py build/release/cli/tilewise", "machine": machine.strip(), "rows": rows}
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
