"""float8 of PyTorch on the CPU: the bits that NumPy's arrays give, and what is refused."""

import ml_dtypes
import numpy as np
import pytest
import tilewise
import torch
from tilewise.torch import attention

FORMATS = {torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn, torch.float8_e5m2: ml_dtypes.float8_e5m2}


def stored(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    q, k, v = torch.randn(2, 20, 4, 32), torch.randn(2, 150, 2, 32), torch.randn(2, 150, 2, 24)
    k, k_descale = tilewise.quantise(k, dtype, scales="block")
    v, v_descale = tilewise.quantise(v, dtype, scales="head")
    return q, k, v, {"k_descale": k_descale, "v_descale": v_descale}


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype in FORMATS:
        return tensor.view(torch.uint8).numpy().view(FORMATS[tensor.dtype])
    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, None], ids=["fp32", "bf16", "float8"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_has_the_bits_of_numpy(dtype: torch.dtype, kind: torch.dtype | None) -> None:
    q, k, v, scales = stored(dtype)
    if kind is None:
        q, scales["q_descale"] = tilewise.quantise(q, dtype, scales="tensor")
    else:
        q = q.to(kind)
    out, lse = attention(q, k, v, **scales, causal=True, return_lse=True)
    assert out.dtype == (kind or torch.bfloat16)
    arrays = [as_numpy(tensor) for tensor in (q, k, v)]
    options = {name: scale.numpy() for name, scale in scales.items()}
    wanted, sums = tilewise.attention_forward(*arrays, **options, causal=True)
    np.testing.assert_array_equal(as_numpy(out).astype(np.float32), wanted.astype(np.float32))
    np.testing.assert_array_equal(lse.numpy(), sums)
    wide = attention(q, k, v, **scales, causal=True, out_dtype=torch.float32)
    torch.testing.assert_close(wide.to(out.dtype), out, rtol=1e-2, atol=1e-2)


def test_innermost_strides_are_copied() -> None:
    q, k, v, scales = stored(torch.float8_e4m3fn)
    turned = k.view(torch.uint8).transpose(1, 3).contiguous().transpose(1, 3).view(torch.float8_e4m3fn)
    assert torch.equal(attention(q, turned, v, **scales), attention(q, k, v, **scales))


def test_traces_give_the_dtype() -> None:
    q, k, v, scales = stored(torch.float8_e4m3fn)
    q8, scales["q_descale"] = tilewise.quantise(q, scales="tensor")
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = attention(*(mode.from_tensor(t) for t in (q8, k, v)), **{n: mode.from_tensor(t) for n, t in scales.items()})
    real = attention(q8, k, v, **scales)
    assert (fake.dtype, fake.shape, fake.stride()) == (real.dtype, real.shape, real.stride())


def test_autocast_leaves_a_cache_as_it_is() -> None:
    q, k, v, scales = stored(torch.float8_e4m3fn)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = torch.ops.tilewise.attention_forward(q, k, v, *[None] * 9, **scales)[0]
    assert torch.equal(found, attention(q.bfloat16(), k, v, **scales))


def test_vmap_gives_what_each_gives_alone() -> None:
    q, k, v, scales = stored(torch.float8_e4m3fn)
    mapped = torch.vmap(lambda x: attention(x, k, v, **scales))(torch.stack([q, 2 * q]))
    assert torch.equal(mapped[1], attention(2 * q, k, v, **scales))


def test_gradients_are_refused_by_name() -> None:
    q, k, v, scales = stored(torch.float8_e4m3fn)
    with pytest.raises(NotImplementedError, match="k: dtype is torch.float8_e4m3fn, which has no gradients"):
        attention(q.requires_grad_(), k, v, **scales)
    with torch.no_grad():
        attention(q, k, v, **scales)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"k_descale": torch.zeros(1)}, "k_descale[0][0][0]: is 0, must be positive and finite"),
        ({"k_descale": torch.tensor([-1.0])}, "k_descale[0][0][0]: is -1"),
        ({"v_descale": torch.tensor([float("nan")])}, "v_descale[0][0][0]: is nan"),
        ({"q_descale": torch.ones(1)}, "q_descale: given for a tensor of fp32"),
        ({"v_descale": torch.ones(1).double()}, "v_descale: dtype is fp64, must be fp32"),
    ],
)
def test_scales_are_refused_by_name(change: dict[str, torch.Tensor], words: str) -> None:
    q, k, v, scales = stored(torch.float8_e4m3fn)
    with pytest.raises(RuntimeError) as raised:
        attention(q, k, v, **{**scales, **change})
    assert words in str(raised.value)
