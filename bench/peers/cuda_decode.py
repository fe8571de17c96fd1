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

In rows with pages (-page16) and with phi (-phi3) Tilewise runs alone; "plain" is the same problem without them. Pages
lie in a random order. Rows in fp32, and rows with a cache of e4m3 under queries in bf16, have Tilewise alone, too, and the
errors of their first sequence against fp64, beside those of plain attention in the type of the queries. phi 3 serves all splits of such scores, phi 300 none ("fallbacks": of a call). "host": seconds of the
host for a planned run, the best of 20 times 50 calls from Python, of which a call that does nothing takes "host_nothing".
"""
import argparse
import dataclasses
import fnmatch
import json
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from cuda_forward import TORCH_DTYPES, Tilewise, tw  # noqa: E402

try:
    import fa3_fwd_interface as fa3
except ImportError:
    fa3 = None

L2_BYTES, READ_BYTES = 50 << 20, 2 << 30
MIXED = [1, 7, 64, 200, 512, 900, 1500, 2048, 3000, 4096, 5000, 6500, 8192, 10000, 12000, 14000, 16384, 18000, 20000, 22000,
         24000, 26000, 28000, 30000, 31000, 32000, 32768, 100, 2500, 7000, 15000, 32768]


@dataclasses.dataclass
class Row:
    batch: int
    keys: int
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    queries: int = 1
    mixed: bool = False
    page: int = 0
    phi: float | None = None
    dtype: str = "bf16"
    cache_dtype: str | None = None

    @property
    def has_peers(self):
        return self.dtype == "bf16" and self.cache_dtype is None

    @property
    def name(self):
        name = self.dtype + (f"-{self.cache_dtype}" if self.cache_dtype else "")
        name += f"-D{self.dim}-B{self.batch}-H{self.heads}-Hk{self.kv_heads}-L{self.keys}"
        name += f"-q{self.queries}" if self.queries > 1 else ""
        name += f"-page{self.page}" if self.page else ""
        name += "" if self.phi is None else f"-phi{self.phi:g}"
        return name + ("-mixed" if self.mixed else "")


def rows():
    for keys in (1024, 4096, 8192, 16384, 32768, 65536, 131072):  # 4 to 512 MiB
        yield Row(1, keys)
    for dim in (64, 256):
        for keys in (4096, 32768, 131072):
            yield Row(1, keys, dim=dim)
    yield Row(4, 4096)
    yield Row(1, 8192, kv_heads=32)
    yield Row(32, 4096)
    yield Row(128, 4096)
    yield Row(16, 4096, kv_heads=32)
    yield Row(32, 8192, dim=64)
    yield Row(32, 4096, dim=256)
    for queries in (2, 4, 8, 16):
        yield Row(1, 131072, queries=queries)
        yield Row(32, 4096, queries=queries)
    yield Row(64, 32768, mixed=True)
    for keys in (128, 300, 512):
        yield Row(4, keys)
    for page in (16, 64, 256):
        yield Row(1, 131072, page=page)
        yield Row(32, 4096, page=page)
    yield Row(64, 32768, mixed=True, page=64)
    for keys in (1024, 4096, 16384, 131072):
        yield Row(1, keys, phi=3)
    yield Row(32, 4096, phi=3)
    yield Row(32, 4096, queries=16, phi=3)
    yield Row(1, 131072, phi=300)
    yield Row(1, 4096, phi=300)
    for types in ({"dtype": "fp32"}, {"cache_dtype": "e4m3"}):
        for keys in (4096, 16384, 131072):
            yield Row(1, keys, **types)
        yield Row(32, 4096, **types)
        yield Row(32, 8192, dim=64, **types)
        yield Row(1, 131072, queries=4, **types)
        yield Row(32, 4096, page=16, **types)
    yield Row(32, 8192, dim=256, cache_dtype="e4m3")


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

    def __init__(self, library, q, k, v, kernel, used, others=None):
        self._of = (library, q, k, v, kernel, used, others)
        self._plans = {}

    def __call__(self):
        library, q, k, v, kernel, used, others = self._of
        stream = torch.cuda.current_stream().cuda_stream
        if stream not in self._plans:
            plan = Tilewise(library, q, k, v, q.shape[1] > 1, kernel, used=used, others=others)
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


def in_pages(cache, page, table):
    """A cache (B, S, Hk, D) as pages (N, page, Hk, D), which lie where `table` (B, S / page) says."""
    pages = torch.empty((table.numel(), page, *cache.shape[2:]), dtype=cache.dtype, device=cache.device)
    pages[table.flatten().long()] = cache.view(table.numel(), page, *cache.shape[2:])
    return pages


def variants(row, caches):
    """The caches of the row's variant, and the tensors that it adds to a problem."""
    others = {}
    if row.cache_dtype:
        others |= {name: torch.full((1,), 0.5, device="cuda") for name in ("k_descale", "v_descale")}
    if row.page:
        count = row.batch * row.keys // row.page
        table = torch.randperm(count, device="cuda").to(torch.int32).view(row.batch, -1)
        caches = [[in_pages(cache, row.page, table) for cache in pair] for pair in caches]
        others["page_table"] = table
    if row.phi is not None:
        others["phi"] = torch.tensor([row.phi], dtype=torch.float32, device="cuda")
        others["phi_fallbacks"] = torch.zeros(1, dtype=torch.int64, device="cuda")
    return caches, others


def scales_of(others):
    return {name: tensor for name, tensor in others.items() if name.endswith("descale")}


def contenders(libraries, kernel, row, q, caches, used):
    """Calls by contender, and the tensors of the row's variant."""
    own, others = variants(row, caches)
    calls = {name: [Ours(library, q, k, v, kernel, used, others) for k, v in own]
             for name, library in libraries.items()}
    if row.page or row.phi is not None:
        calls["plain"] = [Ours(libraries["tilewise"], q, k, v, kernel, used, scales_of(others)) for k, v in caches]
    if "plain" in calls or not row.has_peers:
        return calls, others
    if fa3 is not None:
        calls["fa3"] = [fa3_call(q, k, v, used) for k, v in caches]
    if q.shape[1] == 1 and used is None:
        calls["cudnn"] = [cudnn_call(q, k, v) for k, v in caches]
    return calls, others


def host_seconds(function):
    """The best of 20 times 50 calls. The device has finished before each 50, and its queue is never full."""
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(50):
            function()
        times.append((time.perf_counter() - begin) / 50)
    torch.cuda.synchronize()
    return min(times)


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


def compare_first(row, q, k, v, out, scales):
    """The errors of the first sequence of `out` against fp64, and those of plain attention; raises if ours breaks the rule."""
    group = row.heads // row.kv_heads
    k, v = (x[0].to(torch.float64) * scales.get(f"{name}_descale", 1.0) for name, x in (("k", k), ("v", v)))
    hidden = torch.ones(row.queries, row.keys, device="cuda", dtype=torch.bool).triu(row.keys - row.queries + 1)
    results = []
    for x in (torch.float64, q.dtype):
        qx, kx, vx = (t.to(x).transpose(0, 1) for t in (q[0], k, v))
        heads = []
        for head in range(row.heads):
            scores = (qx[head] @ kx[head // group].T) * row.dim ** -0.5
            heads.append(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ vx[head // group])
        results.append(torch.stack(heads, 1).double())
    error = {"plain": (results[1] - results[0]).abs().max().item(), "tilewise": (out[0].double() - results[0]).abs().max().item()}
    if not error["tilewise"] <= 2 * error["plain"] + 1e-6:
        raise SystemExit(f"{row.name}: tilewise is wrong: {error}")
    return error


def measure(libraries, kernel, rounds, row):
    torch_type = TORCH_DTYPES[row.dtype]
    cache_type = torch.float8_e4m3fn if row.cache_dtype else torch_type
    cache_bytes = 2 * row.batch * row.keys * row.kv_heads * row.dim * cache_type.itemsize
    count = -(-4 * L2_BYTES // cache_bytes)
    caches = [[torch.randn(row.batch, row.keys, row.kv_heads, row.dim, device="cuda", dtype=torch_type).to(cache_type)
               for _ in range(2)] for _ in range(count)]
    q = torch.randn(row.batch, row.queries, row.heads, row.dim, device="cuda", dtype=torch_type)
    used = torch.tensor((MIXED * row.batch)[:row.batch], dtype=torch.int32, device="cuda") if row.mixed else None
    read_bytes = cache_bytes if used is None else cache_bytes * used.sum().item() // (row.batch * row.keys)
    calls, others = contenders(libraries, kernel, row, q, caches, used)
    plan = calls["tilewise"][0]()
    result = {"row": row.name, "kernel": plan.kernel(), "host": host_seconds(plan.run),
              "host_nothing": host_seconds(plan.kernel)}
    if not row.has_peers:
        torch.cuda.synchronize()
        result["max_error"] = compare_first(row, q, *caches[0], plan.out, scales_of(others))
    if "plain" in calls:
        twin = calls["plain"][0]()
        torch.cuda.synchronize()
        difference = (plan.out.float() - twin.out.float()).abs().max().item()
        if not difference <= 0.02 * twin.out.float().abs().max().item():
            raise SystemExit(f"{row.name}: differs from the plain problem by {difference}")
    if "phi_fallbacks" in others:
        others["phi_fallbacks"].zero_()
        plan.run()
        result["fallbacks"] = others["phi_fallbacks"].item()
    times = max(1, 24 // count)
    graphs = {who: graph_of(list(own) * times) for who, own in calls.items()}
    block = torch.ones(READ_BYTES // 4, device="cuda")
    graphs["read"] = graph_of([lambda: block.sum()])
    seconds = medians(graphs, rounds)
    rate = READ_BYTES / seconds.pop("read")
    seconds = {who: s / (count * times) for who, s in seconds.items()}
    print(f"{row.name:<40}{result['kernel']:<12}" + "  ".join(
        f"{who} {s * 1e6:.1f} us {read_bytes / s * 1e-12:.2f} TB/s" for who, s in seconds.items())
        + f"  read {rate * 1e-12:.2f}  {read_bytes / seconds['tilewise'] / rate:.2f} of it"
        + f", host {result['host'] * 1e6:.1f} us"
        + (f", {result['fallbacks']} fallbacks" if "fallbacks" in result else ""), flush=True)
    return result | {"seconds": seconds, "cache_bytes": cache_bytes, "read_bytes": read_bytes, "caches": count,
                     "read_bytes_per_second": rate}


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
              if not options.rows or any(fnmatch.fnmatchcase(row.name, pattern) for pattern in options.rows)]
    results = [measure(libraries, options.kernel, options.rounds, row) for row in chosen]
    if options.out:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                   "cudnn": torch.backends.cudnn.version(), "cuda": torch.version.cuda}
        document = {"version": library.version(), "command": " ".join(sys.argv), "machine": machine,
                    "rounds": options.rounds, "checks": checks, "rows": results}
        pathlib.Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
