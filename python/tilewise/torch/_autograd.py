"""The operators' gradients, their behaviour under autocast, and what they refuse."""

from functools import partial
from typing import Any

import torch

from tilewise.torch import _vmap
from tilewise.torch._meta import GRADIENTS
from tilewise.torch._schema import (
    BACKWARD, BACKWARD_SLOPES, FLOAT8, FORWARD, FORWARD_NAMES, LAST_SHARED, PAGE_TABLE, SEQUSED_Q, TENSORS, without_defaults,
)  # fmt: skip

# The positions of forward's arguments that have a gradient.
_DIFFERENTIABLE = {name: FORWARD_NAMES.index(name) for name in GRADIENTS}


# ---- the formula ----------------------------------------------------------------------------------------------------


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    """inputs: of forward, by position; those that are left out at the end have their defaults."""
    if len(inputs) > PAGE_TABLE and inputs[PAGE_TABLE] is not None:
        tensors = (inputs[position] for position in _DIFFERENTIABLE.values())
        if any(tensor is not None and tensor.requires_grad for tensor in tensors):
            raise NotImplementedError("tilewise: page_table: a paged cache has no gradients; detach() q, k and v")
    for name in ("q", "k", "v"):
        dtype = inputs[_DIFFERENTIABLE[name]].dtype
        if dtype in FLOAT8 and any(
            inputs[position] is not None and inputs[position].requires_grad for position in _DIFFERENTIABLE.values()
        ):
            raise NotImplementedError(f"tilewise: {name}: dtype is {dtype}, which has no gradients; detach() q, k and v")
    seqused_q = inputs[SEQUSED_Q] if len(inputs) > SEQUSED_Q else None
    ctx.save_for_backward(*inputs[:TENSORS], seqused_q, *output)
    ctx.options = inputs[TENSORS:LAST_SHARED]
    ctx.set_materialize_grads(False)


def _gradients(
    ctx: Any, wanted: list[str], dout: torch.Tensor | None, dlse: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Returns the gradients of the arguments that `wanted` names; none if neither result was used."""
    if dout is None and dlse is None:
        return {}
    *tensors, seqused_q, out, lse = ctx.saved_tensors
    q, k, v = tensors[:3]
    if dout is None:
        dout = torch.zeros_like(out)
    shared = (*tensors[3:], *ctx.options)
    bits = sum([GRADIENTS[name] for name in wanted])
    given = (dout.to(q.dtype), dlse, q, k, v, out, lse)
    operator = BACKWARD_SLOPES if "alibi_slopes" in wanted else BACKWARD
    results = _call(operator, *given, *shared, gradients=bits, seqused_q=seqused_q)
    by_name = dict(zip(GRADIENTS, results, strict=False))
    return {name: by_name[name].to(tensors[_DIFFERENTIABLE[name]].dtype) for name in wanted}


def _call(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the operator; where no gradient can be requested, without PyTorch's autograd layer, which takes 4 us."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return operator(*args, **kwargs)
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*args, **kwargs)


# ---- eager calls ----------------------------------------------------------------------------------------------------


class _Attention(torch.autograd.Function):
    """forward with its formula. The one that PyTorch makes of register_autograd asks for every argument by itself, and
    fills in defaults: 38 us more a call."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The arguments that have a gradient, in the order of GRADIENTS, and a tuple of all of them."""
        everything = arguments[-1]
        with torch._C._AutoDispatchBelowAutograd():
            output = FORWARD(*without_defaults(everything))
        _setup_context(ctx, everything, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradients in the order of forward's arguments."""
        wanted = [name for name, is_needed in zip(GRADIENTS, ctx.needs_input_grad, strict=False) if is_needed]
        found = _gradients(ctx, wanted, *gradients)
        return (*(found.get(name) for name in GRADIENTS), None)


def forward(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The operator, by the shortest way to its result and its gradient."""
    if torch.compiler.is_compiling():
        return FORWARD(*args)
    transform = torch._C._functorch.peek_interpreter_stack()
    if transform is not None or torch.autograd.forward_ad._current_level >= 0:
        _refuse_derivative(transform, args)
    if not torch.is_grad_enabled():
        with torch._C._AutoDispatchBelowAutograd():  # as in _call
            return FORWARD(*without_defaults(args))
    if transform is not None or torch._C._is_any_autocast_enabled():
        return FORWARD(*args)  # the dispatch keys that these change come before autograd
    return _Attention.apply(*(args[position] for position in _DIFFERENTIABLE.values()), args)


def _refuse_derivative(transform: Any, args: tuple[Any, ...]) -> None:
    """Refuses what PyTorch would leave out of its result silently, or with a message about its own classes."""
    if transform is not None and transform.key() == torch._C._functorch.TransformType.Grad:
        raise NotImplementedError("tilewise: torch.func.grad cannot pass attention; torch.autograd.grad can")
    has_tangent = (
        torch.autograd.forward_ad.unpack_dual(args[position]).tangent is not None
        for position in _DIFFERENTIABLE.values()
        if args[position] is not None
    )
    if torch.autograd.forward_ad._current_level >= 0 and any(has_tangent):
        raise NotImplementedError("tilewise: attention has no forward-mode derivative (jvp); backward it has")


# ---- the operators, for graphs and for direct calls ---------------------------------------------------------------


def _backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    wanted = [name for name, position in _DIFFERENTIABLE.items() if ctx.needs_input_grad[position]]
    found = _gradients(ctx, wanted, dout, dlse)
    names = {position: name for name, position in _DIFFERENTIABLE.items()}
    return tuple(found.get(names.get(position, "")) for position in range(len(FORWARD_NAMES)))


def _refuse_double_backward(ctx: Any, *gradients: torch.Tensor | None) -> None:
    raise NotImplementedError(
        "tilewise: attention cannot be differentiated twice; use create_graph=False, or PyTorch's math back end "
        "(torch.nn.attention.sdpa_kernel) where a gradient of a gradient is needed"
    )


def _keep_nothing(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    pass


_AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def _autocast(device: str) -> Any:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _AUTOCAST_KEYS[device]))

    def forward(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.get_autocast_dtype(device)
        args = tuple(_lower(value, dtype) if i < 3 else value for i, value in enumerate(args))
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return FORWARD(*args, **kwargs)

    return forward


def _lower(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Autocast lowers single precision to `dtype`; fp64 stays what it is, as everywhere in PyTorch, and so does fp8."""
    return tensor if tensor.dtype in (torch.float64, *FLOAT8) else tensor.to(dtype)


_LIBRARY = torch.library.Library("tilewise", "IMPL")


def register() -> None:
    """Tells PyTorch. Once per process."""
    torch.library.register_autograd("tilewise::attention_forward", _backward, setup_context=_setup_context)
    for name in ("tilewise::attention_backward", "tilewise::attention_backward_slopes"):
        torch.library.register_autograd(name, _refuse_double_backward, setup_context=_keep_nothing)
    for operator in (FORWARD, BACKWARD, BACKWARD_SLOPES):
        torch.library.register_vmap(operator, partial(_vmap.run, operator))
    for device, key in _AUTOCAST_KEYS.items():
        _LIBRARY.impl("attention_forward", _autocast(device), key)
