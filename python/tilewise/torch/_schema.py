"""The operators' arguments by name, read from their schemas."""

from typing import Any

import torch

FORWARD = torch.ops.tilewise.attention_forward.default
BACKWARD = torch.ops.tilewise.attention_backward.default
BACKWARD_SLOPES = torch.ops.tilewise.attention_backward_slopes.default  # with one result more: dalibi_slopes

_ARGUMENTS = {operator: operator._schema.arguments for operator in (FORWARD, BACKWARD, BACKWARD_SLOPES)}
FORWARD_NAMES = tuple(argument.name for argument in _ARGUMENTS[FORWARD])

# The tensors of forward come first: q, k, v, then those that backward takes too; the options follow, up to
# `batch_invariant`.
TENSORS = FORWARD_NAMES.index("dropout_state") + 1
FEW = FORWARD_NAMES.index("causal") + 1  # the arguments that calls without other options need
_REST = tuple(argument.default_value for argument in _ARGUMENTS[FORWARD][FEW:])
LAST_SHARED = FORWARD_NAMES.index("batch_invariant") + 1
SEQUSED_Q = FORWARD_NAMES.index("seqused_q")  # backward takes it too, as its last argument
PAGE_TABLE = FORWARD_NAMES.index("page_table")

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)  # q, k and v may have them, without gradients


def without_defaults(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns forward's arguments, without those after `causal` if they are defaults: PyTorch takes 2 us to read them."""
    return args[:FEW] if args[FEW:] == _REST else args


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
