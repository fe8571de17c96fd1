"""The stable C interface as python/torch/shim.h declares it, against the headers of the PyTorch that is installed."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def check(source: Path) -> subprocess.CompletedProcess:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    return subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", "-DTORCH_TARGET_VERSION=0x020a000000000000",
         f"-I{ROOT / 'include'}", f"-I{Path(torch.__file__).parent / 'include'}", str(source)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_types_are_those_of_the_headers() -> None:
    done = check(HERE / "shim_check.cc")
    assert done.returncode == 0, done.stderr


def test_the_check_notices_another_type(tmp_path: Path) -> None:
    text = (HERE / "shim_check.cc").read_text().replace("../../torch/shim.h", "shim.h")
    shim = (ROOT / "python/torch/shim.h").read_text()
    changed = re.sub(r"X\(aoti_torch_get_dim, Error, Tensor, std::int64_t\*\)", "X(aoti_torch_get_dim, Error, Tensor)", shim)
    assert changed != shim
    (tmp_path / "shim.h").write_text(changed)
    (tmp_path / "shim_check.cc").write_text(text)
    done = check(tmp_path / "shim_check.cc")
    assert done.returncode != 0 and "aoti_torch_get_dim has another type" in done.stderr
