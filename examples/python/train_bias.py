"""Trains a small BERT over bytes whose only knowledge of positions is a learned bias of the scores, by PyTorch's
scaled_dot_product_attention and by Tilewise, from the same seed.

    pip install . torch matplotlib
    python examples/python/train_bias.py                                  # steps of 60 s in all on one core
    python examples/python/train_bias.py --device cuda --length 4096 --batch 8

The model fills in bytes that are hidden. Key j adds table[head, bucket(j - i)] to its score with query i, as in T5. The
usual way stores this bias as (H, S, S), and its gradient, too. Here Tilewise reads it from the 2 S - 1 values that it has
for each head, and gives the gradients of ROWS queries at a time: no tensor is S x S.
"""

from __future__ import annotations

import math

import side_by_side
import torch
from side_by_side import HEADS, Attend, Transformer
from torch.nn import functional

import tilewise.torch

BUCKETS, EXACT, FARTHEST = 32, 8, 128  # distances below EXACT have buckets of their own; those from FARTHEST on share one
ROWS = 128  # queries whose gradient of the bias is in memory at a time
STEP = 50.0  # Adam moves a number by the learning rate in a step, and a score has to move by more than a weight
HIDDEN = 256  # what stands for a byte that the model has to find
SHARE = 0.15  # of the bytes that are hidden


def bucket(distance: torch.Tensor) -> torch.Tensor:
    """The row of the table for j - i: half of the buckets for each sign, wider ones farther away."""
    away = distance.abs()
    half = BUCKETS // 2
    octaves = torch.log2(away.clamp(min=1) / EXACT) / math.log2(FARTHEST / EXACT)
    far = (EXACT + octaves * (half - EXACT)).long().clamp(max=half - 1)
    return torch.where(away < EXACT, away, far) + half * (distance > 0)


def sdpa(bias: torch.Tensor) -> Attend:
    """Attention by PyTorch. bias (H, 2 S - 1): what is added to a score at each distance j - i from 1 - S to S - 1."""
    length = bias.shape[1] // 2 + 1
    whole = bias.unfold(1, length, 1).flip(1)[None]  # (1, H, S, S)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        return functional.scaled_dot_product_attention(*heads_first, attn_mask=whole).transpose(1, 2)

    return attend


def tiled(bias: torch.Tensor) -> Attend:
    """Attention by Tilewise, with the same bias.

    Query i adds bias[:, S - 1 - i + j] to the score of key j. With the queries in reverse, row r adds bias[:, r + j]: a
    view of the bias, whose rows begin one number after the other.
    """
    length = bias.shape[1] // 2 + 1

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = []
        for first, rows in zip(range(0, length, ROWS), q.flip(1).split(ROWS, 1)):
            last = first + rows.shape[1]
            view = bias[:, first : last + length - 1].unfold(1, length, 1)  # (H, ROWS, S)
            parts.append(tilewise.torch.attention(rows, k, v, bias=view))
        return torch.cat(parts, 1).flip(1)

    return attend


ATTENTION = {"sdpa": sdpa, "tilewise": tiled}


class Bert(torch.nn.Module):
    """Hidden bytes from all others."""

    def __init__(self, attention: str, length: int) -> None:
        super().__init__()
        self.attention = ATTENTION[attention]
        self.transformer = Transformer(HIDDEN + 1)
        self.table = torch.nn.Parameter(torch.zeros(HEADS, BUCKETS))
        self.register_buffer("buckets", bucket(torch.arange(1 - length, length)))

    def loss(self, windows: torch.Tensor) -> torch.Tensor:
        """The mean over the hidden bytes of windows (B, length + 1), whose last byte is not used; in nats a byte."""
        ids = windows[:, :-1]
        hidden = (torch.rand(ids.shape) < SHARE).to(ids.device)
        hidden[:, 0] = True  # a mean of at least one
        attend = self.attention(STEP * self.table[:, self.buckets])
        logits = self.transformer(ids.masked_fill(hidden, HIDDEN), attend)
        return functional.cross_entropy(logits[hidden], ids[hidden])


if __name__ == "__main__":
    summary = "Trains a small BERT over bytes with a learned bias of the scores by PyTorch and by Tilewise."
    side_by_side.main(summary, "A small BERT with a learned bias, trained twice", Bert, steps=120, length=512, batch=4)
