"""Attention to a cache of keys and values that grows in place: flash_attn_with_kvcache of flash-attn 2 and 3."""

from typing import Any

import torch

from tilewise.compat._call import number, pages_in_order, window
from tilewise.torch import attention

Tensor = torch.Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """Rotary embedding of the first R of D dimensions. x (T, H, D), cos and sin (length, R/2), positions (T).

    Pairs are neighbours (GPT-J) if `interleaved`, else the two halves of R (GPT-NeoX).
    """
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    c, s = (table[positions].float()[:, None] for table in (cos, sin))  # (T, 1, R/2)
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * c - b * s, a * s + b * c), dim=-1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat((a * c - b * s, a * s + b * c), dim=-1)
    return torch.cat((turned.to(x.dtype), rest), dim=-1)


def _tokens(x: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """x as (T, H, D), with each token's sequence and its place in that: (T), (T)."""
    if cu_seqlens is None:
        batch, length = x.shape[:2]
        index = torch.arange(batch * length, device=x.device)
        return x.flatten(0, 1), index // max(length, 1), index % max(length, 1)
    lengths = cu_seqlens.diff().long()
    sequence = torch.repeat_interleave(
        torch.arange(lengths.numel(), device=x.device), lengths, output_size=x.shape[0]
    )
    return x, sequence, torch.arange(x.shape[0], device=x.device) - cu_seqlens.long()[sequence]


class Call:
    """One call: checks its arguments and grows the cache; run() attends."""

    def __init__(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None,
        rotary_cos: Tensor | None, rotary_sin: Tensor | None, cache_seqlens: Any, cache_batch_idx: Tensor | None,
        cache_leftpad: Tensor | None, block_table: Tensor | None, rotary_interleaved: bool, rotates_queries: bool,
        cu_seqlens_q: Tensor | None = None, cu_seqlens_k_new: Tensor | None = None, max_seqlen_q: Any = None,
        rotary_seqlens: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.q, self.k_cache, self.v_cache = q.detach(), k_cache, v_cache
        self.cu_seqlens_q, self.max_seqlen_q = cu_seqlens_q, number(max_seqlen_q)
        self.rows, self.leftpad, self.block_table = cache_batch_idx, cache_leftpad, block_table
        self.batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.numel() - 1
        self._check(k, v, rotary_cos, rotary_sin, cache_seqlens)
        self.used = self._lengths(cache_seqlens)
        start = self.used if rotary_seqlens is None else rotary_seqlens.long()
        with torch.no_grad():
            if rotary_cos is not None and k is not None:
                self.q = self._rotated_queries(rotary_cos, rotary_sin, start, rotary_interleaved, rotates_queries)
            if k is not None:
                tokens, sequence, place = _tokens(k.detach(), cu_seqlens_k_new)
                if rotary_cos is not None:
                    tokens = rotate(tokens, rotary_cos, rotary_sin, start[sequence] + place, rotary_interleaved)
                self._append(self.k_cache, tokens, sequence, place)
                self._append(self.v_cache, _tokens(v.detach(), cu_seqlens_k_new)[0], sequence, place)
                new = k.shape[1] if cu_seqlens_k_new is None else cu_seqlens_k_new.diff().long()
                self.used = self.used + new

    def _check(self, k: Any, v: Any, rotary_cos: Any, rotary_sin: Any, cache_seqlens: Any) -> None:
        if (k is None) != (v is None):
            raise ValueError("k and v: one is given without the other")
        if k is not None and cache_seqlens is None:
            raise ValueError("cache_seqlens: is absent, must be given with k: it says where k goes")
        if (rotary_cos is None) != (rotary_sin is None):
            raise ValueError("rotary_cos and rotary_sin: one is given without the other")
        if rotary_cos is not None and k is None:
            raise ValueError("rotary_cos: is given without k; what is in the cache is rotated already")
        if self.block_table is not None and (self.rows is not None or self.leftpad is not None):
            name = "cache_batch_idx" if self.rows is not None else "cache_leftpad"
            raise ValueError(f"block_table: excludes {name}")

    def _capacity(self) -> int:
        if self.block_table is None:
            return self.k_cache.shape[1]
        return self.block_table.shape[1] * self.k_cache.shape[1]

    def _lengths(self, cache_seqlens: Any) -> Tensor:
        """(B) int64: keys in the cache before this call."""
        if isinstance(cache_seqlens, torch.Tensor):
            return cache_seqlens.long()
        filled = self._capacity() if cache_seqlens is None else int(cache_seqlens)
        return torch.full((self.batch,), filled, dtype=torch.int64, device=self.q.device)

    def _rotated_queries(
        self, cos: Tensor, sin: Tensor, start: Tensor, interleaved: bool, each_its_own: bool
    ) -> Tensor:
        """Under a causal mask or a window queries stand behind each other, else all of them at the cache's end."""
        tokens, sequence, place = _tokens(self.q, self.cu_seqlens_q)
        positions = start[sequence] + (place if each_its_own else 0)
        return rotate(tokens, cos, sin, positions, interleaved).view(self.q.shape)

    def _append(self, cache: Tensor, tokens: Tensor, sequence: Tensor, place: Tensor) -> None:
        position = self.used[sequence] + place
        if not position.is_cuda and position.numel() > 0 and int(position.max()) >= self._capacity():
            raise ValueError(f"k: reaches position {int(position.max())}, the cache holds {self._capacity()}")
        if self.block_table is None:
            row = sequence if self.rows is None else self.rows.long()[sequence]
            cache[row, position] = tokens.to(cache.dtype)
        else:
            size = cache.shape[1]
            page = self.block_table.long()[sequence, position // size]
            cache[page, position % size] = tokens.to(cache.dtype)

    def _keys(self, cache: Tensor) -> Tensor:
        """(B, capacity, Hk, D): the cache itself, or a copy of the rows or pages that are named."""
        if self.block_table is not None:
            return pages_in_order(cache, self.block_table)
        return cache if self.rows is None else cache[self.rows.long()]

    def run(
        self, softmax_scale: float | None, causal: bool, window_size: Any, softcap: float, alibi_slopes: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """out like q, lse (B, H, Sq) or (H, T)."""
        mask = None
        if self.leftpad is not None:
            columns = torch.arange(self.k_cache.shape[1], device=self.q.device)
            mask = (columns >= self.leftpad[:, None])[:, None, None]
        with torch.no_grad():
            return attention(
                self.q, self._keys(self.k_cache), self._keys(self.v_cache), softmax_scale=softmax_scale, causal=causal,
                window_size=window(window_size), softcap=softcap, alibi_slopes=alibi_slopes, mask=mask,
                seqused_k=self.used, cu_seqlens_q=self.cu_seqlens_q, max_seqlen_q=self.max_seqlen_q, return_lse=True,
            )  # fmt: skip
