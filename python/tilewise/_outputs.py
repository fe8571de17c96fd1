"""Arrays for results, made by the framework that the inputs come from. Allocates; computes nothing."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np


def _kind(like: Any) -> str:
    return type(like).__module__.partition(".")[0]


def _named(xp: Any, dtype: Any) -> Any:
    """A dtype of the namespace `xp`, by name if it is one."""
    return getattr(xp, dtype) if isinstance(dtype, str) else dtype


def empty(like: Any, shape: Sequence[int], dtype: Any) -> Any:
    """An array of `shape` whose content is garbage, of the framework and on the device of `like`.

    dtype: the framework's, or a name: "float32".
    """
    kind = _kind(like)
    if kind == "numpy":
        return np.empty(shape, dtype)
    if kind == "torch":
        import torch

        return torch.empty(shape, dtype=_named(torch, dtype), device=like.device)
    if kind == "cupy":
        import cupy

        with like.device:
            return cupy.empty(shape, dtype=dtype)
    if kind in ("jax", "jaxlib"):
        return _for_jax(like, shape, dtype)
    if hasattr(like, "__array_namespace__"):
        xp = like.__array_namespace__()
        return xp.empty(shape, dtype=_named(xp, dtype), device=like.device)
    if hasattr(like, "__dlpack__"):
        raise TypeError(
            f"q: nobody knows how to make an array like a {type(like).__name__}; give the results with out="
        )
    raise TypeError(f"q: is a {type(like).__name__}, must be an array: NumPy's or any other with __dlpack__")


def _for_jax(like: Any, shape: Sequence[int], dtype: Any) -> Any:
    """JAX's arrays cannot be written to: memory of NumPy's, which finished() hands over."""
    import jax

    if isinstance(like, jax.core.Tracer):
        raise TypeError(
            "q: is a traced value of JAX, which has no memory yet; inside jit, grad and vmap use tilewise.jax"
        )
    if any(device.platform != "cpu" for device in like.devices()):
        raise TypeError("q: is an array of JAX on an accelerator, whose results only tilewise.jax can make")
    return np.empty(shape, dtype)


def finished(like: Any, result: Any) -> Any:
    """`result`, made by empty(), as an array of the framework of `like`."""
    if result is None or _kind(like) not in ("jax", "jaxlib"):
        return result
    import jax

    return jax.numpy.asarray(result)


def out_dtype_of(q: Any) -> Any:
    """The dtype of O: that of q, or bfloat16 for float8."""
    return "bfloat16" if getattr(q.dtype, "itemsize", 2) == 1 and "float8" in str(q.dtype) else q.dtype


def lse_dtype(q: Any) -> str:
    """float32, or float64 for inputs of float64."""
    if type(q) is np.ndarray:  # str() of a NumPy dtype takes 8 us
        return "float64" if q.dtype == np.float64 else "float32"
    return "float64" if str(q.dtype).endswith("float64") else "float32"


def lse_shape(q: Any, layout: str | None) -> tuple[int, ...]:
    """(B, H, Sq), or (H, T) for packed queries."""
    shape = q.shape
    if len(shape) == 3:
        return (shape[1], shape[0])
    if len(shape) != 4:
        raise ValueError(f"q: rank is {len(shape)}, must be 4: (B, S, H, D), or 3 if packed: (T, H, D)")
    return (shape[0], shape[1], shape[2]) if layout == "bhsd" else (shape[0], shape[2], shape[1])
