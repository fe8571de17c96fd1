"""Tilewise for PyTorch: attention as operators with gradients, and in ``F.scaled_dot_product_attention``.

    from tilewise.torch import attention
    out = attention(q, k, v, causal=True)        # q (B, S, H, D), k and v (B, S, Hk, D)

or, without touching a model, ``tilewise.torch.enable_sdpa()``.
"""

from tilewise.torch._load import load

load()

from tilewise.torch import _autograd, _meta  # noqa: E402  (what PyTorch is told about the operators)
from tilewise.torch._attention import attention  # noqa: E402
from tilewise.torch._sdpa import disable_sdpa, enable_sdpa, sdpa, sdpa_enabled  # noqa: E402

_meta.register()
_autograd.register()

__all__ = ["attention", "disable_sdpa", "enable_sdpa", "sdpa", "sdpa_enabled"]
