"""float8 of ml_dtypes and PyTorch, against the formulas on the numbers times their scales."""

from __future__ import annotations

import re
from typing import Any, Callable

import formulas
import ml_dtypes
import numpy as np
import pytest
from cases import assert_close

import tilewise

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
FORMATS = [E4M3, E5M2]


def draw(rng: np.random.Generator, queries: int, keys: int, q_dtype: Any, dtype: Any) -> dict[str, np.ndarray]:
    """q, k and v of (2, S, H, D): 4 query heads, 2 key/value heads."""

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "q": normal(2, queries, 4, 40).astype(q_dtype),
        "k": normal(2, keys, 2, 40).astype(dtype),
        "v": normal(2, keys, 2, 24).astype(dtype),
    }


def draw_scales(rng: np.random.Generator, case: dict[str, np.ndarray], rank: int) -> dict[str, np.ndarray]:
    """A scale for each tensor of float8: (1), (B, Hk) or (B, Hk, blocks of 128 rows)."""
    scales = {}
    for name, array in case.items():
        if array.dtype in FORMATS:
            shape = (2, 2, -(-array.shape[1] // 128))[:rank] if rank > 1 else (1,)
            scales[f"{name}_descale"] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return scales


def dequantised(array: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    """The stored numbers times their scales, in float64."""
    numbers = array.astype(np.float64)
    if scales is None:
        return numbers
    wide = scales.astype(np.float64)
    if scales.ndim > 1:
        wide = wide.reshape(2, 2, -1).repeat(array.shape[2] // 2, axis=1)  # the heads that share a key/value head
        rows = np.arange(array.shape[1]) // 128 if scales.ndim == 3 else np.zeros(array.shape[1], int)
        wide = wide[:, :, rows].transpose(0, 2, 1)[..., None]
    return numbers * wide


def expected(case: dict[str, np.ndarray], scales: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """O and LSE of causal attention, in float64."""
    numbers = {name: dequantised(array, scales.get(f"{name}_descale")) for name, array in case.items()}
    return formulas.attention({**numbers, "causal": True})[0]


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
@pytest.mark.parametrize("queries", [1, 150])
@pytest.mark.parametrize("q_dtype", [None, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("dtype", FORMATS)
def test_against_the_formulas(dtype: Any, q_dtype: Any, queries: int, rank: int, rng: np.random.Generator) -> None:
    case = draw(rng, queries, 300, q_dtype or dtype, dtype)
    scales = draw_scales(rng, case, rank) if rank else {}
    right = expected(case, scales)
    options: dict[str, Any] = {"causal": True, **scales}
    out, lse = tilewise.attention_forward(*case.values(), out_dtype=np.float32, **options)
    assert_close("out", out, right["out"], right["out"], "float32")
    assert_close("lse", lse, right["lse"], right["lse"], "float32")
    usual = tilewise.attention(*case.values(), **options)
    assert usual.dtype == (q_dtype or ml_dtypes.bfloat16)
    assert np.array_equal(usual, out.astype(usual.dtype))
    assert np.array_equal(tilewise.plan(*case.values(), **options)(*case.values(), **scales), usual)


@pytest.mark.parametrize("dtype", FORMATS)
def test_tensors_of_pytorch(dtype: Any, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    case = draw(rng, 20, 150, dtype, dtype)
    scales = draw_scales(rng, case, 3)
    tensors = [torch.from_numpy(x.view(np.uint8)).view(getattr(torch, dtype.__name__)) for x in case.values()]
    options = {name: torch.from_numpy(scale) for name, scale in scales.items()}
    out = tilewise.attention(*tensors, causal=True, **options)
    assert out.dtype == torch.bfloat16
    same = tilewise.attention(*case.values(), causal=True, **scales)
    assert np.array_equal(out.view(torch.int16).numpy(), same.view(np.int16))


Q, K, V = np.ones((2, 3, 4, 8), np.float32), np.ones((2, 130, 2, 8), E4M3), np.ones((2, 130, 2, 8), E4M3)
CALL = tilewise.attention
BAD: list[tuple[type, str, Callable[[], Any]]] = [
    (ValueError, "v: dtype is e5m2, must be e4m3", lambda: CALL(Q, K, V.astype(E5M2))),
    (ValueError, "q: dtype is e5m2, must be e4m3 as k", lambda: CALL(Q.astype(E5M2), K, V)),
    (ValueError, "q: dtype is fp64, must be bf16, fp16 or fp32", lambda: CALL(Q.astype(float), K, V)),
    (ValueError, "k: dtype is fp32, must be e4m3", lambda: CALL(Q.astype(E4M3), Q, Q)),
    (ValueError, "out: dtype is e4m3, must be", lambda: CALL(Q, K, V, out=np.empty(Q.shape, E4M3))),
    (ValueError, "mask: dtype is e5m2, must be bool", lambda: CALL(Q, K, V, mask=np.ones((3, 130), E5M2))),
    (TypeError, "k: dtype is float8_e4m3b11fnuz, must be",
     lambda: CALL(Q, K.view(ml_dtypes.float8_e4m3b11fnuz), V)),
    (ValueError, "q_descale: given for a tensor of fp32", lambda: CALL(Q, K, V, q_descale=np.ones(1, "f4"))),
    (ValueError, "k_descale: dtype is fp64, must be fp32", lambda: CALL(Q, K, V, k_descale=np.ones(1))),
    (TypeError, "k_descale: dtype is int16, must be float32", lambda: CALL(Q, K, V, k_descale=np.ones(1, "i2"))),
    (ValueError, "v_descale: ", lambda: CALL(Q, K, V, v_descale=np.ones((2, 2, 1), "f4"))),
    (ValueError, "v_descale[1][0][0]: is -1, must be",
     lambda: CALL(Q, K, V, v_descale=np.array([[1, 1], [-1, 1]], "f4"))),
    (NotImplementedError, "k: dtype is e4m3, backward takes",
     lambda: tilewise.attention_backward(Q, Q, K, V, Q, np.ones((2, 4, 3), np.float32))),
]  # fmt: skip


@pytest.mark.parametrize("kind, text, call", BAD, ids=[text for _, text, _ in BAD])
def test_refusals_name_the_argument(kind: type, text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        call()
