"""Partial attention: calls on parts of the keys accumulate to the result of one call."""

import numpy as np
import pytest

import tilewise

B, SQ, SK, H, HK, D = 2, 30, 41, 4, 2, 16
OPTIONS = {"causal": True, "dropout_p": 0.3, "dropout_seed": 9}


def arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {"q": (B, SQ, H, D), "k": (B, SK, HK, D), "v": (B, SK, HK, D), "dout": (B, SQ, H, D)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def pieces(*cuts: int) -> list[tuple[slice, np.ndarray]]:
    """The keys of each piece, and where it lies in the whole."""
    edges = (0, *cuts, SK)
    place = [[[b, 0, first, SK - SQ] for b in range(B)] for first in edges[:-1]]
    return [(slice(a, b), np.array(p, np.int64)) for a, b, p in zip(edges, edges[1:], place)]


def empty_result() -> tuple[np.ndarray, np.ndarray]:
    return np.full((B, SQ, H, D), np.nan, np.float32), np.full((B, H, SQ), -np.inf, np.float32)


def test_forward_and_backward_accumulate(rng: np.random.Generator) -> None:
    q, k, v, dout = arrays(rng).values()
    whole, whole_lse = tilewise.attention_forward(q, k, v, **OPTIONS)
    expected = tilewise.attention_backward(dout, q, k, v, whole, whole_lse, **OPTIONS)
    out, lse = empty_result()
    for keys, parts in pieces(7, 26):
        result = tilewise.attention_forward(
            q, k[:, keys], v[:, keys], out=out, lse=lse, accumulate=True, parts=parts, **OPTIONS
        )
        assert result[0] is out
        assert result[1] is lse
    np.testing.assert_allclose(out, whole, atol=2e-6)
    np.testing.assert_allclose(lse, whole_lse, atol=2e-6)

    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for keys, parts in pieces(7, 26):
        tilewise.attention_backward(
            dout, q, k[:, keys], v[:, keys], out, lse, dq=dq, dk=dk[:, keys], dv=dv[:, keys],
            accumulate=True, parts=parts, **OPTIONS,
        )  # fmt: skip
    for gradient, whole_gradient in zip((dq, dk, dv), (expected.dq, expected.dk, expected.dv)):
        np.testing.assert_allclose(gradient, whole_gradient, atol=1e-5)


def test_one_plan_serves_pieces_of_one_size(rng: np.random.Generator) -> None:
    q, k, v, _ = arrays(rng).values()
    k, v = k[:, :40], v[:, :40]
    whole, _ = tilewise.attention_forward(q, k, v, causal=True)
    out, lse = empty_result()
    first = np.array([[b, 0, 0, 10] for b in range(B)], np.int64)
    plan = tilewise.plan(q, k[:, :20], v[:, :20], return_lse=True, accumulate=True, parts=first, causal=True)
    for start in (20, 0):
        parts = first + np.array([0, 0, start, 0])
        keys = slice(start, start + 20)
        plan(q, k[:, keys], v[:, keys], out=out, lse=lse, parts=parts)
    np.testing.assert_allclose(out, whole, atol=2e-6)
    with pytest.raises(ValueError, match="accumulate: is True, but out is not given"):
        plan(q, k[:, :20], v[:, :20], lse=lse, parts=first)


def test_a_plan_adds_to_wide_gradients_of_narrow_inputs(rng: np.random.Generator) -> None:
    q, k, v, dout = (array.astype(np.float16) for array in arrays(rng).values())
    bias = rng.standard_normal((H, SQ, SK)).astype(np.float16)
    out, lse = tilewise.attention_forward(q, k, v, bias=bias)
    expected = tilewise.attention_backward(dout, q, k, v, out, lse, bias=bias, grad_dtype="float32")
    plan = tilewise.plan_backward(q, k, v, bias=bias, accumulate=True)
    names = ("dq", "dk", "dv", "dbias")
    sums = {name: np.ones(getattr(expected, name).shape, np.float32) for name in names}
    for _ in range(2):
        plan(dout, q, k, v, out, lse, bias=bias, **sums)
    for name in names:
        once = getattr(expected, name).astype(np.float32)
        np.testing.assert_allclose(sums[name], 1 + 2 * once, atol=1e-2 if name == "dbias" else 1e-5)


def test_what_is_refused(rng: np.random.Generator) -> None:
    q, k, v, dout = arrays(rng).values()
    out, lse = empty_result()
    with pytest.raises(ValueError, match="accumulate: is True, but out, lse is not given"):
        tilewise.attention_forward(q, k, v, accumulate=True)
    with pytest.raises(ValueError, match="accumulate: is True, but any gradient is not given"):
        tilewise.attention_backward(dout, q, k, v, out, lse, accumulate=True)
    with pytest.raises(TypeError, match="accumulate: is 'no', must be True or False"):
        tilewise.attention_forward(q, k, v, out=out, lse=lse, accumulate="no")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="parts: dtype is int32, must be int64"):
        tilewise.attention_forward(q, k, v, parts=np.zeros((B, 4), np.int32))
    with pytest.raises(ValueError, match=r"parts\[1\]: key is -3, must be between 0"):
        tilewise.attention_forward(q, k, v, parts=np.array([[0, 0, 0, 0], [0, 0, -3, 0]], np.int64))
    with pytest.raises(ValueError, match="parts: shape is"):
        tilewise.attention_forward(q, k, v, parts=np.zeros((B, 3), np.int64))
