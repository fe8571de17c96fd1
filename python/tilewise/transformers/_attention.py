"""The attention function that transformers calls."""

from typing import Any

import torch
from tilewise.torch import _chunks, attention
from tilewise.transformers._mask import Mask, Structure

Tensor = torch.Tensor

# Arguments that change what a layer computes, and that are not supported.
_REFUSED = {
    "cache": "a paged cache (continuous batching)",
    "block_table": "a paged cache (continuous batching)",
    "indices": "a choice of keys for each query (sparse attention)",
    "block_indices": "a choice of blocks of keys for each query (sparse attention)",
    "sinks": "a sink for each query",
    "head_mask": "a factor for each head",
    "output_attentions": "the probabilities, which are never stored,",
}


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query (B, H, Sq, D), key and value (B, Hk, Sk, D).

    attention_mask: a Mask, or another tensor, boolean or added to the scores: it says alone which keys are visible. None:
    the layer's is_causal and sliding_window say it, as for flash attention. cu_seq_lens divide the flattened batch in
    sequences besides.

    Returns the result (B, Sq, H, D), and None in place of the probabilities, which are never stored.
    """
    _refuse(kwargs)
    options: dict[str, Any] = {
        "softmax_scale": scaling,
        "dropout_p": dropout,
        "softcap": softcap or 0.0,
        "sink": None if s_aux is None else s_aux.float(),
    }
    structure = _structure(module, attention_mask, query, key, sliding_window, is_causal)
    starts = None
    if cu_seq_lens_q is not None:
        starts = (cu_seq_lens_q, cu_seq_lens_q if cu_seq_lens_k is None else cu_seq_lens_k)
    if structure is not None and structure.starts is not None:
        starts = _united(attention_mask, structure.starts, starts)
    if starts is None:
        if structure is not None and structure.used is not None:
            key, value = key[:, :, : structure.used], value[:, :, : structure.used]
            position_bias = None if position_bias is None else position_bias[..., : structure.used]
        visible = _visible(structure, attention_mask, query, key)
    elif position_bias is not None or structure is None or structure.needs_mask_in_sequences():
        visible = _visible_in_sequences(structure, attention_mask, starts, query, key)
    else:
        options |= {"causal": structure.causal, "window_size": structure.window}
        options |= {"max_seqlen_q": max_length_q, "max_seqlen_k": max_length_k}
        return _packed(query, key, value, starts, options), None
    if position_bias is not None:
        bias = visible.get("bias")
        visible["bias"] = position_bias if bias is None else bias + position_bias
    out = attention(query, key, value, **options, **visible, layout="bhsd")
    return out.transpose(1, 2).contiguous(), None


def _refuse(kwargs: dict[str, Any]) -> None:
    for name, what in _REFUSED.items():
        given = kwargs.get(name)
        if given is not None and given is not False:
            raise NotImplementedError(
                f"tilewise.transformers: {name} asks for {what} which is not supported; load the model with "
                "attn_implementation='eager'"
            )


def _structure(
    module: torch.nn.Module, mask: Tensor | None, query: Tensor, key: Tensor, sliding_window: int | None,
    is_causal: bool | None,
) -> Structure | None:  # fmt: skip
    """None where a tensor holds the whole mask."""
    if isinstance(mask, Mask):
        return mask.structure if mask.shape[-2:] == (query.shape[2], key.shape[2]) else None
    if mask is not None:
        return None
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if sliding_window is None:
        return Structure(causal)
    if sliding_window < 1:
        raise ValueError(f"sliding_window: is {sliding_window}, must be at least 1: a row's own key is one of them")
    return Structure(causal, (sliding_window - 1, 0 if causal else sliding_window - 1))


# ---- one row of queries and keys for each sequence ------------------------------------------------------------------


def _visible(structure: Structure | None, mask: Tensor | None, query: Tensor, key: Tensor) -> dict[str, Any]:
    """Options of attention() that say which keys a query sees."""
    if structure is None:
        assert mask is not None
        return _whole_mask(mask, query, key)
    options: dict[str, Any] = {}
    if structure.padding is not None:
        options["mask"] = structure.padding[:, None, None, :]
    if structure.chunk is None:
        return options | {"causal": structure.causal, "window_size": structure.window}
    left, right = structure.window
    slices = _chunks.slices(
        query.shape[2], key.shape[2], structure.chunk, left, 0 if structure.causal else right, first=structure.first
    )
    return options | {"slices": _chunks.as_tensor(slices, query.device)}


def _whole_mask(mask: Tensor, query: Tensor, key: Tensor) -> dict[str, Any]:
    """mask: what broadcasts to (B, H, Sq, Sk); of a static cache it may have more keys than there are."""
    whole = mask.whole() if isinstance(mask, Mask) else mask
    whole = whole[..., : key.shape[2]]
    if whole.dtype == torch.bool:
        return {"mask": whole}
    if not whole.is_floating_point():
        raise TypeError(f"attention_mask: dtype is {whole.dtype}, must be torch.bool, or floating point to be added")
    return {"bias": whole if whole.dtype in (query.dtype, torch.float32) else whole.float()}


# ---- packed sequences -----------------------------------------------------------------------------------------------


def _united(
    mask: Tensor | None, from_positions: Tensor, given: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Starts of sequences in queries and in keys: wherever position ids or cu_seq_lens say that one starts."""
    if given is None:
        return from_positions, from_positions
    assert isinstance(mask, Mask)
    known = mask.__dict__.setdefault("_united", [])  # the layers of a forward pass share mask and cu_seq_lens
    for key, value in known:
        if key[0] is given[0] and key[1] is given[1]:
            return value
    united = [torch.unique(torch.cat((from_positions.to(starts.device), starts.long()))) for starts in given]
    known.append((given, (united[0], united[1])))
    return united[0], united[1]


def _packed(
    query: Tensor, key: Tensor, value: Tensor, starts: tuple[Tensor, Tensor], options: dict[str, Any]
) -> Tensor:
    """The batch as one row of tokens: (B, H, S, D) to (B * S, H, D) and back."""
    q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (query, key, value))
    out = attention(q, k, v, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1], **options)
    return out.unflatten(0, (query.shape[0], query.shape[2]))


def _visible_in_sequences(
    structure: Structure | None, mask: Tensor | None, starts: tuple[Tensor, Tensor], query: Tensor, key: Tensor
) -> dict[str, Any]:
    """As _visible, where a query sees keys of its own sequence only."""
    # (B, Sq) and (B, Sk): a token's sequence, from 1 on; beyond the last sequence, a number that is none.
    rows, columns = (_sequence_of(t, s) for t, s in zip((query, key), starts, strict=True))
    same = (rows[:, :, None] == columns[:, None, :]) & (rows < starts[0].numel())[:, :, None]
    if isinstance(mask, Mask):  # its windows and chunks hold for positions in the row
        options = _whole_mask(mask, query, key)
    else:
        options = _visible(structure, mask, query, key)
    own = options.get("mask")
    options["mask"] = same[:, None] if own is None else same[:, None] & own
    return options


def _sequence_of(tensor: Tensor, starts: Tensor) -> Tensor:
    """(B, S): how many sequences have started at each token of (B, H, S, D)."""
    tokens = torch.arange(tensor.shape[0] * tensor.shape[2], device=tensor.device)
    return torch.bucketize(tokens, starts.to(tensor.device), right=True).view(tensor.shape[0], -1)
