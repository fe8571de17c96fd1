"""ring-flash-attention's names: signatures, layouts of tokens, results of flash attention on the whole."""

import inspect
from collections.abc import Iterator

import pytest
import rank_cases
import tilewise.compat.ring_flash_attn as peer
import torch
from ranks import Ranks
from tilewise.compat._contents import ArgumentError

TAIL = "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), alibi_slopes=None, " \
    "deterministic=False, return_attn_probs=False, group=None"  # fmt: skip
LISTS = {
    "": "",
    "varlen_": "cu_seqlens, max_seqlen, ",
    "llama3": "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, heads_k_stride, local_k_slice, ",
}
NAMES = {
    "ring_flash_attn_": "", "zigzag_ring_flash_attn_": "", "stripe_flash_attn_": "",
    "ring_flash_attn_varlen_": "varlen_", "zigzag_ring_flash_attn_varlen_": "varlen_",
    "llama3_flash_attn_varlen_": "llama3",
}  # fmt: skip


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(3)
    yield started
    started.stop()


@pytest.mark.parametrize("name", NAMES)
def test_signatures(name: str) -> None:
    for form, tensors in (("func", "q, k, v"), ("kvpacked_func", "q, kv"), ("qkvpacked_func", "qkv")):
        function = getattr(peer, name + form)
        parameters = inspect.signature(function).parameters.values()
        spelled = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)
        assert spelled == f"{tensors}, {LISTS[NAMES[name]]}{TAIL}"
        assert function.__name__ == name + form and function.__doc__


@pytest.mark.parametrize("name", ["ring_flash_attn", "zigzag_ring_flash_attn", "stripe_flash_attn"])
def test_dense(ranks: Ranks, name: str) -> None:
    for size in (1, 2, 3):
        ranks.run(rank_cases.peer_dense, name, size=size)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["ring_flash_attn", "zigzag_ring_flash_attn", "llama3_flash_attn"])
def test_packed(ranks: Ranks, name: str, causal: bool) -> None:
    for size in (1, 2, 3):
        ranks.run(rank_cases.peer_varlen, name, causal, size=size)


def test_lists_of_llama3() -> None:
    """Three sequences of 5, 2 and 5 tokens on two ranks; the second sequence is cut in the middle."""
    starts = torch.tensor([0, 5, 7, 12], dtype=torch.int32)
    q, k, q_len, k_len, keys = peer.llama3_flash_attn_prepare_cu_seqlens(starts, True, 0, 2)
    assert (q.tolist(), k.tolist(), q_len, k_len, keys) == ([0, 5, 6], [0, 5, 6], 5, 5, slice(0, 6))
    q, k, q_len, k_len, keys = peer.llama3_flash_attn_prepare_cu_seqlens(starts, True, 1, 2)
    assert (q.tolist(), k.tolist(), q_len, k_len, keys) == ([0, 1, 6], [0, 2, 7], 5, 5, slice(5, 12))
    q, k, q_len, k_len, keys = peer.llama3_flash_attn_prepare_cu_seqlens(starts, False, 0, 2)
    assert (q.tolist(), k.tolist(), q_len, k_len, keys) == ([0, 5, 6], [0, 5, 7], 5, 5, slice(0, 7))


def test_lists_that_cannot_be_divided(ranks: Ranks) -> None:
    with pytest.raises(ArgumentError, match=r"cu_seqlens\[-1\]: is 12, must be a positive multiple of world_size, 5"):
        peer.llama3_flash_attn_prepare_cu_seqlens(torch.tensor([0, 12]), True, 0, 5)
    assert set(ranks.run(rank_cases.odd_parts, size=2)) == {
        "cu_seqlens: is [0, 3, 4], must be even, for two ranges of each sequence"
    }
