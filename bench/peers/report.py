"""From measured seconds to figures, and the table that is printed."""
import statistics


def peak_of(calibrations, row, threads):
    """The best calibration of the run: a peak, like a run, can only be slowed down by others."""
    return max((c["peak_gflops"] for c in calibrations if c["threads"] == threads and c["dtype"] == row.dtype),
               default=None)


def read_rate_of(calibrations, threads):
    """The median of the run. Unlike a peak a read rate can be too high: a large cache may hold the buffer."""
    rates = [c["read_gbytes_per_second"] for c in calibrations if c["threads"] == threads]
    return statistics.median(rates) if rates else None


def figures(row, entry, peak_gflops, read_rate):
    """A contender's entry with its speeds."""
    if "error" in entry:
        return entry
    seconds = entry["seconds"]
    gflops, rate = row.flops() / seconds * 1e-9, row.cache_bytes() / seconds * 1e-9
    result = {**entry, "gflops": gflops, "kv_gbytes_per_second": rate}
    if peak_gflops:
        result.update(fraction_of_peak=gflops / peak_gflops, fraction_of_read=rate / read_rate)
    return result


def judged(contenders):
    """The best peer, and Tilewise's speed over its speed."""
    peers = {name: entry["seconds"] for name, entry in contenders.items() if name != "tilewise" and "seconds" in entry}
    verdict = {"best_peer": None, "tilewise_over_best_peer": None, "behind": False}
    if not peers:
        return verdict
    best = min(peers, key=peers.get)
    own = contenders.get("tilewise", {})
    ratio = peers[best] / own["seconds"] if "seconds" in own else None
    return {"best_peer": best, "tilewise_over_best_peer": ratio,
            "behind": "tilewise" in contenders and (ratio is None or ratio < 1)}


def finished_row(row, threads, clock, contenders, calibrations):
    peak = peak_of(calibrations, row, threads)
    read = read_rate_of(calibrations, threads)
    contenders = {name: figures(row, entry, peak, read) for name, entry in contenders.items()}
    return {"name": row.name, "op": row.op, "dtype": row.dtype, "shape": ",".join(map(str, row.shape)),
            "causal": row.causal, "layout": row.layout, "threads": threads, "clock": clock, "flops": row.flops(),
            "kv_bytes": row.cache_bytes(), "peak_gflops": peak, "read_gbytes_per_second": read,
            "contenders": contenders, **judged(contenders)}


def duration(seconds):
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def speed(row, entry):
    """One cell: Gflop/s and its share of the peak; for decode GB/s of K and V; for overhead the time."""
    if "error" in entry:
        return "-"
    mark = "" if entry.get("agrees", True) else " DIFFERS"
    if row["op"] == "overhead":
        return duration(entry["seconds"]) + mark
    decode = row["op"] == "decode"
    key, share = ("kv_gbytes_per_second", "fraction_of_read") if decode else ("gflops", "fraction_of_peak")
    of_peak = f" {entry[share]:4.0%}" if share in entry else ""
    return f"{entry[key]:.{0 if entry[key] >= 100 else 1}f}{of_peak}{mark}"


def table(rows):
    """Text: a line for every row, Tilewise first, the ratio to the best peer last."""
    names = list(dict.fromkeys(name for row in rows for name in row["contenders"]))
    lines = [["", "threads", "time"] + names + ["of best peer", ""]]
    for row in rows:
        own, ratio = row["contenders"].get("tilewise", {}), row["tilewise_over_best_peer"]
        lines.append([row["name"], str(row["threads"]), duration(own["seconds"]) if "seconds" in own else "-"] +
                     [speed(row, row["contenders"].get(name, {"error": ""})) for name in names] +
                     ["-" if ratio is None else f"{ratio:.2f}", "BEHIND" if row["behind"] else ""])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                               for column, (cell, width) in enumerate(zip(line, widths))).rstrip() for line in lines)


def line(row):
    """One row while the run goes on."""
    cells = [f"{name} {speed(row, entry)}" for name, entry in row["contenders"].items() if "error" not in entry]
    return f"{row['name']}, {row['threads']} threads: {', '.join(cells)}" + " BEHIND" * row["behind"]


def floor(content):
    seconds = content["foreign_call_seconds"]
    return f"{duration(seconds)} of every figure of Tilewise is Python's call of a C function" if seconds else ""


def busy(content):
    load, cpus = content["load_average"]["before"], content["machine"]["cpus"]
    quiet = load <= 0.25 * cpus
    return "" if quiet else f"The machine was busy before the run: load {load:.1f} on {cpus} processors"


def messages(rows):
    """Text: what was refused or missing, once for each message, and how often."""
    counts = {}
    for row in rows:
        for name, entry in row["contenders"].items():
            if "error" in entry:
                counts[name, entry["error"]] = counts.get((name, entry["error"]), 0) + 1
    return "\n".join(f"{name}, {count} rows: {message}" for (name, message), count in counts.items())


def summary(rows):
    behind = sorted((row for row in rows if row["behind"]), key=lambda row: row["tilewise_over_best_peer"] or 0)
    lines = [f"Tilewise is behind in {len(behind)} of {len(rows)} rows" + (":" if behind else "")]
    for row in behind:
        ratio = row["tilewise_over_best_peer"]
        lines.append(f"  {row['name']}, {row['threads']} threads: " +
                     ("did not run" if ratio is None else f"{ratio:.2f} of {row['best_peer']}"))
    return "\n".join(lines)
