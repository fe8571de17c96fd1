"""The shapes, strides and dtypes of what the operators return, for tracing and torch.compile."""

from functools import partial
from typing import Any

import torch

from tilewise.torch._schema import BACKWARD, BACKWARD_SLOPES, FLOAT8, FORWARD, by_name


def _like(like: torch.Tensor, last: Any, dtype: torch.dtype) -> torch.Tensor:
    """The rule of tensor.h: like's dimensions in like's order of memory, `last` columns innermost, no gaps."""
    leading = like.dim() - 1
    shape = [*like.shape[:leading], last]
    strides: list[Any] = [1] * (leading + 1)
    outermost_first = sorted(range(leading), key=like.stride, reverse=True)
    stride = torch.sym_max(last, 1)
    for dimension in reversed(outermost_first):
        strides[dimension] = stride
        stride = stride * torch.sym_max(shape[dimension], 1)
    return like.new_empty_strided(shape, strides, dtype=dtype)


def _lse_dtype(q: torch.Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _forward(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    call = by_name(FORWARD, args, kwargs)
    q, v = call["q"], call["v"]
    torch._check(q.dim() in (3, 4), lambda: f"q: has {q.dim()} dimensions, must have 4, or 3 for a packed batch")
    torch._check(
        q.device == call["k"].device == v.device,
        lambda: f"k, v: are on {call['k'].device} and {v.device}, must be on q's {q.device}",
    )
    own = torch.bfloat16 if q.dtype in FLOAT8 else q.dtype
    out = _like(q, v.shape[-1], _lse_dtype(q) if call["out_fp32"] else own)
    lse_shape: tuple[Any, ...]
    if q.dim() == 3:
        lse_shape = (q.shape[1], q.shape[0])
    elif call["bhsd"]:
        lse_shape = (q.shape[0], q.shape[1], q.shape[2])
    else:
        lse_shape = (q.shape[0], q.shape[2], q.shape[1])
    return out, q.new_empty(lse_shape, dtype=_lse_dtype(q))


# The results in their order, each with the bit of `gradients` that requests it. Only BACKWARD_SLOPES has the last one.
GRADIENTS = {"q": 1, "k": 2, "v": 4, "bias": 8, "sink": 16, "alibi_slopes": 32}


def _backward(operator: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    call = by_name(operator, args, kwargs)
    q = call["q"]
    sums = _lse_dtype(q)
    dtypes = {"bias": (q if call["bias"] is None else call["bias"]).dtype, "sink": sums, "alibi_slopes": sums}
    results = []
    for name, _ in zip(GRADIENTS, operator._schema.returns, strict=False):
        like, dtype = call[name], dtypes.get(name, q.dtype)
        wanted = call["gradients"] & GRADIENTS[name]
        results.append(_like(like, like.shape[-1], dtype) if wanted else q.new_empty((0,), dtype=dtype))
    return tuple(results)


def register() -> None:
    """Tells PyTorch. Once per process."""
    torch.library.register_fake("tilewise::attention_forward", _forward)
    torch.library.register_fake("tilewise::attention_backward", partial(_backward, BACKWARD))
    torch.library.register_fake("tilewise::attention_backward_slopes", partial(_backward, BACKWARD_SLOPES))
