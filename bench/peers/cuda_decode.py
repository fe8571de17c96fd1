#!/usr/bin/env python3
"""Compares decoding on one GPU with FlashAttention-3's forward (wheel fa3-fwd) and PyTorch's cuDNN back end, in one run.

Usage: bench/peers/cuda_decode.py LIBTILEWISE [--out FILE.json] [--rounds N] [--rows PATTERN...] [--kernel NAME]
           [--beside NAME=LIBTILEWISE...]
Example: bench/peers/cuda_decode.py libtilewise.so --rows 'bf16-D128-B1-*'

Each row: a few queries of each sequence (one, unless the row's name says q2 to q16) and their cache, random normal numbers.
Every contender is a captured graph of calls, each on the next of several caches that together exceed the L2 cache four
times; the graphs take turns, and the figure is the median time of a call. Read rate: the sum of 2 GiB of fp32 in the same
turns. Mixed lengths: 1 to 32768 keys in a cache of 32768 (seqused_k, cache_seqlens). Before that, results are compared with
attention in fp64, and the largest error with that of plain attention in bf16.
"""
import argparse
import fnmatch
import json
import pathlib
import statistics
import sys

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from cuda_forward import Tilewise, tw  # noqa: E402

try:
    import fa3_fwd_interface as fa3
except ImportError:
    fa3 = None

L2_BYTES, READ_BYTES = 50 << 20, 2 << 30
MIXED = [1, 7, 64, 200, 512, 900, 1500, 2048, 3000, 4096, 5000, 6500, 8192, 10000, 12000, 14000, 16384, 18000, 20000, 22000,
         24000, 26000, 28000, 30000, 31000, 32000, 32768, 100, 2500, 7000, 15000, 32768]


def rows():
    """Name, batch, keys, heads, kv heads, D, queries, lengths."""
    def row(batch, keys, heads, kv_heads, dim, queries=1, mixed=False):
        name = f"bf16-D{dim}-B{batch}-H{heads}-Hk{kv_heads}-L{keys}"
        name += f"-q{queries}" if queries > 1 else ""
        return name + ("-mixed" if mixed else ""), batch, keys, heads, kv_heads, dim, queries, mixed
    for keys in (1024, 4096, 8192, 16384, 32768, 65536, 131072):  # 4 to 512 MiB
        yield row(1, keys, 32, 8, 128)
    for dim in (64, 256):
        for keys in (4096, 32768, 131072):
            yield row(1, keys, 32, 8, dim)
    yield row(4, 4096, 32, 8, 128)
    yield row(1, 8192, 32, 32, 128)
    yield row(32, 4096, 32, 8, 128)
    yield row(128, 4096, 32, 8, 128)
    yield row(16, 4096, 32, 32, 128)
    yield row(32, 8192, 32, 8, 64)
    yield row(32, 4096, 32, 8, 256)
    for queries in (2, 4, 8, 16):
        yield row(1, 131072, 32, 8, 128, queries)
        yield row(32, 4096, 32, 8, 128, queries)
    yield row(64, 32768, 32, 8, 128, 1, True)


def graph_of(calls):
    """A captured graph of the calls, in order."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


class Ours:
    """A plan for one of the caches. It is made on the stream that captures."""

    def __init__(self, library, q, k, v, kernel, used):
        self._of = (library, q, k, v, kernel, used)
        self._plans = {}

    def __call__(self):
        library, q, k, v, kernel, used = self._of
        stream = torch.cuda.current_stream().cuda_stream
        if stream not in self._plans:
            plan = Tilewise(library, q, k, v, q.shape[1] > 1, kernel, used=used)
            self._plans[stream] = plan
        self._plans[stream].run()
        return self._plans[stream]


def fa3_call(q, k, v, used):
    return lambda: fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=used, causal=q.shape[1] > 1)


def cudnn_call(q, k, v):
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]

    def run():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return functional.scaled_dot_product_attention(*heads_first, enable_gqa=q.shape[2] != k.shape[2])
    return run


def contenders(libraries, kernel, q, caches, used):
    calls = {name: [Ours(library, q, k, v, kernel, used) for k, v in caches] for name, library in libraries.items()}
    if fa3 is not None:
        calls["fa3"] = [fa3_call(q, k, v, used) for k, v in caches]
    if q.shape[1] == 1 and used is None:
        calls["cudnn"] = [cudnn_call(q, k, v) for k, v in caches]
    return calls


def medians(graphs, rounds):
    marks = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            marks[name].append((begin, end))
    torch.cuda.synchronize()
    return {name: statistics.median(b.elapsed_time(e) for b, e in pairs) * 1e-3 for name, pairs in marks.items()}


def check(libraries, kernel):
    """The largest errors against fp64."""
    errors = []
    for dim in (64, 128, 256):
        for keys, queries in ((1, 1), (1000, 1), (5000, 4)):
            make = lambda s, h: torch.randn(2, s, h, dim, device="cuda").bfloat16()
            q, k, v = make(queries, 8), make(keys, 2), make(keys, 2)
            exact = []
            for x in (torch.float64, torch.bfloat16):
                qx, kx, vx = (t.to(x).transpose(1, 2) for t in (q, k, v))
                kx, vx = (t.repeat_interleave(4, 1) for t in (kx, vx))
                scores = (qx @ kx.transpose(-1, -2)) * dim ** -0.5
                hidden = torch.ones(queries, keys, device="cuda", dtype=torch.bool).triu(keys - queries + 1)
                exact.append((scores.masked_fill(hidden, float("-inf")).softmax(-1) @ vx).transpose(1, 2))
            error = {"plain": (exact[1].double() - exact[0]).abs().max().item()}
            for name, library in libraries.items():
                plan = Ours(library, q, k, v, kernel, None)()
                torch.cuda.synchronize()
                error[name] = (plan.out.double() - exact[0]).abs().max().item()
                if not error[name] <= 2 * error["plain"] + 1e-5:
                    raise SystemExit(f"D {dim}, {keys} keys, {queries} queries: {name} is wrong: {error}")
            errors.append({"D": dim, "keys": keys, "queries": queries, "max_error": error})
    return errors


def measure(libraries, kernel, rounds, name, batch, keys, heads, kv_heads, dim, queries, mixed):
    cache_bytes = 2 * batch * keys * kv_heads * dim * 2
    count = -(-4 * L2_BYTES // cache_bytes)
    caches = [[torch.randn(batch, keys, kv_heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
              for _ in range(count)]
    q = torch.randn(batch, queries, heads, dim, device="cuda", dtype=torch.bfloat16)
    used = torch.tensor((MIXED * batch)[:batch], dtype=torch.int32, device="cuda") if mixed else None
    read_bytes = cache_bytes if used is None else cache_bytes * used.sum().item() // (batch * keys)
    calls = contenders(libraries, kernel, q, caches, used)
    kernel_name = calls["tilewise"][0]().kernel()
    times = max(1, 24 // count)
    graphs = {who: graph_of(list(own) * times) for who, own in calls.items()}
    block = torch.ones(READ_BYTES // 4, device="cuda")
    graphs["read"] = graph_of([lambda: block.sum()])
    seconds = medians(graphs, rounds)
    rate = READ_BYTES / seconds.pop("read")
    seconds = {who: s / (count * times) for who, s in seconds.items()}
    print(f"{name:<40}{kernel_name:<12}" + "  ".join(
        f"{who} {s * 1e6:.1f} us {read_bytes / s * 1e-12:.2f} TB/s" for who, s in seconds.items())
        + f"  read {rate * 1e-12:.2f}  {read_bytes / seconds['tilewise'] / rate:.2f} of it", flush=True)
    return {"row": name, "kernel": kernel_name, "seconds": seconds, "cache_bytes": cache_bytes, "read_bytes": read_bytes,
            "caches": count, "read_bytes_per_second": rate}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", nargs="*", metavar="PATTERN")
    parser.add_argument("--kernel")
    parser.add_argument("--beside", nargs="*", default=[], metavar="NAME=LIBRARY", help="other builds, in turns")
    options = parser.parse_args()
    library = tw.Library(options.library)
    builds = (pair.split("=", 1) for pair in options.beside)
    libraries = {"tilewise": library} | {name: tw.Library(path) for name, path in builds}
    torch.manual_seed(1)
    checks = check(libraries, options.kernel)
    print(f"{len(checks)} comparisons with fp64: all within twice the error of plain attention", flush=True)
    chosen = [row for row in rows()
              if not options.rows or any(fnmatch.fnmatchcase(row[0], pattern) for pattern in options.rows)]
    results = [measure(libraries, options.kernel, options.rounds, *row) for row in chosen]
    if options.out:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                   "cudnn": torch.backends.cudnn.version(), "cuda": torch.version.cuda}
        document = {"version": library.version(), "command": " ".join(sys.argv), "machine": machine,
                    "rounds": options.rounds, "checks": checks, "rows": results}
        pathlib.Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
