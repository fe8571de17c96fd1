"""Q, K and V are read where they lie; Python threads may call at once."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tilewise.torch import attention

# Returns the largest memory of the process, in KiB. (A child's ru_maxrss is at least that of its parent.)
PEAK = """
peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
"""

GROWTH = PEAK + """
import torch
from tilewise.torch import attention
q = torch.ones(1, 8, 1, 64)
k, v = (torch.ones(1, 50_000, 8, 64) for _ in range(2))  # 102 MB each
LAYOUTS = {
    "bshd": lambda: attention(q.transpose(1, 2), k, v),
    "bhsd": lambda: attention(q, k.transpose(1, 2), v.transpose(1, 2), layout="bhsd"),
    "copied": lambda: attention(q.transpose(1, 2), k.transpose(2, 3).contiguous().transpose(2, 3), v),
}
attention(q, q, q, layout="bhsd")  # allocates what a first call keeps
before = peak()
LAYOUTS[%r]()
print((peak() - before) // 1024)
"""


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "copied"])
def test_no_copy_of_q_k_v(layout: str) -> None:
    """Megabytes that the peak grows by; the last layout has to be copied, and shows that the measure notices."""
    done = subprocess.run([sys.executable, "-c", GROWTH % layout], capture_output=True, text=True, check=True)
    megabytes = int(done.stdout)
    assert megabytes > 90 if layout == "copied" else megabytes < 20


def test_backward_memory_does_not_grow_with_the_square() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAK + """
import torch
from tilewise.torch import attention
q, k, v = (torch.randn(1, 6000, 2, 32, requires_grad=True) for _ in range(3))  # scores would be 288 MB
attention(q[:, :64], k[:, :64], v[:, :64], causal=True).sum().backward()
before = peak()
attention(q, k, v, causal=True).sum().backward()
print((peak() - before) // 1024)
"""], capture_output=True, text=True, check=True)  # fmt: skip
    assert int(done.stdout) < 60


def test_python_threads() -> None:
    inputs = [[torch.randn(2, n, 4, 32, requires_grad=True) for _ in range(3)] for n in range(20, 60, 5)]

    def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        out = attention(*tensors, causal=True)
        return [out, *torch.autograd.grad(out.sum(), tensors)]

    wanted = [run(tensors) for tensors in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for found, true in zip(pool.map(run, inputs), wanted, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(found, true, strict=True))
