"""torch.vmap of the operators: each index of the mapped dimension gives what it gives alone, dropout included."""

from typing import Any

import torch

from tilewise.torch._meta import GRADIENTS
from tilewise.torch._schema import by_name

Tensor = torch.Tensor
Arguments = dict[str, Any]

_OF_BATCH = ("q", "k", "v", "dout", "out", "lse", "dlse", "seqused_q", "seqused_k")  # the first dimension is the batch
_OF_SCORES = ("mask", "bias")  # broadcast from the right to (B, H, Sq, Sk)


def run(operator: Any, info: Any, in_dims: tuple[int | None, ...], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The rule that PyTorch asks for: the results, with the mapped dimension in front, and where that is."""
    names = [argument.name for argument in operator._schema.arguments]
    values = by_name(operator, args, kwargs)
    given = zip(names, in_dims, args, strict=False)
    mapped = {name: value.movedim(dim, 0) for name, dim, value in given if dim is not None}
    shared = {name: value for name, value in values.items() if name not in mapped}
    count = info.batch_size
    larger = _larger_batch(shared, mapped, count)
    if larger is None:
        results = [operator(**shared, **{name: value[i] for name, value in mapped.items()}) for i in range(count)]
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True)), (0,) * len(results[0])
    found = operator(**larger)
    asked = [True, True] if "gradients" not in values else [bool(values["gradients"] & b) for b in GRADIENTS.values()]
    asked = asked[: len(found)]
    outputs = tuple(t.unflatten(0, (count, -1)) if is_there else t for t, is_there in zip(found, asked, strict=True))
    return outputs, tuple(0 if is_there else None for is_there in asked)


def _larger_batch(shared: Arguments, mapped: dict[str, Tensor], count: int) -> Arguments | None:
    """The arguments of one problem whose batch is `count` times as large. None where one problem cannot express all of
    them, or where tensors that they share would be copied."""
    ranks = {name: (mapped[name].dim() - 1 if name in mapped else shared[name].dim()) for name in ("q", "k")}
    everything = {**shared, **mapped}
    if ranks["q"] != 4 or ranks["k"] != 4 or everything["dropout_p"] != 0.0 or everything.get("gradients", 0) & 56:
        # Packed sequences; dropout, whose pattern depends on the batch; gradients of bias, sink and slopes, which are
        # sums over the batch.
        return None
    if "slices" in mapped or "sink" in mapped or everything.get("page_table") is not None:
        return None
    if any(everything.get(f"{name}_descale") is not None for name in ("q", "k", "v")):
        return None
    batch = mapped["q"].shape[1] if "q" in mapped else shared["q"].shape[0]
    if batch == 0:
        return None
    larger: Arguments = {}
    for name, value in everything.items():
        if not isinstance(value, torch.Tensor):
            larger[name] = value
            continue
        joined = _joined(name, value, name in mapped, batch, count)
        if joined is None:
            return None
        larger[name] = joined
    return larger


def _joined(name: str, value: Tensor, is_mapped: bool, batch: int, count: int) -> Tensor | None:
    """A tensor of all problems; mapped: its first dimension is the problem's number."""
    if name in _OF_BATCH:
        if is_mapped:
            return value.flatten(0, 1)
        return value.expand(count, *value.shape[1:]) if batch == 1 else None
    if name in _OF_SCORES:
        rank = value.dim() - is_mapped
        has_batch = rank == 4 and value.shape[-4] == batch
        if not is_mapped:
            return None if has_batch and batch > 1 else value
        full = value.reshape(count, *[1] * (4 - rank), *value.shape[1:])
        return (full if has_batch else full.expand(-1, batch, -1, -1, -1)).flatten(0, 1)
    if name == "alibi_slopes":
        rank = value.dim() - is_mapped
        if not is_mapped:
            return value if rank == 1 else value.expand(count, -1) if batch == 1 else None
        return (value[:, None].expand(-1, batch, -1) if rank == 1 else value).flatten(0, 1)
    return value  # the same for every sequence: sink, slices, dropout_state
