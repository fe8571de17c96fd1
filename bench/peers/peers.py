#!/usr/bin/env python3
"""Compares Tilewise with PyTorch and ONNX Runtime: one run, in turns, which also measures the machine's peak.

bench/peers/run makes the environment and starts this. Exits with 1 if results of two contenders differ by more than
rounding or if a contender ended its process.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

import report
from rows import all_rows

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTENDERS = ("tilewise", "torch", "onnxruntime_mha", "onnxruntime_gqa")
BUDGET, QUICK_BUDGET = 1.5, 0.25  # seconds of repetitions for each row, all contenders together


def arguments(argv):
    parser = argparse.ArgumentParser(prog="bench/peers/run", description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", metavar="FOLDER",
                        help="holds libtilewise.so and the command line (default: build/release)")
    parser.add_argument("--rows", type=re.compile, default=re.compile(""), metavar="REGEX",
                        help="only rows whose name matches")
    parser.add_argument("--quick", action="store_true", help="a few small rows, in under a minute")
    parser.add_argument("--threads", type=int, nargs="+", metavar="N", help="default: 1, and all")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS, metavar="NAME",
                        help="default: " + " ".join(CONTENDERS))
    parser.add_argument("--seconds", type=float, metavar="X",
                        help=f"of repetitions for each row (default {BUDGET:g}; --quick {QUICK_BUDGET:g})")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", help="write the JSON there")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and stop")
    parser.add_argument("--show", type=pathlib.Path, metavar="FILE", help="print the table of a JSON file and stop")
    options = parser.parse_args(argv)
    if options.threads is None:
        options.threads = sorted({1, len(os.sched_getaffinity(0))})
    if min(options.threads) < 1:
        parser.error("--threads: must be at least 1")
    if options.seconds is None:
        options.seconds = QUICK_BUDGET if options.quick else BUDGET
    return options


def find_built(folder):
    """(libtilewise.so, tilewise) of a build folder."""
    found = [folder / "libtilewise.so", folder / "cli" / "tilewise"]
    for path in found:
        if not path.exists():
            raise SystemExit(f"bench/peers/run: {path} is missing; build it, or name its folder with --build")
    return [str(path.resolve()) for path in found]


class Run:
    """The rows on one number of threads, in worker processes: a new one for the rows left when one dies."""

    worker_script = pathlib.Path(__file__).with_name("worker.py")

    def __init__(self, options, rows, threads):
        self.rows, self.threads, self.clock = {row.name: row for row in rows}, threads, None
        self.header, self.machine, self.loads = {}, {}, {}
        self.reports, self.calibrations, self.died = {}, [], False
        library, program = find_built(options.build)
        self._task = {"threads": threads, "library": library, "program": program, "budget": options.seconds,
                      "contenders": list(options.contenders)}

    def run(self):
        while left := [name for name in self.rows if name not in self.reports]:
            self._worker(left)

    def _worker(self, left):
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}
        worker = subprocess.Popen([sys.executable, str(self.worker_script)], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        worker.stdin.write(json.dumps({**self._task, "rows": left}))
        worker.stdin.close()
        current, busy = None, None
        for line in worker.stdout:
            event = json.loads(line)
            current, busy = event.get("row", current), event.get("busy", busy)
            self._take(event)
        if worker.wait() != 0:
            self.died = True
            if current is None or current in self.reports:
                raise SystemExit(f"bench/peers/run: the worker ended with {worker.returncode}")
            self.reports[current] = {busy or "tilewise": {"error": f"the process ended with {worker.returncode}"}}

    def _take(self, event):
        if "versions" in event:
            self.header, self.clock = event, event["clock"]
        if "calibration" in event:
            self.calibrations.append(event["calibration"])
            self.machine = event["machine"]
        if "load_average" in event:
            self.loads[event["row"]] = event["load_average"]
        if "report" in event:
            name = event["row"]
            self.reports[name] = {c: event["report"][c] for c in CONTENDERS if c in event["report"]}
            print(report.line(self._finished(name)), file=sys.stderr)

    def _finished(self, name):
        row = report.finished_row(self.rows[name], self.threads, self.clock, self.reports[name], self.calibrations)
        return {**row, "load_average": self.loads[name]}

    def finished(self):
        return [self._finished(name) for name in self.reports]


def as_json(options, runs, rows, start):
    return {"command": shlex.join(["bench/peers/run", *sys.argv[1:]]), "machine": runs[0].machine,
            "versions": runs[0].header.get("versions", {}), "threads": options.threads,
            "foreign_call_seconds": runs[0].header.get("foreign_call_seconds"),
            "load_average": {"before": start["load"], "most": max(row["load_average"] for row in rows)},
            "date": time.strftime("%Y-%m-%d"), "total_seconds": round(time.monotonic() - start["time"]),
            "calibrations": [calibration for run in runs for calibration in run.calibrations], "rows": rows}


def show(content):
    for text in (report.table(content["rows"]), report.messages(content["rows"]), report.floor(content),
                 report.busy(content), report.summary(content["rows"])):
        if text:
            print(text, end="\n\n")


def main(argv):
    options = arguments(argv)
    if options.show:
        show(json.loads(options.show.read_text()))
        return 0
    rows = [row for row in all_rows() if options.rows.search(row.name) and (row.quick or not options.quick)]
    if options.list or not rows:
        print("\n".join(row.name for row in rows) or f"no row's name matches {options.rows.pattern}")
        return 0 if rows else 2
    start = {"time": time.monotonic(), "load": os.getloadavg()[0]}
    runs = [Run(options, rows, threads) for threads in options.threads]
    for run in runs:
        run.run()
    finished = [row for run in runs for row in run.finished()]
    content = as_json(options, runs, finished, start)
    show(content)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(content, indent=1) + "\n")
    differ = any(not entry.get("agrees", True) for row in finished for entry in row["contenders"].values())
    return int(differ or any(run.died for run in runs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
