"""Tensors on a GPU are refused by name on a group without NCCL, whose messages lie in host memory."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import rank_cases  # noqa: E402
import torch.distributed as dist  # noqa: E402


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tensors_on_a_gpu_are_refused() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.zeros(1, 5, 2, 8, device="cuda")
    kind, _, message, _ = rank_cases.raised(None, q=x, k=x, v=x)
    dist.destroy_process_group()
    assert kind == "NotImplementedError" and "takes host memory only, but q is on cuda:0" in message
