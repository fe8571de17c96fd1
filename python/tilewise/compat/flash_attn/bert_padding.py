"""flash_attn.bert_padding: taking the padding out of a batch, and putting it back."""

import tilewise.torch  # noqa: F401  (first: it says what to do where PyTorch is missing)
import torch

Tensor = torch.Tensor


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:  # noqa: A002  (flash-attn's name)
    """Rows of the first dimension: (T, ...) from (N, ...) and (T). Differentiable."""
    return input.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """The inverse: (T, ...) into zeros (first_axis_dim, ...). Differentiable."""
    zeros = values.new_zeros(first_axis_dim, *values.shape[1:])
    return zeros.index_copy(0, indices, values)


def _packed(lengths: Tensor) -> tuple[Tensor, int]:
    """cu_seqlens (B + 1) int32 and the longest length."""
    starts = torch.zeros(lengths.numel() + 1, dtype=torch.int32, device=lengths.device)
    torch.cumsum(lengths, dim=0, out=starts[1:])
    return starts, int(lengths.max()) if lengths.numel() > 0 else 0


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """hidden_states (B, S, ...), attention_mask (B, S), 1 where valid; unused_mask (B, S), 1 where kept but not used.

    Returns the valid and unused tokens (T, ...), their places in the flattened batch (T), cu_seqlens (B + 1) int32, the
    longest length, and the number of valid tokens of each sequence (B) int32.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    indices = torch.nonzero(kept.flatten()).flatten()
    starts, longest = _packed(kept.sum(dim=-1, dtype=torch.int32))
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, starts, longest, used


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """unpad_input for rows of several sequences: attention_mask_in_length (B, S) lists their lengths, then zeros."""
    total = attention_mask_in_length.sum(dim=-1)
    place = torch.arange(attention_mask_in_length.shape[-1], device=total.device)
    indices = torch.nonzero((place < total[:, None]).flatten()).flatten()
    lengths = attention_mask_in_length.flatten()
    starts, longest = _packed(lengths[lengths != 0].to(torch.int32))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, starts, longest


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """(T, ...) back into (batch, seqlen, ...), zeros elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
