"""tilewise.jax on a CUDA device: what the CPU gives, under jit and vmap, in the order of XLA's stream."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from cases import DTYPES, add_option, options_of, tensors

import tilewise

if jax.default_backend() != "gpu":
    pytest.skip("JAX finds no CUDA device", allow_module_level=True)
if not Path(tilewise.__file__).with_name("libtilewise_jax.so").exists():
    pytest.skip("this build of tilewise has no handlers for XLA", allow_module_level=True)
if not any(name.startswith("cuda") for name in tilewise.kernels()):
    pytest.skip("this build of tilewise has no CUDA kernels", allow_module_level=True)

import jax.numpy as jnp  # noqa: E402

import tilewise.jax as tj  # noqa: E402

# Compared with the library on the CPU, for results near 1; 16-bit results are rounded twice.
TOLERANCES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
OPTIONS = (
    "plain", "causal", "top_left", "window", "scale", "softcap", "mask", "bias", "alibi_slopes", "sink", "seqused_q",
    "seqused_k", "dropout",
)  # fmt: skip


def assert_on_the_device(array: Any) -> None:
    assert {device.platform for device in array.devices()} == {"gpu"}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("option", OPTIONS)
def test_same_as_on_the_cpu(option: str, dtype: str, rng: np.random.Generator) -> None:
    case = tensors(rng, dtype, (2, 65, 130, 4, 2, 64, 64))
    add_option(case, option, rng)
    arrays, given = [case[name] for name in ("q", "k", "v")], options_of(case)
    expected = tilewise.attention_forward(*arrays, **given)
    results = jax.jit(lambda *a: tj.attention_forward(*a, **given))(*arrays)
    for result, other in zip(results, expected):
        assert_on_the_device(result)
        assert result.dtype == other.dtype
        found, wanted = np.asarray(result, np.float64), other.astype(np.float64)
        np.testing.assert_allclose(found, wanted, atol=TOLERANCES[dtype], rtol=1e-4)


def test_same_as_jax_nn(rng: np.random.Generator) -> None:
    arrays = [jnp.asarray(rng.standard_normal((2, 129, 4, 64)), jnp.bfloat16) for _ in range(3)]
    ours, theirs = (f(*arrays, is_causal=True) for f in (tj.dot_product_attention, jax.nn.dot_product_attention))
    np.testing.assert_allclose(np.asarray(ours, np.float64), np.asarray(theirs, np.float64), atol=4e-2)


def test_packed_batches(rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((200, 4, 64)).astype(DTYPES["bfloat16"]) for _ in range(3))
    starts = np.array([0, 70, 70, 200], np.int32)
    given = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "causal": True}
    out = jax.jit(lambda *a: tj.attention(*a, **given))(q, k, v)
    expected = tilewise.attention(q, k, v, **given)
    np.testing.assert_allclose(np.asarray(out, np.float64), expected.astype(np.float64), atol=TOLERANCES["bfloat16"])


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (None, 0, 0)])
def test_vmap(axes: tuple, rng: np.random.Generator) -> None:
    case = tensors(rng, "float32", (1, 65, 130, 4, 2, 64, 64))
    arrays = [jnp.asarray(case[name]) for name in ("q", "k", "v")]
    stacked = [x if axis is None else jnp.stack([x, 2 * x, -x]) for x, axis in zip(arrays, axes)]
    alone = lambda *a: tj.attention_forward(*a, causal=True)  # noqa: E731
    mapped = jax.jit(jax.vmap(alone, axes))(*stacked)
    for i in range(3):
        picked = [x if axis is None else x[i] for x, axis in zip(stacked, axes)]
        for result, expected in zip(mapped, alone(*picked)):
            np.testing.assert_allclose(np.asarray(result[i]), np.asarray(expected), atol=TOLERANCES["float32"])


def test_waits_for_what_xla_does_before_and_is_waited_for(rng: np.random.Generator) -> None:
    """Long products before and after it, many times: by order, not by luck."""
    x = jnp.asarray(rng.standard_normal((1, 4096, 8, 64)) / 64, jnp.bfloat16)
    turn = jnp.asarray(rng.standard_normal((512, 512)) / 23, jnp.bfloat16)

    def mixed(x: Any) -> Any:
        for _ in range(8):
            x = (x.reshape(-1, 512) @ turn).reshape(x.shape)
        return x

    eager = mixed(tj.attention(*[jax.block_until_ready(mixed(x))] * 3, causal=True))
    together = jax.jit(lambda x: mixed(tj.attention(*[mixed(x)] * 3, causal=True)))
    for _ in range(5):
        result = np.asarray(together(x), np.float64)
        np.testing.assert_allclose(result, np.asarray(eager, np.float64), atol=0.1 * np.abs(result).max())


def test_gradients_are_those_of_the_cpu(rng: np.random.Generator) -> None:
    case = tensors(rng, "float32", (1, 65, 65, 4, 2, 64, 64))
    arrays = [case[name] for name in ("q", "k", "v")]
    grad = jax.jit(jax.grad(lambda *a: (tj.attention(*a, causal=True) ** 2).sum(), (0, 1, 2)))
    with jax.default_device(jax.devices("cpu")[0]):
        expected = grad(*arrays)
    for gradient, other in zip(grad(*arrays), expected):
        np.testing.assert_allclose(np.asarray(gradient), np.asarray(other), atol=1e-3)


def test_bad_input_is_refused_when_traced(rng: np.random.Generator) -> None:
    case = tensors(rng, "float32", (1, 9, 9, 4, 2, 64, 64))
    with pytest.raises(ValueError, match="k: head dimension is 8, must be q's 64"):
        jax.jit(tj.attention)(case["q"], case["k"][..., :8], case["v"])
