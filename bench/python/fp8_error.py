"""The error of fp8 inputs beside the exact attention of the unrounded numbers, on the inputs of FlashAttention-3's paper.

python bench/python/fp8_error.py TILEWISE > bench/results/cpu/fp8-error.json

TILEWISE is the command line program. Inputs are N(0, 1), and 0.1 % of them have N(0, 100) added (B 1, S 1024, H 4,
D 128, seed 0); largest numbers are scaled to the largest of the format. The RMSE is that of O in bf16.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np

LENGTH, HEADS, DIM, BLOCK = 1024, 4, 128, 128


def draw(rng):
    numbers = rng.normal(size=(1, LENGTH, HEADS, DIM))
    return numbers + (rng.random(numbers.shape) < 1e-3) * 10 * rng.normal(size=numbers.shape)


def exact(q, k, v):
    scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(DIM)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bjhd->bihd", probs / probs.sum(-1, keepdims=True), v)


def quantise(numbers, dtype, shared_by):
    """The stored numbers, and the scales in the shape of a descale tensor."""
    blocks = numbers.reshape(1, LENGTH // BLOCK, BLOCK, HEADS, DIM)
    axes = {"tensor": (0, 1, 2, 3, 4), "head": (1, 2, 4), "128 rows": (2, 4)}[shared_by]
    scales = (np.abs(blocks).max(axes, keepdims=True) / float(ml_dtypes.finfo(dtype).max)).astype(np.float32)
    stored = (blocks / scales).reshape(numbers.shape).astype(dtype)
    if shared_by == "tensor":
        return stored, scales.reshape(1)
    table = scales.reshape(1, -1, HEADS).transpose(0, 2, 1)
    return stored, np.ascontiguousarray(table[:, :, 0] if shared_by == "head" else table)


def rmse(program, folder, inputs, out):
    command = [program, "run", "--out", str(folder / "out.npy")]
    for name, array in inputs.items():
        np.save(folder / f"{name}.npy", array)
        command += [f"--{name.replace('_', '-')}", str(folder / f"{name}.npy")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    result = np.load(folder / "out.npy").view(ml_dtypes.bfloat16).astype(float)
    return float(np.sqrt(np.mean((result - out) ** 2)))


def main():
    rng = np.random.default_rng(0)
    wide = {name: draw(rng) for name in "qkv"}
    out = exact(*wide.values())
    half = {name: array.astype(ml_dtypes.bfloat16) for name, array in wide.items()}
    rows = []
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        rows.append({"k, v": "bf16", "q": "bf16", "rmse": rmse(sys.argv[1], folder, half, out)})
        for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
            for shared_by in ("tensor", "head", "128 rows"):
                stored = {}
                for name, array in wide.items():
                    stored[name], stored[f"{name}_descale"] = quantise(array, dtype, shared_by)
                cache = {**{name: stored[name] for name in ("k", "v", "k_descale", "v_descale")}, "q": half["q"]}
                for q, inputs in (("bf16", cache), (dtype.__name__, stored)):
                    rows.append({"k, v": dtype.__name__, "q": q, "scale of": shared_by,
                                 "rmse": rmse(sys.argv[1], folder, inputs, out)})
    print(json.dumps({"command": "python bench/python/fp8_error.py build/native/cli/tilewise",
                      "rms_of_out": float(np.sqrt(np.mean(out**2))), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
