"""The tables that scripts/readme-figures writes from bench/results/cuda. Figures are TFLOP/s."""
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent


def parts(name: str) -> tuple[str, int, int, bool]:
    dtype, dim, length, causal = re.fullmatch(r"(\w+)-D(\d+)-S(\d+)(-causal)?", name).groups()
    return dtype, int(dim), int(length), causal is not None


def source(path: pathlib.Path, document: dict) -> str:
    machine, place = document["machine"], path.relative_to(ROOT)
    return (f"{machine['gpu']}, PyTorch {machine['torch']}, the median of {document['rounds']} rounds "
            f"([{place.name}](../{place})):")


def grid(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def plain_rows(document: dict, dtype: str) -> list[dict]:
    return [row for row in document["rows"] if row["row"].startswith(f"{dtype}-") and "gqa" not in row["row"]]


def rate(row: dict, who: str) -> float:
    return row["tflops"][who]


def rivals_table(path: pathlib.Path, dtype: str, rivals: dict[str, str]) -> str:
    """Every length of a dtype: Tilewise, the rivals by name, and the ratio to each."""
    document, rows = json.loads(path.read_text()), []
    for row in plain_rows(document, dtype):
        _, dim, length, causal = parts(row["row"])
        ours = rate(row, "tilewise")
        digits = 0 if ours >= 100 else 1
        rows.append([str(dim), str(length), "yes" if causal else "no", f"{ours:.{digits}f}",
                     *(f"{rate(row, who):.{digits}f}" for who in rivals), *(f"{ours / rate(row, who):.2f}" for who in rivals)])
    head = ["D", "S", "causal", "Tilewise", *rivals.values(), *(f"of {name}" for name in rivals.values())]
    return "\n".join(["", source(path, document), *grid(head, rows)]) + "\n"


def forward_table(path: pathlib.Path) -> str:
    return rivals_table(path, "bf16", {"cudnn": "cuDNN", "flash": "FA2", "gemm": "GEMM"})


def fp32_table(path: pathlib.Path) -> str:
    return rivals_table(path, "fp32", {"fma": "multiply-adds", "efficient": "PyTorch", "gemm": "GEMM"})


def others_table(path: pathlib.Path) -> str:
    """Grouped heads, packed documents and a window."""
    document = json.loads(path.read_text())
    rates = {row["row"]: row["tflops"] for row in document["rows"]}
    rows = []
    for name in rates:
        if name.endswith("-gqa4"):
            ours, plain = rates[name]["tilewise"], rates[name.removesuffix("-gqa4")]["tilewise"]
            rows.append([name, f"{ours:.0f}", f"{ours / plain:.2f} of the same problem with Hk = H"])
    for other in document["others"]:
        if "tflops" in other:
            packed, dense, mixed = (other["tflops"][who] for who in ("packed", "dense", "mixed"))
            rows.append([other["row"], f"{packed:.0f}", f"{packed / dense:.2f} of the dense batch; mixed lengths {mixed:.0f}"])
        else:
            window, full = (other["tflops_of_visited"][who] for who in ("window", "full"))
            alone = other["tflops_of_visited"].get("alone")  # older files lack it
            beside = f"; one call by itself {alone / full:.2f}" if alone else ""
            rows.append([other["row"], f"{window:.0f}", f"{window / full:.2f} of no mask, by visited area (visible / visited "
                         f"{other['visible'] / other['visited']:.2f}){beside}"])
    return "\n".join(["", source(path, document), *grid(["row", "Tilewise", ""], rows)]) + "\n"


def sm80_table(path: pathlib.Path) -> str:
    return rivals_table(path, "bf16", {"flash": "FA2"})


def backward_table(path: pathlib.Path) -> str:
    document = json.loads(path.read_text())
    rows = []
    for row in document["rows"]:
        if not row["row"].startswith("bf16") or row["row"].endswith("gqa4"):
            continue
        _, dim, length, causal = parts(row["row"])
        ours, fixed, flash, cudnn = (rate(row, who) for who in ("tilewise", "tilewise_deterministic", "flash", "cudnn"))
        rows.append([str(dim), str(length), "yes" if causal else "no", *(f"{x:.0f}" for x in (ours, fixed, flash, cudnn)),
                     f"{ours / flash:.2f}", f"{ours / cudnn:.2f}", f"{fixed / ours:.2f}"])
    head = ["D", "S", "causal", "Tilewise", "deterministic", "FA2", "cuDNN", "of FA2", "of cuDNN", "deterministic / not"]
    return "\n".join(["", source(path, document), *grid(head, rows)]) + "\n"


def ladder_table(path: pathlib.Path) -> str:
    document = json.loads(path.read_text())
    rungs = list(document["rows"][0]["tflops"])
    rows = []
    for row in document["rows"]:
        _, dim, length, causal = parts(row["row"])
        rates = [rate(row, rung) for rung in rungs]
        steps = [f"{b / a:.2f}" for a, b in zip(rates, rates[1:])]
        moved = [f"{row['moved_bytes'][rung] * 1e-9:.2f}" for rung in rungs]
        extra = [f"{row['workspace_bytes'][rung] / 2 ** 20:.1f}" for rung in rungs[:2]]
        rows.append([str(dim), str(length), "yes" if causal else "no", *(f"{x:.0f}" for x in rates), *steps,
                     " / ".join(moved), " / ".join(extra)])
    names = [f"`{rung}`" for rung in rungs]
    head = ["D", "S", "causal", *names, "FA1 / standard", "FA2 / FA1", "FA3 / FA2", "GB moved by each",
            "extra MiB of the first two"]
    return "\n".join(["", source(path, document), *grid(head, rows)]) + "\n"


def decode_table(path: pathlib.Path) -> str:
    """Few queries: what each contender reads of the cache in a second."""
    document, rows = json.loads(path.read_text()), []
    for row in document["rows"]:
        if not row["seconds"].keys() & {"fa3", "cudnn"}:
            continue
        dim, batch, heads, kv_heads, keys, rest = re.fullmatch(
            r"bf16-D(\d+)-B(\d+)-H(\d+)-Hk(\d+)-L(\d+)(.*)", row["row"]).groups()
        queries = found[1] if (found := re.search(r"-q(\d+)", rest)) else "1"
        seconds = row["seconds"]
        speeds = [f"{row['read_bytes'] / seconds[who] * 1e-12:.2f}" if who in seconds else "-"
                  for who in ("tilewise", "fa3", "cudnn")]
        best = min(s for who, s in seconds.items() if who != "tilewise")
        of_read = row["read_bytes"] / seconds["tilewise"] / row["read_bytes_per_second"]
        rows.append([f"{heads}/{kv_heads}", dim, batch, f"1 to {keys}" if "mixed" in rest else keys, queries,
                     f"{row['cache_bytes'] / 2 ** 20:.0f}", f"{seconds['tilewise'] * 1e6:.1f}", *speeds,
                     f"{best / seconds['tilewise']:.2f}", f"{of_read:.2f}"])
    head = ["heads", "D", "B", "keys", "queries", "cache, MiB", "us", "Tilewise, TB/s", "FA3", "cuDNN", "of the best peer",
            "of the read rate"]
    return "\n".join(["", source(path, document), *grid(head, rows)]) + "\n"


def decode_types_table(path: pathlib.Path) -> str:
    """Few queries in fp32, and on caches of e4m3, beside the same shape in bf16."""
    document, rows = json.loads(path.read_text()), []
    bf16 = {row["row"]: row["seconds"]["tilewise"] for row in document["rows"]}
    for row in document["rows"]:
        found = re.fullmatch(r"(fp32|bf16-e4m3)-(D(\d+)-B(\d+)-H(\d+)-Hk(\d+)-L(\d+)(?:-q(\d+))?)(-page\d+)?", row["row"])
        if not found:
            continue
        types, shape, dim, batch, heads, kv_heads, keys, queries, page = found.groups()
        seconds = row["seconds"]["tilewise"]
        beside = bf16.get(f"bf16-{shape}{page or ''}")
        of_read = row["read_bytes"] / seconds / row["read_bytes_per_second"]
        rows.append([types.replace("-", ", cache "), f"{heads}/{kv_heads}", dim, batch, keys, queries or "1",
                     page.removeprefix("-page") if page else "-", f"{row['cache_bytes'] / 2 ** 20:.0f}", f"{seconds * 1e6:.1f}",
                     f"{beside * 1e6:.1f}" if beside else "-", f"{of_read:.2f}"])
    head = ["type", "heads", "D", "B", "keys", "queries", "page", "cache, MiB", "us", "us in bf16", "of the read rate"]
    return "\n".join(["", source(path, document), *grid(head, rows)]) + "\n"


def fp8_table(path: pathlib.Path) -> str:
    """Forward in e4m3 beside bf16 and FlashAttention-3."""
    document, rows = json.loads(path.read_text()), []
    for row in document["rows"]:
        _, dim, length, causal = parts(row["row"])
        ours, bf16, fa3 = (rate(row, who) for who in ("tilewise", "bf16", "fa3"))
        rows.append([str(dim), str(length), "yes" if causal else "no", f"{ours:.0f}", f"{bf16:.0f}", f"{fa3:.0f}",
                     f"{ours / bf16:.2f}", f"{ours / fa3:.2f}"])
    head = ["D", "S", "causal", "fp8", "bf16", "FA3 in fp8", "of bf16", "of FA3"]
    return "\n".join(["", source(path, document), *grid(head, rows)]) + "\n"


def fp32_backward_table(path: pathlib.Path) -> str:
    document, rows = json.loads(path.read_text()), []
    for row in document["rows"]:
        _, dim, length, causal = parts(row["row"])
        ours, fixed, torch, peak = (rate(row, who) for who in ("tilewise", "tilewise_deterministic", "efficient", "fma"))
        rows.append([str(dim), str(length), "yes" if causal else "no", *(f"{x:.1f}" for x in (ours, fixed, torch, peak)),
                     f"{ours / torch:.2f}", f"{ours / peak:.2f}"])
    head = ["D", "S", "causal", "Tilewise", "deterministic", "PyTorch", "multiply-adds", "of PyTorch", "of multiply-adds"]
    return "\n".join(["", source(path, document), *grid(head, rows)]) + "\n"
