"""The operators' arguments by name, read from their schemas."""

from typing import Any

import torch

FORWARD = torch.ops.tilewise.attention_forward.default
BACKWARD = torch.ops.tilewise.attention_backward.default

_ARGUMENTS = {operator: operator._schema.arguments for operator in (FORWARD, BACKWARD)}
FORWARD_NAMES = tuple(argument.name for argument in _ARGUMENTS[FORWARD])

# The arguments that forward and backward share, in their order: from `mask` to `batch_invariant`.
FIRST_SHARED = FORWARD_NAMES.index("mask")
LAST_SHARED = FORWARD_NAMES.index("batch_invariant") + 1


def forward(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The operator; where no gradient can be asked for, past PyTorch's autograd layer, which takes 4 us to say so."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return FORWARD(*args)
    with torch._C._AutoDispatchBelowAutograd():
        return FORWARD(*args)


def by_name(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Every argument of a call, with the defaults that it left out."""
    values = {
        argument.name: argument.default_value
        for argument in _ARGUMENTS[operator]
        if argument.has_default_value()
    }
    values.update(zip((argument.name for argument in _ARGUMENTS[operator]), args, strict=False))
    values.update(kwargs)
    return values
