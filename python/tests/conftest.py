"""What all suites share: which frameworks are there, and a reproducible generator."""

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that are the same in every run."""
    return np.random.default_rng(20261121)
