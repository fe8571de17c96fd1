"""Tilewise: exact attention in O(N) memory, on CPUs and GPUs, for any array.

    import numpy as np, tilewise
    out = tilewise.attention(q, k, v, causal=True)     # q (B, Sq, H, D), k and v (B, Sk, Hk, D)

Beside this module, each imported by itself: tilewise.masks, tilewise.torch, tilewise.compat.flash_attn,
tilewise.transformers, tilewise.jax, tilewise.distributed. This one and tilewise.masks need NumPy only.
"""

from __future__ import annotations

try:
    from tilewise import _core
except ImportError as error:  # a wheel for another platform, an incomplete copy of the package, or no back end
    raise ImportError(
        f"tilewise: its compiled part does not load ({error}). Install the package with 'pip install .' in a checkout; "
        "a folder python/tilewise on sys.path is not enough"
    ) from error

from tilewise._attention import Gradients, attention, attention_backward, attention_forward
from tilewise._options import Options
from tilewise._plan import BackwardPlan, ForwardPlan, plan, plan_backward
from tilewise._quantise import Quantised, quantise

__version__: str = _core.version


def info() -> str:
    """Returns what this build can do on this machine: the text of `tilewise info` and of `python -m tilewise`."""
    return _core.info()


def kernels(backward: bool = False) -> list[str]:
    """Names of the kernels, in order of preference."""
    return _core.kernels(_core.BACKWARD if backward else _core.FORWARD)


__all__ = [
    "BackwardPlan",
    "ForwardPlan",
    "Gradients",
    "Options",
    "Quantised",
    "__version__",
    "attention",
    "attention_backward",
    "attention_forward",
    "info",
    "kernels",
    "plan",
    "plan_backward",
    "quantise",
]
