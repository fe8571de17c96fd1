"""flash_attn.ops.triton.rotary: rotary embeddings, in PyTorch's own operators; autograd passes them."""

import tilewise.torch  # noqa: F401  (first: it says what to do where PyTorch is missing)
import torch
from tilewise.compat import _contents
from tilewise.compat._contents import ArgumentError, Limits
from tilewise.compat._tokens import rotate, tokens_of

Tensor = torch.Tensor


def apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, seqlen_offsets: int | Tensor = 0, cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None, interleaved: bool = False, inplace: bool = False, conjugate: bool = False,
) -> Tensor:  # fmt: skip
    """Rotates the first R of D dimensions of x, (B, S, H, D), or (T, H, D) with cu_seqlens (B + 1).

    cos and sin (length, R/2), read at each token's place in its sequence and seqlen_offsets, a number or (B). conjugate
    rotates back. max_seqlen steers flash-attn's kernel and changes nothing. Computes in float32 at least.
    """
    _check(x, cos, sin, seqlen_offsets, cu_seqlens)
    tokens, sequence, place = tokens_of(x, cu_seqlens)
    positions = place + (seqlen_offsets[sequence].long() if isinstance(seqlen_offsets, Tensor) else seqlen_offsets)
    if _contents.are_known(x):
        _contents.check([Limits("a position in cos", positions, 0, cos.shape[0] - 1)])
    rotated = rotate(tokens, cos, -sin if conjugate else sin, positions, interleaved).view(x.shape)
    return x.copy_(rotated) if inplace else rotated


def _check(x: Tensor, cos: Tensor, sin: Tensor, seqlen_offsets: int | Tensor, cu_seqlens: Tensor | None) -> None:
    rank = 4 if cu_seqlens is None else 3
    if x.dim() != rank:
        raise ArgumentError(f"x: has {x.dim()} dimensions, must have {rank}")
    if cos.dim() != 2 or cos.shape != sin.shape:
        raise ArgumentError(f"cos and sin: shapes are {tuple(cos.shape)} and {tuple(sin.shape)}, must be (length, R/2)")
    if 2 * cos.shape[1] > x.shape[-1]:
        raise ArgumentError(f"cos: rotates {2 * cos.shape[1]} dimensions, must be at most x's {x.shape[-1]}")
    _contents.check_integers(seqlen_offsets=seqlen_offsets, cu_seqlens=cu_seqlens)
    batch = x.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    if isinstance(seqlen_offsets, Tensor) and seqlen_offsets.shape != (batch,):
        raise ArgumentError(f"seqlen_offsets: shape is {tuple(seqlen_offsets.shape)}, must be ({batch})")
