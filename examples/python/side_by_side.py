"""What train_gpt.py and train_bias.py share: the layers of a small transformer over bytes, and its training with two kinds
of attention from the same seed, which a table, a plot and a file compare.

Each training is a process of its own, because the peak of a process's memory never goes down.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable

import matplotlib
import torch
from matplotlib import pyplot
from torch.nn import functional

import tilewise

ROOT = Path(__file__).resolve().parents[2]
WIDTH, HEADS, LAYERS = 128, 4, 3
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Block(torch.nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)])
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        """x (B, S, WIDTH). attend: from q, k and v (B, S, H, D) to (B, S, H, D)."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).unbind(2)
        x = x + self.out(attend(q, k, v).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Transformer(torch.nn.Module):
    """Blocks between an embedding and logits."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.logits = torch.nn.Linear(WIDTH, vocabulary)

    def forward(self, ids: torch.Tensor, attend: Attend, positions: torch.Tensor | float = 0.0) -> torch.Tensor:
        """Logits (B, S, vocabulary) for ids (B, S); positions (S, WIDTH) are added to the embedding."""
        x = self.embedding(ids) + positions
        for block in self.blocks:
            x = block(x, attend)
        return self.logits(self.norm(x))


# ---- one training ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """What both trainings have in common."""

    device: str
    dtype: str
    steps: int
    length: int
    batch: int
    files: list[str]


@dataclass(frozen=True)
class Training:
    """What one training gave."""

    tokens_per_second: float
    peak_bytes: int
    losses: list[float]


def train(make_model: Callable[[str, int], torch.nn.Module], attention: str, settings: Settings) -> Training:
    """Trains the model that make_model(attention, length) returns; its loss() takes windows (B, length + 1) of the text.

    All random numbers are drawn on the CPU: the weights and the windows are the same for every attention and device.
    """
    torch.manual_seed(0)
    text = torch.tensor(list(b"".join(Path(name).read_bytes() for name in settings.files)))
    model = make_model(attention, settings.length).to(settings.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)
    before = peak_bytes(settings.device)
    losses, seconds = [], []
    for step in range(settings.steps):
        begins = torch.randint(0, text.numel() - settings.length, (settings.batch, 1))
        windows = text[begins + torch.arange(settings.length + 1)].to(settings.device)
        start = clock(settings.device)
        with torch.autocast(settings.device, DTYPES[settings.dtype], enabled=settings.dtype != "float32"):
            loss = model.loss(windows)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())  # waits until a GPU is done
        seconds.append(clock(settings.device) - start)
        if (step + 1) % max(settings.steps // 5, 1) == 0:
            print(f"{attention:<8}  step {step + 1:4d}: {losses[-1]:.4f} nats a byte", flush=True)
    # Other work on the machine disturbs the fastest step least.
    speed = settings.batch * settings.length / min(seconds)
    return Training(round(speed), peak_bytes(settings.device) - before, losses)


def clock(device: str) -> float:
    """Seconds: on one thread of a CPU, of CPU time, which others' work on the machine does not enter; else as they pass."""
    return time.process_time() if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter()


def peak_bytes(device: str) -> int:
    """The peak of memory since the process started: of the GPU's tensors, or of the whole process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


# ---- the comparison -------------------------------------------------------------------------------------------------


def compare(
    make_model: Callable[[str, int], torch.nn.Module], names: list[str], settings: Settings
) -> dict[str, Training]:
    """{attention: training}"""
    context = multiprocessing.get_context("spawn")
    found = {}
    for name in names:
        with ProcessPoolExecutor(max_workers=1, mp_context=context) as process:
            found[name] = process.submit(train, make_model, name, settings).result()
    return found


def differences(found: dict[str, Training]) -> list[float]:
    """How far apart the losses of each step are."""
    return [max(losses) - min(losses) for losses in zip(*(one.losses for one in found.values()), strict=True)]


def print_table(found: dict[str, Training]) -> None:
    """A row for each attention."""
    print(f"\n{'attention':<10} {'tokens/s':>9} {'memory':>11} {'first loss':>11} {'last loss':>10}")
    for name, one in found.items():
        memory = f"{one.peak_bytes / 2**20:.0f} MiB"
        print(f"{name:<10} {one.tokens_per_second:>9.0f} {memory:>11} {one.losses[0]:>11.4f} {one.losses[-1]:>10.4f}")
    if len(found) > 1:
        print(f"\nLargest difference between the losses of a step: {max(differences(found)):.1e} nats a byte")


def plot(found: dict[str, Training], title: str, path: Path) -> None:
    """The loss of each attention over the steps, and how far apart they are."""
    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": title}
    panels = ("loss (nats a byte)", "difference of the losses")[: len(found)]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.5 * len(panels), 3.6), layout="constrained", squeeze=False)
    steps = range(1, len(next(iter(found.values())).losses) + 1)
    for (name, one), colour, line in zip(found.items(), ("#b3541e", "#1f5fa8"), ("-", (0, (3, 3)))):
        axes[0, 0].plot(steps, one.losses, color=colour, linestyle=line, linewidth=1.8, label=name)
    axes[0, 0].legend(frameon=False)
    for axis, label in zip(axes[0], panels):
        axis.set_xlabel("step")
        axis.set_ylabel(label)
        axis.grid(True, alpha=0.3)
    if len(found) > 1:
        axes[0, 1].plot(steps, differences(found), ".", color="#444444")
        axes[0, 1].ticklabel_format(axis="y", scilimits=(0, 0))
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, metadata={"Date": None})
    print(f"wrote {path}")


def save(found: dict[str, Training], settings: Settings, path: Path) -> None:
    """Writes what was measured, and where."""
    cpu = next(line for line in tilewise.info().splitlines() if line.startswith("cpu ")).removeprefix("cpu").strip()
    is_cpu_time = settings.device == "cpu" and torch.get_num_threads() == 1
    about: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "cpu": cpu,
        "threads": torch.get_num_threads(),
        "clock": "CPU time" if is_cpu_time else "time that passes",
        "versions": {"tilewise": tilewise.__version__, "torch": torch.__version__},
        **{name: value for name, value in asdict(settings).items() if name != "files"},
        "largest_difference": max(differences(found)),
        "results": {name: asdict(one) for name, one in found.items()},
    }
    if settings.device == "cuda":
        about["gpu"] = torch.cuda.get_device_name()
    path.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def main(description: str, title: str, make_model: Callable[[str, int], torch.nn.Module], **defaults: int) -> None:
    """Reads the arguments, trains, compares. defaults: of steps, length and batch."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("files", nargs="*", help="the text; by default the pages of this repository's docs/")
    parser.add_argument("--attention", choices=("sdpa", "tilewise", "both"), default="both")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, help="default: float32, on a GPU bfloat16 by autocast")
    for name, what in (("steps", "of training"), ("length", "bytes of a sequence"), ("batch", "sequences in a step")):
        parser.add_argument(f"--{name}", type=positive, default=defaults[name], help=f"{what} (default: %(default)s)")
    parser.add_argument("--plot", type=Path, default=Path(sys.argv[0]).with_suffix(".svg").name, metavar="PLOT.svg")
    parser.add_argument("--result", type=Path, metavar="RESULT.json")
    given = parser.parse_args()
    dtype = given.dtype or ("bfloat16" if given.device == "cuda" else "float32")
    files = given.files or [str(path) for path in sorted((ROOT / "docs").glob("*.md"))]
    size = sum(Path(name).stat().st_size for name in files)
    if size <= given.length:
        parser.error(f"argument --length: is {given.length}, must be less than the {size} bytes of the text")
    settings = Settings(given.device, dtype, given.steps, given.length, given.batch, files)
    found = compare(make_model, ["sdpa", "tilewise"] if given.attention == "both" else [given.attention], settings)
    print_table(found)
    plot(found, f"{title}, {dtype}, {given.batch} x {given.length} bytes a step", given.plot)
    if given.result:
        save(found, settings, given.result)


def positive(text: str) -> int:
    """An integer from 1 on, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"is {value}, must be at least 1")
    return value
