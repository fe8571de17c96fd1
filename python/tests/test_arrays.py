"""Tests what counts as an array, and that no array is copied."""

import subprocess
import sys
import textwrap
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cases import DTYPES, tensors

import tilewise

torch = None
jax = None
try:
    import torch
except ImportError:
    pass
try:
    import jax
except ImportError:
    pass


@pytest.fixture
def qkv(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    case = tensors(rng, "float32")
    return case["q"], case["k"], case["v"]


class Exporter:
    """An array that shows itself through DLPack only; `old` as before its version 1, without max_version."""

    def __init__(self, array: np.ndarray, old: bool = False) -> None:
        self.array, self.old, self.dtype, self.shape = array, old, array.dtype, array.shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **arguments: Any) -> Any:
        if self.old and arguments:
            raise TypeError("__dlpack__() takes no arguments")
        return self.array.__dlpack__(**arguments)


@pytest.mark.parametrize("old", [False, True])
def test_any_object_with_dlpack(qkv: tuple, old: bool) -> None:
    out = np.full((*qkv[0].shape[:-1], qkv[2].shape[-1]), np.nan, np.float32)
    result = tilewise.attention(*(Exporter(x, old) for x in qkv), out=Exporter(out, old), causal=True)
    assert isinstance(result, Exporter)
    assert np.array_equal(out, tilewise.attention(*qkv, causal=True))


def test_numpy_arrays_are_let_go(qkv: tuple) -> None:
    options = {"mask": np.ones((33, 50), bool), "sink": np.zeros(4, np.float32)}
    arrays = [*qkv, *options.values()]
    before = [sys.getrefcount(x) for x in arrays]
    for _ in range(3):
        tilewise.attention(*qkv, **options)
        with pytest.raises(ValueError):
            tilewise.attention(*qkv, softcap=-1, **options)
    assert [sys.getrefcount(x) for x in arrays] == before


def test_dlpack_lets_go_of_the_memory(qkv: tuple) -> None:
    before = [sys.getrefcount(x) for x in qkv]
    for _ in range(3):
        tilewise.attention(*(Exporter(x) for x in qkv), out=np.empty((2, 33, 4, 16), np.float32))
        with pytest.raises(ValueError):
            tilewise.attention(*(Exporter(x) for x in qkv), out=np.empty(3, np.float32))
    assert [sys.getrefcount(x) for x in qkv] == before


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_tensors(dtype: str, rng: np.random.Generator) -> None:
    if torch is None:
        pytest.skip("torch is not installed")
    case = tensors(rng, dtype)
    arrays = [case[name] for name in ("q", "k", "v", "dout")]
    bits = [torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if dtype == "bfloat16" else torch.from_numpy(x)
            for x in arrays]  # fmt: skip
    out, lse = tilewise.attention_forward(*bits[:3], causal=True)
    assert out.dtype == bits[0].dtype
    expected = tilewise.attention_forward(*arrays[:3], causal=True)
    assert np.array_equal(out.double().numpy(), expected[0].astype(np.float64))
    assert np.array_equal(lse.numpy(), expected[1])
    gradients = tilewise.attention_backward(bits[3], *bits[:3], out, lse, causal=True)
    others = tilewise.attention_backward(arrays[3], *arrays[:3], *expected, causal=True)
    for first, second in zip(gradients[:3], others[:3]):
        assert np.array_equal(first.double().numpy(), second.astype(np.float64))


def test_torch_views_with_byte_offsets(rng: np.random.Generator) -> None:
    if torch is None:
        pytest.skip("torch is not installed")
    packed = torch.from_numpy(rng.standard_normal((2, 19, 3, 4, 8)).astype(np.float32))
    q, k, v = packed.unbind(2)
    expected = tilewise.attention(*(x.contiguous() for x in (q, k, v)))
    assert torch.equal(tilewise.attention(q, k, v), expected)


def test_torch_tensor_that_requires_grad(qkv: tuple) -> None:
    if torch is None:
        pytest.skip("torch is not installed")
    q, k, v = (torch.from_numpy(x) for x in qkv)
    with pytest.raises(ValueError, match=r"q: its memory cannot be shared: .*tilewise\.torch"):
        tilewise.attention(q.requires_grad_(), k, v)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])  # JAX has float64 on request only
def test_jax_arrays(dtype: str, rng: np.random.Generator) -> None:
    if jax is None:
        pytest.skip("jax is not installed")
    case = tensors(rng, dtype)
    arrays = [case[name] for name in ("q", "k", "v")]
    out = tilewise.attention(*(jax.numpy.asarray(x) for x in arrays))
    assert isinstance(out, jax.Array)
    assert np.array_equal(np.asarray(out), tilewise.attention(*arrays))
    with pytest.raises(ValueError, match="out: is read-only"):
        tilewise.attention(*arrays, out=out)


def test_traced_value_of_jax(qkv: tuple) -> None:
    if jax is None:
        pytest.skip("jax is not installed")
    with pytest.raises(TypeError, match=r"traced value of JAX.*tilewise\.jax"):
        jax.jit(tilewise.attention)(*qkv)


def test_read_only_inputs(qkv: tuple) -> None:
    expected = tilewise.attention(*qkv)
    for array in qkv:
        array.flags.writeable = False
    assert np.array_equal(tilewise.attention(*qkv), expected)
    out = np.empty_like(expected)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out: is read-only"):
        tilewise.attention(*qkv, out=out)


def test_strided_and_expanded_inputs(rng: np.random.Generator) -> None:
    packed = rng.standard_normal((2, 19, 3, 4, 8)).astype(np.float32)
    views = [packed[:, :, i] for i in range(3)]
    expected = tilewise.attention(*(np.ascontiguousarray(x) for x in views))
    assert np.array_equal(tilewise.attention(*views), expected)
    backwards = [x[:, ::-1] for x in views]  # negative strides
    np.testing.assert_allclose(tilewise.attention(*backwards), expected[:, ::-1], atol=1e-6)
    one = np.broadcast_to(views[1][:1], views[1].shape)
    assert np.array_equal(
        tilewise.attention(views[0], one, views[2]), tilewise.attention(views[0], one.copy(), views[2])
    )


def test_out_of_any_stride(qkv: tuple) -> None:
    expected = tilewise.attention(*qkv)
    wide = np.full((2, 4, 33, 20), np.nan, np.float32)
    out = wide.transpose(0, 2, 1, 3)[..., :16]
    assert tilewise.attention(*qkv, out=out) is out
    assert np.array_equal(out, expected)
    assert np.isnan(wide[..., 16:]).all()


def test_gradients_into_one_packed_array(rng: np.random.Generator) -> None:
    case = tensors(rng, "float32", (2, 19, 19, 4, 4, 8, 8))
    q, k, v, dout = (case[name] for name in ("q", "k", "v", "dout"))
    out, lse = tilewise.attention_forward(q, k, v)
    packed = np.full((2, 19, 3, 4, 8), np.nan, np.float32)
    dq, dk, dv = (packed[:, :, i] for i in range(3))
    given = tilewise.attention_backward(dout, q, k, v, out, lse, dq=dq, dk=dk, dv=dv)
    assert given.dq is dq and given.dbias is None
    for gradient, made in zip(given[:3], tilewise.attention_backward(dout, q, k, v, out, lse)[:3]):
        assert np.array_equal(gradient, made)


def test_bytes_that_are_not_aligned(qkv: tuple) -> None:
    q, k, v = qkv
    raw = np.zeros(q.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(q.shape)
    with pytest.raises(ValueError, match="q: data is .* must be a multiple of 4 bytes"):
        tilewise.attention(raw, k, v)
    records = np.zeros((*q.shape[:-1],), np.dtype([("row", np.float32, 40), ("pad", np.uint8)]))
    with pytest.raises(ValueError, match="q: stride 2 is 161 bytes, must be a multiple of the element's 4"):
        tilewise.attention(records["row"], k, v)


def test_element_offset(qkv: tuple) -> None:
    q, k, v = qkv
    shifted = np.zeros(q.size + 1, np.float32)[1:].reshape(q.shape)
    shifted[:] = q
    assert np.array_equal(tilewise.attention(shifted, k, v), tilewise.attention(q, k, v))


def test_bfloat16_of_ml_dtypes_keeps_its_dtype(qkv: tuple) -> None:
    out = tilewise.attention(*(x.astype(ml_dtypes.bfloat16) for x in qkv))
    assert out.dtype == ml_dtypes.bfloat16
    assert np.abs(out.astype(np.float32) - tilewise.attention(*qkv)).max() < 0.05


@pytest.mark.parametrize("copy", [False, True])
def test_no_copy_of_q_k_v(copy: bool) -> None:
    """64 MB each of Q, K and V: the peak of memory grows by less than a tenth of one of them, unless one is copied."""
    script = f"COPY = {copy}\n" + textwrap.dedent("""
        import os
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:8])  # each thread has memory of its own
        import numpy as np, tilewise
        shape = (1, 1 << 17, 4, 32)
        q, k, v, out = (np.full(shape, 0.5, np.float32) for _ in range(4))
        lse = np.zeros((1, 4, 1 << 17), np.float32)
        window = dict(window_size=(16, 0))
        small = [np.ones((1, 64, 4, 32), np.float32)] * 3
        tilewise.attention(*small, **window)  # threads start
        peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
        before = peak()
        if COPY: q, k, v = q.copy(), k, v
        tilewise.attention_forward(q, k, v, out=out, lse=lse, **window)
        tilewise.attention_forward(q[:, ::2], k[:, ::2], v[:, ::2], out=out[:, ::2], lse=lse[..., ::2], **window)
        print((peak() - before) * 1024, q.nbytes)
        assert (out == 0.5).all()
    """)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    grown, one = map(int, result.stdout.split())
    assert (grown > 0.9 * one) if copy else (grown < one / 10), f"memory grew by {grown} bytes"
