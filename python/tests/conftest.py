"""Shared by all suites: their requirements, random numbers, and the formulas of tests/python."""

from __future__ import annotations

import importlib.util
import os
import sys
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX then leaves memory of a device to PyTorch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests/python"))  # formulas.py: attention in float64, from the semantics
sys.path.insert(0, str(HERE / "support"))  # not this folder: it would replace a torch or jax that is not installed

# ---- frameworks: a suite is skipped, with the reason, if a framework that it needs is not installed ---------------

NEEDS = {
    "compat": {"torch": "PyTorch"},
    "jax": {"jax": "JAX"},
    "torch": {"torch": "PyTorch"},
    "transformers": {"torch": "PyTorch", "transformers": "transformers"},
}


class _Suite(pytest.Dir):
    """A folder of tests of one framework."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        for module, name in NEEDS[self.path.name].items():
            pytest.importorskip(module, reason=f"{name} is not installed")
        return super().collect()


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Called by pytest for every folder of tests."""
    is_suite = path.parent == HERE and path.name in NEEDS
    return _Suite.from_parent(parent, path=path) if is_suite else None


# ---- random numbers: the same in every run, unless TILEWISE_TEST_SEED is a number or "random" ---------------------

GIVEN = os.environ.get("TILEWISE_TEST_SEED") or "1"
SEED = int(np.random.SeedSequence().generate_state(1)[0]) if GIVEN == "random" else int(GIVEN)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Depends on the run and on the test: a test draws the same numbers alone as among the others."""
    return (SEED + zlib.crc32(request.node.name.encode())) % 2**32


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """NumPy's random numbers."""
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True)
def _seed_of_pytorch(seed: int) -> None:
    """PyTorch's random numbers, where a suite has imported it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


# ---- devices: test_cuda.py of each suite is for CUDA, everything else for the CPU -----------------------------------


@pytest.fixture(autouse=True)
def _jax_on_the_cpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """JAX would take a CUDA device for everything, and has other tolerances there (tf32)."""
    if request.path.name == "test_cuda.py" or importlib.util.find_spec("jax") is None:
        yield
        return
    import jax

    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Every failure says how to repeat it."""
    report = yield
    if report.failed:
        report.sections.append(("random numbers", f"TILEWISE_TEST_SEED={SEED}"))
    return report
