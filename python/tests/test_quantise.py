"""quantise(): float8 of ml_dtypes and PyTorch, against the definition in NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewise

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


def draw(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def defined(numbers: np.ndarray, dtype: Any, scales: str, kv_heads: int) -> tuple[np.ndarray, np.ndarray]:
    """The stored numbers of (B, S, H, D) and their scales."""
    batch, rows, heads, width = numbers.shape
    blocks = -(-rows // 128)
    padded = np.zeros((batch, blocks * 128, heads, width), np.float32)
    padded[:, :rows] = numbers
    parts = padded.reshape(batch, blocks, 128, kv_heads, heads // kv_heads, width)
    axes = {"tensor": (0, 1, 2, 3, 4, 5), "head": (1, 2, 4, 5), "block": (2, 4, 5)}[scales]
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    descale = np.abs(parts).max(axes, keepdims=True) / largest
    stored = (parts * (np.float32(1) / descale)).astype(dtype).reshape(padded.shape)[:, :rows]
    if scales == "tensor":
        return stored, descale.reshape(1)
    table = descale.reshape(batch, -1, kv_heads).transpose(0, 2, 1)
    return stored, table[:, :, 0] if scales == "head" else table


@pytest.mark.parametrize("scales", ["tensor", "head", "block"])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("source", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_has_the_numbers_of_the_definition(rng: Any, source: Any, dtype: Any, scales: str) -> None:
    x = draw(rng, source, 2, 150, 4, 40)
    values, descale = tilewise.quantise(x, dtype, scales=scales, kv_heads=2)
    expected, table = defined(x.astype(np.float32), dtype, scales, 2 if scales != "tensor" else 4)
    assert values.dtype == dtype
    np.testing.assert_array_equal(descale, table)
    np.testing.assert_array_equal(values.view(np.uint8), expected.view(np.uint8))


def test_fixed_scales_count_what_saturates(rng: Any) -> None:
    x = draw(rng, np.float32, 1, 64, 1, 32)
    saturated = np.array([5])
    fixed = np.array([[1 / 448]], np.float32)
    values, descale = tilewise.quantise(x, scales="head", descale=fixed, saturated=saturated)
    assert descale is fixed
    scaled = np.abs(x * (np.float32(1) / fixed[0, 0]))
    assert saturated[0] == 5 + np.count_nonzero(scaled > 464)
    np.testing.assert_array_equal(np.abs(values.astype(np.float32)).max(), 448)


def test_rotated_scores_are_those_of_q_and_k(rng: Any) -> None:
    q, k = draw(rng, np.float32, 1, 40, 4, 80), draw(rng, np.float32, 1, 50, 2, 80)
    rotated = [tilewise.quantise(x, "float32", incoherent=3).values.astype(np.float64) for x in (q, k)]
    for head in range(4):
        scores = [a[0, :, head].astype(np.float64) @ b[0, :, head // 2].astype(np.float64).T for a, b in ((q, k), rotated)]
        np.testing.assert_allclose(scores[1], scores[0], atol=1e-5)


def test_attention_to_a_rotated_cache_is_near_that_to_the_numbers(rng: Any) -> None:
    q, k, v = (draw(rng, ml_dtypes.bfloat16, 2, 200, heads, 64) for heads in (4, 2, 2))
    exact = tilewise.attention(q, k, v, causal=True).astype(np.float32)
    rotated = tilewise.quantise(q, "bfloat16", incoherent=7).values
    stored_k, k_descale = tilewise.quantise(k, incoherent=7)
    stored_v, v_descale = tilewise.quantise(v)
    found = tilewise.attention(rotated, stored_k, stored_v, k_descale=k_descale, v_descale=v_descale, causal=True)
    error = np.sqrt(np.mean((found.astype(np.float32) - exact) ** 2))
    assert error < 0.05 * np.sqrt(np.mean(exact**2))


def test_packed_sequences_have_scales_of_their_own(rng: Any) -> None:
    x = draw(rng, np.float32, 30, 2, 16)
    starts = np.array([2, 10, 30])
    values, descale = tilewise.quantise(x, scales="head", cu_seqlens=starts)
    assert descale is not None and descale.shape == (2, 2)
    np.testing.assert_array_equal(descale[1], np.abs(x[10:]).max((0, 2)) / np.float32(448))
    assert not values[:2].view(np.uint8).any()


def test_torch_tensors(rng: Any) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(draw(rng, np.float32, 2, 140, 4, 32))
    view = x.to(torch.bfloat16).transpose(1, 2)  # strides of (B, S, H, D) in (B, H, S, D)
    values, descale = tilewise.quantise(view, torch.float8_e5m2, layout="bhsd")
    assert values.dtype == torch.float8_e5m2 and descale.shape == (2, 4, 2)
    expected, table = defined(view.transpose(1, 2).float().numpy(), E5M2, "block", 4)
    np.testing.assert_array_equal(descale.numpy(), table)
    bits = values.transpose(1, 2).contiguous().view(torch.uint8).numpy()
    np.testing.assert_array_equal(bits, expected.view(np.uint8))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"scales": "row"}, ValueError, "scales: is 'row', must be 'tensor', 'head' or 'block'"),
        ({"layout": "sbhd"}, ValueError, "layout: is 'sbhd'"),
        ({"incoherent": -1}, ValueError, "incoherent: is -1, must be a seed"),
        ({"kv_heads": 3}, ValueError, "descale: has 3 heads, must divide the 2 heads"),
        ({"dtype": "float32"}, ValueError, "output: dtype is fp32, must be e4m3 or e5m2"),
        ({"descale": np.array([0.0], np.float32), "scales": "tensor"}, ValueError, "is 0, must be between 2"),
        ({"descale": np.array([np.nan], np.float32), "scales": "tensor"}, ValueError, "is nan, must be between 2"),
    ],
)
def test_refusals(rng: Any, arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as raised:
        tilewise.quantise(draw(rng, np.float32, 1, 8, 2, 16), **arguments)
    assert words in str(raised.value)


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(TypeError, match="input: is a list"):
        tilewise.quantise([1.0])  # type: ignore[arg-type]
