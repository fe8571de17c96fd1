"""New tokens of a cache: which sequence each belongs to, where it stands, and its rotary embedding."""

import torch

Tensor = torch.Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """Rotary embedding of the first R of D dimensions. x (T, H, D), cos and sin (length, R/2), positions (T).

    Pairs are neighbours (GPT-J) if `interleaved`, else the two halves of R (GPT-NeoX).
    """
    half = cos.shape[-1]
    wide = torch.promote_types(x.dtype, torch.float32)
    turned, rest = x[..., : 2 * half].to(wide), x[..., 2 * half :]
    c, s = (table[positions].to(wide)[:, None] for table in (cos, sin))  # (T, 1, R/2)
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * c - b * s, a * s + b * c), dim=-1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat((a * c - b * s, a * s + b * c), dim=-1)
    return torch.cat((turned.to(x.dtype), rest), dim=-1)


def tokens_of(x: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """x as (T, H, D), with each token's sequence and its place in that: (T), (T)."""
    if cu_seqlens is None:
        batch, length = x.shape[:2]
        index = torch.arange(batch * length, device=x.device)
        return x.flatten(0, 1), index // max(length, 1), index % max(length, 1)
    lengths = cu_seqlens.diff().long()
    sequence = torch.repeat_interleave(
        torch.arange(lengths.numel(), device=x.device), lengths, output_size=x.shape[0]
    )
    return x, sequence, torch.arange(x.shape[0], device=x.device) - cu_seqlens.long()[sequence]
