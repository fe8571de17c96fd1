"""What the tests of MagiAttention's names run on ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import tilewise.compat.magi_attention as magi
import tilewise.torch
import torch
import torch.distributed as dist
from random_slices import random_slices

LENGTH = 45
HEADS = (4, 2, 16, 0)  # num_heads_q, num_heads_kv, head_dim, pad_size
KINDS = [magi.AttnMaskType.FULL, "causal", 2, "bi_causal"]


def as_users_write(slices: np.ndarray, form: str) -> tuple[Any, Any, Any]:
    """q_ranges, k_ranges and attn_mask_type in one of the forms that are taken."""
    q_ranges, k_ranges, kinds = slices[:, :2].tolist(), slices[:, 2:4].tolist(), slices[:, 4].tolist()
    if form == "tensors":
        return tuple(torch.tensor(x, dtype=torch.int32) for x in (q_ranges, k_ranges, kinds))
    if form == "ranges":
        return (*map(magi.AttnRanges.from_ranges, (q_ranges, k_ranges)), [KINDS[kind] for kind in kinds])
    return q_ranges, k_ranges, kinds


def flex(group: Any, seed: int, form: str) -> None:
    """Attention of random slices, from the whole to the whole, with gradients that are whole on every rank."""
    slices = random_slices(np.random.default_rng(seed), LENGTH, LENGTH, 5)
    ranges = as_users_write(slices, form)
    config = magi.DistAttnConfig(magi.DispatchConfig(chunk_size=2), magi.OverlapConfig(degree=2))
    key = magi.magi_attn_flex_key(*ranges, LENGTH, LENGTH, *HEADS, group, config)
    assert (key.plan.info.chunk_rows, key.plan.info.stages) == (2, 2 if group.size() > 1 else key.plan.info.stages)
    equals_one_rank(group, seed, key, {"slices": torch.from_numpy(slices)}, sinks=3)


def varlen(group: Any, seed: int, causal: bool, window_size: tuple[int, int]) -> None:
    """The same of packed sequences."""
    mask = {"causal": causal, "window_size": window_size}
    starts = torch.tensor([0, 7, 8, 30, LENGTH], dtype=torch.int32)
    key = magi.magi_attn_varlen_key(starts, starts, *HEADS, group, **mask)
    equals_one_rank(group, seed, key, {"cu_seqlens_q": starts, "cu_seqlens_k": starts, **mask}, sinks=0)


def equals_one_rank(group: Any, seed: int, key: magi.DistAttnRuntimeKey, mask: dict[str, Any], sinks: int) -> None:
    """dispatch(), calc_attn() and undispatch() are attention of the whole."""
    torch.manual_seed(seed)
    values = [torch.randn(LENGTH, heads, 16, dtype=torch.float64) for heads in (4, 2, 2)]
    sink = torch.randn(sinks, 4) if sinks else None
    options = {"softmax_scale": 0.3, "softcap": 2.0}

    exact = [x.clone().requires_grad_() for x in values]
    exact_sink = None if sink is None else sink.clone().requires_grad_()
    one = None if exact_sink is None else exact_sink.double().exp().sum(0).log().float()  # S terms of a denominator
    out, lse = tilewise.torch.attention(*exact, **mask, **options, sink=one, return_lse=True)
    dout = torch.randn_like(out)
    out.backward(dout)

    whole = [x.clone().requires_grad_() for x in values]
    own_sink = None if sink is None else sink.clone().requires_grad_()
    local = [magi.dispatch(x, key) for x in whole]
    local_out, meta = magi.calc_attn(*local, key, own_sink, **options)
    found = magi.undispatch(local_out, key)
    found.backward(dout)

    places = magi.get_position_ids(key)
    assert torch.equal(local[0], values[0][places]) and meta.max_logits is None
    torch.testing.assert_close(found, out, rtol=0, atol=1e-12)
    torch.testing.assert_close(meta.lse, lse.t()[places], rtol=0, atol=1e-12)
    for ours, theirs in zip(whole, exact, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-12)
    if own_sink is not None and exact_sink is not None:
        dist.all_reduce(own_sink.grad, group=group)
        torch.testing.assert_close(own_sink.grad, exact_sink.grad, rtol=1e-5, atol=1e-5)  # float32 always


def partial_gradients(group: Any) -> None:
    """With is_partial_grad, the gradient is the sum of what the ranks have of the whole."""
    key = magi.magi_attn_flex_key([[0, LENGTH]], [[0, LENGTH]], "causal", LENGTH, LENGTH, *HEADS, group)
    torch.manual_seed(0)
    x, weights = torch.randn(LENGTH, 3), torch.randn(group.size(), LENGTH, 3)
    for is_partial_grad, expected in ((True, weights.sum(0)), (False, weights[group.rank()])):
        own = magi.dispatch(x, key).clone().requires_grad_()
        (magi.undispatch(own, key, is_partial_grad) * weights[group.rank()]).sum().backward()
        torch.testing.assert_close(own.grad, magi.dispatch(expected, key))
