"""From flash-attn's arguments to tilewise.torch.attention."""

from typing import Any

import torch

from tilewise.compat import _pages
from tilewise.torch import attention
from tilewise.torch._attention import _dropout_state

Tensor = torch.Tensor
Window = tuple[int | None, int | None]


def refuse(**given: bool) -> None:
    """Raises NotImplementedError that names the first argument that is given and not supported."""
    for name, is_given in given.items():
        if is_given:
            raise NotImplementedError(f"tilewise.compat.flash_attn: {name} is not supported")


def window(size: Window) -> tuple[int, int]:
    """(left, right), None as -1."""
    left, right = size
    return -1 if left is None else int(left), -1 if right is None else int(right)


def number(value: Any) -> int | None:
    """A maximal length, which some callers hold as a tensor."""
    return None if value is None else int(value)


def _seeds(dropout_p: float) -> dict[str, Any]:
    """Draws once, for the result and for the probabilities that are returned with it."""
    if dropout_p == 0.0:
        return {}
    seed, offset = _dropout_state(None, 0).tolist()
    return {"dropout_p": dropout_p, "dropout_seed": seed, "dropout_offset": offset}


def _signed(kept: Tensor, probabilities: Tensor) -> Tensor:
    """Returns the probabilities; those that dropout drops are negative."""
    return torch.where(kept != 0, probabilities, -probabilities)


def dense(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool, window_size: Window,
    softcap: float, alibi_slopes: Tensor | None, deterministic: bool, return_attn_probs: bool,
) -> Any:  # fmt: skip
    """(B, S, H, D)."""
    options: dict[str, Any] = {
        "softmax_scale": softmax_scale, "causal": causal, "window_size": window(window_size), "softcap": softcap,
        "alibi_slopes": alibi_slopes, "deterministic": deterministic or None,
    }  # fmt: skip
    seeds = _seeds(dropout_p)
    out, lse = attention(q, k, v, **options, **seeds, return_lse=True)
    if not return_attn_probs:
        return out
    if not seeds:
        return out, lse, q.new_empty(0)
    # P is the attention output for values that are the unit vectors.
    columns = k.shape[1]
    unit = torch.eye(columns, dtype=q.dtype, device=q.device)[None, :, None]
    unit = unit.expand(k.shape[0], columns, k.shape[2], columns)
    with torch.no_grad():
        shown = [attention(q, k, unit, **options, **kind).transpose(1, 2) for kind in (seeds, {})]
    return out, lse, _signed(*shown)


def packed(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: tuple[Tensor, Tensor], max_seqlen: tuple[Any, Any], dropout_p: float,
    softmax_scale: float | None, causal: bool, window_size: Window, softcap: float, alibi_slopes: Tensor | None,
    deterministic: bool, return_attn_probs: bool, block_table: Tensor | None, seqused_k: Tensor | None = None,
) -> Any:  # fmt: skip
    """(T, H, D), or keys in pages."""
    cu_q, cu_k = cu_seqlens
    options: dict[str, Any] = {
        "softmax_scale": softmax_scale, "causal": causal, "window_size": window(window_size), "softcap": softcap,
        "alibi_slopes": alibi_slopes, "deterministic": deterministic or None, "cu_seqlens_q": cu_q,
        "max_seqlen_q": number(max_seqlen[0]), "seqused_k": seqused_k,
    }  # fmt: skip
    if block_table is None:
        options |= {"cu_seqlens_k": cu_k, "max_seqlen_k": number(max_seqlen[1])}
    else:
        used = cu_k.diff() if seqused_k is None else seqused_k
        _pages.check(k, block_table, used)
        k, v, where = _pages.stored(k, v, block_table, used)
        options |= where
    seeds = _seeds(dropout_p)
    out, lse = attention(q, k, v, **options, **seeds, return_lse=True)
    if not return_attn_probs:
        return out
    if not seeds:
        return out, lse, q.new_empty(0)
    refuse(return_attn_probs=block_table is not None)
    return out, lse, _packed_probabilities(q, k, cu_q, cu_k, options, seeds)


def _packed_probabilities(
    q: Tensor, k: Tensor, cu_q: Tensor, cu_k: Tensor, options: dict[str, Any], seeds: dict[str, Any]
) -> Tensor:
    """Returns (B, H, longest query, longest key), zero after the end of each sequence."""
    columns = int(cu_k.diff().max())
    place = torch.arange(k.shape[0], device=k.device)
    place = place - torch.repeat_interleave(cu_k[:-1].long(), cu_k.diff().long(), output_size=k.shape[0])
    unit = torch.nn.functional.one_hot(place, columns).to(q.dtype)[:, None].expand(-1, k.shape[1], -1)
    with torch.no_grad():
        signed = _signed(*(attention(q, k, unit, **options, **kind) for kind in (seeds, {})))  # (T, H, columns)
    result = q.new_zeros(cu_q.numel() - 1, q.shape[1], int(cu_q.diff().max()), columns)
    starts = cu_q.tolist()
    for b, (start, end) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
        result[b, :, : end - start] = signed[start:end].transpose(0, 1)
    return result
