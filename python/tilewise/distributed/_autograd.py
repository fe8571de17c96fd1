"""attention() for tensors of PyTorch, with gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from tilewise.distributed._attention import Call
from tilewise.distributed._join import Join

# The arguments that have a gradient, in the order of _Attention.forward.
_DIFFERENTIABLE = ("q", "k", "v", "bias", "sink", "alibi_slopes")
# Those that every rank holds.
_SHARED = ("sink", "alibi_slopes")


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The arguments that have a gradient, then the call and the dtype of the result."""
        *tensors, call, out_dtype = arguments
        q, k, v = (x.detach() if isinstance(x, torch.Tensor) else x for x in tensors[:3])
        out, lse = call.forward(q, k, v, out_dtype=out_dtype)
        ctx.save_for_backward(*tensors, out, lse)
        ctx.call = call
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Any, dlse: Any) -> tuple[Any, ...]:
        """Returns the gradients in the order of forward's arguments."""
        saved: list[Any] = [x if x is None else x.detach() for x in ctx.saved_tensors]
        *tensors, out, lse = saved
        q, k, v = tensors[:3]
        dout = torch.zeros_like(out, dtype=q.dtype) if dout is None else _with_rows(dout.to(q.dtype))
        want = [f"d{name}" for name, needed in zip(_DIFFERENTIABLE, ctx.needs_input_grad) if needed]
        call = ctx.call
        found = call.backward(dout, q, k, v, out, lse, dlse, want)._asdict()
        # The gradient of the whole is the sum of what the ranks return, as with a model's other weights.
        for name in _SHARED:
            if found[f"d{name}"] is not None:
                found[f"d{name}"] /= call.group.size
        gradients = [found[f"d{name}"] for name in _DIFFERENTIABLE]
        typed = (x if x is None else x.to(tensor.dtype) for x, tensor in zip(gradients, tensors))
        return (*typed, None, None)


def attention(q: Any, k: Any, v: Any, call: Call, out_dtype: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of a call, whose options may be changed: PyTorch's threads, its dropout and its autocast."""
    options = call.options
    if call.threads is None:
        call.threads = torch.get_num_threads()
    if options.get("dropout_p") and options.get("dropout_seed") is None:
        drawn = int(torch.randint(0, 2**62, ()))  # on all ranks, whose generators stay in step
        options["dropout_seed"] = call.group.gather([drawn], call.timeout, "the seed of dropout")[0][0]
    kind = q.device.type
    if torch.is_autocast_enabled(kind):
        q, k, v = (x if x.dtype == torch.float64 else x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
    tensors = [_with_rows(x) if isinstance(x, torch.Tensor) else x for x in (q, k, v)]
    tensors += [options.get(name) for name in _DIFFERENTIABLE[3:]]
    for name, value in options.items():
        if isinstance(value, torch.Tensor):
            options[name] = value.detach()
    return _Attention.apply(*tensors, call, out_dtype)


def _with_rows(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy whose rows are contiguous."""
    return x if x.dim() == 0 or x.shape[-1] <= 1 or x.stride(-1) == 1 else x.contiguous()


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, join: Join, sum_gradients: bool, x: torch.Tensor) -> torch.Tensor:
        ctx.gradient = join.summed if sum_gradients else join.own
        return join.whole(x.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return None, None, ctx.gradient(gradient)


def joined(join: Join, x: torch.Tensor, sum_gradients: bool) -> torch.Tensor:
    """The whole of which each rank holds the tokens x."""
    return _Joined.apply(join, sum_gradients, x)
