"""The examples that need transformers do what they say."""

import importlib.util
from pathlib import Path

import pytest
import tilewise.transformers
import torch

ROOT = Path(__file__).resolve().parents[3]


def test_finetune_gpt(monkeypatch: pytest.MonkeyPatch) -> None:
    specification = importlib.util.spec_from_file_location("gpt", ROOT / "examples/python/finetune_gpt.py")
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    model = example.make_model()
    assert model.config._attn_implementation == tilewise.transformers.NAME
    pieces = example.documents([ROOT / "README.md", ROOT / "CONTRIBUTING.md"])

    # A packed row gives the same results as its documents alone.
    with torch.no_grad():
        together = model(**example.packed_row(pieces[:3]), use_cache=False).logits[0]
        alone = torch.cat([model(piece[None], use_cache=False).logits[0] for piece in pieces[:3]])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)

    losses = example.train(model, pieces, 12, 3e-3)
    assert losses[-1] < losses[0] - 1
    text = example.write_on(model.eval(), "Tilewise", 8)
    assert text.startswith("Tilewise") and len(text.encode()) > len("Tilewise")
