"""Generation with Hugging Face transformers by three kinds of attention: a small Llama with random weights.

Usage: generation.py [--device cpu|cuda] [--rounds N] [--threads N] [--prompts N,N] [--compile] [RESULT.json]

The contenders take turns. A prompt's speed is that of the fastest round; the speed of decoding comes from the least time
of each token over the rounds, which other work on the machine disturbs least. All contenders have the same weights, and
the run fails if the logits after a prompt differ by more than rounding. With --compile, transformers compiles decoding
with a static cache where it does so by itself (on a GPU).
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from models import OURS, SDPA, about, add_arguments, clock

import tilewise.transformers

EAGER = "eager"
NEW_TOKENS = 64
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# How far the logits of two contenders may be apart, relative to the largest logit.
ROUNDING = {"float32": 1e-4, "bfloat16": 5e-2}
SIZES = {
    "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 2,
}  # fmt: skip


class Clock:
    """A streamer: generate() hands it every token as soon as it is there, and it notes the time."""

    def __init__(self, device: torch.device) -> None:
        self.now = time.perf_counter if device.type == "cuda" else clock
        self.times: list[float] = []

    def put(self, tokens: torch.Tensor) -> None:
        """The prompt comes first."""
        tokens.cpu()  # waits until a GPU is done
        self.times.append(self.now())

    def end(self) -> None:
        """Nothing is left to note."""

    def differences(self) -> list[float]:
        """Seconds until the first token, then for each further one."""
        return [after - before for before, after in zip(self.times, self.times[1:])]


def make_model(implementation: str, dtype: str, device: str) -> Any:
    """Random weights, the same for every implementation."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SIZES, max_position_embeddings=8192, bos_token_id=None, eos_token_id=None, pad_token_id=0,
        attn_implementation=implementation,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(DTYPES[dtype]).to(device).eval()


def generate(model: Any, cache: str, ids: torch.Tensor, compiled: bool) -> tuple[list[float], torch.Tensor]:
    """The differences of Clock, and the logits (4096) of the first token."""
    streamer = Clock(ids.device)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, streamer=streamer,
        return_dict_in_generate=True, output_logits=True, disable_compile=not compiled,
        cache_implementation="static" if cache == "static" else None,
    )  # fmt: skip
    return streamer.differences(), out.logits[0][0].float()


def measure(dtype: str, prompt: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """A row of the results: tokens a second of each contender."""
    models = {name: make_model(name, dtype, arguments.device) for name in (EAGER, SDPA, OURS)}
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, SIZES["vocab_size"], (1, prompt), generator=generator).to(arguments.device)
    least: dict[tuple[str, str], list[float]] = {}
    for number in range(arguments.rounds + 1):  # the first is not counted
        wanted = None
        for name, model in models.items():
            for cache in ("dynamic", "static"):
                gc.collect()  # what a contender leaves behind is collected in no other's time
                seconds, logits = generate(model, cache, ids, arguments.compile)
                wanted = logits if wanted is None else wanted
                check(f"{name}, {cache} cache, {dtype}, prompt of {prompt}", logits, wanted, ROUNDING[dtype])
                if number > 0:
                    known = least.get((name, cache), seconds)
                    least[name, cache] = [min(pair) for pair in zip(known, seconds, strict=True)]
    row: dict[str, Any] = {"dtype": dtype, "prompt": prompt, "new_tokens": NEW_TOKENS, "tokens_per_second": {}}
    for (name, cache), seconds in least.items():
        speeds = {"prefill": round(prompt / seconds[0], 1), "decode": round(len(seconds[1:]) / sum(seconds[1:]), 2)}
        row["tokens_per_second"][f"{name}, {cache}"] = speeds
        print(f"{dtype:<9} {prompt:>5} {name:<9} {cache:<8} {speeds['prefill']:>9.0f} {speeds['decode']:>8.1f}", flush=True)
    return row


def check(what: str, found: torch.Tensor, wanted: torch.Tensor, rounding: float) -> None:
    """Ends the run if the logits are not those of the first contender."""
    error = ((found - wanted).abs().max() / wanted.abs().max()).item()
    if not error <= rounding:
        sys.exit(f"generation.py: {what}: the logits differ by {error:.1e} of the largest, must be at most {rounding}")


def main() -> None:
    """Measures, prints, and writes the file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--prompts", default="512,2048", help="tokens (default: %(default)s)")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tilewise.transformers.register()
    result = {"command": " ".join(["python", *sys.argv]), **about(), "model": SIZES, "rounds": arguments.rounds, "rows": []}
    if arguments.device == "cuda":
        result |= {"gpu": torch.cuda.get_device_name(), "clock": "time that passes"}
    print(f"{'dtype':<9} {'prompt':>5} {'attention':<9} {'cache':<8} {'prefill':>9} {'decode':>8}  (tokens/s)")
    for dtype in DTYPES:
        for prompt in map(int, arguments.prompts.split(",")):
            result["rows"].append(measure(dtype, prompt, arguments))
            if arguments.result:  # one row after the other: each takes minutes
                arguments.result.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
