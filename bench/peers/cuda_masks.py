#!/usr/bin/env python3
"""Compares forward under slices and boolean masks with no mask, cuda_sm80 and FlexAttention on one GPU, in one run.

Usage: bench/peers/cuda_masks.py LIBTILEWISE [--out FILE.json] [--rounds N] [--rows PATTERN...] [--beside NAME=LIBTILEWISE...]
           [--flex]
Example: bench/peers/cuda_masks.py libtilewise.so --rows '*-S16384-*'

Each row: bf16, B 1, H*D 2048, random normal inputs, layout (B, S, H, D). The contenders take turns on one stream that is never
empty; the figure is the median. A masked run is repeated until it takes about as long as one without a mask, so that both run
at the same clock rate. TFLOP/s count the tiles of 128 x 128 scores that have a visible pair ("visited"). `of_dense` is that rate
by the one of the same library without a mask. `built-in`: the same mask by causal, window_size or cu_seqlens. Before that, each mask is compared with attention in fp64 on 1000 tokens.
"""
import argparse
import fnmatch
import functools
import json
import pathlib
import sys

import torch

import cuda_forward as forward
from cuda_forward import tw

WIDTH, TILE = 2048, 128
FULL, CAUSAL, BAND = 0, 1, 3


def starts_of(total, lengths):
    """Documents of these lengths, again and again, to the end."""
    starts = [0]
    while starts[-1] < total:
        starts.append(min(starts[-1] + lengths[len(starts) % len(lengths)], total))
    return list(zip(starts, starts[1:]))


def documents_of(s):
    return starts_of(s, [s // 20, s // 9, s // 31, s // 14, s // 6])


def slice_rows(s):
    """Lists of slices by name, for s tokens."""
    documents = documents_of(s)
    short = starts_of(s, [60, 145, 37, 300])
    frames = starts_of(s, [s // 12 + 5])
    prefix, question, window = s // 4, s // 8, s // 16
    answers = [(a + question, b + question) for a, b in starts_of(s - question, [s // 10, s // 17])]
    return {
        "causal": [(0, s, 0, s, CAUSAL)],
        "window": [(0, window - 1, 0, window - 1, CAUSAL), (window - 1, s, 0, s, BAND)],
        "documents": [(a, b, a, b, FULL) for a, b in documents],
        "causal-documents": [(a, b, a, b, CAUSAL) for a, b in documents],
        "short-documents": [(a, b, a, b, FULL) for a, b in short],
        "block-causal": [(a, b, 0, b, FULL) for a, b in frames],
        "prefix-lm": [(0, s, 0, prefix, FULL), (prefix, s, prefix, s, CAUSAL)],
        "shared-question": [(0, question, 0, question, CAUSAL), (question, s, 0, question, FULL)]
        + [(a, b, a, b, CAUSAL) for a, b in answers],
    }


def visible_of(slices, s):
    i, j = torch.arange(s, device="cuda")[:, None], torch.arange(s, device="cuda")[None, :]
    visible = torch.zeros(s, s, dtype=torch.bool, device="cuda")
    for q0, q1, k0, k1, kind in slices:
        part = (i[q0:q1] >= q0) & (j[:, k0:k1] >= k0)
        if kind & 1:
            part &= (j[:, k0:k1] - k0) <= (i[q0:q1] - q0) + (k1 - k0) - (q1 - q0)
        if kind & 2:
            part &= (j[:, k0:k1] - k0) >= (i[q0:q1] - q0)
        visible[q0:q1, k0:k1] |= part
    return visible


def block_sparse(s, share, seed=3):
    """A boolean mask of which a share of the blocks of 128 x 128 is visible, and the diagonal."""
    blocks = -(-s // TILE)
    draw = torch.rand(blocks, blocks, generator=torch.Generator().manual_seed(seed))
    chosen = (draw < share) | torch.eye(blocks, dtype=torch.bool)
    return chosen.cuda().repeat_interleave(TILE, 0).repeat_interleave(TILE, 1)[:s, :s].contiguous()


def masks(s):
    """What a mask is called -> (slices or None, boolean mask or None)."""
    for name, slices in slice_rows(s).items():
        yield name, slices, None
    for percent in (10, 50, 90):
        yield f"block-sparse-{percent}", None, functools.partial(block_sparse, s, percent / 100)


class Masked(forward.Tilewise):
    """A plan with a list of slices or a boolean mask."""

    def __init__(self, library, q, k, v, kernel, slices=None, mask=None):
        self._extra = {}
        if slices is not None:
            self._extra["slices"] = torch.tensor(slices, dtype=torch.int64, device=q.device)
        if mask is not None:
            self._extra["mask"] = mask[None, None]
        super().__init__(library, q, k, v, False, kernel, others=self._extra)


def tiles_of(visible):
    s = visible.shape[0]
    blocks = -(-s // TILE)
    padded = torch.zeros(blocks * TILE, blocks * TILE, dtype=torch.bool, device="cuda")
    padded[:s, :s] = visible
    return int(padded.view(blocks, TILE, blocks, TILE).any(3).any(1).sum())


def check(library, dim, s=1000):
    """Each mask on few tokens against attention in fp64; the largest error."""
    q, k, v = forward.inputs(1, s, 4, 2, dim, "bf16")
    heads_first = [x.transpose(1, 2).double() for x in (q, k, v)]
    groups = [x.repeat_interleave(2, 1) for x in heads_first[1:]]
    errors = {}
    for name, slices, make in masks(s):
        mask = make() if make else None
        visible = mask if slices is None else visible_of(slices, s)
        scores = (heads_first[0] @ groups[0].transpose(-1, -2)) * dim ** -0.5
        exact = torch.nan_to_num(scores.masked_fill(~visible, float("-inf")).softmax(-1)) @ groups[1]
        plan = Masked(library, q, k, v, None, slices, mask)
        plan.out.fill_(float("nan"))
        plan.run()
        torch.cuda.synchronize()
        errors[name] = (plan.out.double() - exact.transpose(1, 2)).abs().max().item()
        if not errors[name] <= 0.02:
            raise SystemExit(f"D {dim}, {name}: error {errors[name]}")
    return errors


def flex(q, k, v, visible):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    rule = lambda b, h, i, j: visible[i, j]
    block_mask = create_block_mask(rule, None, None, *visible.shape, device="cuda", _compile=True)
    compiled = torch.compile(flex_attention)
    heads_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    return lambda: compiled(*heads_first, block_mask=block_mask)


def built_in(library, q, k, v, name):
    """The same mask without a list, or None."""
    s = q.shape[1]
    if name == "causal":
        return forward.Tilewise(library, q, k, v, True, None)
    if name == "window":
        return forward.Tilewise(library, q, k, v, True, None, window=s // 16 - 1)
    if name in ("documents", "causal-documents"):
        lengths = [b - a for a, b in documents_of(s)]
        return forward.Tilewise(library, q[0], k[0], v[0], name == "causal-documents", None, lengths=lengths)
    return None


def measure(libraries, options, dim, s, name, slices, make):
    heads = WIDTH // dim
    q, k, v = forward.inputs(1, s, heads, heads, dim, "bf16")
    mask = make() if make else None
    visible = mask if slices is None else visible_of(slices, s)
    pairs, tiles = int(visible.sum()), tiles_of(visible)
    share = tiles * TILE * TILE / (s * s)
    library = libraries["tilewise"]
    plans = {"dense": forward.Tilewise(library, q, k, v, False, None)}
    plans |= {who: Masked(other, q, k, v, None, slices, mask) for who, other in libraries.items()}
    plans["cuda_sm80"] = Masked(library, q, k, v, "cuda_sm80", slices, mask)
    plans |= {who: plan for who, plan in {"built-in": built_in(library, q, k, v, name)}.items() if plan}
    runs = {who: plan.run for who, plan in plans.items()}
    if options.flex:
        runs["flex"] = flex(q, k, v, visible)
    calls = {who: 1 if who == "dense" else max(1, round(1 / share)) for who in runs}
    seconds = forward.medians({who: functools.partial(forward.repeat, run, calls[who]) for who, run in runs.items()},
                              options.rounds)
    seconds = {who: t / calls[who] for who, t in seconds.items()}
    area = {who: s * s if who == "dense" else tiles * TILE * TILE for who in runs}
    rate = {who: 4 * WIDTH * area[who] / t * 1e-12 for who, t in seconds.items()}
    row = f"bf16-D{dim}-S{s}-{name}"
    of_dense = {who: r / rate["dense"] for who, r in rate.items() if who != "dense"}
    print(f"{row:<36}visited {share:.2f}, visible of it {pairs / (tiles * TILE * TILE):.2f}   {rate['tilewise']:.0f} TFLOP/s   "
          + "  ".join(f"{who} {r:.2f}" for who, r in of_dense.items()), flush=True)
    return {"row": row, "kernel": plans["tilewise"].kernel(), "visible_pairs": pairs, "visited_tiles": tiles,
            "calls": calls, "workspace_bytes": plans["tilewise"].workspace_bytes, "seconds": seconds,
            "tflops_of_visited": rate, "of_dense": of_dense}


def parser_of(doc, rounds):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--rows", nargs="*", metavar="PATTERN")
    parser.add_argument("--beside", nargs="*", default=[], metavar="NAME=LIBRARY", help="other builds, measured in the same run")
    return parser


def libraries_of(options):
    builds = (pair.split("=", 1) for pair in options.beside)
    return {"tilewise": tw.Library(options.library)} | {name: tw.Library(path) for name, path in builds}


def is_chosen(options, row):
    return not options.rows or any(fnmatch.fnmatchcase(row, pattern) for pattern in options.rows)


def save(options, libraries, checks, results):
    if not options.out:
        return
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    document = {"version": libraries["tilewise"].version(), "command": " ".join(sys.argv), "machine": machine,
                "rounds": options.rounds, "checks": checks, "rows": results}
    pathlib.Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


def main():
    parser = parser_of(__doc__, 20)
    parser.add_argument("--flex", action="store_true", help="FlexAttention of PyTorch, too")
    options = parser.parse_args()
    libraries = libraries_of(options)
    torch.manual_seed(1)
    dims = (64, 128, 256)
    checks = [{"D": dim, "max_error": check(libraries["tilewise"], dim)} for dim in dims]
    print("every mask within 0.02 of attention in fp64; what each is of the rate without a mask, by visited area:")
    results = []
    for dim in dims:
        for s in (16384, 32768):
            for name, slices, make in masks(s):
                row = f"bf16-D{dim}-S{s}-{name}"
                if is_chosen(options, row):
                    results.append(measure(libraries, options, dim, s, name, slices, make))
    save(options, libraries, checks, results)


if __name__ == "__main__":
    main()
