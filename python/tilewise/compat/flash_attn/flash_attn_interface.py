"""flash_attn.flash_attn_interface: the functions of flash-attn 2.8.

B batch, S length, H query heads, Hk key/value heads, D head dimension, T tokens of a packed batch. Causal masks and
windows are aligned to the bottom right. ``return_attn_probs`` adds the log-sum-exp, (B, H, S) or (H, T), and the
probabilities with dropout's pattern as their sign, (B, H, Sq, Sk); those are empty without dropout.
"""

# The names and the order of arguments are flash-attn's.
from typing import Any

import tilewise.torch  # noqa: F401  (first: it says what to do where PyTorch is missing)
import torch
from tilewise.compat import _kvcache
from tilewise.compat._call import Window, dense, packed
from tilewise.compat._float8 import as_stored
from tilewise.compat._raw import (
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
)
from tilewise.torch._attention import window_pair

Tensor = torch.Tensor
Result = Any  # a tensor, or (out, lse, probabilities)

# flash-attn's other names for them: its operators, as torch.compile calls them.
_wrapped_flash_attn_forward = _flash_attn_forward
_wrapped_flash_attn_backward = _flash_attn_backward
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Result:  # fmt: skip
    """q (B, Sq, H, D), k and v (B, Sk, Hk, D); out like q."""
    return dense(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Result:  # fmt: skip
    """qkv (B, S, 3, H, D); out (B, S, H, D)."""
    q, k, v = qkv.unbind(dim=-3)
    return dense(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Result:  # fmt: skip
    """q (B, Sq, H, D), kv (B, Sk, 2, Hk, D); out like q."""
    k, v = kv.unbind(dim=-3)
    return dense(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int | Tensor,
    max_seqlen_k: int | Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False, block_table: Tensor | None = None,
) -> Result:  # fmt: skip
    """q (Tq, H, D), k and v (Tk, Hk, D), or pages (N, page size, Hk, D) with block_table (B, pages); out like q."""
    return packed(
        q, k, v, (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs, block_table,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int | Tensor, dropout_p: float = 0.0,
    softmax_scale: float | None = None, causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Tensor | None = None, deterministic: bool = False, return_attn_probs: bool = False,
) -> Result:  # fmt: skip
    """qkv (T, 3, H, D); out (T, H, D)."""
    q, k, v = qkv.unbind(dim=-3)
    return packed(
        q, k, v, (cu_seqlens, cu_seqlens), (max_seqlen, max_seqlen), dropout_p, softmax_scale, causal, window_size,
        softcap, alibi_slopes, deterministic, return_attn_probs, None,
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int | Tensor,
    max_seqlen_k: int | Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Result:  # fmt: skip
    """q (Tq, H, D), kv (Tk, 2, Hk, D); out like q."""
    k, v = kv.unbind(dim=-3)
    return packed(
        q, k, v, (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs, None,
    )  # fmt: skip


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
    rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None, cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None, block_table: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
    rotary_interleaved: bool = True, alibi_slopes: Tensor | None = None, num_splits: int = 0,
    return_softmax_lse: bool = False, *, kv_cache_dtype: str = "auto", q_descale: Tensor | None = None,
    k_descale: Tensor | None = None, v_descale: Tensor | None = None,
) -> Result:  # fmt: skip
    """Appends k and v to the cache in place, rotated, and attends to it. No gradient.

    q (B, Sq, H, D); k_cache and v_cache (Bc, Sc, Hk, D), or pages (N, page size, Hk, D) with block_table (B, pages);
    k and v (B, new, Hk, D), written after cache_seqlens keys, a number or (B). rotary_cos, rotary_sin (length, R/2).
    cache_batch_idx (B): which row of the cache; cache_leftpad (B): where its keys start. num_splits is a hint to
    flash-attn's kernels and changes nothing.

    Not in flash-attn 2: a cache of float8. kv_cache_dtype "fp8" or "fp8_e4m3", "fp8_e5m2", as in vLLM, says what a cache
    of uint8 holds. k_descale and v_descale, float32 (1) or (B, Hk), are what its numbers are multiplied by; new keys of
    a wider dtype are rounded with them, on the CPU only. q has any dtype but float64, or that of the cache, with
    q_descale.
    """
    k_cache, v_cache = (
        as_stored(name, cache, kv_cache_dtype) for name, cache in (("k_cache", k_cache), ("v_cache", v_cache))
    )
    call = _kvcache.Call(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad,
        ("block_table", block_table), rotary_interleaved,
        rotates_queries=causal or window_pair(window_size) != (-1, -1),
        descales={"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale},
    )  # fmt: skip
    out, lse = call.run(softmax_scale, causal, window_size, softcap, alibi_slopes)
    return (out, lse) if return_softmax_lse else out
