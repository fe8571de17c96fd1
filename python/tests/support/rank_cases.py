"""What the ranks of a test do: each function runs in a process of its own, on its rank of a group."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from typing import Any

import tilewise.compat.ring_flash_attn as peer
import tilewise.distributed as ring
import tilewise.torch
import torch
import torch.distributed as dist

# Options, with the shapes of tensors in place of these. B 2, H 4, Hk 2, D 12, Dv 8.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True, "sink": (4,)},
    "top-left": {"causal": True, "alignment": "top_left"},
    "window": {"window_size": (5, 3), "softcap": 2.0, "softmax_scale": -0.3},
    "alibi": {"alibi_slopes": (4,), "causal": True},
    "dropout": {"dropout_p": 0.3, "dropout_seed": 2**63 + 5, "dropout_offset": 9},
    "mask and bias": {"mask": True, "bias": True},
    "in use": {"seqused_q": [3, 17], "seqused_k": [29, 0], "causal": True},
    "heads first": {"layout": "bhsd", "causal": True},
    "packed": {"cu_seqlens_q": [0, 2, 2, 19, 23], "cu_seqlens_k": [0, 1, 5, 25, 31], "causal": True, "sink": (4,)},
    "packed queries": {"cu_seqlens_q": [0, 20, 23], "window_size": (9, -1)},
}
NOT_STRIPED = ("alibi", "dropout")
TENSORS = ("q", "k", "v", "bias", "sink")


def make(case: str, dtype: torch.dtype, q_len: int = 23, k_len: int = 31) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors that have gradients, and the other options; the same on every rank."""
    torch.manual_seed(len(case))
    options = dict(CASES[case])

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()

    def tokens(length: int, packed: bool, heads: int, dim: int) -> torch.Tensor:
        if packed:
            return normal(length, heads, dim)
        return normal(2, heads, length, dim) if options.get("layout") else normal(2, length, heads, dim)

    q_packed, k_packed = "cu_seqlens_q" in options, "cu_seqlens_k" in options
    tensors = {"q": tokens(q_len, q_packed, 4, 12)}
    tensors |= {name: tokens(k_len, k_packed, 2, dim) for name, dim in (("k", 12), ("v", 8))}
    if options.pop("bias", False):
        tensors["bias"] = normal(1, 4, q_len, k_len)
    if "sink" in options:
        tensors["sink"] = torch.randn(options.pop("sink")).requires_grad_()
    if "mask" in options:
        options["mask"] = torch.rand(2, 1, q_len, k_len) > 0.3
    if "alibi_slopes" in options:
        options["alibi_slopes"] = torch.rand(4)
    for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"):
        if name in options:
            options[name] = torch.tensor(options[name])
    return tensors, options


def dim_of(name: str, x: torch.Tensor, options: dict[str, Any]) -> int:
    """The dimension of the tokens."""
    if name in ("bias", "mask"):
        return 2
    return 0 if x.dim() == 3 else 2 if options.get("layout") else 1


def equals_one_rank(
    group: Any, case: str, schedule: str, dtype: torch.dtype, tolerance: float, q_len: int = 23, k_len: int = 31
) -> None:
    """Results and gradients of the ranks are those of one rank in fp64."""
    tensors, options = make(case, dtype, q_len, k_len)
    exact = {name: x.detach().double().requires_grad_() for name, x in tensors.items()}
    exact["sink"] = tensors["sink"].detach().requires_grad_() if "sink" in tensors else None
    out, lse = tilewise.torch.attention(**exact, **options, return_lse=True)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse) * lse.isfinite()
    ((out * dout).sum() + (lse.nan_to_num(neginf=0) * dlse).sum()).backward()

    asked = schedule
    if schedule == "automatic":
        mask = ("causal", "window_size", "alignment", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")
        given = {name: options[name] for name in mask if name in options}
        schedule = ring.choose_schedule(q_len, k_len, group=group, **given)

    def mine(name: str, x: torch.Tensor) -> torch.Tensor:
        whole = name in ("sink", "alibi_slopes") or name[:2] in ("cu", "se")
        dim = x.dim() - 1 if name == "lse" else dim_of(name, x, options)
        return x if whole else ring.shard(x, group=group, schedule=schedule, dim=dim)

    cut = {name: mine(name, x.detach()).requires_grad_() for name, x in tensors.items()}
    own_options = {name: mine(name, x) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    found, sums = ring.attention(**cut, **own_options, schedule=asked, group=group, return_lse=True)
    terms = (found * mine("q", dout)).sum() + (sums.nan_to_num(neginf=0) * mine("lse", dlse)).sum()
    terms.backward()

    def compare(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        limit = max(tolerance, 2e-6) if name == "dsink" else tolerance  # a sink is float32 always
        torch.testing.assert_close(
            ours.double(), theirs.double(), rtol=limit, atol=limit, msg=lambda text: f"{name}: {text}"
        )

    compare("out", found, mine("q", out))
    compare("lse", sums, mine("lse", lse))
    for name, x in cut.items():
        assert x.grad is not None and x.grad.dtype == x.dtype
        if name == "sink":
            dist.all_reduce(x.grad, group=group)
        compare(f"d{name}", x.grad, mine(name, exact[name].grad))


def raised(group: Any, **arguments: Any) -> tuple[str, int | None, str, float]:
    """The name, the rank, the message and the seconds of the exception of a call."""
    x = torch.randn(1, 5, 2, 8, requires_grad=True)
    start = time.monotonic()
    given = {"q": x, "k": x, "v": x, "schedule": "contiguous", "group": group, "causal": True, **arguments}
    try:
        ring.attention(**given)
    except Exception as error:
        return type(error).__name__, getattr(error, "rank", None), str(error), time.monotonic() - start
    return "", None, "", time.monotonic() - start


def refuses(group: Any) -> list[tuple[str, int | None, str, float]]:
    """Rank 1 passes something else than the others, call after call; the last one is right."""
    odd = group.rank() == 1
    results = [
        raised(group, window_size=(3 if odd else -1, 0)),
        raised(group, **{"no_option": 1} if odd else {}),
        raised(group, **{"q": "text"} if odd else {}),
        raised(group, **{"q": torch.randn(1, 5, 2, 9)} if odd else {}),
        raised(group, schedule="zig" if odd else "zigzag"),
        raised(group, q_len=15, k_len=15, threads=0 if odd else 1),
        raised(group, slices=torch.zeros(1, 5, dtype=torch.int64)),
        raised(group),
    ]
    return results


def stays_away(group: Any, before: int) -> list[tuple[str, int | None, str, float]]:
    """Rank 1 of a new group makes only `before` calls in time, and one too late."""
    fresh = dist.new_group(range(group.size()))
    results = [raised(fresh, timeout=60) for _ in range(before)]
    if group.rank() == 1:
        dist.barrier(group)
        results.append(raised(fresh, timeout=60))
    else:
        results.append(raised(fresh, timeout=1))
        dist.barrier(group)  # the group that lent its store is as usable as before
        results.append(raised(fresh, timeout=60))
    return results


def dies(group: Any) -> list[tuple[str, int | None, str, float]]:
    """Rank 1 ends after one call."""
    results = [raised(group, timeout=60)]
    if group.rank() == 1:
        os._exit(0)
    return [*results, raised(group, timeout=60)]


def fails_while_running(group: Any) -> tuple[str, int | None, str, float]:
    """Rank 1 gives up in an exchange that the others are in."""
    fresh = dist.new_group(range(group.size()))
    raised(fresh, timeout=60)
    if group.rank() == 1:
        from tilewise.distributed._gloo import engine_of

        engine_of(fresh, 60).abort()
    return raised(fresh, timeout=60)


def without_sums(group: Any) -> None:
    """Lengths may be given, of some tensors a gradient, and other dtypes of the result."""
    x = torch.randn(1, 6, 2, 8, dtype=torch.bfloat16)
    v = torch.randn(1, 6, 2, 8, dtype=torch.bfloat16, requires_grad=True)
    length = 6 * group.size()
    options = {"schedule": "zigzag", "group": group, "q_len": length, "k_len": length, "causal": True}
    out = ring.attention(x, x.mT.contiguous().mT, v, out_dtype=torch.float32, **options)
    assert out.dtype == torch.float32
    out.sum().backward()
    assert v.grad is not None and x.grad is None
    arrays = ring.attention_forward(*3 * [x.float().numpy()], **options)  # without a graph
    torch.testing.assert_close(torch.from_numpy(arrays[0]), ring.attention(*3 * [x.float()], **options))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ring.attention(x.float(), x, v, **options).dtype == torch.bfloat16
    first = ring.attention(x, x, x, dropout_p=0.5, **options)  # the seed is rank 0's
    assert not torch.equal(first, ring.attention(x, x, x, dropout_p=0.5, **options))
    compiled = torch.compile(lambda q: ring.attention(q, x, x, **options) * 2, backend="aot_eager")
    torch.testing.assert_close(compiled(x), ring.attention(x, x, x, **options) * 2)


def cuts_and_joins(group: Any, schedule: str, length: int) -> list[int]:
    """shard() and unshard() are inverses, in every dtype, and positions() says the same; returns these."""
    places = ring.positions(length, group=group, schedule=schedule)
    for dtype in (torch.bfloat16, torch.float64, torch.int64, torch.bool):
        x = torch.randn(2, length, 3).to(dtype)
        dist.broadcast(x, 0, group=group)
        for whole, dim in ((x, 1), (x[0].contiguous(), 0), (x.mT.contiguous(), -1)):
            own = ring.shard(whole, group=group, schedule=schedule, dim=dim)
            assert torch.equal(own, whole.index_select(dim, places))
            assert torch.equal(ring.unshard(own, group=group, schedule=schedule, dim=dim), whole)
    starts = torch.tensor([0, 2, 2, length - 1, length])
    local = ring.positions(length, group=group, schedule=schedule, cu_seqlens=starts)
    counted = torch.cat([torch.arange(n) for n in starts.diff().tolist()])
    assert torch.equal(local, counted[places])
    return places.tolist()


def wrong_shards(group: Any) -> str:
    """unshard() of rows that are not those of the schedule."""
    try:
        ring.unshard(torch.zeros(1, 3 + group.rank()), group=group, schedule="contiguous")
    except ValueError as error:
        return str(error)
    return ""


def example_losses(group: Any) -> list[float]:
    """The losses of examples/python/train_on_ranks.py in fp64, on the ranks of the default group."""
    root = Path(__file__).resolve().parents[3]
    specification = importlib.util.spec_from_file_location("example", root / "examples/python/train_on_ranks.py")
    assert specification is not None and specification.loader is not None
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    text = torch.tensor(list((root / "README.md").read_bytes()))
    torch.set_default_dtype(torch.float64)
    try:
        return example.train(text, 150, 12)
    finally:
        torch.set_default_dtype(torch.float32)


# ---- ring-flash-attention ---------------------------------------------------------------------------------------


def layout(name: str, rank: int, size: int, length: int) -> torch.Tensor:
    """The tokens of a rank, as ring-flash-attention's tests cut them."""
    whole = torch.arange(length)
    if name == "zigzag_ring_flash_attn":
        chunks = whole.chunk(2 * size)
        return torch.cat((chunks[rank], chunks[2 * size - 1 - rank]))
    return whole[rank::size] if name == "stripe_flash_attn" else whole.chunk(size)[rank]


def peer_dense(group: Any, name: str) -> None:
    """NAME_func and its packed forms are flash attention of the whole."""
    torch.manual_seed(0)
    length = 12 * group.size()
    qkv = torch.randn(2, length, 3, 2, 8, dtype=torch.float64)
    dout = torch.randn(2, length, 2, 8, dtype=torch.float64)
    whole = qkv.clone().requires_grad_()
    out, lse = tilewise.torch.attention(*whole.unbind(2), causal=True, window_size=(17, 0), return_lse=True)
    out.backward(dout)
    own = layout(name, group.rank(), group.size(), length)
    rest = {"causal": True, "window_size": (17, 0), "return_attn_probs": True, "group": group}
    for suffix in ("func", "kvpacked_func", "qkvpacked_func"):
        mine = qkv[:, own].clone().requires_grad_()
        tensors = {"func": mine.unbind(2), "kvpacked_func": (mine[:, :, 0], mine[:, :, 1:]), "qkvpacked_func": (mine,)}
        found, sums, probabilities = getattr(peer, f"{name}_{suffix}")(*tensors[suffix], **rest)
        found.backward(dout[:, own])
        assert probabilities is None
        for ours, theirs in ((found, out[:, own]), (sums, lse[..., own]), (mine.grad, whole.grad[:, own])):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def peer_varlen(group: Any, name: str, causal: bool) -> None:
    """The same of packed sequences, of each of which a rank has its part; llama3: of the axis."""
    torch.manual_seed(0)
    size, rank = group.size(), group.rank()
    unit = 2 * size
    cu_seqlens = torch.tensor([0, unit, unit, 6 * unit, 7 * unit], dtype=torch.int32)
    qkv = torch.randn(7 * unit, 3, 2, 8, dtype=torch.float64)
    dout = torch.randn(7 * unit, 2, 8, dtype=torch.float64)
    whole = qkv.clone().requires_grad_()
    packed = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}
    out, lse = tilewise.torch.attention(*whole.unbind(1), causal=causal, **packed, return_lse=True)
    out.backward(dout)
    if name == "llama3_flash_attn":
        own = layout(name, rank, size, 7 * unit)
        prepared = peer.llama3_flash_attn_prepare_cu_seqlens(cu_seqlens, causal, rank, size)
        lists = (*prepared[:4], 1, prepared[4])
    else:
        pairs = zip(cu_seqlens.tolist(), cu_seqlens.diff().tolist(), strict=False)
        own = torch.cat([start + layout(name, rank, size, length) for start, length in pairs])
        lists = (cu_seqlens // size, 5 * unit // size)
    rest = {"causal": causal, "return_attn_probs": True, "group": group}
    for suffix in ("func", "kvpacked_func", "qkvpacked_func"):
        mine = qkv[own].clone().requires_grad_()
        tensors = {"func": mine.unbind(1), "kvpacked_func": (mine[:, 0], mine[:, 1:]), "qkvpacked_func": (mine,)}
        found, sums, _ = getattr(peer, f"{name}_varlen_{suffix}")(*tensors[suffix], *lists, **rest)
        (found * dout[own]).sum().backward()
        for ours, theirs in ((found, out[own]), (sums, lse[:, own]), (mine.grad, whole.grad[own])):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def odd_parts(group: Any) -> str:
    """Zigzag needs two ranges of each sequence."""
    x = torch.randn(4, 1, 8)
    try:
        peer.zigzag_ring_flash_attn_varlen_func(x, x, x, torch.tensor([0, 3, 4]), 3, causal=True, group=group)
    except ValueError as error:
        return str(error)
    return ""
