"""MagiAttention's names: signatures, results of attention of the whole, and what is refused."""

import inspect
import re
from collections.abc import Iterator

import magi_cases
import pytest
import tilewise.compat.magi_attention as magi
import torch
import torch.distributed as dist
from ranks import Ranks
from tilewise.distributed._group import Group

HEADS = "num_heads_q, num_heads_kv, head_dim, pad_size, cp_group_or_mesh"
SIGNATURES = {
    "magi_attn_flex_key": f"q_ranges, k_ranges, attn_mask_type, total_seqlen_q, total_seqlen_k, {HEADS}, "
    "dist_attn_config=DistAttnConfig(), is_same_source=True, is_q_permutable=True, is_k_permutable=True, "
    "chunk_size=None, head_dim_v=None",
    "magi_attn_varlen_key": f"cu_seqlens_q, cu_seqlens_k, {HEADS}, causal=False, window_size=(-1, -1), "
    "dist_attn_config=DistAttnConfig(), chunk_size=None, head_dim_v=None",
    "dispatch": "x, key, pad_value=0.0",
    "undispatch": "x, key, is_partial_grad=False",
    "calc_attn": "q, k, v, key, sink=None, softmax_scale=None, softcap=0.0, return_max_logits=False",
    "get_position_ids": "key",
}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(3)
    yield started
    started.stop()


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    function = getattr(magi, name)
    default = repr(magi.DistAttnConfig())
    parameters = inspect.signature(function).parameters.values()
    spelled = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)
    assert spelled.replace(default, "DistAttnConfig()") == SIGNATURES[name] and function.__doc__


@pytest.mark.parametrize("form", ["tensors", "ranges", "lists"])
def test_slices(ranks: Ranks, seed: int, form: str) -> None:
    for size in (1, 2, 3):
        ranks.run(magi_cases.flex, seed + size, form, size=size)


@pytest.mark.parametrize(("causal", "window"), [(True, (-1, -1)), (False, (-1, -1)), (False, (5, 2)), (True, (5, -1))])
def test_packed_sequences(ranks: Ranks, seed: int, causal: bool, window: tuple[int, int]) -> None:
    ranks.run(magi_cases.varlen, seed, causal, window)


def test_gradients_of_the_whole_are_summed_if_they_are_partial(ranks: Ranks) -> None:
    ranks.run(magi_cases.partial_gradients)


# ---- what is refused ------------------------------------------------------------------------------------------------

ONE = Group(0, 1, None, None)  # of one rank, which connects to nobody
MASK = ([[0, 8]], [[0, 8]], "causal", 8, 8)


def flex(*mask: object, **arguments: object) -> magi.DistAttnRuntimeKey:
    return magi.magi_attn_flex_key(*(mask or MASK), 4, 4, 16, 0, arguments.pop("group", ONE), **arguments)


def config(**dispatching: object) -> dict[str, object]:
    return {"dist_attn_config": magi.DistAttnConfig(magi.DispatchConfig(**dispatching))}


def calc(**arguments: object) -> object:
    x = torch.zeros(8, 4, 16)
    return magi.calc_attn(x, x, x, flex(), **arguments)


class Mesh:
    """As a DeviceMesh of two dimensions."""

    ndim = 2


REFUSED = [
    (NotImplementedError, "is_same_source: is False, must be True", lambda: flex(is_same_source=False)),
    (NotImplementedError, "is_q_permutable: is False, must be True", lambda: flex(is_q_permutable=False)),
    (NotImplementedError, "is_k_permutable: is False, must be True", lambda: flex(is_k_permutable=False)),
    (NotImplementedError, "cp_group_or_mesh: has 2 dimensions, must have 1", lambda: flex(group=Mesh())),
    (NotImplementedError, "dist_attn_config.dispatch_config.alg: is 'greedy'", lambda: flex(**config(alg="greedy"))),
    (NotImplementedError, "dispatch_config.uneven_shard: is False", lambda: flex(**config(uneven_shard=False))),
    (NotImplementedError, "return_max_logits: is True", lambda: calc(return_max_logits=True)),
    (NotImplementedError, "sink: has 3 dimensions, must have 2", lambda: calc(sink=torch.zeros(8, 1, 4))),
    (ValueError, "chunk_size: is 4, but dist_attn_config has 2", lambda: flex(**config(chunk_size=2), chunk_size=4)),
    (ValueError, "total_seqlen_k: is 9, must be 8", lambda: flex(*MASK[:4], 9)),
    (ValueError, "k_ranges: has 2 entries, must have 1", lambda: flex(MASK[0], [[0, 1], [1, 2]], *MASK[2:])),
    (ValueError, "attn_mask_type: has 2 entries, must have 1", lambda: flex(*MASK[:2], [0, 1], 8, 8)),
    (ValueError, "attn_mask_type: holds 'diagonal', must be one of full", lambda: flex(*MASK[:2], "diagonal", 8, 8)),
    (ValueError, "attn_mask_type: holds 4, must be one of full", lambda: flex(*MASK[:2], 4, 8, 8)),
    (ValueError, "q_ranges: is [[0, 8, 9]], must be ranges", lambda: flex([[0, 8, 9]], *MASK[1:])),
    (ValueError, "q_ranges: dtype is torch.float32", lambda: flex(torch.zeros(1, 2), *MASK[1:])),
    (ValueError, "slices[0]: q0..q1 is 0..9, must lie within 0..8", lambda: flex([[0, 9]], *MASK[1:])),
    (ValueError, "cu_seqlens_k: dtype is torch.float32",
     lambda: magi.magi_attn_varlen_key(torch.tensor([0, 8]), torch.tensor([0.0, 8]), 4, 4, 16, 0, ONE)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "call"), REFUSED, ids=[message for _, message, _ in REFUSED])
def test_what_cannot_be_honoured_is_refused_by_name(kind: type, message: str, call) -> None:  # noqa: ANN001
    with pytest.raises(kind, match=re.escape(message)):
        call()


def test_an_empty_mask() -> None:
    """Nobody sees anything."""
    x = torch.ones(8, 4, 16)
    key = flex([], [], [], 8, 8)
    out, meta = magi.calc_attn(x, x, x, key)
    assert (out == 0).all() and (meta.lse == -torch.inf).all() and key.plan.info.area == 0


def test_the_default_group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert magi.get_position_ids(flex(group=dist.group.WORLD)).tolist() == list(range(8))
    finally:
        dist.destroy_process_group()
