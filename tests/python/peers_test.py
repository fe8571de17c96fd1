"""The side by side of bench/peers, without its peers: what it counts, how it times, what it reports.
Usage: peers_test.py BUILD_FOLDER (holds libtilewise.so and cli/tilewise)"""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np

import formulas

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "peers"))
import peers  # noqa: E402
import race  # noqa: E402
import report  # noqa: E402
import rows  # noqa: E402
import worker  # noqa: E402
from contender_tilewise import Tilewise  # noqa: E402
from inputs import Inputs  # noqa: E402

BUILD = pathlib.Path(sys.argv[1])
ROWS = {row.name: row for row in rows.all_rows()}
SQUARE = rows.Row("square", "forward", "fp32", (1, 8, 8, 2, 2, 4))


class Counting(unittest.TestCase):
    def test_useful_flops_are_those_of_the_visible_pairs(self):
        for row in ROWS.values():
            batch, queries, keys, heads, _, dim = row.shape
            if queries * keys > 1 << 20:
                continue
            visible = np.tril(np.ones((queries, keys), bool)) if row.causal else np.ones((queries, keys), bool)
            expected = 4 * dim * batch * heads * int(visible.sum()) * (2.5 if row.op == "backward" else 1)
            self.assertEqual(row.flops(), expected, row.name)

    def test_known_numbers(self):
        self.assertEqual(ROWS["forward fp32 D128 S2048"].flops(), 4 * 8 * 2048**2 * 128)
        self.assertEqual(ROWS["backward bf16 D64 S2048"].flops(), 10 * 8 * 2048**2 * 64)
        self.assertEqual(ROWS["Llama decode bf16 L131072 head-major"].cache_bytes(), 2 * 131072 * 8 * 128 * 2)
        self.assertEqual(ROWS["Llama decode fp32 L8192 token-major"].flops(), 4 * 32 * 8192 * 128)

    def test_causal_rows_mean_the_same_in_every_alignment(self):
        with self.assertRaises(ValueError):
            rows.Row("bad", "forward", "fp32", (1, 4, 8, 1, 1, 4), causal=True).flops()

    def test_every_shape_that_is_promised_is_there(self):
        self.assertEqual(len(ROWS), len(rows.all_rows()), "two rows have one name")
        squares = {(row.op, row.dtype, row.shape[5], row.shape[1], row.causal)
                   for row in ROWS.values() if row.shape[3] == 8}
        for op, dtypes in (("forward", ("fp32", "bf16", "fp16")), ("backward", ("fp32", "bf16"))):
            wanted = {(op, dtype, dim, length, causal) for dtype in dtypes for dim in (64, 128)
                      for length in (512, 2048, 8192) for causal in (False, True)}
            self.assertLessEqual(wanted, squares)
        shapes = {row.shape for row in ROWS.values()}
        self.assertLessEqual({(1, 197, 197, 12, 12, 64), (1, 384, 384, 12, 12, 64), (1, 128, 128, 12, 12, 32),
                              (1, 8192, 8192, 32, 8, 128), (1, 1, 131072, 32, 8, 128), (1, 1, 1, 1, 1, 1)}, shapes)
        quick = {row.op for row in ROWS.values() if row.quick}
        self.assertEqual(quick, {"forward", "backward", "decode", "overhead"})


class FakeClock:
    """Calls take the time that they are told, and note who ran."""

    def __init__(self):
        self.now, self.ran = 0.0, []

    def __call__(self):
        return self.now

    def taking(self, name, *seconds):
        left = list(seconds)

        def call():
            self.ran.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]
        return call


class Racing(unittest.TestCase):
    def test_the_least_counts_and_each_round_starts_with_another(self):
        clock = FakeClock()
        calls = {"a": clock.taking("a", 5, 3, 7), "b": clock.taking("b", 2, 4, 4), "c": clock.taking("c", 1)}
        with mock.patch.object(race, "settle"):
            timings, failures = race.race(calls, clock, budget=0, least_rounds=3)
        self.assertEqual(failures, {})
        self.assertEqual("".join(clock.ran), "abc" + "abc" + "bca")
        self.assertEqual([timings[name].least() for name in "abc"], [3, 2, 1])
        self.assertEqual(timings["a"].median(), 5)

    def test_long_rounds_are_repeated_once(self):
        clock = FakeClock()
        with mock.patch.object(race, "settle"), mock.patch.object(race, "LONG_ROUND", -1):
            race.race({"a": clock.taking("a", 9), "b": clock.taking("b", 9)}, clock, budget=0)
        self.assertEqual("".join(clock.ran), "abab")

    def test_short_calls_are_timed_together(self):
        clock = FakeClock()
        with mock.patch.object(race, "settle"):
            timing = race.race({"a": clock.taking("a", 1e-6)}, clock, budget=0)[0]["a"]
        self.assertGreaterEqual(len(clock.ran) / len(timing.seconds), 0.9 * race.SHORTEST_REPETITION / 1e-6)
        self.assertAlmostEqual(timing.least(), 1e-6, delta=1e-9)

    def test_who_fails_in_its_first_run_takes_no_turn(self):
        def fail():
            raise ValueError("not I")

        clock, announced = FakeClock(), []
        calls = {"a": clock.taking("a", 1), "b": fail}
        with mock.patch.object(race, "settle"):
            timings, failures = race.race(calls, clock, budget=0, announce=announced.append)
        self.assertEqual((list(timings), announced), (["a"], ["a", "b"]))
        self.assertEqual(str(failures["b"]), "not I")

    def test_one_thread_is_timed_by_processor_time(self):
        self.assertEqual(race.clock_for(1)[0], "process CPU time")
        self.assertEqual(race.clock_for(2)[0], "wall clock")


class Job:
    details = {}

    def __init__(self, out):
        self._out = np.asarray(out, np.float32)

    def call(self):
        pass

    def results(self):
        return {"out": self._out}


class Fake:
    def __init__(self, result):
        self._result = result

    def prepare(self, row, inputs):
        if isinstance(self._result, Exception):
            raise self._result
        return Job(self._result)


def run_fakes(**results):
    with contextlib.redirect_stdout(io.StringIO()):
        return worker.run_row(SQUARE, {name: Fake(result) for name, result in results.items()}, race.clock_for(1)[1], 0)


class Judging(unittest.TestCase):
    def test_a_refusal_is_recorded_with_its_message(self):
        found = run_fakes(tilewise=[1, 2], torch=RuntimeError("no such thing\nand a trace"))
        self.assertEqual(found["torch"], {"error": "RuntimeError: no such thing"})
        self.assertIn("seconds", found["tilewise"])

    def test_a_missing_library_is_recorded(self):
        with mock.patch.dict(sys.modules, {"torch": None}):
            sys.modules.pop("contender_torch", None)
            found, missing = worker.load_contenders(["torch"], 1, None)
        self.assertEqual(found, {})
        self.assertIn("torch", missing["torch"])

    def test_a_wrong_result_is_found(self):
        found = run_fakes(tilewise=[1, -2], torch=[1, -2.0001], onnxruntime_mha=[1, -2.01], onnxruntime_gqa=[1, np.nan])
        self.assertEqual({name: entry["agrees"] for name, entry in found.items()},
                         {"tilewise": True, "torch": True, "onnxruntime_mha": False, "onnxruntime_gqa": False})
        self.assertAlmostEqual(found["onnxruntime_mha"]["difference"], 0.005, places=4)
        self.assertIsNone(found["onnxruntime_gqa"]["difference"])  # JSON has no NaN

    def test_a_nan_in_any_result_is_a_difference(self):
        good, bad = np.ones(3, np.float32), np.array([1, np.nan, 1], np.float32)
        for results in ({"dq": bad, "dk": good}, {"dq": good, "dk": bad}):
            found = worker.differences({"tilewise": {"dq": good, "dk": good}, "torch": results})
            self.assertEqual(found["tilewise"], 0)
            self.assertTrue(np.isnan(found["torch"]))

    def test_a_busy_machine_is_said_to_be(self):
        said = [report.busy({"load_average": {"before": load}, "machine": {"cpus": 4}}) for load in (0.9, 1.1)]
        self.assertEqual(said[0], "")
        self.assertIn("load 1.1 on 4", said[1])

    def finish(self, **seconds):
        entries = {name: {"seconds": s} if isinstance(s, float) else {"error": s} for name, s in seconds.items()}
        calibrations = [{"threads": 1, "dtype": "fp32", "peak_gflops": peak, "read_gbytes_per_second": 10}
                        for peak in (100.0, 200.0)] + [
            {"threads": 2, "dtype": "fp32", "peak_gflops": 900.0, "read_gbytes_per_second": 10},
            {"threads": 1, "dtype": "bf16", "peak_gflops": 900.0, "read_gbytes_per_second": 10}]
        return report.finished_row(ROWS["forward fp32 D128 S512"], 1, "wall clock", entries, calibrations)

    def test_figures_are_shares_of_the_best_calibration_of_the_row(self):
        row = self.finish(tilewise=0.01, torch=0.02)
        self.assertEqual(row["peak_gflops"], 200)
        self.assertAlmostEqual(row["contenders"]["tilewise"]["gflops"], row["flops"] / 1e7)
        self.assertAlmostEqual(row["contenders"]["torch"]["fraction_of_peak"], row["flops"] / 2e7 / 200)

    def test_the_read_rate_is_the_median_of_the_run(self):
        calibrations = [{"threads": threads, "dtype": "bf16", "peak_gflops": 1, "read_gbytes_per_second": rate}
                        for threads, rate in ((1, 10), (1, 12), (1, 90), (2, 500), (2, 500), (2, 500))]
        row = report.finished_row(ROWS["Llama decode bf16 L8192 head-major"], 1, "wall clock",
                                  {"tilewise": {"seconds": 1}}, calibrations)
        self.assertEqual(row["read_gbytes_per_second"], 12)
        self.assertAlmostEqual(row["contenders"]["tilewise"]["fraction_of_read"], row["kv_bytes"] / 12e9)

    def test_behind_is_marked(self):
        ahead = self.finish(tilewise=0.01, torch=0.02, onnxruntime_mha="refused")
        behind = self.finish(tilewise=0.04, torch=0.03, onnxruntime_mha=0.02)
        failed = self.finish(tilewise="refused", torch=0.03)
        self.assertEqual([row["behind"] for row in (ahead, behind, failed)], [False, True, True])
        self.assertEqual((ahead["best_peer"], ahead["tilewise_over_best_peer"]), ("torch", 2))
        self.assertEqual((behind["best_peer"], behind["tilewise_over_best_peer"]), ("onnxruntime_mha", 0.5))
        lines = report.table([ahead, behind, failed]).splitlines()
        self.assertEqual([line.endswith("BEHIND") for line in lines], [False, False, True, True])
        self.assertIn("behind in 2 of 3", report.summary([ahead, behind, failed]))
        self.assertIn("refused", report.messages([failed]))


class Contender(unittest.TestCase):
    def check(self, row, tolerance):
        inputs = Inputs(row)
        job = Tilewise(2, BUILD / "libtilewise.so").prepare(row, inputs)
        job.call()
        case = {name: getattr(inputs, name).astype(np.float64) for name in ("q", "k", "v")}
        if row.op == "backward":
            case["dout"] = inputs.dout.astype(np.float64)
        expected, _ = formulas.attention({"causal": row.causal, "dout": np.zeros_like(case["q"]), **case})
        for name, array in job.results().items():
            self.assertEqual(array.shape, expected[name].shape)
            self.assertLess(np.abs(array - expected[name]).max() / np.abs(expected[name]).max(), tolerance, (row, name))
        return job

    def test_tilewise_computes_the_row(self):
        for dtype, tolerance in (("fp32", 1e-5), ("bf16", 2e-2)):
            planned = self.check(rows.Row("f", "forward", dtype, (2, 20, 20, 4, 2, 8), causal=True), tolerance)
            self.assertIn("kernel", planned.details)
            self.check(rows.Row("b", "backward", dtype, (1, 20, 20, 4, 4, 8), causal=True), tolerance)
            for layout in ("bshd", "bhsd"):
                self.check(rows.Row("d", "decode", dtype, (1, 1, 40, 4, 2, 8), layout=layout), tolerance)
            self.check(rows.Row("o", "overhead", dtype, (1, 3, 5, 1, 1, 2), one_call=True), tolerance)


DYING_WORKER = """
import json, os, sys
task = json.load(sys.stdin)
print(json.dumps({"versions": {}, "clock": "c", "foreign_call_seconds": None}))
print(json.dumps({"row": task["rows"][0], "load_average": 0.0}))
print(json.dumps({"busy": "torch"}), flush=True)
if len(task["rows"]) == 2:
    os.abort()
print(json.dumps({"row": task["rows"][0], "report": {"tilewise": {"seconds": 1.0}}}))
"""


class Running(unittest.TestCase):
    def test_a_whole_run(self):
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder) / "results" / "peers.json"
            arguments = ["--build", str(BUILD), "--rows", "^overhead .*", "--seconds", "0", "--threads", "1", "2",
                         "--contenders", "tilewise", "--output", str(output)]
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
                self.assertEqual(peers.main(arguments), 0)
            content = json.loads(output.read_text())
            with contextlib.redirect_stdout(io.StringIO()) as again:
                self.assertEqual(peers.main(["--show", str(output)]), 0)
        self.assertEqual(again.getvalue(), printed.getvalue())
        self.check_schema(content)

    def check_schema(self, content):
        self.assertEqual(len(content["rows"]), 8)
        self.assertEqual(content["threads"], [1, 2])
        for key in ("cpu", "compiler", "features", "system", "cpus"):
            self.assertTrue(content["machine"][key], key)
        for key in ("tilewise", "numpy", "python"):
            self.assertTrue(content["versions"][key], key)
        self.assertEqual(content["load_average"]["most"], max(row["load_average"] for row in content["rows"]))
        self.assertGreaterEqual(content["load_average"]["before"], 0)
        self.assertIn("bench/peers/run", content["command"])
        for row in content["rows"]:
            entry = row["contenders"]["tilewise"]
            self.assertGreater(entry["seconds"], 0)
            self.assertGreater(entry["runs"], 0)
            self.assertGreater(row["peak_gflops"], 0)
            self.assertGreater(row["read_gbytes_per_second"], 0)
            self.assertIsNone(row["best_peer"])
            self.assertFalse(row["behind"])
            self.assertEqual("kernel" in entry, "planned" in row["name"])

    def test_a_contender_that_ends_the_process_costs_one_row(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            script = pathlib.Path(folder) / "worker.py"
            script.write_text(DYING_WORKER)
            run = peers.Run(peers.arguments(["--build", str(BUILD)]), [SQUARE, ROWS["MiniLM fp32 D32 S128"]], 1)
            run.worker_script = script
            run.run()
        first, second = run.finished()
        self.assertTrue(run.died)
        self.assertIn("ended with -6", first["contenders"]["torch"]["error"])
        self.assertEqual(second["contenders"]["tilewise"]["seconds"], 1)

    def test_a_folder_without_the_library_is_named(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(SystemExit) as stop:
            peers.main(["--build", folder])
        self.assertIn("libtilewise.so is missing", str(stop.exception))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
