"""Trains a small GPT on one long sequence that is divided between processes, with ring attention by Tilewise.

    pip install . torch
    torchrun --nproc-per-node 2 examples/python/train_on_ranks.py README.md docs/*.md
    python examples/python/train_on_ranks.py README.md docs/*.md                    # one process: the same losses

Each process holds some bytes of the sequence, and everything but attention works on these alone. Gradients of the
weights are added up over the processes.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional

import tilewise.distributed as ring

WIDTH, HEADS, KV_HEADS, LAYERS = 64, 4, 2, 2
DIM = WIDTH // HEADS


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding. x (1, rows, H, D), positions (rows): where the rows stand in the whole sequence."""
    frequencies = 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    angles = (positions[:, None] * frequencies)[:, None]  # (rows, 1, D/2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1)


class Block(torch.nn.Module):
    """Attention, the only layer that needs the other processes, and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH)])
        self.qkv = torch.nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * DIM, bias=False)
        self.out = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, schedule: str, length: int) -> torch.Tensor:
        """x (1, rows, WIDTH)."""
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (-1, DIM))  # (1, rows, H + 2 Hk, D)
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=2)
        q, k = rotate(q, positions), rotate(k, positions)
        out = ring.attention(q, k, v, schedule=schedule, q_len=length, k_len=length, causal=True)
        x = x + self.out(out.flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class ByteModel(torch.nn.Module):
    """The next byte from all bytes before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, WIDTH)
        torch.nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = torch.nn.RMSNorm(WIDTH)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, schedule: str, length: int) -> torch.Tensor:
        """Logits (1, rows, 256) for ids (1, rows)."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, positions, schedule, length)
        return functional.linear(self.norm(x), self.embedding.weight)


def train(text: torch.Tensor, length: int, steps: int) -> list[float]:
    """The loss of each step, in nats a byte; the same on every process, for any number of them."""
    torch.manual_seed(0)  # the same weights everywhere
    model = ByteModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = ring.choose_schedule(length, causal=True)
    positions = ring.positions(length, schedule=schedule)
    losses = []
    for step in range(steps):
        begin = step * length % (text.numel() - length)
        ids, targets = (
            ring.shard(text[begin + shift : begin + shift + length][None], schedule=schedule) for shift in (0, 1)
        )
        logits = model(ids, positions, schedule, length)
        loss = functional.cross_entropy(logits[0], targets[0], reduction="sum") / length  # this process's share
        optimizer.zero_grad()
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        losses.append(total.item())
    return losses


def main() -> None:
    """Trains on the files, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--length", type=int, default=1024, help="bytes of a sequence")
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    if "RANK" in os.environ:  # torchrun
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    text = torch.tensor(list(b"".join(path.read_bytes() for path in arguments.files)))
    losses = train(text, arguments.length, arguments.steps)
    if dist.get_rank() == 0:
        for step in range(0, arguments.steps, max(arguments.steps // 10, 1)):
            print(f"step {step:4d}: {losses[step]:.6f} nats a byte")
        print(f"step {arguments.steps - 1:4d}: {losses[-1]:.6f} nats a byte, on {dist.get_world_size()} processes")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
