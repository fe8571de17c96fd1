"""Options of tilewise.torch.attention, and the same problems for the definition."""

from typing import Any

import torch
import torch_reference

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "causal, top-left": {"causal": True, "alignment": "top_left"},
    "window": {"window_size": (5, 3)},
    "window, left only": {"window_size": (4, -1)},
    "softcap": {"softcap": 2.0},
    "scale": {"softmax_scale": -0.3},
    "mask": {"mask": (3, 1, 11, 17)},
    "mask of keys": {"mask": (3, 1, 1, 17)},
    "bias": {"bias": (3, 4, 11, 17)},
    "bias, broadcast": {"bias": (4, 1, 17)},
    "alibi": {"alibi_slopes": (4,)},
    "alibi of each batch": {"alibi_slopes": (3, 4), "causal": True},
    "sink": {"sink": (4,), "causal": True},
    "dropout": {"dropout_p": 0.3, "dropout_seed": 2**63 + 5, "dropout_offset": 9},
    "all": {
        "causal": True, "window_size": (7, -1), "softcap": 3.0, "mask": (1, 1, 11, 17), "bias": (1, 4, 11, 17),
        "alibi_slopes": (4,), "sink": (4,), "dropout_p": 0.2, "dropout_seed": 3,
    },
}  # fmt: skip


def make_options(case: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Tensors in place of the shapes that a case names."""
    options = dict(case)
    for name, make in {
        "mask": lambda shape: torch.rand(shape) > 0.3,
        "bias": lambda shape: torch.randn(shape, dtype=dtype),
        "alibi_slopes": lambda shape: torch.rand(shape),
        "sink": lambda shape: torch.randn(shape),
    }.items():
        if name in options:
            options[name] = make(options[name])
    return options


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any], **more: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, with the options' names of the reference."""
    options = dict(options)
    seed, offset = options.pop("dropout_seed", 0), options.pop("dropout_offset", 0)
    if "dropout_p" in options:
        shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
        more["keep"] = torch_reference.philox(seed, offset, *shape, options["dropout_p"])
    more["window"] = options.pop("window_size", (-1, -1))
    more["top_left"] = options.pop("alignment", "") == "top_left"
    more["scale"] = options.pop("softmax_scale", None)
    return torch_reference.attention(q, k, v, **options, **more)


def inputs(dtype: torch.dtype, sq: int = 11, sk: int = 17, heads: int = 4, kv_heads: int = 2) -> list[torch.Tensor]:
    """q, k, v for the shapes that the cases name."""
    shapes = [(3, sq, heads, 24), (3, sk, kv_heads, 24), (3, sk, kv_heads, 16)]
    return [torch.randn(shape, dtype=dtype) for shape in shapes]
