"""The function that users call."""

import operator
from collections.abc import Sequence
from typing import Any

import torch

from tilewise._options import truth
from tilewise.torch._autograd import forward
from tilewise.torch._schema import FLOAT8

Window = Sequence[int | None]

_ALIGNMENTS = {"bottom_right": False, "top_left": True}
_LAYOUTS = {"bshd": False, "bhsd": True}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: Window | None = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    dropout_offset: int = 0,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    slices: torch.Tensor | None = None,
    alignment: str = "bottom_right",
    layout: str = "bshd",
    deterministic: bool | None = None,
    batch_invariant: bool = False,
    out_dtype: torch.dtype | None = None,
    return_lse: bool = False,
) -> Any:
    """softmax(scores) v, with gradients of q, k, v, bias and sink. docs/semantics.md says what each option means.

    B batch, Sq and Sk query and key length, H query heads, Hk key/value heads (H a multiple of Hk), D and Dv head
    dimensions, T tokens of a packed batch.

    Args:
        q: (B, Sq, H, D), or (B, H, Sq, D) with ``layout="bhsd"``, or packed (T, H, D). float64, float32, bfloat16 or
            float16, on the CPU or a CUDA device; any strides (one whose innermost stride is not 1 is copied). On the
            CPU and without gradients, k and v may both be float8_e4m3fn or both float8_e5m2; q has their dtype or is
            bfloat16, float16 or float32.
        k: (B, Sk, Hk, D) or packed (Tk, Hk, D).
        v: (B, Sk, Hk, Dv) or packed (Tk, Hk, Dv).
        causal: keys j <= i + d, d = Sk - Sq, or 0 with ``alignment="top_left"``.
        window_size: (left, right): keys i + d - left <= j <= i + d + right; -1 or None is unbounded.
        softmax_scale: from -1e30 to 1e30 (fp64: 1e300); None is 1/sqrt(D).
        softcap: c > 0: scores become c * tanh(score / c).
        mask: bool, broadcasts from the right to (B, H, Sq, Sk); True is visible. Or uint8, where 0 hides a key.
        bias: q's dtype or float32, broadcasts to (B, H, Sq, Sk); has a gradient.
        alibi_slopes: float32 (H) or (B, H): - slope * |i + d - j|.
        sink: float32 (H): a logit that joins the denominator only; has a gradient.
        dropout_p: 0 <= p < 1, on the normalised probabilities.
        dropout_seed: of the Philox generator, with dropout_offset below 2^32; None draws both from PyTorch's CPU
            generator (torch.manual_seed).
        cu_seqlens_q: (B + 1) int32 or int64: starts of packed sequences and the end; max_seqlen_q bounds their lengths.
        cu_seqlens_k: the same of the keys.
        seqused_q: (B) int32 or int64: query rows in use of each sequence. The others give 0, and have no gradient.
        seqused_k: (B) int32 or int64: keys in use of each sequence.
        page_table: (B, pages) int32: k and v are the pages (N, page size, Hk, D) of a cache, and key j of sequence b is
            row j % page size of page page_table[b][j // page size]. Has no gradients.
        q_descale: float32 (1), (B, Hk) or (B, Hk, blocks of 128 rows): what q of float8 is multiplied by; k_descale,
            v_descale likewise. tilewise.quantise() makes them.
        slices: (N, 5) or (N, 6) int64: q0 q1 k0 k1 kind [head].
        deterministic: None asks torch.are_deterministic_algorithms_enabled(). The CPU always is.
        batch_invariant: a row has the same bits whatever is batched beside it.
        out_dtype: torch.float32 for 16-bit inputs gives the result before rounding; None is q's dtype, bfloat16 for
            float8.
        return_lse: also return the log-sum-exp, (B, H, Sq) or (H, T) float32 (float64 for float64), with a gradient.

    Returns:
        out, like q with Dv columns, its dimensions in memory in q's order; or (out, lse).

    Raises:
        RuntimeError: with the library's message, which names the argument, its value and the limit.
        NotImplementedError: for a gradient that is not computed.
        ValueError, TypeError: for a value of an option that has no meaning.
    """
    left, right = window_pair(window_size)
    if causal is not True and causal is not False:
        causal = causal is not None and truth("causal", causal)
    return_lse = return_lse is True or (return_lse is not False and truth("return_lse", return_lse))
    dropout_state = None
    if dropout_p != 0.0:
        dropout_state = _dropout_state(dropout_seed, dropout_offset)
    own_dtype = torch.bfloat16 if q.dtype in FLOAT8 else q.dtype
    if alignment not in _ALIGNMENTS or layout not in _LAYOUTS or out_dtype not in (None, own_dtype, torch.float32):
        _refuse(own_dtype, alignment, layout, out_dtype)
    out, lse = forward(
        q, k, v, mask, bias, alibi_slopes, sink, cu_seqlens_q, cu_seqlens_k, seqused_k, slices, dropout_state,
        softmax_scale, causal, left, right, _ALIGNMENTS[alignment], softcap, dropout_p,
        _length("max_seqlen_q", max_seqlen_q), _length("max_seqlen_k", max_seqlen_k), _LAYOUTS[layout],
        torch.are_deterministic_algorithms_enabled() if deterministic is None else deterministic, batch_invariant,
        out_dtype == torch.float32, seqused_q, page_table, q_descale, k_descale, v_descale,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def window_pair(window_size: Window | None) -> tuple[int, int]:
    """(left, right) as the operators take it: None and -1 are no bound."""
    if window_size is None or (type(window_size) is tuple and window_size == (-1, -1)):
        return -1, -1
    expected = "must be a pair (left, right) of integers from 0 on, -1 or None for no bound"
    try:
        left, right = (-1 if side is None else side for side in window_size)
        if not (isinstance(left, int) and isinstance(right, int)):  # torch.SymInt has no __index__ in a trace
            left, right = operator.index(left), operator.index(right)
    except (TypeError, ValueError):
        raise TypeError(f"window_size: is {window_size!r}, {expected}") from None
    if left < -1 or right < -1:
        raise ValueError(f"window_size: is {window_size!r}, {expected}")
    return left, right


def _length(name: str, length: int | None) -> int:
    """As the operators take it: -1 is the number of tokens."""
    if length is None:
        return -1
    if length < 0:
        raise ValueError(f"{name}: is {length}, must be 0 or more; None stands for the number of tokens")
    return length


def _dropout_state(seed: int | None, offset: int) -> torch.Tensor:
    """(2) int64 on the CPU: seed and offset. Seeds from 2^63 on are the negative numbers of the same bits."""
    if seed is None:
        return torch.randint(0, 2**32, (2,), dtype=torch.int64)
    seed, offset = (number if isinstance(number, int) else operator.index(number) for number in (seed, offset))
    if not 0 <= seed < 2**64:
        raise ValueError(f"dropout_seed: is {seed}, must be an integer from 0 to 2^64 - 1")
    if not 0 <= offset < 2**32:
        raise ValueError(f"dropout_offset: is {offset}, must be an integer from 0 to 2^32 - 1")
    return torch.tensor([seed - 2**64 if seed >= 2**63 else seed, offset], dtype=torch.int64)


def _refuse(own_dtype: torch.dtype, alignment: str, layout: str, out_dtype: torch.dtype | None) -> None:
    if alignment not in _ALIGNMENTS:
        raise ValueError(f"alignment: is {alignment!r}, must be 'bottom_right' or 'top_left'")
    if layout not in _LAYOUTS:
        raise ValueError(f"layout: is {layout!r}, must be 'bshd' or 'bhsd'")
    raise ValueError(f"out_dtype: is {out_dtype}, must be {own_dtype} or torch.float32")
