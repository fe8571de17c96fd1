"""What all suites share: reproducible random numbers, and the formulas of tests/python."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))  # formulas.py: attention in float64, from the semantics
sys.path.insert(0, str(Path(__file__).parent))  # cases.py


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that are the same in every run."""
    return np.random.default_rng(20261121)
