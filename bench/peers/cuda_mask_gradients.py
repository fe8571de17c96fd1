#!/usr/bin/env python3
"""Compares gradients under slices, boolean masks, softcap and ALiBi with those of no mask and of cuda_sm80 on one GPU, in one run.

Usage: bench/peers/cuda_mask_gradients.py LIBTILEWISE [--out FILE.json] [--rounds N] [--rows PATTERN...]
Example: bench/peers/cuda_mask_gradients.py libtilewise.so --rows 'bf16-D128-*'

The masks are those of cuda_masks.py. A row has bf16, B 1, H*D 2048 and random normal inputs; its contenders take turns, and a figure is
the median. TFLOP/s count 10 flops for each element of the tiles of 128 x 128 scores that have a visible pair. "deterministic": with that option.
Softcap (30) and ALiBi are compared with the same causal mask without them. Before that, each gradient is compared with that of
attention in fp64 on 1000 tokens: its largest error, and that of plain attention in bf16.
"""
import functools

import torch

import cuda_backward as backward
import cuda_forward as forward
import cuda_masks as masked


def slopes_of(heads):
    return torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)], device="cuda")


def score_mods(q):
    """What a row is called -> (options of a plan, a function of scores)."""
    slopes = slopes_of(q.shape[2])
    distance = torch.arange(q.shape[1], device="cuda")[:, None] - torch.arange(q.shape[1], device="cuda")[None, :]
    return {"softcap": ({"softcap": 30.0}, lambda scores: 30 * torch.tanh(scores / 30)),
            "alibi": ({"others": {"alibi_slopes": slopes}},
                      lambda scores: scores - slopes[:, None, None].to(scores) * distance.abs().to(scores))}


def attention(q, k, v, visible, mod=lambda scores: scores):
    """Attention (B, S, H, D) in the type of its inputs; rows without keys are 0."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = mod(q @ k.repeat_interleave(group, 1).transpose(-1, -2) * q.shape[-1] ** -0.5)
    probs = torch.where(visible.any(1)[:, None], scores.masked_fill(~visible, float("-inf")).softmax(-1), 0)
    return (probs @ v.repeat_interleave(group, 1)).transpose(1, 2)


def check(library, dim, s=1000):
    """Each gradient on few tokens against attention in fp64, and against plain attention in bf16."""
    q, k, v = forward.inputs(1, s, 4, 2, dim, "bf16")
    dout = torch.randn_like(q)
    causal = torch.ones(s, s, dtype=torch.bool, device="cuda").tril()
    cases = {name: (masked.Masked(library, q, k, v, None, slices, make and make()),
                    make() if make else masked.visible_of(slices, s), lambda scores: scores)
             for name, slices, make in masked.masks(s)}
    for name, (options, mod) in score_mods(q).items():
        cases[name] = forward.Tilewise(library, q, k, v, True, None, **options), causal, mod
    table = {}
    for name, (plan, visible, mod) in cases.items():
        gradient = backward.Gradient(library, q, k, v, dout, False, None, forward=plan)
        exact, plain = (backward.gradient_of(lambda *x: attention(*x, visible, mod), *(x.to(kind) for x in (q, k, v)),
                                             dout.to(kind))() for kind in (torch.float64, torch.bfloat16))
        gradient.run()
        torch.cuda.synchronize()
        error = lambda results: [(x.double() - e).abs().max().item() for x, e in zip(results, exact)]
        table[name] = {"tilewise": error(gradient.results), "plain": error(plain)}
        for ours, theirs in zip(table[name]["tilewise"], table[name]["plain"]):
            if not ours <= 3 * theirs:
                raise SystemExit(f"D {dim}, {name}: {table[name]}")
    return table


def measure(libraries, options, dim, s, name, plans, share, pairs):
    library = libraries["tilewise"]
    runs = {who: plan.run for who, plan in plans.items()}
    calls = {who: 1 if who == "dense" else max(1, round(1 / share)) for who in runs}
    seconds = forward.medians({who: functools.partial(forward.repeat, run, calls[who]) for who, run in runs.items()},
                              options.rounds)
    seconds = {who: t / calls[who] for who, t in seconds.items()}
    area = {who: s * s * (1 if who == "dense" else share) for who in runs}
    rate = {who: 10 * masked.WIDTH * area[who] / t * 1e-12 for who, t in seconds.items()}
    of_dense = {who: r / rate["dense"] for who, r in rate.items() if who != "dense"}
    row = f"bf16-D{dim}-S{s}-{name}"
    print(f"{row:<36}{plans['tilewise'].kernel()}  visited {share:.2f}   {rate['tilewise']:.0f} TFLOP/s   "
          + "  ".join(f"{who} {r:.2f}" for who, r in of_dense.items()), flush=True)
    return {"row": row, "kernel": plans["tilewise"].kernel(), "visible_pairs": pairs, "share": share, "calls": calls,
            "seconds": seconds, "tflops_of_visited": rate, "of_dense": of_dense}


def measure_row(libraries, options, dim, s, name, slices=None, make=None):
    heads = masked.WIDTH // dim
    q, k, v = forward.inputs(1, s, heads, heads, dim, "bf16")
    dout = torch.randn_like(q)
    library = libraries["tilewise"]
    gradient = lambda plan, kernel=None, of=library, **more: backward.Gradient(of, q, k, v, dout, False, kernel,
                                                                               forward=plan, **more)
    plans = {"dense": gradient(None)}
    if slices is None and make is None:
        mods = {"softcap": {"softcap": 30.0}, "alibi": {"others": {"alibi_slopes": slopes_of(heads)}}}
        plan = lambda of=library: forward.Tilewise(of, q, k, v, True, None, **mods[name])
        plans["built-in"] = gradient(forward.Tilewise(library, q, k, v, True, None))
        blocks = s // masked.TILE
        share, pairs = (blocks + 1) / 2 / blocks, s * (s + 1) // 2
    else:
        mask = make() if make else None
        visible = mask if slices is None else masked.visible_of(slices, s)
        share, pairs = masked.tiles_of(visible) * masked.TILE ** 2 / (s * s), int(visible.sum())
        plan = lambda of=library: masked.Masked(of, q, k, v, None, slices, mask)
        same = masked.built_in(library, q, k, v, name)
        if same and name.endswith("documents"):
            plans["built-in"] = backward.Gradient(library, q[0], k[0], v[0], dout[0], False, None, forward=same)
        elif same:
            plans["built-in"] = gradient(same)
    plans |= {who: gradient(plan(other), of=other) for who, other in libraries.items()}
    plans["cuda_sm80"] = gradient(plan(), "cuda_sm80")
    plans["deterministic"] = gradient(plan(), deterministic=True)
    return measure(libraries, options, dim, s, name, plans, share, pairs)


def main():
    options = masked.parser_of(__doc__, 12).parse_args()
    libraries = masked.libraries_of(options)
    torch.manual_seed(1)
    dims = (64, 128)
    checks = [{"D": dim, "max_errors": check(libraries["tilewise"], dim)} for dim in dims]
    print("every gradient within three times the error of plain attention; what each is of the rate without a mask, by visited area:")
    results = []
    for dim in dims:
        for s in (16384, 32768):
            for name, slices, make in list(masked.masks(s)) + [("softcap", None, None), ("alibi", None, None)]:
                row = f"bf16-D{dim}-S{s}-{name}"
                if masked.is_chosen(options, row):
                    results.append(measure_row(libraries, options, dim, s, name, slices, make))
    masked.save(options, libraries, checks, results)


if __name__ == "__main__":
    main()
