"""The suites of tilewise.torch; skipped, with the reason, where PyTorch is not installed."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(autouse=True)
def _same_numbers_in_every_run() -> None:
    torch.manual_seed(20261121)
