"""The error of fp8 inputs beside the exact attention of the unrounded numbers, on the inputs of FlashAttention-3's paper.

python bench/python/fp8_error.py TILEWISE > bench/results/cpu/fp8-error.json

TILEWISE is the command line program. Inputs are N(0, 1), and 0.1 % of them have N(0, 100) added, where 100 is the
variance (B 1, S 1024, H 4, D 128, seed 0); rows with "deviation": 100 take it for the standard deviation, and rows
with "deviation": 0 have no outliers. The program quantises (--scales, --incoherent 1). The RMSE is that of O in bf16.
"""
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np

LENGTH, HEADS, DIM, SEED = 1024, 4, 128, 1
SCALES = {"tensor": "tensor", "head": "head", "block": "128 rows"}


def draw(rng, deviation):
    numbers = rng.normal(size=(1, LENGTH, HEADS, DIM))
    return numbers + (rng.random(numbers.shape) < 1e-3) * deviation * rng.normal(size=numbers.shape)


def exact(q, k, v):
    scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(DIM)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bjhd->bihd", probs / probs.sum(-1, keepdims=True), v)


class Experiment:
    """The inputs of one draw as files, and their exact attention."""

    def __init__(self, program, folder, deviation):
        rng = np.random.default_rng(0)
        wide = {name: draw(rng, deviation) for name in "qkv"}
        self.program, self.folder, self.out = program, folder, exact(*wide.values())
        for name, array in wide.items():
            np.save(folder / f"{name}-fp32.npy", array.astype(np.float32))
            np.save(folder / f"{name}-bf16.npy", array.astype(ml_dtypes.bfloat16))

    def rmse(self, q, *flags):
        """q: the dtype of the file of q."""
        kinds = {"q": q, "k": "fp32" if flags else "bf16", "v": "fp32" if flags else "bf16"}
        files = itertools.chain(*((f"--{name}", str(self.folder / f"{name}-{kind}.npy")) for name, kind in kinds.items()))
        out = str(self.folder / "out.npy")
        subprocess.run([self.program, "run", *files, *flags, "--out", out], check=True, stdout=subprocess.DEVNULL)
        result = np.load(out).view(ml_dtypes.bfloat16).astype(float)
        return float(np.sqrt(np.mean((result - self.out) ** 2)))

    def rows(self, formats):
        yield {"k, v": "bf16", "q": "bf16", "rmse": self.rmse("bf16")}
        for dtype, scales, hadamard in itertools.product(formats, SCALES, (False, True)):
            flags = ["--scales", scales, *(["--incoherent", str(SEED)] if hadamard else [])]
            for q, casts in (("bf16", ["--kv-dtype", dtype]), (dtype, ["--dtype", dtype])):
                row = {"k, v": dtype, "q": q, "scale of": SCALES[scales], "hadamard": hadamard}
                yield {**row, "rmse": self.rmse("bf16" if q == "bf16" else "fp32", *casts, *flags)}


def main():
    with tempfile.TemporaryDirectory() as path:
        paper = Experiment(sys.argv[1], pathlib.Path(path), 10)
        rows = list(paper.rows(("e4m3", "e5m2")))
        for deviation in (100, 0):
            other = Experiment(sys.argv[1], pathlib.Path(path), deviation)
            of_out = {"deviation": deviation, "rms_of_out": float(np.sqrt(np.mean(other.out**2)))}
            rows += [{**row, **of_out} for row in other.rows(("e4m3",))]
    print(json.dumps({"command": "python bench/python/fp8_error.py build/native/cli/tilewise",
                      "rms_of_out": float(np.sqrt(np.mean(paper.out**2))), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
