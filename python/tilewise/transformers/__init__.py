"""Tilewise for Hugging Face transformers.

    import tilewise.transformers
    tilewise.transformers.register()
    model = AutoModel.from_pretrained(name, attn_implementation="tilewise")

Padding on either side, packed position ids, cu_seq_lens, sliding and local windows, chunks, sinks, softcap, grouped
heads and generation with a cache, on the CPU and on CUDA. A mask of Sq x Sk is only made where a model composes one of
its own, and on CUDA for a static cache.
"""

import tilewise.torch  # noqa: F401  (first: it says what to do where PyTorch is missing)

try:
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils  # noqa: F401
except ImportError as error:
    raise ImportError(
        "tilewise.transformers: transformers is not installed, or too old; install it with 'pip install -U transformers'"
    ) from error

from tilewise.transformers._attention import attention_forward
from tilewise.transformers._mask import attention_mask_for

NAME = "tilewise"


def register() -> None:
    """Makes ``attn_implementation="tilewise"`` known. Twice is once."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask_for)


__all__ = ["NAME", "attention_forward", "attention_mask_for", "register"]
