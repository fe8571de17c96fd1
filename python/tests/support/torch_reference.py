"""Attention written down as docs/semantics.md defines it, in PyTorch: the yardstick of the suites."""

import math
from collections.abc import Iterator

import torch


def visible(
    rows: int, columns: int, *, causal: bool = False, window: tuple[int, int] = (-1, -1), top_left: bool = False
) -> torch.Tensor:
    """(rows, columns) bool: what causal and window show."""
    i = torch.arange(rows)[:, None] + (0 if top_left else columns - rows)
    j = torch.arange(columns)[None, :]
    shown = torch.ones(rows, columns, dtype=torch.bool)
    if causal:
        shown &= j <= i
    if window[0] >= 0:
        shown &= j >= i - window[0]
    if window[1] >= 0:
        shown &= j <= i + window[1]
    return shown


def philox(seed: int, offset: int, batch: int, heads: int, rows: int, columns: int, p: float) -> torch.Tensor:
    """(batch, heads, rows, columns) bool: what dropout keeps. Philox-4x32-10 of Salmon et al. (2011), in int64."""
    blocks = (columns + 3) // 4
    low = (1 << 32) - 1
    index = torch.meshgrid(*(torch.arange(n) for n in (batch * heads, rows, blocks)), indexing="ij")
    counter = [index[2], index[1], index[0], torch.full_like(index[0], offset)]
    key = [seed & low, seed >> 32]
    for _ in range(10):
        high0, low0 = _wide_product(0xD2511F53, counter[0])
        high1, low1 = _wide_product(0xCD9E8D57, counter[2])
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    words = torch.stack(counter, dim=-1).reshape(batch, heads, rows, blocks * 4)[..., :columns]
    return words >= round(p * 2**32)


def _wide_product(a: int, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of a * b for 32-bit numbers held in int64."""
    b0, b1 = b & 0xFFFF, b >> 16
    first, second = a * b0, a * b1  # below 2^48 each
    total = (first >> 16) + second
    return total >> 16, ((total & 0xFFFF) << 16) | (first & 0xFFFF)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    top_left: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    keep: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    dtype: torch.dtype | None = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Sq, H, D), k and v (B, Sk, Hk, D). Returns out like q and lse (B, H, Sq).

    dtype None computes in q's own precision, S and P rounded to it: what plain PyTorch does.
    """
    wide = q.dtype if dtype is None else dtype
    groups = q.shape[2] // k.shape[2]
    q, k, v = (x.to(wide).transpose(1, 2) for x in (q, k, v))  # (B, H, S, D)
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    score = q @ k.transpose(2, 3) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap > 0:
        score = softcap * torch.tanh(score / softcap)
    if bias is not None:
        score = score + bias.to(wide)
    rows, columns = score.shape[-2:]
    if alibi_slopes is not None:
        d = 0 if top_left else columns - rows
        distance = (torch.arange(rows)[:, None] + d - torch.arange(columns)[None, :]).abs()
        slopes = alibi_slopes.reshape(-1, alibi_slopes.shape[-1])[:, :, None, None]
        score = score - slopes.to(wide) * distance
    shown = visible(rows, columns, causal=causal, window=window, top_left=top_left)
    if mask is not None:
        shown = shown & mask
    score = score.masked_fill(~shown, -math.inf)
    total = score
    if sink is not None:
        column = sink.to(wide)[None, :, None, None].expand(*score.shape[:3], 1)
        total = torch.cat([score, column], dim=-1)
    empty = (total == -math.inf).all(-1, keepdim=True)
    lse = torch.logsumexp(torch.where(empty, 0.0, total), -1, keepdim=True)
    probs = torch.where(empty | (score == -math.inf), 0.0, torch.exp(score - lse)).to(wide)
    if keep is not None:
        probs = torch.where(keep, probs / (1 - dropout_p), 0.0)
    out = (probs @ v).transpose(1, 2)
    return out, torch.where(empty, -math.inf, lse)[..., 0]


def sequences(cu_seqlens: torch.Tensor) -> Iterator[slice]:
    """The rows of each packed sequence."""
    starts = cu_seqlens.tolist()
    for start, end in zip(starts[:-1], starts[1:], strict=True):
        yield slice(start, end)


def packed_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor, **options: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequence by sequence: out (T, H, D), lse (H, T)."""
    slopes = options.pop("alibi_slopes", None)
    outs, sums = [], []
    for b, (rows, columns) in enumerate(zip(sequences(cu_q), sequences(cu_k), strict=True)):
        own = slopes[b] if slopes is not None and slopes.dim() == 2 else slopes
        out, lse = attention(q[None, rows], k[None, columns], v[None, columns], alibi_slopes=own, **options)
        outs.append(out[0])
        sums.append(lse[0])
    return torch.cat(outs), torch.cat(sums, dim=-1)
