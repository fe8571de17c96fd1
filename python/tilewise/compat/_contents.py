"""Checks the contents of index tensors before anything is written."""

from typing import NamedTuple

import torch

Tensor = torch.Tensor


class ArgumentError(ValueError, RuntimeError):
    """An argument that cannot be meant: RuntimeError as flash-attn raises it, ValueError as Python calls it."""


class Limits(NamedTuple):
    """Every number of `values` must be from `low` to `high`; `name` is what a message calls one of them."""

    name: str
    values: Tensor
    low: int
    high: int


def are_known(like: Tensor) -> bool:
    """Returns whether contents can be read: not while a CUDA graph is captured or torch.compile traces."""
    if torch.compiler.is_compiling():
        return False
    return not (like.is_cuda and torch.cuda.is_current_stream_capturing())


def check(limits: list[Limits]) -> None:
    """Raises ArgumentError for the first number that is out of its limits. Waits for the device once."""
    checked = [limit for limit in limits if limit.values.numel() > 0]
    for (name, _, low, high), ends in zip(checked, _ends([limit.values for limit in checked]), strict=True):
        for number in ends:
            if not low <= number <= high:
                raise ArgumentError(f"{name}: is {number}, must be {low} to {high}")


def _ends(tensors: list[Tensor]) -> list[tuple[int, int]]:
    """The least and the greatest number of each."""
    if all(tensor.is_cpu and tensor.numel() <= 256 for tensor in tensors):  # operators would take 5 us for each
        lists = [tensor.flatten().tolist() for tensor in tensors]
        return [(min(numbers), max(numbers)) for numbers in lists]
    ends = [end.long().to(tensors[0].device) for tensor in tensors for end in tensor.aminmax()]
    numbers = torch.stack(ends).tolist()
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def starts(name: str, cu_seqlens: Tensor, tokens: int) -> list[Limits]:
    """That cu_seqlens begins with 0, never falls and ends with the number of tokens."""
    return [
        Limits(f"{name}[0]", cu_seqlens[:1], 0, 0),
        Limits(f"a length of {name}", cu_seqlens.diff(), 0, tokens),
        Limits(f"{name}[-1]", cu_seqlens[-1:], tokens, tokens),
    ]


def kv_heads(qkv: Tensor, num_heads_q: int | None) -> int:
    """Hk of a packed projection (B, S, H + 2 Hk, D), num_heads_q = H."""
    if qkv.dim() != 4:
        raise ArgumentError(f"qkv: shape is {tuple(qkv.shape)}, must be (B, S, 3, H, D) or (B, S, H + 2 Hk, D)")
    if num_heads_q is None:
        raise ArgumentError("num_heads_q: is absent, must be given with qkv of 4 dimensions")
    others = qkv.shape[2] - num_heads_q
    if num_heads_q < 1 or others < 2 or others % 2 != 0:
        raise ArgumentError(
            f"num_heads_q: is {num_heads_q}, must leave an even number of qkv's {qkv.shape[2]} heads for k and v"
        )
    return others // 2


_INTEGERS = frozenset((torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8))


def check_integers(**tensors: object) -> None:
    """Raises ArgumentError that names the first tensor that does not hold integers."""
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and tensor.dtype not in _INTEGERS:
            raise ArgumentError(f"{name}: dtype is {tensor.dtype}, must be torch.int32 or torch.int64")
