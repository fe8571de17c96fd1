"""The package itself: version, import, files, types, the command."""

import ast
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import tilewise
from tilewise import _core, _options

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(tilewise.__file__).parent


def run(script: str, **environment: str) -> subprocess.CompletedProcess:
    """The script in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True, text=True, timeout=120, env={**os.environ, **environment},
    )  # fmt: skip


def test_version_is_the_header_s() -> None:
    header = (ROOT / "include/tilewise/tilewise.h").read_text()
    parts = re.findall(r"#define TILEWISE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    assert tilewise.__version__ == ".".join(parts)


def test_import_needs_numpy_only() -> None:
    """Every other package is hidden: nothing but the standard library, NumPy and nanobind's backend is asked for."""
    result = run("""
        import sys
        allowed = {*sys.stdlib_module_names, "numpy", "nanobind_backend", "tilewise"}
        class Hide:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] not in allowed:
                    raise ModuleNotFoundError(f"hidden: {name}")
        sys.meta_path.insert(0, Hide())
        import numpy as np, tilewise, tilewise.masks
        x = np.ones((1, 3, 2, 8), np.float32)
        assert (tilewise.attention(x, x, x, causal=True) == 1).all()
        assert (tilewise.attention(x, x, x, slices=tilewise.masks.causal(3)) == 1).all()
        out, lse = tilewise.attention_forward(x, x, x)
        tilewise.attention_backward(x, x, x, x, out, lse)
        tilewise.plan(x, x, x)(x, x, x)
        print(sorted(m for m in sys.modules if m.partition(".")[0] not in allowed and "." not in m and m[0] != "_"))
    """)
    assert result.returncode == 0, result.stderr
    assert not {"torch", "jax", "ml_dtypes", "transformers"} & set(ast.literal_eval(result.stdout))


def test_import_without_its_shared_library(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "tilewise", ignore=shutil.ignore_patterns("libtilewise*", "__pycache__"))
    result = run("import tilewise", PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "ImportError: tilewise: its compiled part does not load" in result.stderr
    assert "pip install ." in result.stderr


def test_import_of_the_sources() -> None:
    result = run("import tilewise", PYTHONPATH=str(ROOT / "python"))
    assert result.returncode == 1 and "pip install ." in result.stderr


def test_command_prints_info() -> None:
    result = subprocess.run([sys.executable, "-m", "tilewise"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and result.stdout == tilewise.info()
    assert result.stdout.startswith(f"Tilewise {tilewise.__version__}\n")
    for name in tilewise.kernels() + tilewise.kernels(backward=True):
        assert name in result.stdout


def test_one_module_for_all_versions_of_python() -> None:
    assert Path(_core.__file__).name == "_core.abi3.so"


def test_package_holds_no_path_of_its_build() -> None:
    for module in PACKAGE.rglob("*.so*"):
        content = module.read_bytes()
        assert str(ROOT / "build").encode() not in content, module


def test_types_are_shipped_and_name_what_there_is() -> None:
    assert (PACKAGE / "py.typed").exists()
    stub = ast.parse((PACKAGE / "_core.pyi").read_text())
    named = {
        node.name if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else node.target.id
        for node in stub.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AnnAssign))
    }
    assert named == {name for name in vars(_core) if not name.startswith("_")}
    plan = next(node for node in stub.body if isinstance(node, ast.ClassDef))
    assert {f.name for f in plan.body} == {name for name in vars(_core.Plan) if not name.startswith("_")}


def test_types_agree_with_each_other(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    files = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py"))]
    needs = dict.fromkeys(("torch", "compat", "distributed"), "torch")
    needs |= {"transformers": "transformers", "jax.py": "jax"}
    shown = [path for path in files if importlib.util.find_spec(needs.get(path.parts[0], "numpy"))]
    modules = [".".join(("tilewise", *path.with_suffix("").parts)).removesuffix(".__init__") for path in shown]
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "--follow-imports=silent",
         "--disable-error-code=no-any-return", "--disable-error-code=no-untyped-call", "--cache-dir", str(tmp_path),
         *(argument for module in modules for argument in ("-m", module))],
        capture_output=True, text=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


def test_signatures_list_every_option() -> None:
    assert set(_options.DEFAULTS) == set(_options.Options.__annotations__)
    for function in (tilewise.attention, tilewise.attention_forward, tilewise.attention_backward, tilewise.plan):
        parameters = inspect.signature(function).parameters
        assert set(_options.DEFAULTS) < set(parameters)
        assert all(parameters[name].default == value for name, value in _options.DEFAULTS.items())
        assert function.__doc__


def test_everything_public_has_a_docstring() -> None:
    for name in tilewise.__all__:
        if name != "__version__":
            assert getattr(tilewise, name).__doc__, name
