"""The options that every function takes by keyword; docs/semantics.md says what they mean."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Callable, Literal, Optional, Sequence, TypedDict, TypeVar

if TYPE_CHECKING:
    Array = Any  # anything with __array_struct__ (NumPy) or __dlpack__

Function = TypeVar("Function", bound=Callable[..., Any])


class TensorOptions(TypedDict, total=False):
    """The options that are arrays."""

    mask: Optional[Array]  # bool (or uint8, 0 or 1), broadcasts from the right to (B, H, Sq, Sk); True is visible
    bias: Optional[Array]  # q's dtype or float32, broadcasts to (B, H, Sq, Sk)
    alibi_slopes: Optional[Array]  # float32 (H) or (B, H)
    sink: Optional[Array]  # float32 (H)
    slices: Optional[Array]  # int64 (N, 5) or (N, 6): q0 q1 k0 k1 kind [head]
    cu_seqlens_q: Optional[Array]  # int32 or int64 (B+1): q is packed, (T, H, D)
    cu_seqlens_k: Optional[Array]  # int32 or int64 (B+1): k and v are packed
    seqused_q: Optional[Array]  # int32 or int64 (B): query rows in use
    seqused_k: Optional[Array]  # int32 or int64 (B): keys in use
    page_table: Optional[Array]  # int32 (B, pages): k and v are pages (N, page size, Hk, D); forward only
    phi: Optional[Array]  # float32 (1) or (H): the anchor of FlashDecoding++; changes no result; forward only
    q_descale: Optional[Array]  # float32 (1), (B, Hk) or (B, Hk, ceil(Sq / 128)): what q of float8 is multiplied by
    k_descale: Optional[Array]  # the same for k
    v_descale: Optional[Array]  # the same for v


class Options(TensorOptions, total=False):
    """All options. None means the default."""

    causal: Optional[bool]
    window_size: Optional[Sequence[Optional[int]]]  # (left, right), inclusive; -1 or None: no bound
    window: Optional[Sequence[Optional[int]]]  # another name of window_size
    softmax_scale: Optional[float]  # default: 1/sqrt(D)
    softcap: Optional[float]
    dropout_p: Optional[float]
    dropout_seed: Optional[int]
    dropout_offset: Optional[int]
    max_seqlen_q: Optional[int]
    max_seqlen_k: Optional[int]
    deterministic: Optional[bool]
    batch_invariant: Optional[bool]
    layout: Optional[Literal["bshd", "bhsd"]]  # of every dense array
    alignment: Optional[Literal["bottom_right", "top_left"]]  # of the diagonal


# The options of a call without options.
DEFAULTS: dict[str, Any] = {
    "causal": False,
    "window_size": (-1, -1),
    "softmax_scale": None,
    "softcap": 0.0,
    "mask": None,
    "bias": None,
    "alibi_slopes": None,
    "sink": None,
    "slices": None,
    "cu_seqlens_q": None,
    "cu_seqlens_k": None,
    "seqused_q": None,
    "seqused_k": None,
    "page_table": None,
    "phi": None,
    "q_descale": None,
    "k_descale": None,
    "v_descale": None,
    "max_seqlen_q": None,
    "max_seqlen_k": None,
    "dropout_p": 0.0,
    "dropout_seed": 0,
    "dropout_offset": 0,
    "deterministic": False,
    "batch_invariant": False,
    "layout": "bshd",
    "alignment": "bottom_right",
    "window": None,
}


def truth(name: str, value: Any) -> bool:
    """`value`, which must be True or False (1, 0 and scalars of a framework may be): Python calls "no" true."""
    if value is True or value is False:
        return value
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise TypeError(f"{name}: is {value!r}, must be True or False")


def with_parts(options: Options, accumulate: Any, parts: Optional[Array]) -> dict[str, Any]:
    """`options` and those of partial attention, which only the functions that fill given arrays take."""
    given: dict[str, Any] = {**options}
    if truth("accumulate", accumulate):
        given["accumulate"] = True
    if parts is not None:
        given["parts"] = parts
    return given


def demand_results(**arrays: Any) -> None:
    """Raises an error for the results that are not given: with `accumulate` they hold those of earlier calls."""
    missing = [name for name, array in arrays.items() if array is None]
    if missing:
        raise ValueError(f"accumulate: is True, but {', '.join(missing)} is not given, which holds the result so far")


def spelled_out(function: Function) -> Function:
    """Gives `function`, which ends in **options, a signature that lists them, for help() and inspect.

    A call hands over only the options that it names: what is not asked for costs no time.
    """
    signature = inspect.signature(function)
    fixed = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default) for name, default in DEFAULTS.items()
    ]
    function.__signature__ = signature.replace(parameters=fixed + options)  # type: ignore[attr-defined]
    return function
