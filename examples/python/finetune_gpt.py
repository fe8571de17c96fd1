"""Fine-tunes a small GPT on text files, with attention by Tilewise, and writes on.

    pip install . transformers
    python examples/python/finetune_gpt.py README.md docs/*.md

The model is a Llama of 0.6 million weights over bytes: first it learns the files in general, then it is fine-tuned on the
first of them. Documents of different lengths lie one behind the other in a row, and `position_ids` keeps them apart: no
padding, and no mask of all pairs.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
import transformers

import tilewise.transformers

LENGTH = 256  # bytes of a document; the last document of a file is shorter
ROW = 8  # documents in one row of tokens


def make_model() -> transformers.LlamaForCausalLM:
    """Returns a model with random weights, the same in every run."""
    tilewise.transformers.register()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=2 * LENGTH,
        attn_implementation=tilewise.transformers.NAME,
    )
    return transformers.LlamaForCausalLM(config)


def documents(paths: list[Path]) -> list[torch.Tensor]:
    """Pieces of the files as bytes."""
    files = [torch.tensor(list(path.read_bytes())) for path in paths]
    return [piece for text in files for piece in text.split(LENGTH) if piece.numel() > 1]


def packed_row(pieces: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Concatenates documents: ids, positions that start again, and no target for a document's first byte."""
    labels = torch.cat([torch.cat((torch.tensor([-100]), piece[1:])) for piece in pieces])
    positions = torch.cat([torch.arange(piece.numel()) for piece in pieces])
    return {"input_ids": torch.cat(pieces)[None], "position_ids": positions[None], "labels": labels[None]}


def train(model: transformers.LlamaForCausalLM, pieces: list[torch.Tensor], steps: int, rate: float) -> list[float]:
    """The loss of each step, in nats a byte."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: math.cos(step / steps * math.pi / 2))
    losses = []
    for _ in range(steps):
        chosen = torch.randint(0, len(pieces), (ROW,))
        loss = model(**packed_row([pieces[i] for i in chosen]), use_cache=False).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def write_on(model: transformers.LlamaForCausalLM, beginning: str, length: int) -> str:
    """The likeliest bytes after `beginning`, with a key/value cache."""
    ids = torch.tensor([list(beginning.encode())])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False, pad_token_id=0)
    return bytes(out[0].tolist()).decode(errors="replace")


def main() -> None:
    """Trains, fine-tunes, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    model = make_model()
    for name, paths in (("all files", arguments.files), (str(arguments.files[0]), arguments.files[:1])):
        losses = train(model, documents(paths), arguments.steps, 3e-3 if name == "all files" else 1e-3)
        last = losses[-10:]
        print(f"{name}: {losses[0]:.2f} to {sum(last) / len(last):.2f} nats a byte")
    print(write_on(model.eval(), "Tilewise is ", 120))


if __name__ == "__main__":
    main()
