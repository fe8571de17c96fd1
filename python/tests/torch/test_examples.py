"""The examples that train with two kinds of attention do what they say."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("matplotlib", reason="matplotlib, with which the examples draw, is not installed")

FOLDER = Path(__file__).resolve().parents[3] / "examples/python"
TEXT = [str(FOLDER.parents[1] / "README.md")]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """importlib.import_module, for the examples as well."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@pytest.fixture
def bias_example(load: Any) -> ModuleType:
    return load("train_bias")


@pytest.mark.parametrize(("name", "model"), [("train_gpt", "Gpt"), ("train_bias", "Bert")])
def test_losses_fall_and_agree(load: Any, name: str, model: str) -> None:
    side_by_side, make_model = load("side_by_side"), getattr(load(name), model)
    settings = side_by_side.Settings("cpu", "float32", steps=15, length=130, batch=4, files=TEXT)
    found = {attention: side_by_side.train(make_model, attention, settings) for attention in ("sdpa", "tilewise")}
    for training in found.values():
        assert training.losses[-1] < training.losses[0] - 1
    assert max(side_by_side.differences(found)) < 1e-4


@pytest.mark.parametrize("length", [1, 100, 300])
def test_a_bias_by_distance_and_its_gradient(bias_example: ModuleType, length: int) -> None:
    """Both ways against the definition: query i adds bias[S - 1 + j - i] to the score of key j."""
    heads = bias_example.HEADS
    q, k, v = (torch.randn(2, length, heads, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(heads, 2 * length - 1, dtype=torch.float64, requires_grad=True)
    place = torch.arange(length)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * 8**-0.5 + bias[:, length - 1 + place - place[:, None]]
    wanted = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
    dout = torch.randn_like(wanted)
    gradients = torch.autograd.grad(wanted, (q, k, v, bias), dout)
    for make in (bias_example.sdpa, bias_example.tiled):
        out = make(bias)(q, k, v)
        torch.testing.assert_close(out, wanted)
        torch.testing.assert_close(torch.autograd.grad(out, (q, k, v, bias), dout), gradients)


class Largest(TorchDispatchMode):
    """Notes the largest tensor's memory, in numbers."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for result in torch.utils._pytree.tree_leaves(results):
            if isinstance(result, torch.Tensor):
                self.numbers = max(self.numbers, result.untyped_storage().nbytes() // result.element_size())
        return results


def test_no_tensor_of_the_tiled_bias_is_length_squared(bias_example: ModuleType) -> None:
    """That of PyTorch's way is, which shows that the measure notices."""
    length, heads = 1000, bias_example.HEADS
    q = torch.randn(1, length, heads, 8)
    bias = torch.randn(heads, 2 * length - 1, requires_grad=True)
    largest = {}
    for make in (bias_example.sdpa, bias_example.tiled):
        with Largest() as seen:
            make(bias)(q, q, q).sum().backward()
        largest[make.__name__] = seen.numbers
    assert largest["tiled"] <= bias_example.ROWS * length * heads < length**2 * heads <= largest["sdpa"]


def test_buckets_are_those_of_t5(bias_example: ModuleType) -> None:
    """A few of the table in the T5 paper's code: 32 buckets, exact below 8, wider up to 128."""
    distances = torch.tensor([0, -1, -7, -8, -11, -12, -64, -90, -91, -128, -5000, 1, 7, 8, 128, 5000])
    buckets = [0, 1, 7, 8, 8, 9, 14, 14, 15, 15, 15, 17, 23, 24, 31, 31]
    assert bias_example.bucket(distances).tolist() == buckets


def test_what_a_run_leaves(tmp_path: Path) -> None:
    plot, result = tmp_path / "losses.svg", tmp_path / "result.json"
    sizes = ("--steps=2", "--length=40", "--batch=1")
    command = [sys.executable, str(FOLDER / "train_gpt.py"), *TEXT, *sizes, f"--plot={plot}", f"--result={result}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert all(text in done.stdout for text in ("sdpa ", "tilewise ", "tokens/s", "Largest difference"))
    assert all(text in plot.read_text() for text in ("<svg", ">sdpa<", ">tilewise<", ">step<"))
    results = json.loads(result.read_text())["results"]
    assert [len(results[name]["losses"]) for name in ("sdpa", "tilewise")] == [2, 2]
    assert all(one["tokens_per_second"] > 0 and one["peak_bytes"] > 0 for one in results.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps=0"], "argument --steps: is 0, must be at least 1"),
        ([*TEXT, "--length=10000000"], "argument --length: is 10000000, must be less than the"),
        (["--attention=flash"], "invalid choice: 'flash'"),
    ],
)
def test_bad_arguments(
    load: Any, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["train_gpt.py", *arguments])
    with pytest.raises(SystemExit):
        load("side_by_side").main("", "", load("train_gpt").Gpt, steps=1, length=40, batch=1)
    assert words in capsys.readouterr().err
