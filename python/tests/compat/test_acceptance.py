"""flash-attn's own rule for accepting a kernel: the largest error against fp32 arithmetic is at most twice that of PyTorch
in the same precision, of the gradients three times; here with the definition in fp64 in place of fp32, which is stricter."""

import itertools

import pytest
import torch
import torch_reference
from tilewise.compat.flash_attn import flash_attn_func, flash_attn_varlen_func

MASKS = {"full": {}, "causal": {"causal": True}, "window": {"window_size": (37, 5)}}
SCORES = ["plain", "softcap", "alibi"]
HEADS = {"MHA": 6, "GQA": 3, "MQA": 1}
LENGTHS = [(113, 203), (128, 128), (203, 64), (1, 239)]


def options(mask: str, score: str) -> tuple[dict, dict]:
    """For flash-attn and for the reference."""
    ours = dict(MASKS[mask])
    theirs = {"window": ours["window_size"]} if "window_size" in ours else dict(ours)
    if score == "softcap":
        ours["softcap"] = theirs["softcap"] = 15.0
    if score == "alibi":
        ours["alibi_slopes"] = theirs["alibi_slopes"] = torch.rand(6) * 0.3
    return ours, theirs


def check(found: list[torch.Tensor], plain: list[torch.Tensor], true: list[torch.Tensor], context: str) -> None:
    for name, a, b, exact in zip(("out", "dq", "dk", "dv"), found, plain, true, strict=True):
        factor = 2 if name == "out" else 3
        error, yardstick = (a.double() - exact).abs().max(), (b.double() - exact).abs().max()
        rounding = torch.finfo(a.dtype).eps * exact.abs().max()  # 2 ulp of the largest result
        assert error <= factor * yardstick + rounding, f"{context}, {name}: {error} > {factor} * {yardstick}"


def with_gradients(function, tensors, dout):  # noqa: ANN001, ANN201
    out = function(*tensors)
    return [out, *torch.autograd.grad(out, tensors, dout.to(out.dtype))]


DIMS = [64, 128, 32, 59, 256]
DENSE = [
    *itertools.product([torch.bfloat16, torch.float16], DIMS[:2], MASKS, SCORES, HEADS, [0.0, 0.17]),
    *itertools.product([torch.bfloat16, torch.float16], DIMS[2:], MASKS, SCORES, ["GQA"], [0.0]),
]


@pytest.mark.parametrize(("dtype", "dim", "mask", "score", "heads", "dropout_p"), DENSE, ids=str)
def test_dense(dtype: torch.dtype, dim: int, mask: str, score: str, heads: str, dropout_p: float) -> None:
    # Each case has one of the lengths; together the cases combine all lengths with everything else.
    cases = [DIMS.index(dim), list(MASKS).index(mask), SCORES.index(score), list(HEADS).index(heads)]
    sq, sk = LENGTHS[sum(cases) % len(LENGTHS)]
    ours, theirs = options(mask, score)
    tensors = [
        torch.randn(1, s, h, dim, dtype=dtype, requires_grad=True) for s, h in ((sq, 6), (sk, HEADS[heads]), (sk, HEADS[heads]))
    ]
    dout = torch.randn(1, sq, 6, dim, dtype=dtype)
    if dropout_p:
        state = torch.get_rng_state()
        seed, offset = torch.randint(0, 2**32, (2,), dtype=torch.int64).tolist()
        theirs |= {"keep": torch_reference.philox(seed, offset, 1, 6, sq, sk, dropout_p), "dropout_p": dropout_p}
        torch.set_rng_state(state)
    found = with_gradients(lambda q, k, v: flash_attn_func(q, k, v, dropout_p, **ours), tensors, dout)
    plain = with_gradients(lambda q, k, v: torch_reference.attention(q, k, v, **theirs, dtype=None)[0], tensors, dout)
    true = with_gradients(lambda q, k, v: torch_reference.attention(q, k, v, **theirs)[0], tensors, dout)
    check(found, plain, [t.double() for t in true], f"{sq} queries, {sk} keys")


VARLEN = list(itertools.product([torch.bfloat16, torch.float16], [64, 96], MASKS, SCORES, ["MHA", "GQA"]))


@pytest.mark.parametrize(("dtype", "dim", "mask", "score", "heads"), VARLEN, ids=str)
def test_varlen(dtype: torch.dtype, dim: int, mask: str, score: str, heads: str) -> None:
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 61, 61, 64, 200], [0, 75, 90, 190, 257]))
    ours, theirs = options(mask, score)
    tensors = [
        torch.randn(n, h, dim, dtype=dtype, requires_grad=True)
        for n, h in ((200, 6), (257, HEADS[heads]), (257, HEADS[heads]))
    ]
    dout = torch.randn(200, 6, dim, dtype=dtype)
    found = with_gradients(
        lambda q, k, v: flash_attn_varlen_func(q, k, v, cu_q, cu_k, 136, 100, **ours), tensors, dout
    )
    plain, true = (
        with_gradients(
            lambda q, k, v, kind=kind: torch_reference.packed_attention(q, k, v, cu_q, cu_k, **theirs, **kind)[0],
            tensors, dout,
        )
        for kind in ({"dtype": None}, {})
    )  # fmt: skip
    check(found, plain, [t.double() for t in true], "packed")
