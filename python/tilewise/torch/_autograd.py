"""The operators' gradients, their behaviour under autocast, and what they refuse."""

from typing import Any

import torch

from tilewise.torch._meta import GRADIENTS
from tilewise.torch._schema import FIRST_SHARED, FORWARD, FORWARD_NAMES, LAST_SHARED

_SINGLE_TENSORS = {name: FORWARD_NAMES.index(name) for name in GRADIENTS}
_WITHOUT_GRADIENT = tuple(FORWARD_NAMES.index(name) for name in ("alibi_slopes",))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    for position in _WITHOUT_GRADIENT:
        if ctx.needs_input_grad[position]:
            raise NotImplementedError(
                f"tilewise: {FORWARD_NAMES[position]} requires a gradient, which is not computed; detach() it"
            )
    tensors = [value if isinstance(value, torch.Tensor) else None for value in inputs]
    ctx.save_for_backward(*tensors, *output)
    ctx.others = [None if isinstance(value, torch.Tensor) else value for value in inputs]
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    *tensors, out, lse = ctx.saved_tensors
    gradients: list[Any] = [None] * len(ctx.others)
    if dout is None and dlse is None:
        return tuple(gradients)
    inputs = [other if tensor is None else tensor for tensor, other in zip(tensors, ctx.others, strict=True)]
    q, k, v = inputs[:3]
    if dout is None:
        dout = torch.zeros_like(out)
    wanted = {name: bit for name, bit in GRADIENTS.items() if ctx.needs_input_grad[_SINGLE_TENSORS[name]]}
    results = torch.ops.tilewise.attention_backward.default(
        dout.to(q.dtype), dlse, q, k, v, out, lse, *inputs[FIRST_SHARED:LAST_SHARED], sum(wanted.values())
    )
    for name, result in zip(GRADIENTS, results, strict=True):
        if name in wanted:
            position = _SINGLE_TENSORS[name]
            gradients[position] = result.to(inputs[position].dtype)
    return tuple(gradients)


def _refuse_double_backward(ctx: Any, *gradients: torch.Tensor | None) -> None:
    raise NotImplementedError(
        "tilewise: attention cannot be differentiated twice; use create_graph=False, or PyTorch's math back end "
        "(torch.nn.attention.sdpa_kernel) where a gradient of a gradient is needed"
    )


def _keep_nothing(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    pass


def _refuse_vmap(info: Any, in_dims: Any, *args: Any) -> None:
    raise NotImplementedError(
        "tilewise: attention has no torch.vmap rule; flatten the mapped dimension into its batch dimension"
    )


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
    """Autocast lowers single precision to `dtype`; fp64 stays what it is, as everywhere in PyTorch."""
    return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)


_LIBRARY = torch.library.Library("tilewise", "IMPL")


def register() -> None:
    """Tells PyTorch. Once per process."""
    forward, backward = "tilewise::attention_forward", "tilewise::attention_backward"
    torch.library.register_autograd(forward, _backward, setup_context=_setup_context)
    torch.library.register_autograd(backward, _refuse_double_backward, setup_context=_keep_nothing)
    torch.library.register_vmap(forward, _refuse_vmap)
    torch.library.register_vmap(backward, _refuse_vmap)
    for device, key in _AUTOCAST_KEYS.items():
        _LIBRARY.impl("attention_forward", _autocast(device), key)
