"""tilewise.distributed with tensors on GPUs: one rank, and two that NCCL connects."""

import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tilewise.distributed as ring  # noqa: E402
import tilewise.torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as processes  # noqa: E402

LENGTH = 203


def inputs(device: str) -> list[Any]:
    """q, k, v and dout of the whole, the same on every rank."""
    generator = torch.Generator().manual_seed(7)
    shapes = ((2, LENGTH, 4, 64), (2, LENGTH, 2, 64), (2, LENGTH, 2, 64), (2, LENGTH, 4, 64))
    return [torch.randn(s, generator=generator).to(device, torch.bfloat16) for s in shapes]


def gradients(q: Any, k: Any, v: Any, dout: Any, attention: Any) -> list[Any]:
    """out, dq, dk and dv."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = attention(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def check_rank(rank: int, size: int, backend: str, store: str) -> None:
    """This rank's rows are those of one device."""
    torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    whole = inputs(f"cuda:{rank}")
    expected = gradients(*whole, lambda q, k, v: tilewise.torch.attention(q, k, v, causal=True))
    own = [ring.shard(x, schedule="zigzag", dim=1) for x in whole]
    found = gradients(*own, lambda q, k, v: ring.attention(q, k, v, schedule="zigzag", causal=True))
    torch.cuda.synchronize()
    for x, y in zip(found, expected):
        torch.testing.assert_close(x, ring.shard(y, schedule="zigzag", dim=1), rtol=2e-2, atol=2e-2)
    joined = ring.unshard(found[0], schedule="zigzag", dim=1)
    torch.testing.assert_close(joined, expected[0], rtol=2e-2, atol=2e-2)
    dist.destroy_process_group()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_one_rank_on_a_gpu(tmp_path: pathlib.Path) -> None:
    processes.spawn(check_rank, (1, "gloo", str(tmp_path / "store")), 1)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_two_ranks_on_gpus(tmp_path: pathlib.Path, backend: str) -> None:
    processes.spawn(check_rank, (2, backend, str(tmp_path / "store")), 2)
