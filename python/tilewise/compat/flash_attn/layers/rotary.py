"""flash_attn.layers.rotary: rotary embeddings of queries, keys and packed projections, and their module."""

import tilewise.torch  # noqa: F401  (first: it says what to do where PyTorch is missing)
import torch
from tilewise.compat._contents import ArgumentError, kv_heads
from tilewise.compat.flash_attn.ops.triton.rotary import apply_rotary

Tensor = torch.Tensor


def rotate_half(x: Tensor, interleaved: bool = False) -> Tensor:
    """Every pair (a, b) as (-b, a): of neighbours if `interleaved`, else of the two halves."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_rotary_emb_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """x (B, S, H, D), cos and sin (S, R/2) or (B, S, R/2), in x's own precision."""
    width = 2 * cos.shape[-1]
    if interleaved:
        cos, sin = (table.repeat_interleave(2, dim=-1).unsqueeze(-2) for table in (cos, sin))
    else:
        cos, sin = (torch.cat((table, table), dim=-1).unsqueeze(-2) for table in (cos, sin))
    turned = x[..., :width]
    return torch.cat((turned * cos + rotate_half(turned, interleaved) * sin, x[..., width:]), dim=-1)


def apply_rotary_emb(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False,
    seqlen_offsets: int | Tensor = 0, cu_seqlens: Tensor | None = None, max_seqlen: int | None = None,
) -> Tensor:  # fmt: skip
    """x (B, S, H, D), or (T, H, D) with cu_seqlens; cos and sin (length, R/2). Differentiable."""
    return apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace)


apply_rotary_emb_func = apply_rotary_emb


def _queries_and_keys(qkv: Tensor, num_heads_q: int | None) -> tuple[Tensor, Tensor]:
    """Views of a packed projection."""
    if qkv.dim() == 5 and qkv.shape[2] == 3:
        return qkv[:, :, 0], qkv[:, :, 1]
    heads = kv_heads(qkv, num_heads_q)
    q, k, _ = qkv.split([qkv.shape[2] - 2 * heads, heads, heads], dim=2)
    return q, k


def apply_rotary_emb_qkv_(
    qkv: Tensor, cos: Tensor, sin: Tensor, cos_k: Tensor | None = None, sin_k: Tensor | None = None,
    interleaved: bool = False, seqlen_offsets: int | Tensor = 0, num_heads_q: int | None = None,
) -> Tensor:  # fmt: skip
    """qkv (B, S, 3, H, D), or (B, S, H + 2 Hk, D) with num_heads_q = H. Rotates q and k in place, k by its own tables
    if there are any. Returns qkv."""
    q, k = _queries_and_keys(qkv, num_heads_q)
    apply_rotary(q, cos, sin, seqlen_offsets, interleaved=interleaved, inplace=True)
    cos_k, sin_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    apply_rotary(k, cos_k, sin_k, seqlen_offsets, interleaved=interleaved, inplace=True)
    return qkv


def apply_rotary_emb_kv_(
    kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: int | Tensor = 0
) -> Tensor:
    """kv (B, S, 2, H, D); rotates k in place. Returns kv."""
    if kv.dim() != 5 or kv.shape[2] != 2:
        raise ArgumentError(f"kv: shape is {tuple(kv.shape)}, must be (B, S, 2, H, D)")
    apply_rotary(kv[:, :, 0], cos, sin, seqlen_offsets, interleaved=interleaved, inplace=True)
    return kv


class RotaryEmbedding(torch.nn.Module):
    """Rotary embeddings (RoFormer, Su et al. 2021) whose tables grow with the sequences that are seen.

    With scale_base they are those of XPos (Sun et al. 2022): queries grow and keys shrink with their position.
    """

    inv_freq: Tensor  # (dim/2)
    scale: Tensor | None  # (dim/2)

    def __init__(
        self, dim: int, base: float = 10000.0, interleaved: bool = False, scale_base: float | None = None,
        device: torch.device | str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, scale_base
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        scale = None if scale_base is None else self._compute_scale(device)
        self.register_buffer("scale", scale, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: Tensor | None = None
        self._sin_cached: Tensor | None = None
        self._cos_k_cached: Tensor | None = None
        self._sin_k_cached: Tensor | None = None

    def _steps(self, device: torch.device | str | None) -> Tensor:
        return torch.arange(0, self.dim, 2, device=device, dtype=torch.float32)

    def _compute_inv_freq(self, device: torch.device | str | None = None) -> Tensor:
        return 1.0 / self.base ** (self._steps(device) / self.dim)

    def _compute_scale(self, device: torch.device | str | None = None) -> Tensor:
        return (self._steps(device) + 0.4 * self.dim) / (1.4 * self.dim)

    def _update_cos_sin_cache(
        self, seqlen: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        known = self._cos_cached
        if known is not None and known.device == device and known.dtype == dtype and seqlen <= self._seq_len_cached:
            if not (self.training and known.is_inference()):
                return
        self._seq_len_cached = seqlen
        # In float32 even where a model was moved to 16 bits: positions are large numbers there.
        place = torch.arange(seqlen, device=device, dtype=torch.float32)
        low = self.inv_freq.dtype != torch.float32
        angles = torch.outer(place, self._compute_inv_freq(device) if low else self.inv_freq.to(place.device))
        cos, sin = angles.cos(), angles.sin()
        if self.scale is None or self.scale_base is None:
            self._cos_cached, self._sin_cached = cos.to(dtype), sin.to(dtype)
            return
        scale = self._compute_scale(device) if self.scale.dtype != torch.float32 else self.scale.to(place.device)
        growth = scale ** ((place - seqlen // 2) / self.scale_base)[:, None]
        self._cos_cached, self._sin_cached = (cos * growth).to(dtype), (sin * growth).to(dtype)
        self._cos_k_cached, self._sin_k_cached = (cos / growth).to(dtype), (sin / growth).to(dtype)

    def forward(
        self, qkv: Tensor, kv: Tensor | None = None, seqlen_offset: int | Tensor = 0, max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        """Rotates in place. qkv as apply_rotary_emb_qkv_ takes it; or, with kv (B, S, 2, H, D), q (B, S, H, D).

        seqlen_offset: a number or (B); a tensor asks for max_seqlen, the length of the tables.
        """
        if max_seqlen is not None:
            self._update_cos_sin_cache(max_seqlen, qkv.device, qkv.dtype)
        elif isinstance(seqlen_offset, int):
            self._update_cos_sin_cache(qkv.shape[1] + seqlen_offset, qkv.device, qkv.dtype)
        cos, sin = self._cos_cached, self._sin_cached
        if cos is None or sin is None:
            raise ArgumentError("max_seqlen: is absent, must be given with a tensor of offsets")
        cos_k, sin_k = self._cos_k_cached, self._sin_k_cached
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin, cos_k, sin_k, self.interleaved, seqlen_offset, num_heads_q)
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        cos_k, sin_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
        return q, apply_rotary_emb_kv_(kv, cos_k, sin_k, self.interleaved, seqlen_offset)
