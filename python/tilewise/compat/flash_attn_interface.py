"""flash_attn_interface: the functions of flash-attn 3, with its names, order of arguments, defaults and results.

num_splits, pack_gqa, sm_margin and scheduler_metadata steer flash-attn's kernels; they are taken and change nothing.
qv is not supported: NotImplementedError names it. q, k and v of float8 are, without gradients, with their
descales: float32 (1) or (B, Hk).
"""

from typing import Any

import tilewise.torch  # noqa: F401  (first: it says what to do where PyTorch is missing)
import torch
from tilewise.compat import _contents, _kvcache
from tilewise.compat._call import Window, dense, packed, refuse
from tilewise.torch import attention
from tilewise.torch._attention import window_pair

Tensor = torch.Tensor
Result = Any


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
    qv: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
    v_descale: Tensor | None = None, window_size: Window = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0,
    num_splits: int = 1, pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Result:  # fmt: skip
    """q (B, Sq, H, D), k (B, Sk, Hk, D), v (B, Sk, Hk, Dv). Returns out, or (out, lse (B, H, Sq))."""
    refuse(qv=qv is not None)
    result = dense(
        q, k, v, 0.0, softmax_scale, causal, window_size, softcap, None, deterministic, return_attn_probs,
        attention_chunk, {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale},
    )  # fmt: skip
    return result[:2] if return_attn_probs else result


def flash_attn_qkvpacked_func(
    qkv: Tensor, softmax_scale: float | None = None, causal: bool = False, q_descale: Tensor | None = None,
    k_descale: Tensor | None = None, v_descale: Tensor | None = None, window_size: Window = (-1, -1),
    attention_chunk: int = 0, softcap: float = 0.0, deterministic: bool = False, num_heads_q: int | None = None,
    sm_margin: int = 0, return_attn_probs: bool = False,
) -> Result:  # fmt: skip
    """qkv (B, S, 3, H, D), or (B, S, H + 2 Hk, D) with num_heads_q = H. Returns out, or (out, lse (B, H, S))."""
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(dim=-3)
    else:
        heads = _contents.kv_heads(qkv, num_heads_q)
        q, k, v = qkv.split([qkv.shape[2] - 2 * heads, heads, heads], dim=2)
    return flash_attn_func(
        q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size, attention_chunk, softcap,
        deterministic=deterministic, return_attn_probs=return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int | Tensor,
    max_seqlen_k: int | Tensor, seqused_q: Tensor | None = None, seqused_k: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, qv: Tensor | None = None,
    q_descale: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None,
    window_size: Window = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
    pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False,
) -> Result:  # fmt: skip
    """q (Tq, H, D), k (Tk, Hk, D), v (Tk, Hk, Dv). Returns out, or (out, lse (H, Tq))."""
    refuse(qv=qv is not None)
    result = packed(
        q, k, v, (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), 0.0, softmax_scale, causal, window_size,
        softcap, None, deterministic, return_attn_probs, None, seqused_k, attention_chunk, seqused_q,
        {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale},
    )  # fmt: skip
    return result[:2] if return_attn_probs else result


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
    qv: Tensor | None = None, rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None, cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None, page_table: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None, max_seqlen_q: int | Tensor | None = None,
    rotary_seqlens: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
    v_descale: Tensor | None = None, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0, rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None, num_splits: int = 0, pack_gqa: bool | None = None, sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Result:  # fmt: skip
    """That of flash-attn 2, also with packed queries (cu_seqlens_q) and new keys (cu_seqlens_k_new). No gradient.

    A cache of float8 takes new keys of its dtype as they are, and rounds others with k_descale and v_descale.
    """
    refuse(qv=qv is not None)
    call = _kvcache.Call(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad,
        ("page_table", page_table), rotary_interleaved, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k_new=cu_seqlens_k_new,
        max_seqlen_q=max_seqlen_q, rotary_seqlens=rotary_seqlens,
        rotates_queries=causal or window_pair(window_size) != (-1, -1) or attention_chunk != 0,
        descales={"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale},
    )  # fmt: skip
    out, lse = call.run(softmax_scale, causal, window_size, softcap, None, attention_chunk)
    return (out, lse) if return_softmax_lse else out


def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Tensor | None = None, out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Merges results of parts of the keys. out_partial (parts, B, S, H, D) or (parts, T, H, D), lse_partial without D.

    Returns out (B, S, H, D) and lse (B, S, H), fp32. A part without keys has the log-sum-exp -inf.
    """
    # This is a softmax over the parts: one query for each row, whose scores are the parts' log-sum-exps.
    parts, *shape, width = out_partial.shape
    values = out_partial.float().reshape(parts, -1, width).transpose(0, 1)[:, :, None]  # (rows, parts, 1, D)
    scores = lse_partial.float().reshape(parts, -1).transpose(0, 1)[:, None, None]  # (rows, 1, 1, parts)
    zero = values.new_zeros(1, 1, 1, 1)
    rows = values.shape[0]
    merged, lse = attention(
        zero.expand(rows, 1, 1, 1), zero.expand(rows, parts, 1, 1), values, bias=scores, return_lse=True
    )
    merged = merged.reshape(*shape, width).to(out_dtype or out_partial.dtype)
    return (merged if out is None else out.copy_(merged)), lse.reshape(shape)


def get_scheduler_metadata(
    batch_size: int, max_seqlen_q: int | Tensor, max_seqlen_k: int | Tensor, num_heads_q: int, num_heads_kv: int,
    headdim: int, cache_seqlens: Tensor, qkv_dtype: torch.dtype = torch.bfloat16, headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None, cu_seqlens_k_new: Tensor | None = None, cache_leftpad: Tensor | None = None,
    page_size: int | None = None, max_seqlen_k_new: int = 0, causal: bool = False, window_size: Window = (-1, -1),
    attention_chunk: int = 0, has_softcap: bool = False, num_splits: int = 0, pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> None:  # fmt: skip
    """None: Tilewise needs no such metadata, and flash_attn_with_kvcache takes None for it."""
