"""Trains a small GPT over bytes with PyTorch's scaled_dot_product_attention and with Tilewise, from the same seed.

    pip install . torch matplotlib
    python examples/python/train_gpt.py                                   # steps of 37 s in all on one core
    python examples/python/train_gpt.py --device cuda --length 4096 --batch 8

prints speed, memory and losses of both, and draws the losses into train_gpt.svg. The text is this repository's docs/.
"""

from __future__ import annotations

import side_by_side
import torch
from side_by_side import WIDTH, Transformer
from torch.nn import functional

import tilewise.torch


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """PyTorch's attention, whose tensors are (B, H, S, D)."""
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)


def tiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Tilewise, whose tensors are (B, S, H, D)."""
    return tilewise.torch.attention(q, k, v, causal=True)


ATTENTION = {"sdpa": sdpa, "tilewise": tiled}


class Gpt(torch.nn.Module):
    """The next byte from all bytes before it."""

    def __init__(self, attention: str, length: int) -> None:
        super().__init__()
        self.attend = ATTENTION[attention]
        self.transformer = Transformer(256)
        self.positions = torch.nn.Parameter(0.02 * torch.randn(length, WIDTH))

    def loss(self, windows: torch.Tensor) -> torch.Tensor:
        """The mean of windows (B, length + 1), in nats a byte."""
        logits = self.transformer(windows[:, :-1], self.attend, self.positions)
        return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


if __name__ == "__main__":
    side_by_side.main(__doc__.splitlines()[0], "A small GPT, trained twice", Gpt, steps=120, length=256, batch=8)
