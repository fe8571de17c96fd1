"""From flash-attn's arguments to tilewise.torch.attention."""

import operator
from typing import Any

import torch
from tilewise.compat import _contents, _pages
from tilewise.compat._contents import ArgumentError
from tilewise.torch import _chunks, attention
from tilewise.torch._attention import _dropout_state, window_pair

Tensor = torch.Tensor
Window = tuple[int | None, int | None]


def refuse(**given: bool) -> None:
    """Raises NotImplementedError that names the first argument that is given and not supported."""
    for name, is_given in given.items():
        if is_given:
            raise NotImplementedError(f"tilewise.compat.flash_attn: {name} is not supported")


def number(name: str, value: Any) -> int | None:
    """A length, which some callers hold as a tensor."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, torch.Tensor):
        _contents.check_integers(**{name: value})
        return int(value)
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: is {value!r}, must be an integer") from None


def chunk_size(attention_chunk: int) -> int:
    """Keys of a chunk; 0 is no chunks."""
    size = number("attention_chunk", attention_chunk)
    if size is None or size < 0:
        raise ArgumentError(f"attention_chunk: is {attention_chunk!r}, must be 0 (off) or more")
    return size


def _seeds(dropout_p: float) -> dict[str, Any]:
    """One draw, for the result and for the probabilities that are shown with it."""
    if dropout_p == 0.0:
        return {}
    seed, offset = _dropout_state(None, 0).tolist()
    return {"dropout_p": dropout_p, "dropout_seed": seed, "dropout_offset": offset}


def _signed(kept: Tensor, probabilities: Tensor) -> Tensor:
    """Returns the probabilities; those that dropout drops are negative."""
    return torch.where(kept != 0, probabilities, -probabilities)


def dense(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool, window_size: Window,
    softcap: float, alibi_slopes: Tensor | None, deterministic: bool, return_attn_probs: bool, attention_chunk: int = 0,
    descales: dict[str, Tensor | None] | None = None,
) -> Any:  # fmt: skip
    """(B, S, H, D). descales: of float8, by name."""
    seeds = _seeds(dropout_p)
    options = dense_options(
        q, k, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, attention_chunk
    ) | (descales or {})
    out, lse = attention(q, k, v, **options, **seeds, return_lse=True)
    if not return_attn_probs:
        return out
    return out, lse, dense_probabilities(q, k, options, seeds)


def dense_options(
    q: Tensor, k: Tensor, softmax_scale: float | None, causal: bool, window_size: Window, softcap: float,
    alibi_slopes: Tensor | None, deterministic: bool, attention_chunk: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Those of attention()."""
    options: dict[str, Any] = {
        "softmax_scale": softmax_scale, "causal": causal, "window_size": window_pair(window_size), "softcap": softcap,
        "alibi_slopes": alibi_slopes, "deterministic": deterministic or None,
    }  # fmt: skip
    chunk = chunk_size(attention_chunk)
    if chunk == 0:
        return options
    if not _contents.are_known(q):  # a graph must not depend on numbers of this call
        keys = torch.full((q.shape[0],), k.shape[1], device=q.device)
        return options | {"mask": _chunks.mask(q.shape[1], k.shape[1], q.shape[1], keys, chunk)}
    left, right = _bounds(options)
    return options | {"slices": _chunks.as_tensor(_chunks.slices(q.shape[1], k.shape[1], chunk, left, right), q.device)}


def _bounds(options: dict[str, Any]) -> tuple[int, int]:
    """Takes causal and the window out of the options, as slices exclude them: (left, right) of both together."""
    left, right = options.pop("window_size")
    return left, 0 if options.pop("causal") else right


def dense_probabilities(q: Tensor, k: Tensor, options: dict[str, Any], seeds: dict[str, Any]) -> Tensor:
    """(B, H, Sq, Sk), negative where dropout drops; empty without dropout, as flash-attn has it."""
    if not seeds:
        return q.new_empty(0)
    # P is what attention gives for values that are the unit vectors.
    columns = k.shape[1]
    unit = torch.eye(columns, dtype=q.dtype, device=q.device)[None, :, None]
    unit = unit.expand(k.shape[0], columns, k.shape[2], columns)
    with torch.no_grad():
        return _signed(*(attention(q, k, unit, **options, **kind).transpose(1, 2) for kind in (seeds, {})))


def packed(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: tuple[Tensor, Tensor], max_seqlen: tuple[Any, Any], dropout_p: float,
    softmax_scale: float | None, causal: bool, window_size: Window, softcap: float, alibi_slopes: Tensor | None,
    deterministic: bool, return_attn_probs: bool, block_table: Tensor | None, seqused_k: Tensor | None = None,
    attention_chunk: int = 0, seqused_q: Tensor | None = None, descales: dict[str, Tensor | None] | None = None,
) -> Any:  # fmt: skip
    """(T, H, D), or keys in pages. descales: of float8, by name."""
    seeds = _seeds(dropout_p)
    k, v, options = packed_options(
        q, k, v, cu_seqlens, max_seqlen, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        block_table, seqused_k, attention_chunk, seqused_q,
    )  # fmt: skip
    options |= descales or {}
    out, lse = attention(q, k, v, **options, **seeds, return_lse=True)
    if not return_attn_probs:
        return out
    refuse(return_attn_probs=bool(seeds) and block_table is not None)
    return out, lse, packed_probabilities(q, k, *cu_seqlens, options, seeds)


def packed_options(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: tuple[Tensor, Tensor], max_seqlen: tuple[Any, Any],
    softmax_scale: float | None, causal: bool, window_size: Window, softcap: float, alibi_slopes: Tensor | None,
    deterministic: bool, block_table: Tensor | None, seqused_k: Tensor | None = None, attention_chunk: int = 0,
    seqused_q: Tensor | None = None,
) -> tuple[Tensor, Tensor, dict[str, Any]]:  # fmt: skip
    """k, v and the options of attention()."""
    cu_q, cu_k = cu_seqlens
    _contents.check_integers(
        cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, seqused_q=seqused_q, seqused_k=seqused_k, block_table=block_table
    )
    options: dict[str, Any] = {
        "softmax_scale": softmax_scale, "causal": causal, "window_size": window_pair(window_size), "softcap": softcap,
        "alibi_slopes": alibi_slopes, "deterministic": deterministic or None, "cu_seqlens_q": cu_q,
        "max_seqlen_q": number("max_seqlen_q", max_seqlen[0]), "seqused_q": seqused_q, "seqused_k": seqused_k,
    }  # fmt: skip
    longest = number("max_seqlen_k", max_seqlen[1])
    chunk = chunk_size(attention_chunk)
    if block_table is None:
        options |= {"cu_seqlens_k": cu_k, "max_seqlen_k": longest}
    else:
        used = cu_k.diff() if seqused_k is None else seqused_k
        _pages.check(k, "block_table", block_table, used)
        if chunk > 0 or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v))):
            k, v, where = _pages.stored(k, v, block_table, used)
        else:
            where = _pages.in_place(block_table, used)
        options |= where
    if chunk > 0:
        options = _in_chunks(q, k, options, chunk)
    return k, v, options


def _in_chunks(q: Tensor, k: Tensor, options: dict[str, Any], chunk: int) -> dict[str, Any]:
    """The options with attention_chunk, for packed k: slices of the whole token axes, or a mask of each sequence."""
    cu_q, cu_k = options["cu_seqlens_q"], options["cu_seqlens_k"]
    rows_in_use = _in_use(cu_q, options["seqused_q"])
    keys_in_use = _in_use(cu_k, options["seqused_k"])
    if not _contents.are_known(q):
        rows = q.shape[0] if options["max_seqlen_q"] is None else min(options["max_seqlen_q"], q.shape[0])
        columns = k.shape[0] if options["max_seqlen_k"] is None else min(options["max_seqlen_k"], k.shape[0])
        return options | {"mask": _chunks.mask(rows, columns, rows_in_use, keys_in_use, chunk)}
    for name, starts, tokens in (("cu_seqlens_q", cu_q, q.shape[0]), ("cu_seqlens_k", cu_k, k.shape[0])):
        _contents.check(_contents.starts(name, starts, tokens))
    left, right = _bounds(options)
    for name in ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "seqused_q", "seqused_k"):
        options.pop(name)
    lists = (lengths.tolist() for lengths in (rows_in_use, keys_in_use, cu_q, cu_k))
    found = []
    for rows, keys, q0, k0 in zip(*lists, strict=False):
        found += _chunks.slices(rows, keys, chunk, left, right, q0=q0, k0=k0)
    return options | {"slices": _chunks.as_tensor(found, q.device)}


def _in_use(starts: Tensor, used: Tensor | None) -> Tensor:
    """(B): the length of each sequence."""
    return starts.diff() if used is None else torch.minimum(used, starts.diff())


def packed_probabilities(
    q: Tensor, k: Tensor, cu_q: Tensor, cu_k: Tensor, options: dict[str, Any], seeds: dict[str, Any]
) -> Tensor:
    """Empty without dropout, as flash-attn has it."""
    return _packed_probabilities(q, k, cu_q, cu_k, options, seeds) if seeds else q.new_empty(0)


def _packed_probabilities(
    q: Tensor, k: Tensor, cu_q: Tensor, cu_k: Tensor, options: dict[str, Any], seeds: dict[str, Any]
) -> Tensor:
    """(B, H, longest query, longest key), zero after each sequence's end."""
    columns = int(cu_k.diff().max())
    place = torch.arange(k.shape[0], device=k.device)
    place = place - torch.repeat_interleave(cu_k[:-1].long(), cu_k.diff().long(), output_size=k.shape[0])
    unit = torch.nn.functional.one_hot(place, columns).to(q.dtype)[:, None].expand(-1, k.shape[1], -1)
    with torch.no_grad():
        signed = _signed(*(attention(q, k, unit, **options, **kind) for kind in (seeds, {})))  # (T, H, columns)
    result = q.new_zeros(cu_q.numel() - 1, q.shape[1], int(cu_q.diff().max()), columns)
    starts = cu_q.tolist()
    for b, (start, end) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
        result[b, :, : end - start] = signed[start:end].transpose(0, 1)
    return result
