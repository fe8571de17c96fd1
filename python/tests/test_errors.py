"""Bad input: one exception that names the argument, what it is and what it must be; nothing is written."""

import functools
import re
from typing import Any, Callable

import numpy as np
import pytest
from cases import tensors

import tilewise

CASE = tensors(np.random.default_rng(0), "float32")
Q, K, V, DOUT = (CASE[name] for name in ("q", "k", "v", "dout"))
OUT, LSE = tilewise.attention_forward(Q, K, V)
CALL = tilewise.attention
BACKWARD = functools.partial(tilewise.attention_backward, DOUT, Q, K, V, OUT, LSE)

# (exception, what its text says, the call)
BAD: list[tuple[type, str, Callable[[], Any]]] = [
    (TypeError, "q: is a list, must be an array", lambda: CALL([1.0], K, V)),
    (TypeError, "k: is a str, must be an array", lambda: CALL(Q, "k", V)),
    (TypeError, "v: is a NoneType, must be an array", lambda: CALL(Q, K, None)),
    (TypeError, "mask: is a list, must be an array", lambda: CALL(Q, K, V, mask=[True])),
    (TypeError, "out: is a tuple, must be an array", lambda: CALL(Q, K, V, out=())),
    (TypeError, "q: dtype is complex64, must be float64,", lambda: CALL(Q.astype(np.complex64), K, V)),
    (TypeError, "q: dtype is >f4, must be float64,", lambda: CALL(Q.astype(">f4"), K, V)),
    (TypeError, "mask: dtype is int8, must be bool, or uint8", lambda: CALL(Q, K, V, mask=np.ones((33, 50), np.int8))),
    (TypeError, "bias: dtype is uint8, must be q's dtype or float32", lambda: CALL(Q, K, V, bias=np.ones((33, 50), "u1"))),
    (TypeError, "sink: dtype is uint8, must be float32", lambda: CALL(Q, K, V, sink=np.ones(4, np.uint8))),
    (TypeError, "seqused_k: dtype is int16, must be int32 or int64", lambda: CALL(Q, K, V, seqused_k=np.ones(2, "i2"))),
    (TypeError, "slices: dtype is uint64, must be int64", lambda: CALL(Q, K, V, slices=np.ones((1, 5), "u8"))),
    (TypeError, "q: is a masked array, whose mask would be ignored", lambda: CALL(np.ma.array(Q), K, V)),
    (TypeError, "mask: is a masked array", lambda: CALL(Q, K, V, mask=np.ma.array(np.ones((33, 50), bool)))),
    (TypeError, "out: is a masked array", lambda: CALL(Q, K, V, out=np.ma.array(OUT))),
    (ValueError, "q: dtype is int64, must be fp64, fp32, bf16, fp16, e4m3 or e5m2", lambda: CALL(Q.astype(int), K, V)),
    (ValueError, "k: dtype is fp64, must be fp32", lambda: CALL(Q, K.astype(np.float64), V)),
    (ValueError, "mask: dtype is fp32, must be bool", lambda: CALL(Q, K, V, mask=np.ones((33, 50), np.float32))),
    (ValueError, "out: dtype is fp64, must be fp32", lambda: CALL(Q, K, V, out=OUT.astype(np.float64))),
    (ValueError, "q: rank is 0, must be 1 to 4", lambda: CALL(Q[0, 0, 0, 0], K, V)),
    (ValueError, "bias: rank is 0, must be 1 to 4", lambda: CALL(Q, K, V, bias=np.float32(1))),
    (ValueError, "mask: rank is 5, must be 0 (absent) to 4", lambda: CALL(Q, K, V, mask=np.ones((1,) * 5, bool))),
    (ValueError, "q: rank is 2", lambda: tilewise.attention_forward(Q[0, 0], K, V)),
    (ValueError, "k: head dimension is 8, must be q's 40", lambda: CALL(Q, K[..., :8], V)),
    (ValueError, "out: shape is (2, 33, 4, 8), must be", lambda: CALL(Q, K, V, out=OUT[..., :8])),
    (ValueError, "k: innermost stride is 2, must be 1", lambda: CALL(Q[..., :20], K[..., ::2], V)),
    (ValueError, "softmax_scale: is nan, must be finite", lambda: CALL(Q, K, V, softmax_scale=float("nan"))),
    (ValueError, "softmax_scale: is inf, must be finite; None stands for 1/sqrt(D)",
     lambda: CALL(Q, K, V, softmax_scale=float("inf"))),
    (ValueError, "softmax_scale: is -inf, must be finite", lambda: CALL(Q, K, V, softmax_scale=-np.inf)),
    (ValueError, "softmax_scale: is inf, must be finite", lambda: tilewise.plan(Q, K, V)(Q, K, V, softmax_scale=np.inf)),
    (ValueError, "max_seqlen_q: is -1, must be 0 or more", lambda: CALL(Q, K, V, max_seqlen_q=-1)),
    (ValueError, "max_seqlen_k: is -5, must be 0 or more", lambda: CALL(Q, K, V, max_seqlen_k=-5)),
    (TypeError, "softmax_scale: is 'x', must be a number", lambda: CALL(Q, K, V, softmax_scale="x")),
    (ValueError, "softcap", lambda: CALL(Q, K, V, softcap=-1.0)),
    (ValueError, "dropout_p", lambda: CALL(Q, K, V, dropout_p=1.0)),
    (TypeError, "dropout_seed: is -1, must be an integer from 0", lambda: CALL(Q, K, V, dropout_seed=-1)),
    (ValueError, "dropout_offset", lambda: CALL(Q, K, V, dropout_p=0.5, dropout_offset=2**32)),
    (ValueError, "window_size: is (-2, 0), must be a pair", lambda: CALL(Q, K, V, window_size=(-2, 0))),
    (ValueError, "window: is (0, -3), must be a pair", lambda: CALL(Q, K, V, window=(0, -3))),
    (TypeError, "window_size: is (1, 2, 3), must be a pair", lambda: CALL(Q, K, V, window_size=(1, 2, 3))),
    (TypeError, "window_size: is 3, must be a pair", lambda: CALL(Q, K, V, window_size=3)),
    (TypeError, "window: is 0.5, must be an integer", lambda: CALL(Q, K, V, window=(0.5, 0))),
    (TypeError, "got both 'window' and 'window_size'", lambda: CALL(Q, K, V, window=(1, 1), window_size=(1, 1))),
    (ValueError, "layout: is 'sbhd', must be 'bshd' or 'bhsd'", lambda: CALL(Q, K, V, layout="sbhd")),
    (ValueError, "alignment: is 3, must be 'bottom_right'", lambda: CALL(Q, K, V, alignment=3)),
    (TypeError, "attention() got an unexpected keyword argument 'causl'", lambda: CALL(Q, K, V, causl=True)),
    (TypeError, "plan() got an unexpected keyword argument 'x'", lambda: tilewise.plan(Q, K, V, x=1)),
    (TypeError, "threads: is 'two', must be an integer", lambda: CALL(Q, K, V, threads="two")),
    (ValueError, "threads: is 0, must be 1 to 4096", lambda: CALL(Q, K, V, threads=0)),
    (TypeError, "stream: is 'main', must be an integer", lambda: CALL(Q, K, V, stream="main")),
    (ValueError, "cu_seqlens", lambda: CALL(Q[0], K[0], V[0])),
    (ValueError, "cu_seqlens_k", lambda: CALL(Q, K[0], V[0], cu_seqlens_k=np.array([0, 90, 50]))),
    (ValueError, "seqused_k", lambda: CALL(Q, K, V, seqused_k=np.array([51, 3]))),
    (TypeError, "page_table: dtype is int16, must be int32", lambda: CALL(Q, K, V, page_table=np.ones((2, 1), "i2"))),
    (ValueError, "page_table: dtype is int64, must be int32", lambda: CALL(Q, K, V, page_table=np.ones((2, 1), "i8"))),
    (ValueError, "page_table: batch is 3, must be q's 2", lambda: CALL(Q, K, V, page_table=np.ones((3, 1), "i4"))),
    (ValueError, "page_table[0][0]: is 2, must be", lambda: CALL(Q, K, V, page_table=np.full((2, 1), 2, "i4"))),
    (NotImplementedError, "page_table: backward", lambda: BACKWARD(page_table=np.zeros((2, 1), "i4"))),
    (ValueError, "seqused_q[0]: is 34, must be between 0 and 33", lambda: CALL(Q, K, V, seqused_q=np.array([34, 3]))),
    (ValueError, "slices", lambda: CALL(Q, K, V, causal=True, slices=np.zeros((1, 5), np.int64))),
    (ValueError, "kernel", lambda: tilewise.plan(Q, K, V, kernel="no_such")),
    (NotImplementedError, "bf16", lambda: tilewise.plan(Q, K, V, kernel="cpu_amx")),
    (TypeError, "kernel: is 3, must be a text", lambda: tilewise.plan(Q, K, V, kernel=3)),
    (TypeError, "cpu_target: is b'avx2', must be a text", lambda: tilewise.plan(Q, K, V, cpu_target=b"avx2")),
    (TypeError, "option: is 'c\\ud800', must be a text", lambda: CALL(Q, K, V, **{"c\ud800": 1})),
    (TypeError, "causal: is array([1, 2]), must be True or False", lambda: CALL(Q, K, V, causal=np.array([1, 2]))),
    (TypeError, "causal: is 'no', must be True or False", lambda: CALL(Q, K, V, causal="no")),
    (TypeError, "causal: is [], must be True or False", lambda: CALL(Q, K, V, causal=[])),
    (TypeError, "causal: is 2, must be True or False", lambda: CALL(Q, K, V, causal=2)),
    (TypeError, "causal: is 0.0, must be True or False", lambda: CALL(Q, K, V, causal=0.0)),
    (TypeError, "deterministic: is 'False', must be True or False", lambda: CALL(Q, K, V, deterministic="False")),
    (TypeError, "batch_invariant: is (), must be True or False", lambda: CALL(Q, K, V, batch_invariant=())),
    (TypeError, "return_lse: is 'no', must be True or False", lambda: tilewise.plan(Q, K, V, return_lse="no")),
    (TypeError, "with_dlse: is 'no', must be True or False", lambda: tilewise.plan_backward(Q, K, V, with_dlse="no")),
    (TypeError, "q: is a int, must be an array", lambda: tilewise.attention_forward(3, K, V)),
    (TypeError, "q: is a int, must be an array", lambda: tilewise.attention_backward(DOUT, 3, K, V, OUT, LSE)),
    (TypeError, "k: is a dict, must be an array", lambda: tilewise.plan_backward(Q, {}, V)),
    (ValueError, "cpu_target", lambda: tilewise.plan(Q, K, V, cpu_target="sparc")),
    (ValueError, "lse", lambda: tilewise.attention_backward(DOUT, Q, K, V, OUT, LSE[..., :3])),
    (ValueError, "want: holds 'dx', must be",
     lambda: tilewise.attention_backward(DOUT, Q, K, V, OUT, LSE, want=["dx"])),
    (ValueError, "want: holds 'dsink', but there is no sink",
     lambda: tilewise.attention_backward(DOUT, Q, K, V, OUT, LSE, want=["dsink"])),
    (TypeError, "got 'want' and arrays for gradients",
     lambda: tilewise.attention_backward(DOUT, Q, K, V, OUT, LSE, dq=np.empty_like(Q), want=["dk"])),
]  # fmt: skip


@pytest.mark.parametrize("kind, text, call", BAD, ids=[text for _, text, _ in BAD])
def test_message(kind: type, text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        call()


def test_nothing_is_written_on_error() -> None:
    out = np.full_like(OUT, 7)
    with pytest.raises(ValueError):
        CALL(Q, K, V, out=out, softcap=-1)
    assert (out == 7).all()


def test_outputs_that_overlap_inputs_are_refused() -> None:
    square = np.ascontiguousarray(K[:, :33, :, :16]).repeat(2, axis=2)
    before = square.copy()
    with pytest.raises(ValueError, match="out"):
        CALL(square, square.copy(), square.copy(), out=square)
    assert np.array_equal(square, before)


def test_shapes_without_end_give_no_memory() -> None:
    endless = np.broadcast_to(np.float32(0), (1, 2**40, 1, 8))
    with pytest.raises((MemoryError, ValueError)):
        CALL(endless, K[:1, :, :1, :8], V[:1, :, :1])
