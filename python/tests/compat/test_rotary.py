"""flash_attn.layers.rotary, compared with rotations of the complex plane."""

import pytest
import torch
from tilewise.compat.flash_attn.layers.rotary import (
    RotaryEmbedding,
    apply_rotary_emb,
    apply_rotary_emb_kv_,
    apply_rotary_emb_qkv_,
    apply_rotary_emb_torch,
)
from tilewise.compat.flash_attn.ops.triton.rotary import apply_rotary


def rotated(x: torch.Tensor, angles: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x (S, H, D) by angles (S, R/2), as products of complex numbers in float64."""
    half = angles.shape[-1]
    turned, rest = x[..., : 2 * half].double(), x[..., 2 * half :]
    pairs = turned.unflatten(-1, (half, 2)) if interleaved else torch.stack(turned.split(half, -1), -1)
    factor = torch.polar(torch.ones_like(angles.double()), angles.double())[:, None]
    result = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * factor)
    turned = result.flatten(-2) if interleaved else torch.cat(result.unbind(-1), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


ANGLES = torch.randn(40, 6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offsets", [0, 3, torch.tensor([5, 0])], ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_apply(packed: bool, offsets: object, interleaved: bool, dtype: torch.dtype) -> None:
    x = torch.randn(2, 7, 3, 16, dtype=dtype)
    starts = [int(n) for n in (offsets if isinstance(offsets, torch.Tensor) else [offsets] * 2)]
    wanted = torch.stack([rotated(x[b], ANGLES[n : n + 7], interleaved) for b, n in enumerate(starts)])
    angles = ANGLES.double() if dtype == torch.float64 else ANGLES
    given = {"seqlen_offsets": offsets, "interleaved": interleaved}
    if packed:
        x, wanted = x.flatten(0, 1), wanted.flatten(0, 1)
        given |= {"cu_seqlens": torch.tensor([0, 7, 14], dtype=torch.int32), "max_seqlen": 7}
    found = apply_rotary_emb(x, angles.cos(), angles.sin(), **given)
    torch.testing.assert_close(found, wanted)
    back = apply_rotary(found, angles.cos(), angles.sin(), conjugate=True, **given)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(back, x, rtol=tolerance, atol=tolerance)
    own = x.clone()
    assert apply_rotary_emb(own, angles.cos(), angles.sin(), inplace=True, **given) is own
    assert torch.equal(own, found)


@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients(interleaved: bool) -> None:
    x = torch.randn(2, 5, 2, 16, dtype=torch.float64, requires_grad=True)
    cos, sin = ANGLES.double().cos(), ANGLES.double().sin()
    for inplace in (False, True):
        assert torch.autograd.gradcheck(lambda x, i=inplace: apply_rotary_emb(1 * x, cos, sin, interleaved, i), x)


@pytest.mark.parametrize("interleaved", [False, True])
def test_in_pytorch(interleaved: bool) -> None:
    x = torch.randn(2, 7, 3, 16)
    found = apply_rotary_emb_torch(x, ANGLES[:7].cos(), ANGLES[:7].sin(), interleaved)
    torch.testing.assert_close(found, apply_rotary_emb(x, ANGLES.cos(), ANGLES.sin(), interleaved))
    tables = ANGLES[torch.tensor([[0, 1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 7, 8, 9]])]
    found = apply_rotary_emb_torch(x, tables.cos(), tables.sin(), interleaved)
    wanted = apply_rotary_emb(x, ANGLES.cos(), ANGLES.sin(), interleaved, seqlen_offsets=torch.tensor([0, 3]))
    torch.testing.assert_close(found, wanted)


def test_packed_projections() -> None:
    cos, sin, other = ANGLES.cos(), ANGLES.sin(), torch.randn(40, 6)
    qkv, grouped, kv = torch.randn(2, 7, 3, 4, 16), torch.randn(2, 7, 8, 16), torch.randn(2, 7, 2, 4, 16)
    before = qkv.clone()
    assert apply_rotary_emb_qkv_(qkv, cos, sin, other.cos(), other.sin(), seqlen_offsets=2) is qkv
    torch.testing.assert_close(qkv[:, :, 0], apply_rotary_emb(before[:, :, 0], cos, sin, seqlen_offsets=2))
    torch.testing.assert_close(qkv[:, :, 1], apply_rotary_emb(before[:, :, 1], other.cos(), other.sin(), seqlen_offsets=2))
    assert torch.equal(qkv[:, :, 2], before[:, :, 2])
    before = grouped.clone()
    apply_rotary_emb_qkv_(grouped, cos, sin, num_heads_q=4)
    torch.testing.assert_close(grouped[:, :, :6], apply_rotary_emb(before[:, :, :6], cos, sin))
    assert torch.equal(grouped[:, :, 6:], before[:, :, 6:])
    before = kv.clone()
    assert apply_rotary_emb_kv_(kv, cos, sin) is kv
    torch.testing.assert_close(kv[:, :, 0], apply_rotary_emb(before[:, :, 0], cos, sin))
    assert torch.equal(kv[:, :, 1], before[:, :, 1])


@pytest.mark.parametrize("scale_base", [None, 512.0])
def test_module(scale_base: float | None) -> None:
    """What attention sees of a rotated query and key depends on their distance alone, and XPos weakens it with that."""
    module = RotaryEmbedding(16, base=1000.0, scale_base=scale_base)
    assert not module.state_dict()
    one = torch.randn(1, 1, 1, 16)
    qkv = one.expand(1, 30, 3, 1, 16).contiguous().view(1, 30, 3, 1, 16)
    out = module(qkv)
    assert out is qkv
    q, k = out[0, :, 0, 0].double(), out[0, :, 1, 0].double()
    scores = q @ k.T
    for distance in (0, 1, 7):
        values = scores.diagonal(-distance)
        torch.testing.assert_close(values, values[:1].expand_as(values), rtol=1e-4, atol=1e-4)
    freq = 1000.0 ** (-torch.arange(0, 16, 2) / 16)
    wanted = one[0, 0, 0].double()
    if scale_base is None:
        found = rotated(one[0].expand(30, 1, 16), torch.outer(torch.arange(30.0), freq), False)
        torch.testing.assert_close(found[:, 0].double(), q, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(scores.diagonal(), (wanted @ wanted).expand(30), rtol=1e-4, atol=1e-4)
    later, kv = module(one.clone(), torch.stack((one, one), 2), seqlen_offset=29)
    torch.testing.assert_close(later[0, 0, 0].double(), q[29], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(kv[0, 0, 0, 0].double(), k[29], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="max_seqlen"):
        RotaryEmbedding(16)(qkv, seqlen_offset=torch.tensor([1]))
    half = RotaryEmbedding(16).bfloat16()  # the tables stay as good as float32
    half._update_cos_sin_cache(3000, dtype=torch.float32)
    full = RotaryEmbedding(16)
    full._update_cos_sin_cache(3000, dtype=torch.float32)
    assert torch.equal(half._cos_cached, full._cos_cached)


X, COS = torch.ones(2, 7, 3, 16), torch.ones(9, 4)
MISTAKES = {
    "a position in cos: is 9, must be 0 to 8": lambda: apply_rotary_emb(X, COS, COS, seqlen_offsets=3),
    "a position in cos: is -1": lambda: apply_rotary_emb(X, COS, COS, seqlen_offsets=torch.tensor([0, -1])),
    "x: has 3 dimensions, must have 4": lambda: apply_rotary_emb(X[0], COS, COS),
    "cos and sin: shapes are": lambda: apply_rotary_emb(X, COS, COS[:4]),
    "cos: rotates 18 dimensions": lambda: apply_rotary_emb(X, torch.ones(9, 9), torch.ones(9, 9)),
    "seqlen_offsets: shape is (3,)": lambda: apply_rotary_emb(X, COS, COS, seqlen_offsets=torch.tensor([0, 1, 2])),
    "seqlen_offsets: dtype is torch.float32": lambda: apply_rotary_emb(X, COS, COS, seqlen_offsets=torch.ones(2)),
    "qkv: shape is": lambda: apply_rotary_emb_qkv_(X[0], COS, COS),
    "num_heads_q: is absent": lambda: apply_rotary_emb_qkv_(X, COS, COS),
    "num_heads_q: is 2": lambda: apply_rotary_emb_qkv_(X, COS, COS, num_heads_q=2),
    "kv: shape is": lambda: apply_rotary_emb_kv_(X, COS, COS),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message: str) -> None:
    with pytest.raises(ValueError) as caught:
        MISTAKES[message]()
    assert str(caught.value).startswith(message)
