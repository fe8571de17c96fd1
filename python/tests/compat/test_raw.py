"""_flash_attn_forward and _flash_attn_backward of flash-attn 2, and their packed forms."""

import pytest
import tilewise.compat.flash_attn as fa2
import torch
from tilewise.compat.flash_attn.flash_attn_interface import (
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
)

SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0])
OPTIONS = [
    {}, {"causal": True}, {"window_size": (4, 1), "softcap": 3.0}, {"alibi_slopes": SLOPES}, {"dropout_p": 0.4},
]  # fmt: skip
STARTS = (torch.tensor([0, 4, 9], dtype=torch.int32), torch.tensor([0, 7, 13], dtype=torch.int32))


def raw(options: dict) -> dict:
    """As the functions without gradients spell them."""
    options = {"dropout_p": 0.0, "causal": False, "softcap": 0.0, "alibi_slopes": None, "window_size": (-1, -1), **options}
    left, right = options.pop("window_size")
    return {**options, "softmax_scale": 0.3, "window_size_left": left, "window_size_right": right}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_forward_and_backward_are_the_functions_with_gradients(options: dict, packed: bool) -> None:
    shapes = [(2, 9, 4, 16), (2, 13, 2, 16), (2, 13, 2, 16)]
    tensors = [torch.randn(shape[1:] if packed else shape, requires_grad=True) for shape in shapes]
    where = {"cu_seqlens_q": STARTS[0], "cu_seqlens_k": STARTS[1], "max_seqlen_q": 5, "max_seqlen_k": 7} if packed else {}
    public = fa2.flash_attn_varlen_func if packed else fa2.flash_attn_func
    state = torch.get_rng_state()
    wanted, wanted_lse, wanted_probs = public(*tensors, **where, **options, softmax_scale=0.3, return_attn_probs=True)
    dout = torch.randn_like(wanted)
    gradients = torch.autograd.grad(wanted, tensors, dout)

    torch.set_rng_state(state)
    forward = _flash_attn_varlen_forward if packed else _flash_attn_forward
    out, lse, probs, rng_state = forward(*tensors, **where, **raw(options), return_softmax=True)
    assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse) and torch.equal(probs, wanted_probs)
    assert not out.requires_grad and rng_state.shape == (2,) and rng_state.dtype == torch.int64

    found = [torch.full_like(t, torch.nan) for t in tensors]
    backward = _flash_attn_varlen_backward if packed else _flash_attn_backward
    delta = backward(dout, *tensors, out, lse, *found, **where, **raw(options), deterministic=True, rng_state=rng_state)
    assert all(torch.equal(a, b) for a, b in zip(found, gradients, strict=True))
    rows = (dout * out).sum(-1)
    torch.testing.assert_close(delta, rows.detach().transpose(0, 1) if packed else rows.detach().transpose(1, 2))
    only = torch.full_like(tensors[1], torch.nan)
    backward(dout, *tensors, out, lse, None, only, None, **where, **raw(options), deterministic=False, rng_state=rng_state)
    assert torch.equal(only, gradients[1])


def test_a_ring_of_keys_sums_to_the_whole() -> None:
    """As ring attention calls them: forward merges parts of the keys, backward has the whole's out and lse."""
    q, k, v = (torch.randn(2, s, 2, 16, requires_grad=True) for s in (6, 12, 12))
    wanted, wanted_lse, _ = fa2.flash_attn_func(q, k, v, return_attn_probs=True)
    dout = torch.randn_like(wanted)
    gradients = torch.autograd.grad(wanted, (q, k, v), dout)
    parts = [slice(0, 5), slice(5, 12)]
    given = {**raw({}), "softmax_scale": None}
    results = [_flash_attn_forward(q, k[:, p], v[:, p], **given, return_softmax=False) for p in parts]
    lse = torch.logsumexp(torch.stack([lse for _, lse, *_ in results]), 0)
    out = sum(out * (own - lse).exp().transpose(1, 2)[..., None] for out, own, *_ in results)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(lse, wanted_lse)
    dq, dk, dv = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
    for part in parts:
        own = torch.empty_like(q)
        tensors = (q, k[:, part], v[:, part], out, lse, own, dk[:, part], dv[:, part])
        _flash_attn_backward(dout, *tensors, **given, deterministic=False)
        dq += own
    for found, true in zip((dq, dk, dv), gradients, strict=True):
        torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-5)


def test_what_is_missing_or_not_supported_is_named() -> None:
    q = torch.randn(1, 4, 2, 16)
    out, lse, _, _ = _flash_attn_forward(q, q, q, **raw({}), return_softmax=False)
    with pytest.raises(RuntimeError, match="rng_state: is absent"):
        given = {**raw({"dropout_p": 0.5}), "deterministic": False}
        _flash_attn_backward(q, q, q, q, out, lse, torch.empty_like(q), None, None, **given)
    with pytest.raises(NotImplementedError, match="leftpad_k"):
        _flash_attn_varlen_forward(
            q[0], q[0], q[0], STARTS[0][:1], STARTS[0][:1], 4, 4, 0.0, 0.25, False, leftpad_k=torch.tensor([1])
        )
