"""Arrays of a CUDA device through DLPack. Skipped where there is none."""

from typing import Any

import numpy as np
import pytest
from cases import tensors

import tilewise

if "cuda:0" not in tilewise.info():
    pytest.skip("no CUDA device, or a build without CUDA", allow_module_level=True)

# Compared with the library on the CPU, which is exact to its own tolerance; 16-bit results are rounded once more.
TOLERANCES = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}
OPTIONS: dict[str, dict[str, Any]] = {"plain": {}, "causal": {"causal": True}, "window": {"window_size": (20, 0)},
                                      "softcap": {"softcap": 5.0}}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_torch_tensors_on_a_stream(dtype: str, option: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA device")
    case = tensors(rng, "float32", (2, 130, 130, 4, 2, 64, 64))
    on_cpu = [torch.from_numpy(case[name]).to(getattr(torch, dtype)) for name in ("q", "k", "v")]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        on_cuda = [x.cuda() for x in on_cpu]
        out, lse = tilewise.attention_forward(*on_cuda, stream=stream, **OPTIONS[option])
    stream.synchronize()
    expected, expected_lse = tilewise.attention_forward(*on_cpu, **OPTIONS[option])
    assert out.is_cuda and out.dtype == expected.dtype
    assert (out.cpu().double() - expected.double()).abs().max() < TOLERANCES[dtype]
    assert (lse.cpu() - expected_lse).abs().max() < 1e-4 * expected_lse.abs().max()


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_gradients_of_torch_tensors(dtype: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA device")
    case = tensors(rng, "float32", (2, 65, 65, 4, 2, 64, 64))
    on_cpu = [torch.from_numpy(case[name]).to(getattr(torch, dtype)) for name in ("q", "k", "v")]
    results = tilewise.attention_forward(*on_cpu, causal=True)
    dout = torch.ones_like(results[0])
    arguments = (dout, *on_cpu, *results)
    expected = tilewise.attention_backward(*arguments, causal=True)
    found = tilewise.attention_backward(*(x.cuda() for x in arguments), causal=True)
    for gradient in ("dq", "dk", "dv"):
        on_device, other = getattr(found, gradient), getattr(expected, gradient)
        assert on_device.is_cuda and on_device.dtype == other.dtype
        error = (on_device.cpu().double() - other.double()).abs().max()
        assert error < TOLERANCES[dtype] * max(1.0, other.abs().max().item())


def test_devices_do_not_mix(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA device")
    q, k, v = (torch.from_numpy(x) for x in (tensors(rng, "float32")[name] for name in ("q", "k", "v")))
    with pytest.raises(ValueError, match="k: .*cpu"):
        tilewise.attention(q.cuda(), k, v)


def test_plan_with_a_workspace_of_the_device(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA device")
    case = tensors(rng, "float32", (2, 130, 130, 4, 2, 64, 64))
    q, k, v = (torch.from_numpy(case[name]).bfloat16().cuda() for name in ("q", "k", "v"))
    plan = tilewise.plan(q, k, v, causal=True)
    workspace = torch.empty((plan.workspace_bytes + 3) // 4 + 64, dtype=torch.float32, device="cuda")
    out = plan(q, k, v, workspace=workspace)
    assert torch.equal(out, tilewise.attention(q, k, v, causal=True))


def test_cupy_arrays(rng: np.random.Generator) -> None:
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    case = tensors(rng, "float32")
    arrays = [case[name] for name in ("q", "k", "v")]
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        out = tilewise.attention(*(cupy.asarray(x) for x in arrays), stream=stream, causal=True)
    stream.synchronize()
    np.testing.assert_allclose(cupy.asnumpy(out), tilewise.attention(*arrays, causal=True), atol=1e-4)


def test_jax_on_the_device(rng: np.random.Generator) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("this jax has no CUDA device")
    tj = pytest.importorskip("tilewise.jax", reason="this build has no handlers for XLA")
    case = tensors(rng, "float32")
    arrays = [case[name] for name in ("q", "k", "v")]
    out = jax.jit(lambda *a: tj.attention(*a, causal=True))(*arrays)
    np.testing.assert_allclose(np.asarray(out), tilewise.attention(*arrays, causal=True), atol=1e-4)
    with pytest.raises(TypeError, match=r"only tilewise\.jax can make"):
        tilewise.attention(*(jax.numpy.asarray(x) for x in arrays))
