"""Masks of transformers, described by what they are made of.

transformers composes the mask of a kind of layer from functions (masking_utils) and asks the mask function below for
it, once in a forward pass. The answer travels through the model to attention_forward as `attention_mask`.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import masking_utils

Tensor = torch.Tensor

if "q_length" not in inspect.signature(masking_utils.sdpa_mask).parameters:
    raise ImportError(
        "tilewise.transformers: this transformers asks for masks by cache positions, not by q_length; upgrade it with "
        "'pip install -U transformers'"
    )


class Structure(NamedTuple):
    """A mask of which no Sq x Sk form is needed. A key is visible if every part allows it."""

    causal: bool
    window: tuple[int, int] = (-1, -1)  # (left, right), inclusive; -1 is unbounded
    chunk: int | None = None  # rows see the keys of their own chunk
    first: int = 0  # the position of key 0, from which chunks are counted
    padding: Tensor | None = None  # (B, Sk) bool: True is a token; None where all keys are
    starts: Tensor | None = None  # (N + 1) int64: of packed sequences in the flattened batch, and the end
    used: int | None = None  # the first keys, of which the last row stands at the last; None where all keys are in use

    def needs_mask_in_sequences(self) -> bool:
        """Whether no option says which keys are visible where the batch is divided in sequences."""
        return self.padding is not None or self.chunk is not None or self.used is not None


class Mask(Tensor):
    """A bool tensor (B, 1, Sq, Sk) whose contents are computed by the first operation that needs them.

    Models slice masks, combine them and move them. Every such operation gets the whole mask, an ordinary tensor.
    attention_forward reads `structure` in its place. The mask itself takes one byte of memory.
    """

    structure: Structure
    _request: dict[str, Any]

    @staticmethod
    def of(structure: Structure, request: dict[str, Any]) -> "Mask":
        """request: the arguments of sdpa_mask that give the whole mask."""
        shape = (request["batch_size"], 1, request["q_length"], request["kv_length"])
        mask = torch.ones((), dtype=torch.bool, device=request.get("device", "cpu")).expand(shape).as_subclass(Mask)
        mask.structure, mask._request = structure, request
        return mask

    def whole(self) -> Tensor:
        """The mask as a tensor that has its contents."""
        return _whole(self._request)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if func is torch.Tensor.contiguous and args[0].is_cpu:
            # generate() asks for it with a static cache. On a GPU it compiles decoding, for which the contents have one
            # shape in all steps, as the number of keys in use has not.
            return args[0]
        args, kwargs = torch.utils._pytree.tree_map_only(Mask, Mask.whole, (args, kwargs or {}))
        return func(*args, **kwargs)


# The mask answers these itself: they need no contents.
_PROPERTIES = (
    "shape", "dtype", "device", "ndim", "is_cuda", "is_cpu", "is_meta", "layout", "requires_grad", "is_nested",
    "is_sparse", "is_quantized", "is_leaf", "grad", "grad_fn", "_base",
)  # fmt: skip
_METHODS = ("size", "stride", "storage_offset", "dim", "numel", "is_floating_point", "is_contiguous", "__len__")
_METADATA = frozenset(
    [
        *(getattr(torch.Tensor, name).__get__ for name in _PROPERTIES),
        *(getattr(torch.Tensor, name) for name in _METHODS),
    ]
)


def _whole(request: dict[str, Any]) -> Tensor:
    mask = masking_utils.sdpa_mask(
        **request, allow_is_causal_skip=False, allow_is_bidirectional_skip=False
    )
    assert mask is not None  # nothing may be skipped
    return mask


def attention_mask_for(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """The mask function that transformers calls. attention_mask (B, Sk): True is a token.

    A Mask where the functions are known and nothing is traced; else the whole mask (B, 1, Sq, Sk).
    """
    for name in ("allow_is_causal_skip", "allow_is_bidirectional_skip"):
        kwargs.pop(name, None)
    tracing = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
    if isinstance(q_offset, Tensor) and not tracing and not (q_offset.is_cuda and torch.cuda.is_current_stream_capturing()):
        q_offset = int(q_offset)  # of a static cache, which changes this tensor before the mask's contents may be needed
    request = {
        "batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset,
        "kv_offset": kv_offset, "mask_function": mask_function, "attention_mask": attention_mask, **kwargs,
    }  # fmt: skip
    # A trace does not know what attention_mask contains.
    structure = None if tracing else _structure_of(mask_function)
    if structure is None:
        return _whole(request)
    used = _keys_in_use(structure, q_offset, q_length, kv_offset, kv_length)
    if used is None:
        return _whole(request)
    padding = _padding(attention_mask, used, kv_offset)
    structure = structure._replace(padding=padding, first=kv_offset, used=None if used == kv_length else used)
    return Mask.of(structure, request)


def _keys_in_use(
    structure: Structure, q_offset: int | Tensor, q_length: int, kv_offset: int, kv_length: int
) -> int | None:
    """The first keys, where the last row stands at the last of them and no row sees any other. None: it does not."""
    is_relative = structure.causal or structure.window != (-1, -1)
    if not is_relative:
        return kv_length
    if not isinstance(q_offset, int):
        return None
    used = q_offset + q_length - kv_offset
    # A static cache has room behind them, which causal rows do not see.
    return used if used == kv_length or (structure.causal and 0 < used < kv_length) else None


def _padding(attention_mask: Tensor | None, kv_length: int, kv_offset: int) -> Tensor | None:
    """(B, Sk), or None where every key is a token."""
    if attention_mask is None:
        return None
    missing = kv_offset + kv_length - attention_mask.shape[-1]
    mask = torch.nn.functional.pad(attention_mask, (0, max(missing, 0)))[:, kv_offset : kv_offset + kv_length]
    return None if mask.all() else mask


# ---- what transformers composes masks of ----------------------------------------------------------------------------


def _captured(function: Callable[..., Any], maker: str) -> dict[str, Any] | None:
    """What `function` holds if masking_utils.`maker` made it. transformers composes masks of closures."""
    if getattr(function, "__qualname__", "").split(".")[0] != maker:
        return None
    return dict(zip(function.__code__.co_freevars, (c.cell_contents for c in function.__closure__ or ()), strict=True))


def _both(function: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """The two functions that and_masks joined; none if it is something else."""
    parts = (_captured(function, "and_masks") or {}).get("mask_functions", ())
    return tuple(parts) if len(parts) == 2 else ()


def _structure_of(function: Callable[..., Any]) -> Structure | None:
    """None for a function that is not one of those below: it may be anything."""
    if function is masking_utils.causal_mask_function:
        return Structure(causal=True)
    if function is masking_utils.bidirectional_mask_function:
        return Structure(causal=False)
    parts = _both(function)
    if not parts:
        return None
    overlay, base = parts
    if base is masking_utils.causal_mask_function:
        if sliding := _captured(overlay, "sliding_window_overlay"):
            keys = sliding["sliding_window"]  # this one included
            return Structure(causal=True, window=(keys - 1, 0)) if keys >= 1 else None
        if chunked := _captured(overlay, "chunked_overlay"):
            return None if chunked["left_padding"].any() else Structure(causal=True, chunk=int(chunked["chunk_size"]))
        return None
    if base is masking_utils.bidirectional_mask_function:
        local = _captured(overlay, "sliding_window_bidirectional_overlay")
        distance = -1 if local is None else local["sliding_window"]
        return Structure(causal=False, window=(distance, distance)) if distance >= 0 else None
    return _packed(overlay, base)


def _packed(overlay: Callable[..., Any], base: Callable[..., Any]) -> Structure | None:
    """The mask of packed sequences: where they start, and the structure inside each."""
    packed = _captured(overlay, "packed_sequence_mask_function")
    inside = _captured(base, "remap_positions_for_packed_sequence")
    if packed is None or inside is None:
        return None
    structure = _structure_of(inside["mask_function"])
    if structure is None or structure.chunk is not None or structure.starts is not None:
        return None  # chunks are counted from position 0, which is not where a sequence starts
    numbers = packed["packed_sequence_mask"]  # (B, S): the sequence that a token belongs to
    begins = torch.ones_like(numbers, dtype=torch.bool)
    begins[:, 1:] = numbers.diff(dim=-1) != 0
    end = torch.tensor([numbers.numel()], device=numbers.device)
    return structure._replace(starts=torch.cat((begins.flatten().nonzero().flatten(), end)))
