"""The one-call functions. Arrays in, arrays out; the library does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence

import numpy as np

from tilewise import _core
from tilewise._options import Options, demand_results, spelled_out, with_parts
from tilewise._outputs import empty, finished, lse_dtype, lse_shape, out_dtype_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    Array = Any


class Gradients(NamedTuple):
    """The results of attention_backward; None where one was not requested."""

    dq: Optional[Array]  # like q
    dk: Optional[Array]  # like k
    dv: Optional[Array]  # like v
    dbias: Optional[Array]  # like bias
    dsink: Optional[Array]  # (H)
    dalibi_slopes: Optional[Array] = None  # like alibi_slopes


def empty_out(q: Any, v: Any, dtype: Any) -> Any:
    """Memory for O: like q, with v's head dimension."""
    try:
        shape = (*q.shape[:-1], v.shape[-1])
        dtype = dtype or out_dtype_of(q)
    except (AttributeError, IndexError, TypeError):
        _refuse(q=q, v=v)
        raise
    return np.empty(shape, dtype) if type(q) is np.ndarray else empty(q, shape, dtype)


def _refuse(**arrays: Any) -> None:
    """Raises an error that names the one that is no array, or has no dimensions."""
    for name, array in arrays.items():
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise TypeError(
                f"{name}: is a {type(array).__name__}, must be an array: NumPy's or any other with __dlpack__"
            ) from None
        if len(array.shape) == 0:
            raise ValueError(f"{name}: rank is 0, must be 1 to 4") from None


@spelled_out
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    out: Optional[Array] = None,
    out_dtype: Any = None,
    stream: Any = None,
    threads: Optional[int] = None,
    **options: Unpack[Options],
) -> Array:
    """softmax(scores) v, exactly, in memory that does not grow with Sq * Sk.

    q (B, Sq, H, D), k (B, Sk, Hk, D), v (B, Sk, Hk, Dv), H a multiple of Hk; packed (T, H, D) with cu_seqlens_q,
    cu_seqlens_k; with page_table k and v are pages, (N, page size, Hk, D) and (N, page size, Hk, Dv). float64, float32,
    bfloat16 or float16; any strides but the innermost, which is 1; never copied. k and v may both be float8_e4m3fn
    or both float8_e5m2, with scales in k_descale and v_descale; q has their dtype or is no float8.

    out: where the result (B, Sq, H, Dv) goes; without it a new array of q's framework, in q's dtype (bfloat16 for
    float8) or `out_dtype` (float32 for 16-bit inputs). The call returns it.
    stream: for CUDA arrays, the stream to work on (its number, or an object of PyTorch or CuPy); the default if None.
    threads: how many; all that the process may use if None. The number changes no bit of the result.
    options: tilewise.Options. The GIL is free while the library computes.

    Raises ValueError and TypeError with one line that names the argument, NotImplementedError for what no kernel of
    this build does, MemoryError.
    """
    result = empty_out(q, v, out_dtype) if out is None else out
    _core.run(_core.FORWARD, "attention", (q, k, v, result, None), options, stream, threads)
    return result if out is not None or type(q) is np.ndarray else finished(q, result)


@spelled_out
def attention_forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    out: Optional[Array] = None,
    lse: Optional[Array] = None,
    out_dtype: Any = None,
    accumulate: bool = False,
    parts: Optional[Array] = None,
    stream: Any = None,
    threads: Optional[int] = None,
    **options: Unpack[Options],
) -> tuple[Array, Array]:
    """attention() and the logarithm of each row's sum: (out, lse), what attention_backward needs.

    lse: (B, H, Sq), packed (H, T); float32, float64 for float64 inputs; natural logarithm, -inf for a row without keys.

    accumulate: merges the keys of this call into the result that `out` and `lse` hold, both given and float32 (float64
    for float64 inputs). Rows with lse -inf are empty. parts: int64 (B, 4), the number, row, key and d of the whole
    sequence that each sequence is a part of (docs/semantics.md, "Parts").
    """
    if accumulate:
        demand_results(out=out, lse=lse)
    result = empty_out(q, v, out_dtype) if out is None else out
    sums = empty(q, lse_shape(q, options.get("layout")), lse_dtype(q)) if lse is None else lse
    given = with_parts(options, accumulate, parts)
    _core.run(_core.FORWARD, "attention_forward", (q, k, v, result, sums), given, stream, threads)
    return (finished(q, result) if out is None else result), (finished(q, sums) if lse is None else sums)


def gradient_arrays(
    q: Any, k: Any, v: Any, options: Options, want: Optional[Sequence[str]], dtype: Any, accumulate: bool = False
) -> dict[str, Optional[Any]]:
    """Allocates the requested gradients, or all of them but that of the slopes if `want` is None.

    accumulate: those without a dtype of their own have one that calls may add to.
    """
    like = {"dq": q, "dk": k, "dv": v, "dbias": options.get("bias"), "dsink": options.get("sink")}
    wanted = [name for name, array in like.items() if array is not None] if want is None else want
    like["dalibi_slopes"] = options.get("alibi_slopes")
    _refuse(q=q, k=k, v=v)
    made: dict[str, Optional[Any]] = dict.fromkeys(like)
    for name in wanted:
        if name not in like:
            raise ValueError(f"want: holds {name!r}, must be some of {', '.join(like)}")
        if like[name] is None:
            raise ValueError(f"want: holds {name!r}, but there is no {name[1:]}")
        own = None if name in ("dbias", "dsink", "dalibi_slopes") else dtype
        wide = name in ("dsink", "dalibi_slopes") or (accumulate and not own)
        made[name] = empty(q, like[name].shape, lse_dtype(q) if wide else own or like[name].dtype)
    return made


@spelled_out
def attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    dlse: Optional[Array] = None,
    dq: Optional[Array] = None,
    dk: Optional[Array] = None,
    dv: Optional[Array] = None,
    dbias: Optional[Array] = None,
    dsink: Optional[Array] = None,
    dalibi_slopes: Optional[Array] = None,
    want: Optional[Sequence[str]] = None,
    grad_dtype: Any = None,
    accumulate: bool = False,
    parts: Optional[Array] = None,
    stream: Any = None,
    threads: Optional[int] = None,
    **options: Unpack[Options],
) -> Gradients:
    """The gradients of attention_forward, whose out and lse it reads; the options must be the same.

    dout like out, in q's dtype; dlse like lse. dq, dk, dv, dbias, dsink, dalibi_slopes: where gradients go. If none of
    them is given, new arrays are made for those that `want` names, in the inputs' dtypes or, dq, dk and dv, in
    `grad_dtype` (float32 for 16-bit inputs). None stands for all but dalibi_slopes; dbias and dsink if there is a bias
    and a sink.

    accumulate: adds to the given gradients, float32 (float64 for float64 inputs); out and lse are those of all parts.
    parts: as in attention_forward.
    """
    given = {"dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsink": dsink, "dalibi_slopes": dalibi_slopes}
    if all(array is None for array in given.values()):
        if accumulate:
            demand_results(**{"any gradient": None})
        results = gradient_arrays(q, k, v, options, want, grad_dtype)
    elif want is not None:
        raise TypeError("attention_backward() got 'want' and arrays for gradients, must be one of the two")
    else:
        results = given
    tensors = (dout, q, k, v, out, lse, dlse, *results.values())
    _core.run(_core.BACKWARD, "attention_backward", tensors, with_parts(options, accumulate, parts), stream, threads)
    if results is given:
        return Gradients(**given)
    return Gradients(**{name: finished(q, array) for name, array in results.items()})
