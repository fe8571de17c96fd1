"""The tables of docs/cpu.md and docs/cuda.md that scripts/readme-figures writes from the results of bench/data."""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def worst(rows: list[dict], kind: str) -> float | None:
    ratios = [row["ratio"][kind] for row in rows if kind in row["ratio"]]
    return max(ratios) if ratios else None


def rows_by_kernel(document: dict) -> dict[str, list[dict]]:
    kernels: dict[str, list[dict]] = {}
    for row in document["rows"]:
        kernels.setdefault(row["kernel"], []).append(row)
    return kernels


def kinds_of(rows: list[dict]) -> list[str]:
    """All kinds but normal, in the order of the widest row."""
    kinds = dict.fromkeys(kind for row in sorted(rows, key=lambda row: -len(row["ratio"])) for kind in row["ratio"])
    return [kind for kind in kinds if kind != "normal"]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def shapes(rows: list[dict]) -> str:
    """What the rows are of: "forward 1024 x 1024, D 64 and 128, ..."."""
    parts = {}
    for row in rows:
        batch, queries, keys, heads, _, dim = map(int, row["shape"].split(","))
        parts.setdefault((row["op"], f"B {batch}, Sq {queries}, Sk {keys}"), set()).add(dim)
    texts = [f"{op} ({size}, D {', '.join(map(str, sorted(dims)))})" for (op, size), dims in parts.items()]
    dtypes = dict.fromkeys(row["dtype"] for row in rows)
    return f"{'; '.join(texts)}; {', '.join(dtypes)}; full and causal"


def about(path: pathlib.Path, document: dict) -> str:
    machine, place = document["machine"], path.relative_to(ROOT)
    name = machine.get("gpu") or f"{machine['cpu']}, one thread"
    return f"{name}: {shapes(document['rows'])} ([{place.name}](../{place}))."


def by_operation(kernels: dict[str, list[dict]], kinds: list[str]) -> list[str]:
    """The slowest kind of each kernel and operation."""
    operations = list(dict.fromkeys(row["op"] for rows in kernels.values() for row in rows))
    lines = []
    for kernel, rows in kernels.items():
        cells = []
        for op in operations:
            found = {kind: ratio for kind in kinds if (ratio := worst([r for r in rows if r["op"] == op], kind))}
            slowest = max(found, key=found.get, default=None)
            cells.append(f"{times(found[slowest])} ({slowest})" if slowest else "")
        lines.append([f"`{kernel}`", *cells])
    return table(["kernel", *operations], lines)


def data_table(path: pathlib.Path) -> str:
    """For each kind, the largest multiple of the time on normal data that any row of a kernel takes."""
    document = json.loads(path.read_text())
    kernels, kinds = rows_by_kernel(document), kinds_of(document["rows"])
    lines = []
    for kind in kinds:
        ratios = [worst(rows, kind) for rows in kernels.values()]
        lines.append([kind, *("" if ratio is None else times(ratio) for ratio in ratios)])
    lines.append(["**worst**", *(f"**{times(max(max(row['ratio'].values()) for row in rows))}**" for rows in kernels.values())])
    return "\n".join(["", about(path, document), "", "The slowest kind of each kernel:", *by_operation(kernels, kinds), "",
                      "Every kind:", *table(["data", *(f"`{kernel}`" for kernel in kernels)], lines)]) + "\n"
