"""Random problems for the formulas of tests/python, and the same problems as calls of tilewise."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# result - formula| <= tolerance * the largest size of the terms; in 16 bits Q, K, V and the result are rounded.
TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "float16": 8e-3, "bfloat16": 6e-2}
# What each option adds to a case; every option is tested alone, and in random combinations.
OPTIONS = (
    "plain", "causal", "top_left", "window", "scale", "softcap", "mask", "bias", "alibi_slopes", "sink", "seqused_q",
    "seqused_k", "slices", "dropout", "dlse",
)  # fmt: skip


def tensors(rng: np.random.Generator, dtype: str, shape: tuple[int, ...] = (2, 33, 50, 4, 2, 40, 16)) -> dict[str, Any]:
    """q, k, v and dout of (B, Sq, Sk, H, Hk, D, Dv)."""
    batch, rows, keys, heads, kv_heads, dim, value_dim = shape

    def normal(*size: int) -> np.ndarray:
        return rng.standard_normal(size).astype(DTYPES[dtype])

    return {
        "q": normal(batch, rows, heads, dim),
        "k": normal(batch, keys, kv_heads, dim),
        "v": normal(batch, keys, kv_heads, value_dim),
        "dout": normal(batch, rows, heads, value_dim),
    }


def add_option(case: dict[str, Any], name: str, rng: np.random.Generator) -> None:
    """Adds one option to the case, with values that matter."""
    batch, rows, heads, _ = case["q"].shape
    keys = case["k"].shape[1]
    if name in ("causal", "top_left"):
        case["causal"] = case[name] = True
    elif name == "window":
        case["window"] = (11, 4)
    elif name == "scale":
        case["scale"] = -0.3
    elif name == "softcap":
        case["softcap"] = 1.5
    elif name == "mask":
        case["mask"] = rng.random((batch, 1, rows, keys)) < 0.7
    elif name == "bias":
        case["bias"] = rng.standard_normal((heads, rows, keys)).astype(case["q"].dtype)
    elif name == "alibi_slopes":
        case["alibi_slopes"] = rng.random(heads).astype(np.float32)
    elif name == "sink":
        case["sink"] = rng.standard_normal(heads).astype(np.float32)
    elif name == "seqused_q":
        case["seqused_q"] = rng.integers(0, rows + 1, batch)
    elif name == "seqused_k":
        case["seqused_k"] = rng.integers(0, keys + 1, batch)
    elif name == "slices":
        case["slices"] = [(0, rows, 0, 3, 0, -1), (3, 20, 5, 40, 1, 1), (8, rows, 2, keys, 3, -1)]
    elif name == "dropout":
        case.update(dropout=0.3, seed=2**63 + 17, offset=5)
    elif name == "dlse":
        statistics = np.float64 if case["q"].dtype == np.float64 else np.float32
        case["dlse"] = rng.standard_normal((batch, heads, rows)).astype(statistics)


def options_of(case: dict[str, Any]) -> dict[str, Any]:
    """The case's options as keywords of tilewise."""
    names = {"scale": "softmax_scale", "window": "window_size", "dropout": "dropout_p", "seed": "dropout_seed",
             "offset": "dropout_offset"}  # fmt: skip
    same = ("causal", "softcap", "mask", "bias", "alibi_slopes", "sink")
    options = {names.get(name, name): case[name] for name in (*same, *names) if name in case}
    if case.get("top_left"):
        options["alignment"] = "top_left"
    for name in ("seqused_q", "seqused_k"):
        if name in case:
            options[name] = np.asarray(case[name], np.int64)
    if "slices" in case:
        options["slices"] = np.asarray(case["slices"], np.int64)
    return options


def assert_close(name: str, result: Any, formula: np.ndarray, size: np.ndarray, dtype: str) -> None:
    """size: of the terms that the formula adds up, to which rounding errors are in proportion."""
    result = np.asarray(result).astype(np.float64)
    assert result.shape == formula.shape, f"{name}: shape {result.shape}, must be {formula.shape}"
    infinite = np.isinf(formula)
    np.testing.assert_array_equal(result[infinite], formula[infinite], err_msg=name)
    error = np.abs(result[~infinite] - formula[~infinite])
    limit = TOLERANCES[dtype] * max(1e-3, np.abs(size[~infinite]).max(initial=0))
    assert error.max(initial=0) <= limit, f"{name}: error {error.max():.3g}, must be at most {limit:.3g}"
