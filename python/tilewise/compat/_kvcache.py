"""Attention to a cache of keys and values that grows in place: flash_attn_with_kvcache of flash-attn 2 and 3."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tilewise import _core
from tilewise.compat import _contents, _pages
from tilewise.compat._call import chunk_size, number
from tilewise.compat._contents import ArgumentError, Limits
from tilewise.compat._float8 import check_caches, check_descales, put, rounded, take
from tilewise.compat._tokens import rotate, tokens_of
from tilewise.torch import _chunks, attention
from tilewise.torch._attention import window_pair

Tensor = torch.Tensor

_APPENDED = (torch.float32, torch.bfloat16, torch.float16)  # dtypes of caches that the library appends to


def _same_shape(name: str, tensor: Tensor, shape: tuple[Any, ...]) -> None:
    """shape: None where any size is right."""
    found = tuple(tensor.shape)
    if len(found) != len(shape) or found != tuple([b if a is None else a for a, b in zip(shape, found, strict=True)]):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ArgumentError(f"{name}: shape is {found}, must be ({wanted})")


class Call:
    """One call: the constructor checks its arguments; run() appends to the cache and computes attention."""

    def __init__(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None,
        rotary_cos: Tensor | None, rotary_sin: Tensor | None, cache_seqlens: Any, cache_batch_idx: Tensor | None,
        cache_leftpad: Tensor | None, table: tuple[str, Tensor | None], rotary_interleaved: bool, rotates_queries: bool,
        cu_seqlens_q: Tensor | None = None, cu_seqlens_k_new: Tensor | None = None, max_seqlen_q: Any = None,
        rotary_seqlens: Tensor | None = None, descales: dict[str, Tensor | None] | None = None,
    ) -> None:  # fmt: skip
        """table: of pages, with the name that the caller has for it. descales: of float8, by name."""
        self.descales: dict[str, Any] = {  # keywords of attention()
            name: scale for name, scale in (descales or {}).items() if scale is not None
        }
        self.q, self.k_cache, self.v_cache, self.k, self.v = q.detach(), k_cache, v_cache, k, v
        self.cu_seqlens_q, self.max_seqlen_q = cu_seqlens_q, number("max_seqlen_q", max_seqlen_q)
        self.cu_seqlens_k_new, self.rotary = cu_seqlens_k_new, (rotary_cos, rotary_sin)
        self.rows, self.leftpad = cache_batch_idx, cache_leftpad
        self.table_name, self.table = table
        self.batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.numel() - 1
        self._check_presence(cache_seqlens)
        self._check_shapes(cache_seqlens, rotary_seqlens)
        self.is_known = _contents.are_known(q)
        if self.table is not None and self.rows is not None:  # which rows of the table
            if self.is_known:
                _contents.check([Limits("cache_batch_idx", self.rows, 0, self.table.shape[0] - 1)])
            self.table, self.rows = self.table.index_select(0, self.rows.long()), None
        self.before = self._lengths(cache_seqlens)
        self.used = self.before if k is None else self.before + self._new_lengths()
        self.first = self.before if rotary_seqlens is None else rotary_seqlens.long()
        self.rotates_queries, self.rotary_interleaved = rotates_queries, rotary_interleaved

    # ---- arguments --------------------------------------------------------------------------------------------------

    def _check_presence(self, cache_seqlens: Any) -> None:
        if (self.k is None) != (self.v is None):
            raise ArgumentError("k and v: one is given without the other")
        if self.k is not None and cache_seqlens is None:
            raise ArgumentError("cache_seqlens: is absent, must be given with k: it says where k goes")
        if (self.rotary[0] is None) != (self.rotary[1] is None):
            raise ArgumentError("rotary_cos and rotary_sin: one is given without the other")
        if self.rotary[0] is not None and self.k is None:
            raise ArgumentError("rotary_cos: is given without k; what is in the cache is rotated already")

    def _check_shapes(self, cache_seqlens: Any, rotary_seqlens: Tensor | None) -> None:
        """What the library would refuse, and what would be written in a wrong place, before anything is written."""
        tokens = [None] * (1 if self.cu_seqlens_q is not None else 2)
        _same_shape("q", self.q, (*tokens, None, self.k_cache.shape[-1]))
        _same_shape("k_cache", self.k_cache, (None,) * 4)
        _same_shape("v_cache", self.v_cache, (*self.k_cache.shape[:3], None))
        check_caches(self.q, self.k_cache, self.v_cache)
        check_descales(self.descales, self.batch, self.k_cache.shape[2])
        leading = (self.batch, None) if self.cu_seqlens_k_new is None else (None,)
        for name, new, cache in (("k", self.k, self.k_cache), ("v", self.v, self.v_cache)):
            if new is not None:
                _same_shape(name, new, (*leading, *cache.shape[2:]))
                if new.device != cache.device:
                    raise ArgumentError(f"{name}: is on {new.device}, must be on {name}_cache's {cache.device}")
        if self.k is not None and self.v is not None:
            _same_shape("v", self.v, (*self.k.shape[:-1], self.v_cache.shape[-1]))
        of_batch = {
            "cache_seqlens": cache_seqlens, "cache_batch_idx": self.rows, "cache_leftpad": self.leftpad,
            "rotary_seqlens": rotary_seqlens,
        }  # fmt: skip
        for name, tensor in of_batch.items():
            if isinstance(tensor, torch.Tensor):
                _same_shape(name, tensor, (self.batch,))
        if self.cu_seqlens_k_new is not None:
            _same_shape("cu_seqlens_k_new", self.cu_seqlens_k_new, (self.batch + 1,))
        _contents.check_integers(
            **of_batch, cu_seqlens_q=self.cu_seqlens_q, cu_seqlens_k_new=self.cu_seqlens_k_new,
            **{self.table_name: self.table},
        )  # fmt: skip
        if self.table is not None:
            _same_shape(self.table_name, self.table, (self.batch if self.rows is None else None, None))
        elif self.rows is None and self.k_cache.shape[0] < self.batch:
            raise ArgumentError(f"k_cache: holds {self.k_cache.shape[0]} sequences, must hold q's {self.batch}")

    def _capacity(self) -> int:
        if self.table is None:
            return self.k_cache.shape[1]
        return self.table.shape[1] * self.k_cache.shape[1]

    def _lengths(self, cache_seqlens: Any) -> Tensor:
        """(B) int64: keys in the cache before this call."""
        if isinstance(cache_seqlens, torch.Tensor):
            return cache_seqlens.long()
        filled = number("cache_seqlens", cache_seqlens)
        filled = self._capacity() if filled is None else filled
        return torch.full((self.batch,), filled, dtype=torch.int64, device=self.q.device)

    def _new_lengths(self) -> Tensor | int:
        assert self.k is not None
        return self.k.shape[1] if self.cu_seqlens_k_new is None else self.cu_seqlens_k_new.diff().long()

    def _limits(self, rotated: list[Tensor]) -> list[Limits]:
        """Checks everything that is an index. rotated: positions in rotary_cos and rotary_sin."""
        limits = [Limits("cache_seqlens", self.before, 0, self._capacity())]
        if self.k is not None:
            limits.append(Limits("cache_seqlens with k", self.used, 0, self._capacity()))
        if self.rows is not None:
            limits.append(Limits("cache_batch_idx", self.rows, 0, self.k_cache.shape[0] - 1))
        if self.leftpad is not None:
            limits.append(Limits("cache_leftpad", self.leftpad, 0, self._capacity()))
        for positions in rotated:
            for name, table in zip(("rotary_cos", "rotary_sin"), self.rotary, strict=True):
                if table is not None:
                    limits.append(Limits(f"a position in {name}", positions, 0, table.shape[0] - 1))
        return limits

    # ---- the cache grows --------------------------------------------------------------------------------------------

    def _grow(self, check_options: Callable[[], Any]) -> None:
        """Rotates q and k, whose sequences begin at `first`, and writes k and v after what the cache holds; before that
        comes everything that may be refused."""
        if self.is_known and self.cu_seqlens_q is not None:  # before positions are computed from them
            _contents.check(_contents.starts("cu_seqlens_q", self.cu_seqlens_q, self.q.shape[0]))
        if self.k is None or self.v is None:  # neither is there
            self._check_contents([])
            return
        if self.is_known and self.cu_seqlens_k_new is not None:
            _contents.check(_contents.starts("cu_seqlens_k_new", self.cu_seqlens_k_new, self.k.shape[0]))
        if self._is_for_library():
            if self.is_known:
                self._check_contents(self._position_ends())
                check_options()
            self._append()
            return
        k, sequence, place = tokens_of(self.k.detach(), self.cu_seqlens_k_new)
        v, _, _ = tokens_of(self.v.detach(), self.cu_seqlens_k_new)
        cos, sin = self.rotary
        positions: list[Tensor] = []  # positions of q and of k
        if cos is not None:
            # Under a causal mask or a window queries stand one after the other, else all of them at the cache's end.
            q, owner, offset = tokens_of(self.q, self.cu_seqlens_q)
            positions = [self.first[owner] + (offset if self.rotates_queries else 0), self.first[sequence] + place]
        self._check_contents(positions)
        if self.is_known:
            check_options()
        if cos is not None and sin is not None:
            self.q = rotate(q, cos, sin, positions[0], self.rotary_interleaved).view(self.q.shape)
            k = rotate(k, cos, sin, positions[1], self.rotary_interleaved)
        where = self._places(sequence, self.before[sequence] + place)
        k = rounded(k, self.k_cache.dtype, self.descales.get("k_descale"), sequence)
        v = rounded(v, self.v_cache.dtype, self.descales.get("v_descale"), sequence)
        put(self.k_cache, where, k)
        put(self.v_cache, where, v)

    def _is_for_library(self) -> bool:
        """Returns whether the library can append. Left to PyTorch: float64, float8, mixed dtypes, rows with gaps, tracing."""
        if torch.compiler.is_compiling() or self.k_cache.dtype not in _APPENDED:
            return False
        cos, sin = self.rotary
        rows = [self.q, self.k_cache, self.v_cache, self.k, self.v]
        tables = [] if cos is None or sin is None else [cos, sin]
        return (
            all(x is not None and x.dtype == self.k_cache.dtype for x in rows)
            and all(x is not None and (x.stride(-1) == 1 or x.shape[-1] <= 1) for x in rows)
            and all(x.dtype in (torch.float32, self.k_cache.dtype) and x.device == self.q.device for x in tables)
        )

    def _position_ends(self) -> list[Tensor]:
        """The first and the last position of q and of k in each sequence that has one."""
        if self.rotary[0] is None:
            return []
        queries = self.q.shape[1] if self.cu_seqlens_q is None else self.cu_seqlens_q.diff().long()
        ends = []
        for lengths in (queries, self._new_lengths()):
            is_query = lengths is queries and not self.rotates_queries
            last = self.first + (lengths * 0 if is_query else lengths - 1)
            both = torch.cat((self.first, last))
            if isinstance(lengths, torch.Tensor):
                ends.append(both[(lengths > 0).repeat(2)])
            else:
                ends.append(both if lengths > 0 else both[:0])
        return ends

    def _append(self) -> None:
        """Everything in one pass, on a GPU in one kernel."""
        assert self.k is not None and self.v is not None
        rotates = self.rotary[0] is not None
        q_rotated = torch.empty_like(self.q, memory_format=torch.contiguous_format) if rotates else None
        device = self.q.device
        lists = [self.cu_seqlens_k_new, self.before, self.rows, self.table, self.first, self.cu_seqlens_q]
        starts_k, before, rows, table, first, starts_q = (
            x if x is None or x.device == device else x.to(device, non_blocking=True) for x in lists
        )
        table = None if table is None else table.to(torch.int32)
        stream = torch.cuda.current_stream(device).cuda_stream if self.q.is_cuda else None
        tensors = (
            self.k_cache, self.v_cache, self.k.detach(), self.v.detach(), starts_k, before, rows, table,
            *(None if x is None else x.detach() for x in self.rotary),
            first if rotates else None, self.q if rotates else None, q_rotated, starts_q if rotates else None,
        )  # fmt: skip
        _core.append(tensors, self.rotary_interleaved, not self.rotates_queries, stream)
        self.q = self.q if q_rotated is None else q_rotated

    def _check_contents(self, rotated: list[Tensor]) -> None:
        if self.is_known:
            _contents.check(self._limits(rotated))
        if self.table is not None:
            _pages.check(self.k_cache, self.table_name, self.table, self.used)

    def _places(self, sequence: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Index into the cache of each new token."""
        if self.table is None:
            return (sequence if self.rows is None else self.rows.long()[sequence]), position
        size = self.k_cache.shape[1]
        return self.table.long()[sequence, position // size], position % size

    # ---- attention to it --------------------------------------------------------------------------------------------

    def run(
        self, softmax_scale: float | None, causal: bool, window_size: Any, softcap: float, alibi_slopes: Tensor | None,
        attention_chunk: int = 0,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """out like q, lse (B, H, Sq) or (H, T)."""
        chunk = chunk_size(attention_chunk)
        options: dict[str, Any] = {
            "softmax_scale": softmax_scale, "causal": causal, "window_size": window_pair(window_size),
            "softcap": softcap, "return_lse": True,
        }  # fmt: skip
        with torch.no_grad():
            self._grow(partial(self._attend_to_nothing, alibi_slopes, options))
            order = self._order() if self.is_known else None
            if order is not None:
                return self._run_in_place(*order, alibi_slopes, options, chunk)
            k, v, where = self._keys(chunk)
            if chunk > 0:
                where["mask"] = self._chunk_mask(k, where, chunk)
            return attention(
                self.q, k, v, **options, **where, **self.descales, alibi_slopes=alibi_slopes,
                cu_seqlens_q=self.cu_seqlens_q, max_seqlen_q=self.max_seqlen_q,
            )  # fmt: skip

    def _attend_to_nothing(self, alibi_slopes: Tensor | None, options: dict[str, Any]) -> None:
        """The call on a cache without keys: the library refuses what it would refuse on the real one."""
        k, v = (cache.new_empty((self.batch, 0, *cache.shape[2:])) for cache in (self.k_cache, self.v_cache))
        starts = None if self.cu_seqlens_q is None else torch.zeros_like(self.cu_seqlens_q)
        k, v = (k, v) if starts is None else (k.flatten(0, 1), v.flatten(0, 1))
        attention(
            self.q, k, v, **options, **self.descales, alibi_slopes=alibi_slopes, cu_seqlens_q=self.cu_seqlens_q,
            cu_seqlens_k=starts, max_seqlen_q=self.max_seqlen_q,
        )  # fmt: skip

    def _keys(self, chunk: int) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """k, v and where the sequences are: the cache itself, or a copy of the rows that are named. Pages are copied only
        for padding and for chunks, whose masks count keys from where they lie."""
        caches = (self.k_cache, self.v_cache)
        if self.table is not None and self.leftpad is None and chunk == 0:
            return *caches, _pages.in_place(self.table, self.used)
        if self.table is not None:
            return _pages.stored(*caches, self.table, self.used, self.leftpad)
        where = {"seqused_k": self.used, **_pages.padding_mask(self.leftpad, self.k_cache.shape[1])}
        if self.rows is not None:
            k, v = (take(cache, self.rows.long()) for cache in caches)
        elif self.batch < self.k_cache.shape[0]:
            k, v = (cache[: self.batch] for cache in caches)
        else:
            k, v = caches
        return k, v, where

    def _chunk_mask(self, k: Tensor, where: dict[str, Any], chunk: int) -> Tensor:
        """(B, 1, Sq, Sk), with the mask that is there already. Chunks are counted from a sequence's first key."""
        rows, rows_used = self.q.shape[1], None
        if self.cu_seqlens_q is not None:
            rows = self.q.shape[0] if self.max_seqlen_q is None else min(self.max_seqlen_q, self.q.shape[0])
            rows_used = self.cu_seqlens_q.diff()
        columns = min(where["max_seqlen_k"], k.shape[0]) if "max_seqlen_k" in where else k.shape[1]
        padding, used = where.get("mask"), where["seqused_k"]
        leftpad = None if padding is None else self.leftpad
        used = used if leftpad is None else used - leftpad
        shown = _chunks.mask(rows, columns, rows if rows_used is None else rows_used, used, chunk, leftpad)
        return shown if padding is None else shown & padding

    def _order(self) -> tuple[list[int], list[int], list[int]] | None:
        """Describes a cache that can be read in place although its rows are chosen or padded, as one row of tokens, in which
        sequences lie packed, one row of the cache after the other. The sequences in that order, and each one's row and
        padding; None if the cache is read whole anyway, or where the packed form cannot say which keys are meant."""
        if self.table is not None or (self.rows is None and self.leftpad is None) or self.batch == 0:
            return None
        rows = list(range(self.batch)) if self.rows is None else self.rows.tolist()
        padding = [0] * self.batch if self.leftpad is None else self.leftpad.tolist()
        order = sorted(range(self.batch), key=rows.__getitem__)
        has_moved = order != list(range(self.batch))
        is_one_row = all(
            cache.shape[0] == 1 or cache.stride(0) == cache.shape[1] * cache.stride(1)
            for cache in (self.k_cache, self.v_cache)
        )
        if not is_one_row or len(set(rows)) < len(rows) or (has_moved and self.cu_seqlens_q is not None):
            return None
        return order, rows, padding

    def _run_in_place(
        self, order: list[int], rows: list[int], padding: list[int], alibi_slopes: Tensor | None,
        options: dict[str, Any], chunk: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """A sequence's padding is the end of what lies before it; seqused_k ends it."""
        size = self.k_cache.shape[1]
        begins = [rows[b] * size + padding[b] for b in order]
        begins.append((rows[order[-1]] + 1) * size)
        starts = [begin - begins[0] for begin in begins]
        device = self.q.device
        used = self.used if self.leftpad is None else (self.used - self.leftpad).clamp(min=0)
        k, v = (cache.flatten(0, 1)[begins[0] : begins[-1]] for cache in (self.k_cache, self.v_cache))
        q, back, descales = self.q, None, self.descales
        if order != list(range(self.batch)):
            index = torch.tensor(order, device=device)
            back = index.argsort()
            q, used = take(q, index), used[index]
            descales = {name: scale[index] if scale.dim() == 2 else scale for name, scale in descales.items()}
            if alibi_slopes is not None and alibi_slopes.dim() == 2:
                alibi_slopes = alibi_slopes[index]
        where: dict[str, Any] = {
            "seqused_k": used, "cu_seqlens_k": torch.tensor(starts, device=device),
            "max_seqlen_k": max(end - start for start, end in zip(starts[:-1], starts[1:], strict=True)),
        }  # fmt: skip
        if chunk > 0:
            where["mask"] = self._chunk_mask(k, where, chunk)
        out, lse = attention(
            q, k, v, **options, **where, **descales, alibi_slopes=alibi_slopes, cu_seqlens_q=self.cu_seqlens_q,
            max_seqlen_q=self.max_seqlen_q,
        )  # fmt: skip
        return (out, lse) if back is None else (out[back], lse[back])
