"""Tilewise in JAX: attention with gradients, under jit and vmap, on the CPU and on CUDA.

    from tilewise.jax import dot_product_attention     # in place of jax.nn.dot_product_attention

Shapes and options are checked when a call is traced; the work is an FFI call, which XLA schedules with its own.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence, Union

import numpy as np

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise ImportError("tilewise.jax: JAX is not installed; try: pip install jax") from error

from tilewise import _core
from tilewise._options import DEFAULTS, Options, TensorOptions, spelled_out, truth
from tilewise._outputs import lse_dtype, lse_shape

if TYPE_CHECKING:
    from typing_extensions import Unpack

    Array = jax.Array

__all__ = ["attention", "attention_forward", "dot_product_attention"]

_TENSORS = tuple(TensorOptions.__annotations__)
_TRUTHS = ("causal", "deterministic", "batch_invariant")
_GRADIENTS = {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "sink": "dsink", "alibi_slopes": "dalibi_slopes"}
_SUMS = ("sink", "alibi_slopes")  # whose gradients have the dtype of the LSE


def _register() -> None:
    """Makes the handlers known to XLA."""
    path = Path(_core.__file__).with_name("libtilewise_jax.so")
    if not path.exists():
        raise ImportError(
            "tilewise.jax: this build of tilewise has no handlers for XLA, because jaxlib was not installed where it "
            "was built. Install JAX, then build tilewise again in a checkout of its sources, in the same environment: "
            "pip install jax && pip install --force-reinstall --no-deps ."
        )
    library = ctypes.CDLL(str(path))
    for operation in ("forward", "backward"):
        for platform, suffix in (("cpu", "cpu"), ("CUDA", "cuda")):
            handler = jax.ffi.pycapsule(getattr(library, f"tilewise_jax_{operation}_{suffix}"))
            jax.ffi.register_ffi_target(f"tilewise_{operation}", handler, platform=platform)


_register()


class _Static(NamedTuple):
    """The options that are no arrays: part of the traced program, and hashable."""

    names: tuple[str, ...]  # names of the arrays
    options: tuple[tuple[str, Any], ...]
    out_dtype: Any


def _attributes(static: _Static, inputs: Sequence[str], outputs: Sequence[str], rank_q: int) -> dict[str, Any]:
    """Returns the attributes of the handler, in the types that it reads."""
    options = {**DEFAULTS, **dict(static.options)}
    left, right = (-1 if side is None else int(side) for side in options["window_size"])
    scale, lengths = options["softmax_scale"], [options["max_seqlen_q"], options["max_seqlen_k"]]
    return {
        "inputs": " ".join(inputs),
        "outputs": " ".join(outputs),
        "rank_q": np.int64(rank_q),
        "causal": np.int64(bool(options["causal"])),
        "window_left": np.int64(left),
        "window_right": np.int64(right),
        "max_seqlen_q": np.int64(-1 if lengths[0] is None else lengths[0]),
        "max_seqlen_k": np.int64(-1 if lengths[1] is None else lengths[1]),
        "deterministic": np.int64(bool(options["deterministic"])),
        "batch_invariant": np.int64(bool(options["batch_invariant"])),
        "layout": np.int64(options["layout"] == "bhsd"),
        "alignment": np.int64(options["alignment"] == "top_left"),
        "softmax_scale": np.float64(np.inf if scale is None else scale),
        "softcap": np.float64(options["softcap"]),
        "dropout_p": np.float64(options["dropout_p"]),
        "dropout_seed": np.uint64(options["dropout_seed"]).view(np.int64),  # attributes are signed
        "dropout_offset": np.uint64(options["dropout_offset"]).view(np.int64),
    }


def _call(operation: str, static: _Static, inputs: dict[str, Any], outputs: dict[str, Any]) -> list[Any]:
    """The FFI call. outputs: {name: ShapeDtypeStruct}."""
    call = jax.ffi.ffi_call(f"tilewise_{operation}", list(outputs.values()), vmap_method="expand_dims")
    attributes = _attributes(static, tuple(inputs), tuple(outputs), inputs["q"].ndim)
    return list(call(*inputs.values(), **attributes))


def _like(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """One row that stands for an array: what a plan reads of it is shape and dtype."""
    row = np.empty(shape[-1:], dtype)
    return np.lib.stride_tricks.as_strided(row, shape, (0,) * (len(shape) - 1) + row.strides)


def _result_shapes(static: _Static, arrays: dict[str, Any]) -> dict[str, Any]:
    """Shapes of out and lse; raises what the library says of the arguments."""
    q, v = arrays["q"], arrays["v"]
    if q.ndim == 0 or v.ndim == 0:
        raise ValueError(f"{'q' if q.ndim == 0 else 'v'}: rank is 0, must be 4 (dense) or 3 (packed)")
    options = {name: value for name, value in static.options if value is not None}
    results = {
        "out": jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), static.out_dtype or q.dtype),
        "lse": jax.ShapeDtypeStruct(lse_shape(q, options.get("layout")), np.dtype(lse_dtype(q))),
    }
    rows = {name: _like(array.shape, array.dtype) for name, array in {**arrays, **results}.items()}
    tensors = tuple(rows.pop(name) for name in ("q", "k", "v", "out", "lse"))
    # flash2 is a kernel of the CPU that supports everything. The kernel that will run is chosen when it runs.
    _core.make_plan(_core.FORWARD, "tilewise.jax", tensors, {**options, **rows}, "flash2", None, None)
    return results


# ---- the function and its gradient --------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(static: _Static, arrays: tuple[Any, ...]) -> tuple[Any, Any]:
    named = dict(zip(static.names, arrays))
    out, lse = _call("forward", static, named, _result_shapes(static, named))
    return out, lse


def _attention_forward(static: _Static, arrays: tuple[Any, ...]) -> tuple[Any, Any]:
    values = tuple(array.value for array in arrays)
    wanted = tuple(name for name, array in zip(static.names, arrays) if array.perturbed)
    for name, value in zip(static.names, values):
        if name in wanted and name not in _GRADIENTS and jnp.issubdtype(value.dtype, jnp.floating):
            raise NotImplementedError(f"tilewise.jax: no gradient of {name}; wrap it in jax.lax.stop_gradient")
    out, lse = _attention(static, values)
    # Only arrays may be stored in residuals, so the names are stored as the structure of a dictionary.
    return (out, lse), (values, out, lse, {name: () for name in wanted})


def _attention_backward(static: _Static, residuals: Any, cotangents: Any) -> tuple[Any]:
    values, out, lse, wanted = residuals
    named = dict(zip(static.names, values))
    dout, dlse = cotangents
    zero = jax.custom_derivatives.SymbolicZero
    inputs = {**named, "out": out, "lse": lse}
    inputs["dout"] = jnp.zeros(out.shape, named["q"].dtype) if isinstance(dout, zero) else dout.astype(named["q"].dtype)
    if not isinstance(dlse, zero):
        inputs["dlse"] = dlse
    outputs = {
        _GRADIENTS[name]: jax.ShapeDtypeStruct(named[name].shape, lse.dtype if name in _SUMS else named[name].dtype)
        for name in static.names
        if name in wanted and name in _GRADIENTS
    }
    gradients = dict(zip(outputs, _call("backward", static, inputs, outputs))) if outputs else {}
    return (tuple(_cotangent(name, named[name], gradients) for name in static.names),)


def _cotangent(name: str, value: Any, gradients: dict[str, Any]) -> Any:
    if _GRADIENTS.get(name) in gradients:
        return gradients[_GRADIENTS[name]].astype(value.dtype)
    if jnp.issubdtype(value.dtype, jnp.floating):
        return jnp.zeros(value.shape, value.dtype)
    return np.zeros(value.shape, jax.dtypes.float0)


_attention.defvjp(_attention_forward, _attention_backward, symbolic_zeros=True)


# ---- public functions -----------------------------------------------------------------------------


def _prepared(q: Any, k: Any, v: Any, out_dtype: Any, options: Any) -> tuple[_Static, tuple[Any, ...]]:
    arrays = {"q": q, "k": k, "v": v}
    static: dict[str, Any] = {}
    for name, value in options.items():
        if name not in DEFAULTS:
            raise TypeError(f"tilewise.jax: unexpected keyword argument '{name}'")
        if value is None:
            continue
        if name == "page_table":
            raise NotImplementedError("page_table: tilewise.jax does not support paged caches")
        if name.endswith("_descale"):
            raise NotImplementedError(f"{name}: tilewise.jax does not support float8")
        if name in _TENSORS:
            arrays[name] = value
        elif isinstance(value, jax.core.Tracer):
            raise TypeError(f"{name}: is a traced value, must be known when a call is traced (jit's static_argnames)")
        elif name in ("window", "window_size"):
            if "window_size" in static:
                raise TypeError("tilewise.jax: got both 'window' and 'window_size', which are one option")
            static["window_size"] = tuple(value) if hasattr(value, "__iter__") else value
        elif name in _TRUTHS:
            static[name] = truth(name, value)
        else:
            static[name] = value
    if "mask" in arrays:
        arrays["mask"] = _as_mask(arrays["mask"])
    as_arrays = tuple(jnp.asarray(array) for array in arrays.values())
    dtype = None if out_dtype is None else np.dtype(out_dtype)
    return _Static(tuple(arrays), tuple(sorted(static.items())), dtype), as_arrays


def _as_mask(mask: Any) -> Any:
    """Bytes hide a key where they are 0, as in every binding."""
    mask = jnp.asarray(mask)
    return mask != 0 if mask.dtype == jnp.uint8 else mask


@spelled_out
def attention_forward(
    q: Array, k: Array, v: Array, *, out_dtype: Any = None, **options: Unpack[Options]
) -> tuple[Array, Array]:
    """(out, lse), as tilewise.attention_forward; both can be differentiated, by q, k, v, bias and sink.

    Works under jit, grad and vmap (each index of a mapped axis gives what it gives alone, dropout included). Options
    that are no arrays must be known when the call is traced. On the CPU and on CUDA, on XLA's stream.
    """
    static, arrays = _prepared(q, k, v, out_dtype, options)
    out, lse = _attention(static, arrays)
    return out, lse


@spelled_out
def attention(q: Array, k: Array, v: Array, *, out_dtype: Any = None, **options: Unpack[Options]) -> Array:
    """softmax(scores) v, as tilewise.attention: q (B, Sq, H, D), k (B, Sk, Hk, D), v (B, Sk, Hk, Dv)."""
    return attention_forward(q, k, v, out_dtype=out_dtype, **options)[0]


def _window(local_window_size: Union[None, int, tuple[int, int]]) -> Optional[tuple[int, int]]:
    """(left, right). JAX has no number for no bound, and a negative one would be it here."""
    if local_window_size is None:
        return None
    pair = tuple(local_window_size) if isinstance(local_window_size, (tuple, list)) else (local_window_size,) * 2
    if len(pair) != 2 or not all(isinstance(side, (int, np.integer)) and side >= 0 for side in pair):
        raise ValueError(
            f"local_window_size: is {local_window_size!r}, must be an integer from 0 on, or two: (left, right)"
        )
    return int(pair[0]), int(pair[1])


# What dot_product_attention calls the arguments of attention_forward.
_NAMES_OF_JAX = {
    "q": "query", "k": "key", "v": "value", "softmax_scale": "scale", "seqused_q": "query_seq_lengths",
    "seqused_k": "key_value_seq_lengths",
}  # fmt: skip


@contextlib.contextmanager
def _names_of_jax() -> Iterator[None]:
    """A message that begins with the name of an argument has the caller's name for it."""
    try:
        yield
    except (NotImplementedError, TypeError, ValueError) as error:
        name, colon, rest = str(error).partition(":")
        if name not in _NAMES_OF_JAX or type(error) not in (NotImplementedError, TypeError, ValueError):
            raise
        raise type(error)(_NAMES_OF_JAX[name] + colon + rest) from error


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Optional[Array] = None,
    mask: Optional[Array] = None,
    *,
    scale: Optional[float] = None,
    is_causal: bool = False,
    query_seq_lengths: Optional[Array] = None,
    key_value_seq_lengths: Optional[Array] = None,
    local_window_size: Union[None, int, tuple[int, int]] = None,
    implementation: Optional[str] = None,
    return_residual: bool = False,
) -> Any:
    """jax.nn.dot_product_attention: query (B, T, N, H) or (T, N, H), key and value (B, S, K, H) or (S, K, H).

    Causal and windows are top-left there. What differs: a row that sees no key gives 0, where JAX gives the mean of the
    values; a bias is added in its own type. `implementation` may be None or "tilewise".
    """
    if implementation not in (None, "tilewise"):
        raise ValueError(f"implementation: is {implementation!r}, must be None or 'tilewise'")
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    alone = query.ndim == 3
    if alone:
        query, key, value = query[None], key[None], value[None]
    if bias is not None:
        bias = jnp.asarray(bias)
        bias = bias if bias.dtype == query.dtype else bias.astype(jnp.float32)
    with _names_of_jax():
        out, lse = attention_forward(
            query, key, value, bias=bias, mask=mask, softmax_scale=scale, causal=truth("is_causal", is_causal),
            alignment="top_left", window_size=_window(local_window_size), seqused_q=query_seq_lengths,
            seqused_k=key_value_seq_lengths,
        )  # fmt: skip
    residual = jax.lax.stop_gradient(lse.swapaxes(1, 2)).astype(key.dtype)  # (B, T, N)
    if alone:
        out, residual = out[0], residual[0]
    return (out, residual) if truth("return_residual", return_residual) else out
