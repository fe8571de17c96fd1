"""The corners of DLPack that no framework shows without a GPU: made by hand, in a NumPy array's capsule."""

import ctypes
from typing import Any

import numpy as np
import pytest
from cases import tensors

import tilewise

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Doctored:
    """An array whose DLTensor has some fields changed; keeps the arguments that it was asked with."""

    def __init__(self, array: np.ndarray, **fields: Any) -> None:
        self.array, self.fields, self.asked = array, fields, []
        self.dtype, self.shape = array.dtype, array.shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.fields.get("device_type", 1), self.fields.get("device_id", 0)

    def __dlpack__(self, **arguments: Any) -> Any:
        self.asked.append(arguments)
        if "max_version" in arguments:
            raise TypeError("a producer from before version 1")
        capsule = self.array.__dlpack__()
        tensor = Tensor.from_address(_pointer(capsule, b"dltensor"))
        for name, value in self.fields.items():
            setattr(tensor, name, value(tensor) if callable(value) else value)
        return capsule


@pytest.fixture
def qkv(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    case = tensors(rng, "float32")
    return case["q"], case["k"], case["v"]


def run(qkv: tuple, **fields: Any) -> np.ndarray:
    """Attention with all three inputs doctored alike."""
    out = np.empty((2, 33, 4, 16), np.float32)
    tilewise.attention(*(Doctored(x, **fields) for x in qkv), out=out)
    return out


def test_byte_offset(qkv: tuple) -> None:
    moved = run(qkv, data=lambda tensor: tensor.data - 96, byte_offset=96)
    assert np.array_equal(moved, tilewise.attention(*qkv))


def test_no_strides_is_row_major(qkv: tuple) -> None:
    assert np.array_equal(run(qkv, strides=None), tilewise.attention(*qkv))


def test_no_data_of_an_empty_array(qkv: tuple) -> None:
    q, k, v = qkv
    empty = [Doctored(x[:, :0], data=None) for x in (k, v)]
    out, lse = tilewise.attention_forward(q, *empty, out=np.full((2, 33, 4, 16), np.nan, np.float32))
    assert (out == 0).all() and np.isneginf(lse).all()


def test_vectors_as_elements_are_refused(qkv: tuple) -> None:
    with pytest.raises(TypeError, match="q: dtype is float32, must be"):
        run(qkv, lanes=2)


def test_memory_of_the_host_that_cuda_knows_is_the_cpu_s(qkv: tuple) -> None:
    assert np.array_equal(run(qkv, device_type=3), tilewise.attention(*qkv))


def test_other_devices_are_refused(qkv: tuple) -> None:
    with pytest.raises(ValueError, match="q: lies on a device of DLPack's type 8, must be the CPU or CUDA"):
        run(qkv, device_type=8)


def test_devices_do_not_mix(qkv: tuple) -> None:
    q, k, v = qkv
    with pytest.raises(ValueError, match=r"k: .*cuda:0"):
        tilewise.attention(q, Doctored(k, device_type=2), v)
    with pytest.raises(ValueError, match="cuda:1"):
        spread = [Doctored(x, device_type=2, device_id=i) for i, x in enumerate(qkv)]
        tilewise.attention(*spread, out=np.empty(3, np.float32))


class StreamOfTorch:
    cuda_stream = 77


class StreamOfCupy:
    ptr = 78


class StreamOfTheProtocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 79


@pytest.mark.parametrize(
    "stream, number",
    [(None, 1), (0, 1), (5, 5), (StreamOfTorch(), 77), (StreamOfCupy(), 78), (StreamOfTheProtocol(), 79)],
)
def test_a_producer_on_cuda_is_told_the_stream(qkv: tuple, stream: Any, number: int) -> None:
    q = Doctored(qkv[0], device_type=2)
    with pytest.raises(ValueError):  # k lies on the CPU
        tilewise.attention(q, *qkv[1:], out=np.empty((2, 33, 4, 16), np.float32), stream=stream)
    assert q.asked == [{"max_version": (1, 1), "stream": number}, {"stream": number}]


def test_a_producer_on_the_cpu_is_not(qkv: tuple) -> None:
    q = Doctored(qkv[0])
    tilewise.attention(q, *qkv[1:], out=np.empty((2, 33, 4, 16), np.float32), stream=None)
    assert q.asked == [{"max_version": (1, 1)}, {}]


def test_what_is_no_capsule(qkv: tuple) -> None:
    q = Doctored(qkv[0])
    q.__class__ = type("Liar", (Doctored,), {"__dlpack__": lambda self, **arguments: 3})
    with pytest.raises(TypeError, match="q: __dlpack__ gives a capsule that is not DLPack's"):
        tilewise.attention(q, *qkv[1:], out=np.empty((2, 33, 4, 16), np.float32))


def test_producers_that_fail(qkv: tuple) -> None:
    out = np.empty((2, 33, 4, 16), np.float32)
    for device in ("cpu", 3, ("cpu", 0)):
        q = Doctored(qkv[0])
        q.__class__ = type("Liar", (Doctored,), {"__dlpack_device__": lambda self, device=device: device})
        with pytest.raises(TypeError, match="q: __dlpack_device__ gives no pair of numbers"):
            tilewise.attention(q, *qkv[1:], out=out)
    q = Doctored(qkv[0], no_such_field=lambda tensor: 1 // 0)
    with pytest.raises(ValueError, match="q: its memory cannot be shared: integer division"):
        tilewise.attention(q, *qkv[1:], out=out)


def test_memory_that_is_not_cuda_s(qkv: tuple) -> None:
    """Without kernels or a device nothing can run; with one, the addresses are not the device's."""
    kind = ValueError if "cuda:0" in tilewise.info() else NotImplementedError
    out = Doctored(np.empty((2, 33, 4, 16), np.float32), device_type=2)
    with pytest.raises(kind, match="cuda"):
        tilewise.attention(*(Doctored(x, device_type=2) for x in qkv), out=out)
