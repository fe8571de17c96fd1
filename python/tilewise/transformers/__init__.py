"""Tilewise for Hugging Face transformers.

    import tilewise.transformers
    tilewise.transformers.register()
    model = AutoModel.from_pretrained(name, attn_implementation="tilewise")

Padding on either side, packed position ids, sliding windows, sinks, softcap, grouped heads and generation with a
cache, on the CPU and on CUDA. A mask of Sq x Sk is only made where a model composes one of its own or a static cache
asks for it.
"""

import inspect
from collections.abc import Callable
from typing import Any

from tilewise.torch import attention  # first: it says what to do where PyTorch is missing

import torch  # isort: skip

NAME = "tilewise"

try:
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
except ImportError as error:
    raise ImportError(
        "tilewise.transformers: transformers is not installed, or too old; install it with 'pip install -U transformers'"
    ) from error

if "q_length" not in inspect.signature(masking_utils.sdpa_mask).parameters:
    raise ImportError(
        "tilewise.transformers: this transformers asks for masks by cache positions, not by q_length; upgrade it with "
        "'pip install -U transformers'"
    )


def register() -> None:
    """Makes ``attn_implementation="tilewise"`` known. Twice is once."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask_for)


# ---- masks ----------------------------------------------------------------------------------------------------------
#
# What the mask function returns goes through the model to attention_forward below. It is one of
#   None                   the module's structure alone: causal or not, its sliding window
#   (B, 1, 1, Sk) bool     keys that are not padding, besides the structure
#   (N + 1) int64          packed sequences: their starts in the flattened batch and the end, besides the structure
#   (B, 1, Sq, Sk) bool    the whole mask; with one query, (B, 1, 1, Sk) is the whole mask too


def attention_mask_for(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor | None:
    """The mask function that transformers calls once for a forward pass. attention_mask (B, Sk): True is a token."""
    aligned = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    starts, inner = _packed_starts(mask_function)
    # A mask's contents are not known in a trace.
    tracing = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
    if aligned and not tracing and _is_structure(inner):
        if starts is not None:
            return starts
        padding = _padding(attention_mask, kv_length, kv_offset)
        if padding is None or q_length > 1:
            return padding
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return masking_utils.sdpa_mask(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, **kwargs,
    )  # fmt: skip


def _padding(attention_mask: torch.Tensor | None, kv_length: int, kv_offset: int) -> torch.Tensor | None:
    """(B, 1, 1, Sk), or None where every key is a token."""
    if attention_mask is None:
        return None
    missing = kv_offset + kv_length - attention_mask.shape[-1]
    mask = torch.nn.functional.pad(attention_mask, (0, max(missing, 0)))[:, kv_offset : kv_offset + kv_length]
    return None if mask.all() else mask[:, None, None, :]


def _captured(function: Callable[..., Any], maker: str) -> dict[str, Any] | None:
    """What `function` holds if masking_utils.`maker` made it. transformers composes masks of closures."""
    if getattr(function, "__qualname__", "").split(".")[0] != maker:
        return None
    return dict(zip(function.__code__.co_freevars, (c.cell_contents for c in function.__closure__ or ()), strict=True))


def _is_structure(function: Callable[..., Any]) -> bool:
    """Whether a mask is one that attention_forward makes of what the module says: causal, none, or a causal window."""
    if function in (masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function):
        return True
    parts = (_captured(function, "and_masks") or {}).get("mask_functions", ())
    return (
        len(parts) == 2
        and _captured(parts[0], "sliding_window_overlay") is not None
        and parts[1] is masking_utils.causal_mask_function
    )


def _packed_starts(function: Callable[..., Any]) -> tuple[torch.Tensor | None, Callable[..., Any]]:
    """Of a mask of packed sequences, where they start, and the mask inside each; else None and the function."""
    parts = (_captured(function, "and_masks") or {}).get("mask_functions", ())
    if len(parts) != 2:
        return None, function
    packed = _captured(parts[0], "packed_sequence_mask_function")
    inside = _captured(parts[1], "remap_positions_for_packed_sequence")
    if packed is None or inside is None:
        return None, function
    numbers = packed["packed_sequence_mask"]  # (B, S): the sequence that a token belongs to
    begins = torch.ones_like(numbers, dtype=torch.bool)
    begins[:, 1:] = numbers.diff(dim=-1) != 0
    end = torch.tensor([numbers.numel()], device=numbers.device)
    return torch.cat((begins.flatten().nonzero().flatten(), end)), inside["mask_function"]


# ---- attention ------------------------------------------------------------------------------------------------------


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls. query (B, H, Sq, D), key and value (B, Hk, Sk, D).

    Returns the result (B, Sq, H, D), and None in place of the probabilities, which are never stored.
    """
    if kwargs.get("cache") is not None:
        raise NotImplementedError("tilewise.transformers: a paged cache (continuous batching) is not supported")
    options: dict[str, Any] = {
        "softmax_scale": scaling,
        "dropout_p": dropout,
        "softcap": softcap or 0.0,
        "sink": None if s_aux is None else s_aux.float(),
        "bias": position_bias,
    }
    structure: dict[str, Any] = {
        "causal": bool(getattr(module, "is_causal", True) if is_causal is None else is_causal),
        "window_size": (-1, -1) if sliding_window is None else (sliding_window - 1, 0),  # W keys, this one included
    }
    if structure["causal"] is False:
        structure["window_size"] = (-1, -1)  # the window of a bidirectional layer comes as a mask
    if cu_seq_lens_q is None and attention_mask is not None and attention_mask.dim() == 1:
        cu_seq_lens_q = cu_seq_lens_k = attention_mask
    if cu_seq_lens_q is not None:
        lengths = {"max_seqlen_q": max_length_q, "max_seqlen_k": max_length_k}
        return _packed(query, key, value, cu_seq_lens_q, cu_seq_lens_k, options | structure | lengths), None
    options |= _mask_options(attention_mask, query.shape[2], key.shape[2], structure, position_bias)
    out = attention(query, key, value, **options, layout="bhsd")
    return out.transpose(1, 2).contiguous(), None


def _mask_options(
    mask: torch.Tensor | None, q_length: int, kv_length: int, structure: dict[str, Any], bias: torch.Tensor | None
) -> dict[str, Any]:
    """What to ask for besides, of the four kinds above; a model's own additive mask is a bias."""
    if mask is None:
        return structure
    mask = mask[..., :kv_length]
    if mask.dtype != torch.bool:
        return {"bias": mask if bias is None else bias + mask}
    of_keys = mask.shape[-2] == 1 and q_length > 1
    return {"mask": mask, **(structure if of_keys else {})}


def _packed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts_q: torch.Tensor,
    starts_k: torch.Tensor | None, options: dict[str, Any],
) -> torch.Tensor:  # fmt: skip
    """The batch as one row of tokens: (B, H, S, D) to (B * S, H, D) and back."""
    q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (query, key, value))
    out = attention(q, k, v, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, **options)
    return out.unflatten(0, (query.shape[0], query.shape[2]))


__all__ = ["NAME", "attention_forward", "attention_mask_for", "register"]
