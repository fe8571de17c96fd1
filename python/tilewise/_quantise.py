"""Rows stored in float8 with scales, and incoherent processing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from tilewise import _core
from tilewise._outputs import empty, finished

if TYPE_CHECKING:
    Array = Any

_SCALES = {"tensor": 1, "head": 2, "block": 3}
_WIDE = ("float32", "bfloat16", "float16")


class Quantised(NamedTuple):
    """The result of quantise()."""

    values: Array  # shape of the input
    descale: Optional[Array]  # float32: what the values are multiplied by; None for a dtype that is no float8


def _is_numpy(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] in ("numpy", "jax", "jaxlib")


def _dtype(like: Any, dtype: Any) -> Any:
    """What empty() takes: NumPy knows the names of float8 and bfloat16 only from ml_dtypes."""
    if not (isinstance(dtype, str) and _is_numpy(like)) or dtype in ("float32", "float16"):
        return dtype
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, dtype))


def _scales_shape(
    array: Any, scales: str, kv_heads: int | None, layout: str | None, cu_seqlens: Any
) -> tuple[int, ...]:
    """(1), (B, Hk) or (B, Hk, blocks), as the library demands it."""
    if scales not in _SCALES:
        raise ValueError(f"scales: is {scales!r}, must be 'tensor', 'head' or 'block'")
    shape = array.shape
    if len(shape) not in (3, 4):
        raise ValueError(f"input: rank is {len(shape)}, must be 4: (B, S, H, D), or 3: (T, H, D)")
    if len(shape) == 3:
        batch, rows, heads = 1, shape[0], shape[1]
    else:
        batch, rows, heads = (shape[0], *shape[2:0:-1]) if layout == "bhsd" else shape[:3]
    if cu_seqlens is not None:
        batch = cu_seqlens.shape[0] - 1
    rank = _SCALES[scales]
    return (1,) if rank == 1 else (batch, heads if kv_heads is None else kv_heads, -(-rows // 128))[:rank]


def quantise(
    input: Array,  # noqa: A002 (the name that the messages of the library have)
    dtype: Any = "float8_e4m3fn",
    *,
    scales: str = "block",
    descale: Optional[Array] = None,
    out: Optional[Array] = None,
    kv_heads: Optional[int] = None,
    incoherent: Optional[int] = None,
    cu_seqlens: Optional[Array] = None,
    saturated: Optional[Array] = None,
    layout: Optional[str] = None,
    threads: Optional[int] = None,
) -> Quantised:
    """Stores rows in float8, rounded to nearest even, with the scales that k_descale and the others take.

    input: (B, S, H, D), or (B, H, S, D) with layout "bhsd", or packed (T, H, D); float32, bfloat16 or float16, on the
    CPU, or on a CUDA device from 9.0 on, on its default stream; any strides but the innermost, which is 1.
    dtype: "float8_e4m3fn" or "float8_e5m2", or the framework's own dtype of that name.

    scales: what shares one: "tensor" (1), "head" (B, Hk), a sequence and a head, or "block" (B, Hk, ceil(S / 128)), 128
    rows of these. kv_heads: Hk, which divides H; q needs that of k. A packed input with "head" takes cu_seqlens, int32
    or int64 (B+1); with "block" its scales are (1, Hk, ceil(T / 128)).
    descale: fixed scales of one of these shapes, from 2^-126 to 2^126, in place of those that are computed.

    incoherent: a seed: every row is first multiplied by one random orthogonal matrix (random signs and a Hadamard
    transform), which spreads outliers and leaves q k^T as it is, if q and k have the same seed. Then dtype may also be
    "float32", "bfloat16" or "float16": the rotated rows are stored without scales, as a q on a rotated float8 cache
    needs them.
    out: where the result goes. saturated: int64 (1), to which the number of elements beyond the largest is added.

    Returns (values, descale). docs/semantics.md, "Quantisation", defines every bit. Raises ValueError and TypeError with
    one line that names the argument; nothing is written then.
    """
    if not hasattr(input, "shape") or not hasattr(input, "dtype"):
        raise TypeError(f"input: is a {type(input).__name__}, must be an array: NumPy's or any other with __dlpack__")
    fixed = descale is not None
    name = str(dtype if out is None else out.dtype)
    shape = _scales_shape(input, scales, kv_heads, layout, cu_seqlens)
    stored = empty(input, input.shape, _dtype(input, dtype)) if out is None else out
    if not fixed and not name.endswith(_WIDE):
        descale = empty(input, shape, "float32")
    _core.quantise((input, stored, descale, cu_seqlens, saturated), layout, fixed, incoherent, threads)
    values = finished(input, stored) if out is None else out
    return Quantised(values, descale if fixed else finished(input, descale))
