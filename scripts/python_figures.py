"""The tables that scripts/readme-figures writes from bench/results/python."""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
WAYS = ("sdpa", "tilewise")


def link(path: pathlib.Path) -> str:
    """A link to a file of results from a page in docs/."""
    place = path.relative_to(ROOT)
    return f"[{place.relative_to('bench/results')}](../{place})"


def source(path: pathlib.Path, content: dict) -> list[str]:
    """The line above a table."""
    threads = content["threads"]
    machine = content.get("gpu", f"{content['cpu'].partition(',')[0]}, {threads} thread{'s' * (threads != 1)}")
    return ["", f"{machine}, {content['clock']}, PyTorch {content['versions']['torch']} ({link(path)}):", ""]


def models_table(path: pathlib.Path) -> str:
    content = json.loads(path.read_text())
    rates, calls = content["minilm"]["sentences_per_second"], content["one_call_microseconds"]
    prefill, step = content["gpt2_small_prefill"]["seconds"], content["gpt2_small_training_step"]["seconds"]
    rows = []
    for order, name in (("sorted", "of like length"), ("unsorted", "as they come")):
        eager, sdpa, padded, packed = (f"{rates[f'{order}: {way}']:.0f}" for way in (
            "eager, padded", "sdpa, padded", "tilewise, padded", "tilewise, packed"))
        rows.append((f"MiniLM, sentences/s, batches of 32 {name}", eager, sdpa, f"{padded} padded, {packed} packed"))
    rows.append(("GPT-2 small, a training step of 1024 tokens, fp32", "", *(f"{step[way]:.2f} s" for way in WAYS)))
    for dtype, name in (("float32", "fp32"), ("bfloat16", "bf16")):
        rows.append((f"GPT-2 small, a prefill of 2048 tokens, {name}", "", *(f"{prefill[f'{way}, {dtype}']:.2f} s" for way in WAYS)))
    for more, name in (("", "one call that computes next to nothing"), (", with autograd", "the same, with autograd")):
        theirs, ours = (calls[call + more] for call in ("scaled_dot_product_attention", "tilewise.torch.attention"))
        rows.append((name, "", f"{theirs:.1f} us", f"{ours:.1f} us"))
    lines = [*source(path, content), "| | eager | PyTorch's SDPA | Tilewise |", "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def generation_table(path: pathlib.Path) -> str:
    """Tokens a second, and how much faster Tilewise is than PyTorch's SDPA."""
    content = json.loads(path.read_text())
    lines = [*source(path, content), "| tokens/s | eager | PyTorch's SDPA | Tilewise | Tilewise / SDPA |", "|---|---|---|---|---|"]
    for row in content["rows"]:
        dtype = {"float32": "fp32", "bfloat16": "bf16"}[row["dtype"]]
        for what in ("prefill", "decode"):
            for cache in ("dynamic", "static"):
                eager, sdpa, ours = (row["tokens_per_second"][f"{who}, {cache}"][what] for who in ("eager", *WAYS))
                cells = [f"{what}, {dtype}, prompt of {row['prompt']}, {cache} cache",
                         *(f"{rate:.0f}" if what == "prefill" else f"{rate:.1f}" for rate in (eager, sdpa, ours)),
                         f"{ours / sdpa:.2f}"]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def training_table(path: pathlib.Path) -> str:
    """One of the examples that train twice."""
    content = json.loads(path.read_text())
    about = f"{content['steps']} steps of {content['batch']} x {content['length']} bytes in {content['dtype']}"
    difference = f"largest difference between the losses of a step {content['largest_difference']:.1e}"
    lines = source(path, content)
    lines[1] = lines[1].replace(" (", f": {about}, {difference} (", 1)
    lines += ["| attention | tokens/s | memory | first loss | last loss |", "|---|---|---|---|---|"]
    for name, one in content["results"].items():
        cells = [name, f"{one['tokens_per_second']:.0f}", f"{one['peak_bytes'] / 2**20:.0f} MiB",
                 f"{one['losses'][0]:.3f}", f"{one['losses'][-1]:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
