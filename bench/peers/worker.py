"""One process for one number of threads: runs the rows it is told, writes a line of JSON for each.

peers.py starts it, so that no contender's threads are there when another number of them is measured, and so that a
contender that ends the process costs one row, not the run.
"""
import importlib
import json
import os
import subprocess
import sys
import time

import numpy as np

from inputs import Inputs
from race import clock_for, race
from rows import all_rows

CONTENDERS = {"tilewise": ("contender_tilewise", "Tilewise"), "torch": ("contender_torch", "Torch"),
              "onnxruntime_mha": ("contender_onnxruntime", "MultiHeadAttention"),
              "onnxruntime_gqa": ("contender_onnxruntime", "GroupQueryAttention")}
# Largest difference between the results of two contenders, relative to the largest result: it separates rounding from a
# mistake.
TOLERANCES = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 6e-2}
CALIBRATION_SECONDS = 120  # calibration is repeated at least this often
CALIBRATION_SHAPE = "1,64,64,1,1,64"


def say(**event):
    print(json.dumps(event), flush=True)


def first_line(error):
    return (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:300]


def load_contenders(names, threads, library):
    """({name: contender}, {name: why it is missing})."""
    found, missing = {}, {}
    for name in names:
        module, kind = CONTENDERS[name]
        try:
            contender = getattr(importlib.import_module(module), kind)
            found[name] = contender(threads, library) if name == "tilewise" else contender(threads)
        except (ImportError, OSError) as error:
            missing[name] = first_line(error)
    return found, missing


def differences(results):
    """{name: largest difference from the first contender's results, of their largest}."""
    reference = next(iter(results.values()), {})
    sizes = {name: float(np.abs(array).max(initial=0)) or 1.0 for name, array in reference.items()}
    found = {}
    for name, arrays in results.items():
        errors = [np.abs(arrays[key] - reference[key]).max(initial=0) / sizes[key] for key in reference]
        found[name] = float(np.max(errors))  # NaN if one error is NaN, which Python's own max would not return
    return found


def prepare(row, contenders, inputs):
    """({name: job}, {name: why not})."""
    jobs, refused = {}, {}
    for name, contender in contenders.items():
        say(busy=name)
        try:
            jobs[name] = contender.prepare(row, inputs)
        except Exception as error:  # the message goes into the report, whatever it is
            refused[name] = first_line(error)
    return jobs, refused


def run_row(row, contenders, clock, budget):
    """{contender: what was measured or why not}."""
    jobs, refused = prepare(row, contenders, Inputs(row))
    timings, failures = race({name: job.call for name, job in jobs.items()}, clock, budget,
                             announce=lambda name: say(busy=name))
    refused.update((name, first_line(error)) for name, error in failures.items())
    found = differences({name: jobs[name].results() for name in timings})
    report = {name: {"error": message} for name, message in refused.items()}
    for name, timing in timings.items():
        report[name] = {"seconds": timing.least(), "median_seconds": timing.median(), "runs": len(timing.seconds),
                        "difference": found[name] if np.isfinite(found[name]) else None,
                        "agrees": found[name] <= TOLERANCES[row.dtype], **jobs[name].details}
    return report


class Calibration:
    """The machine's peaks, by the command line's own measurement."""

    def __init__(self, program, threads, dtypes):
        self._program, self._threads, self._dtypes, self._last = program, threads, dtypes, -np.inf

    def measure(self):
        for dtype in self._dtypes:
            command = [self._program, "bench", "--op", "forward", "--dtype", dtype, "--shape", CALIBRATION_SHAPE,
                       "--threads", str(self._threads), "--seconds", "0", "--json"]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            say(calibration={"dtype": dtype, "threads": self._threads, "peak_gflops": found["peak_gflops"],
                             "read_gbytes_per_second": found["read_gbytes_per_second"]}, machine=found["machine"])
        self._last = time.monotonic()

    def refresh(self):
        if time.monotonic() - self._last > CALIBRATION_SECONDS:
            self.measure()


def floor_of_calls(contenders, clock):
    """Seconds of a foreign call that does nothing."""
    if "tilewise" not in contenders:
        return None
    timings, _ = race({"call": contenders["tilewise"].foreign_call()}, clock, 0.1)
    return timings["call"].least()


def main():
    task = json.load(sys.stdin)
    contenders, missing = load_contenders(task["contenders"], task["threads"], task["library"])
    clock_name, clock = clock_for(task["threads"])
    rows = {row.name: row for row in all_rows()}
    dtypes = sorted({rows[name].dtype for name in task["rows"]})
    calibration = Calibration(task["program"], task["threads"], dtypes)
    versions = {key: text for contender in contenders.values() for key, text in contender.versions.items()}
    say(versions={**versions, "numpy": np.__version__, "python": sys.version.split()[0]}, clock=clock_name,
        foreign_call_seconds=floor_of_calls(contenders, clock))
    for name in task["rows"]:
        calibration.refresh()
        say(row=name, load_average=os.getloadavg()[0])
        report = run_row(rows[name], contenders, clock, task["budget"])
        say(row=name, report={**{name: {"error": message} for name, message in missing.items()}, **report})
    calibration.measure()


if __name__ == "__main__":
    main()
