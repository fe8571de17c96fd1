"""Runs every ```python block of docs/python.md, docs/masks.md and the README: a section's blocks one after the other.

A section says which modules it needs: <!-- needs: jax tilewise.jax -->
"""

import importlib.util
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import tilewise

ROOT = Path(__file__).resolve().parents[2]


def sections(name: str) -> dict[str, str]:
    """{title: text} of the sections of a page that have code."""
    parts = re.split(r"^## (.+)$", (ROOT / name).read_text(), flags=re.MULTILINE)
    return {f"{name}: {title}": text for title, text in zip(parts[1::2], parts[2::2]) if "```python" in text}


SECTIONS = {**sections("docs/python.md"), **sections("docs/masks.md"), **sections("README.md")}


def test_there_is_something_to_run() -> None:
    assert len(SECTIONS) >= 3


@pytest.mark.parametrize("title", SECTIONS)
def test_section(title: str, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = SECTIONS[title]
    for line in re.findall(r"^<!-- needs: (.+) -->$", text, flags=re.MULTILINE):
        for module in line.split():
            try:
                importlib.import_module(module)
            except ImportError as error:
                pytest.skip(str(error))
    monkeypatch.chdir(tmp_path)
    snippet = types.ModuleType("snippet")  # torch.compile looks up the module of a function
    monkeypatch.setitem(sys.modules, "snippet", snippet)
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL), 1):
        exec(compile(block, f"{title}, block {number}", "exec"), snippet.__dict__)


def test_example_of_long_context(rng: np.random.Generator) -> None:
    """Its two ways agree, and what it says of memory holds at a length where that shows."""
    path = ROOT / "examples/python/long_context.py"
    specification = importlib.util.spec_from_file_location("long_context", path)
    assert specification is not None and specification.loader is not None
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    q, k, v = (rng.standard_normal((1, 200, example.HEADS, example.DIM), dtype=np.float32) for _ in range(3))
    np.testing.assert_allclose(tilewise.attention(q, k, v, causal=True), example.textbook(q, k, v), atol=2e-5)
    grown = {}
    for way in ("textbook", "tilewise"):
        command = [sys.executable, str(path), "--measure", way, "2048"]
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        grown[way] = json.loads(result.stdout)["bytes"]
    assert grown["tilewise"] < 4 * 2**20 < 16 * 2**20 < grown["textbook"]
