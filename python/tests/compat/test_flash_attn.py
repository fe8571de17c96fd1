"""Compares flash-attn's functions with the definition."""

import pytest
import tilewise.compat.flash_attn as fa2
import tilewise.compat.flash_attn_interface as fa3
import torch
import torch_reference
from tilewise.compat.flash_attn import bert_padding

CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def qkv(batch: int = 2, sq: int = 9, sk: int = 13, heads: int = 4, kv_heads: int = 2, dim: int = 16) -> list[torch.Tensor]:
    return [torch.randn(batch, s, h, dim) for s, h in ((sq, heads), (sk, kv_heads), (sk, kv_heads))]


OPTIONS = [
    {},
    {"causal": True},
    {"causal": True, "window_size": (4, 0)},
    {"window_size": (3, 2), "softcap": 5.0},
    {"softmax_scale": 0.4, "causal": True, "alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
]


def reference(q, k, v, options):  # noqa: ANN001, ANN201
    names = {"window_size": "window", "softmax_scale": "scale"}
    return torch_reference.attention(q, k, v, **{names.get(name, name): value for name, value in options.items()})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_dense_and_packed_forms_agree(options: dict) -> None:
    q, k, v = (t.requires_grad_() for t in qkv())
    wanted, wanted_lse = reference(q, k, v, options)
    out, lse, probs = fa2.flash_attn_func(q, k, v, **options, return_attn_probs=True)
    torch.testing.assert_close(out.double(), wanted, **CLOSE)
    torch.testing.assert_close(lse.double(), wanted_lse, **CLOSE)
    assert probs.numel() == 0
    assert torch.equal(fa2.flash_attn_kvpacked_func(q, torch.stack((k, v), 2), **options), out)
    dout = torch.randn_like(out)
    for found, true in zip(
        torch.autograd.grad(out, (q, k, v), dout), torch.autograd.grad(wanted, (q, k, v), dout.double()), strict=True
    ):
        torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-4)
    if "alibi_slopes" not in options:
        again, again_lse = fa3.flash_attn_func(q, k, v, **options, return_attn_probs=True)
        assert torch.equal(again, out) and torch.equal(again_lse, lse)
        assert torch.equal(fa3.flash_attn_func(q, k, v, **options), out)


def test_qkvpacked() -> None:
    packed = torch.randn(2, 7, 3, 4, 16)
    out = fa2.flash_attn_qkvpacked_func(packed, causal=True)
    assert torch.equal(out, fa2.flash_attn_func(*packed.unbind(2), causal=True))
    starts = torch.tensor([0, 3, 14], dtype=torch.int32)
    flat = packed.flatten(0, 1)
    out, lse, _ = fa2.flash_attn_varlen_qkvpacked_func(flat, starts, 11, causal=True, return_attn_probs=True)
    wanted, wanted_lse = torch_reference.packed_attention(*flat.unbind(1), starts, starts, causal=True)
    torch.testing.assert_close(out.double(), wanted, **CLOSE)
    torch.testing.assert_close(lse.double(), wanted_lse, **CLOSE)


def test_qkvpacked_of_flash_attn_3() -> None:
    packed = torch.randn(2, 7, 3, 4, 16)
    out, lse = fa3.flash_attn_qkvpacked_func(packed, causal=True, return_attn_probs=True)
    assert torch.equal(out, fa2.flash_attn_func(*packed.unbind(2), causal=True)) and lse.shape == (2, 4, 7)
    grouped = torch.randn(2, 7, 8, 16)  # 4 heads of q, 2 of k, 2 of v
    out = fa3.flash_attn_qkvpacked_func(grouped, 0.3, window_size=(3, 0), softcap=4.0, num_heads_q=4)
    wanted = fa3.flash_attn_func(*grouped.split([4, 2, 2], 2), 0.3, window_size=(3, 0), softcap=4.0)
    assert torch.equal(out, wanted)
    for given, words in ((None, "num_heads_q: is absent"), (3, "num_heads_q: is 3"), (8, "num_heads_q: is 8"), (0, "is 0")):
        with pytest.raises(ValueError, match=words):
            fa3.flash_attn_qkvpacked_func(grouped, num_heads_q=given)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_varlen(options: dict) -> None:
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 4, 4, 15], [0, 9, 11, 30]))
    q, k, v = torch.randn(15, 4, 16), torch.randn(30, 2, 16), torch.randn(30, 2, 16)
    lengths = (cu_q, cu_k, 11, torch.tensor(19))
    names = {"window_size": "window", "softmax_scale": "scale"}
    wanted, wanted_lse = torch_reference.packed_attention(
        q, k, v, cu_q, cu_k, **{names.get(n, n): x for n, x in options.items()}
    )
    out, lse, _ = fa2.flash_attn_varlen_func(q, k, v, *lengths, **options, return_attn_probs=True)
    torch.testing.assert_close(out.double(), wanted, **CLOSE)
    torch.testing.assert_close(lse.double(), wanted_lse, **CLOSE)
    assert torch.equal(fa2.flash_attn_varlen_kvpacked_func(q, torch.stack((k, v), 1), *lengths, **options), out)
    if "alibi_slopes" not in options:
        assert torch.equal(fa3.flash_attn_varlen_func(q, k, v, *lengths, **options), out)


def test_varlen_with_seqused_k() -> None:
    starts = torch.tensor([0, 6, 16], dtype=torch.int32)
    q, k, v = (torch.randn(16, 2, 16) for _ in range(3))
    out = fa3.flash_attn_varlen_func(q, k, v, starts, starts, 10, 10, seqused_k=torch.tensor([2, 7], dtype=torch.int32))
    for rows, used in ((slice(0, 6), 2), (slice(6, 16), 7)):
        keys = slice(rows.start, rows.start + used)
        wanted, _ = torch_reference.attention(q[None, rows], k[None, keys], v[None, keys])
        torch.testing.assert_close(out[rows].double(), wanted[0], **CLOSE)


@pytest.mark.parametrize("chunk", [0, 4])
def test_varlen_with_seqused_q(chunk: int) -> None:
    """The used lengths align the mask, as in flash-attn 3; rows that are not used are 0."""
    starts = torch.tensor([0, 6, 16], dtype=torch.int32)
    q, k, v = (torch.randn(16, 2, 16) for _ in range(3))
    used = {"seqused_q": torch.tensor([4, 0], dtype=torch.int32), "seqused_k": torch.tensor([5, 7], dtype=torch.int32)}
    options = {"causal": True, "attention_chunk": chunk}
    out = fa3.flash_attn_varlen_func(q, k, v, starts, starts, 10, 10, **used, **options)
    wanted = fa3.flash_attn_func(q[None, :4], k[None, :5], v[None, :5], **options)
    torch.testing.assert_close(out[:4], wanted[0], rtol=1e-5, atol=1e-5)
    assert not out[4:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout_and_the_probabilities_beside_it(dtype: torch.dtype) -> None:
    p = 0.3
    q, k, v = (t.to(dtype) for t in qkv())
    state = torch.get_rng_state()
    out, _, probs = fa2.flash_attn_func(q, k, v, dropout_p=p, causal=True, return_attn_probs=True)
    torch.set_rng_state(state)
    assert torch.equal(fa2.flash_attn_func(q, k, v, dropout_p=p, causal=True), out)
    plain = torch_reference.attention(q, k, torch.eye(13, dtype=dtype)[None, :, None].expand(2, 13, 2, 13), causal=True)[0]
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(probs.abs().double(), plain.transpose(1, 2), rtol=tolerance, atol=tolerance)
    kept = probs.double().clamp(min=0) / (1 - p)
    wanted = (kept @ v.double().transpose(1, 2).repeat_interleave(2, 1)).transpose(1, 2)
    torch.testing.assert_close(out.double(), wanted, rtol=4 * tolerance, atol=4 * tolerance)
    share = (probs < 0).sum() / (probs != 0).sum()
    assert 0.2 < share < 0.4


def test_packed_dropout_probabilities() -> None:
    starts = torch.tensor([0, 5, 12], dtype=torch.int32)
    q, k, v = (torch.randn(12, 2, 16) for _ in range(3))
    out, _, probs = fa2.flash_attn_varlen_func(q, k, v, starts, starts, 7, 7, dropout_p=0.4, return_attn_probs=True)
    assert probs.shape == (2, 2, 7, 7)
    assert torch.equal(probs[0, :, 5:], torch.zeros(2, 2, 7)) and torch.equal(probs[0, :, :, 5:], torch.zeros(2, 7, 2))
    for b, rows in enumerate(torch_reference.sequences(starts)):
        n = rows.stop - rows.start
        kept = probs[b, :, :n, :n].clamp(min=0) / 0.6
        torch.testing.assert_close(out[rows], (kept @ v[rows].transpose(0, 1)).transpose(0, 1), **CLOSE)


def test_rows_without_keys_are_zero() -> None:
    q, k, v = qkv(sq=9, sk=4)
    out, lse, _ = fa2.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert torch.equal(out[:, :5], torch.zeros_like(out[:, :5])) and (lse[..., :5] == -torch.inf).all()


def test_varlen_with_pages() -> None:
    table = torch.tensor([[3, 0], [1, -1]], dtype=torch.int32)
    pages = torch.randn(5, 4, 2, 16)
    q, cu_q, cu_k = torch.randn(5, 2, 16), torch.tensor([0, 3, 5]), torch.tensor([0, 7, 9])
    out = fa2.flash_attn_varlen_func(
        q, pages, pages, cu_q.int(), cu_k.int(), 3, 7, causal=True, block_table=table
    )
    for b, (rows, length) in enumerate(((slice(0, 3), 7), (slice(3, 5), 2))):
        keys = torch.cat([pages[int(p)] for p in table[b] if p >= 0])[None, :length]
        wanted, _ = torch_reference.attention(q[None, rows], keys, keys, causal=True)
        torch.testing.assert_close(out[rows].double(), wanted[0], **CLOSE)


def test_combine() -> None:
    q, k, v = qkv(sk=30)
    wanted, wanted_lse = torch_reference.attention(q, k, v)
    parts = [torch_reference.attention(q, k[:, s], v[:, s]) for s in (slice(0, 7), slice(7, 7), slice(7, 30))]
    outs = torch.stack([out.float() for out, _ in parts])
    outs[1] = torch.nan  # a part without keys may hold anything
    sums = torch.stack([lse.float().transpose(1, 2) for _, lse in parts])
    out, lse = fa3.flash_attn_combine(outs, sums)
    torch.testing.assert_close(out.double(), wanted, **CLOSE)
    torch.testing.assert_close(lse.double(), wanted_lse.transpose(1, 2), **CLOSE)
    into = torch.empty_like(out, dtype=torch.bfloat16)
    assert fa3.flash_attn_combine(outs, sums, out=into)[0] is into and torch.equal(into, out.bfloat16())
    assert fa3.flash_attn_combine(outs, sums, out_dtype=torch.float16)[0].dtype == torch.float16


def test_what_is_not_supported_is_named() -> None:
    q, k, v = qkv()
    given = {"qv": torch.ones(1)}
    starts = torch.tensor([0, 9])
    calls = [lambda: fa3.flash_attn_varlen_func(q[0], q[0], q[0], starts, starts, 9, 9, **given)]
    calls += [lambda: fa3.flash_attn_func(q, k, v, **given), lambda: fa3.flash_attn_with_kvcache(q, k, v, **given)]
    for call in calls:
        with pytest.raises(NotImplementedError, match="qv"):
            call()


CUT = [
    (TypeError, "window_size: is (1.5, 0)", {"window_size": (1.5, 0)}),
    (TypeError, "window_size: is (4,)", {"window_size": (4,)}),
    (ValueError, "window_size: is (-2, 0)", {"window_size": (-2, 0)}),
    (TypeError, "causal: is 'no', must be True or False", {"causal": "no"}),
    (RuntimeError, "softmax_scale: is inf, must be finite", {"softmax_scale": float("inf")}),
]


@pytest.mark.parametrize(("error", "words", "given"), CUT, ids=[words for _, words, _ in CUT])
def test_no_argument_is_cut_to_one_that_has_a_meaning(error: type[Exception], words: str, given: dict) -> None:
    q, k, v = qkv()
    starts = torch.tensor([0, 4, 9], dtype=torch.int32)
    for call in (
        lambda: fa2.flash_attn_func(q, k, v, **given),
        lambda: fa2.flash_attn_varlen_func(q[0], q[0], q[0], starts, starts, 5, 5, **given),
        lambda: fa2.flash_attn_with_kvcache(q, k, v, **given),
        lambda: fa3.flash_attn_func(q, k, v, **given),
        lambda: fa3.flash_attn_with_kvcache(q, k, v, **given),
    ):
        with pytest.raises(error) as caught:
            call()
        assert words in str(caught.value)


def test_lengths_are_integers() -> None:
    q, starts = torch.randn(9, 2, 16), torch.tensor([0, 4, 9], dtype=torch.int32)
    with pytest.raises(TypeError, match=r"max_seqlen_q: is 5\.5, must be an integer"):
        fa2.flash_attn_varlen_func(q, q, q, starts, starts, 5.5, 5)
    for at, name in ((0, "cu_seqlens_q"), (1, "cu_seqlens_k")):
        given = [starts, starts]
        given[at] = starts.float()
        with pytest.raises(RuntimeError, match=rf"{name}: dtype is torch\.float32"):
            fa2.flash_attn_varlen_func(q, q, q, *given, 5, 5)


# ---- padding --------------------------------------------------------------------------------------------------------


def test_unpad_and_pad() -> None:
    x = torch.randn(3, 5, 2, 4, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    tokens, indices, starts, longest, used = bert_padding.unpad_input(x, mask)
    assert starts.tolist() == [0, 3, 7, 7] and starts.dtype == torch.int32 and longest == 4 and used.tolist() == [3, 4, 0]
    assert torch.equal(tokens, x[mask.bool()])
    back = bert_padding.pad_input(tokens, indices, 3, 5)
    assert torch.equal(back, x * mask[:, :, None, None])
    back.sum().backward()
    assert torch.equal(x.grad, mask[:, :, None, None].expand_as(x).float())
    assert torch.equal(bert_padding.index_first_axis(x.flatten(0, 1), indices), tokens)
    unused = torch.tensor([[0, 0, 0, 1, 0], [0] * 5, [0] * 5])
    tokens, _, starts, _, used = bert_padding.unpad_input(x, mask, unused)
    assert starts.tolist() == [0, 4, 8, 8] and used.tolist() == [3, 4, 0] and tokens.shape[0] == 8


def test_unpad_concatenated() -> None:
    x = torch.randn(3, 6, 4)
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]])
    tokens, indices, starts, longest = bert_padding.unpad_input_for_concatenated_sequences(x, lengths)
    assert starts.tolist() == [0, 2, 5, 8, 10, 16] and longest == 6
    assert torch.equal(tokens, torch.cat([x[0, :5], x[1, :5], x[2]])) and indices.numel() == 16
