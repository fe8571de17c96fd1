"""The suites of tilewise.transformers; skipped, with the reason, where PyTorch or transformers is not installed."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import tilewise.transformers  # noqa: E402

tilewise.transformers.register()


@pytest.fixture(autouse=True)
def _same_numbers_in_every_run() -> None:
    torch.manual_seed(20261121)
