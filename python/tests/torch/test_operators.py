"""Every option of tilewise.torch.attention against the definition in fp64, forward and gradients."""

import math

import pytest
import torch
import torch_reference
from tilewise.torch import attention
from torch_cases import CASES, inputs, make_options, reference


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_forward_and_gradients(case: str, dtype: torch.dtype) -> None:
    tensors = inputs(dtype)
    options = make_options(CASES[case], dtype)
    leaves = [*tensors, *(options[name] for name in ("bias", "sink", "alibi_slopes") if name in options)]
    for leaf in leaves:
        leaf.requires_grad_()
    out, lse = attention(*tensors, **options, return_lse=True)
    wanted, wanted_lse = reference(*tensors, options)
    tolerance = 1e-12 if dtype == torch.float64 else 3e-5
    torch.testing.assert_close(out.double(), wanted, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=tolerance)

    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    finite = torch.isfinite(wanted_lse)
    dlse = torch.where(finite, dlse, 0.0)
    found = torch.autograd.grad([out, lse], leaves, [dout, dlse])
    true = torch.autograd.grad(
        [wanted, torch.where(finite, wanted_lse, 0.0)], leaves, [dout.double(), dlse.double()]
    )
    for gradient, expected in zip(found, true, strict=True):
        assert gradient.shape == expected.shape and gradient.dtype == expected.dtype
        torch.testing.assert_close(gradient.double(), expected.double(), rtol=tolerance, atol=20 * tolerance)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("case", ["causal", "bias", "all"])
def test_layouts_and_strides_change_no_bit(layout: str, case: str) -> None:
    tensors = inputs(torch.float32)
    options = make_options(CASES[case], torch.float32)
    plain = attention(*tensors, **options)
    strided = [torch.randn(*t.shape[:2], 3 * t.shape[2], t.shape[3])[:, :, : t.shape[2]].copy_(t) for t in tensors]
    transposed = [t.transpose(1, 3).contiguous().transpose(1, 3) for t in tensors]  # innermost stride not 1
    for views in (strided, transposed):
        if layout == "bhsd":
            found = attention(*(t.transpose(1, 2) for t in views), **options, layout="bhsd").transpose(1, 2)
        else:
            found = attention(*views, **options)
        assert torch.equal(found, plain)


def test_packed_is_each_sequence_alone() -> None:
    cu_q, cu_k = torch.tensor([0, 5, 5, 30]), torch.tensor([0, 9, 12, 40])
    q, k, v = (torch.randn(n, h, 16, dtype=torch.float64, requires_grad=True) for n, h in ((30, 4), (40, 2), (40, 2)))
    out, lse = attention(
        q, k, v, cu_seqlens_q=cu_q.int(), cu_seqlens_k=cu_k, max_seqlen_q=25, max_seqlen_k=28, causal=True, return_lse=True
    )
    wanted, wanted_lse = torch_reference.packed_attention(q, k, v, cu_q, cu_k, causal=True)
    torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-12, atol=1e-12)
    dout = torch.randn_like(out)
    for found, true in zip(
        torch.autograd.grad(out, [q, k, v], dout), torch.autograd.grad(wanted, [q, k, v], dout), strict=True
    ):
        torch.testing.assert_close(found, true, rtol=1e-12, atol=1e-11)


def test_slices_and_seqused() -> None:
    q, k, v = (torch.randn(2, 10, 2, 16, dtype=torch.float64) for _ in range(3))
    slices = torch.tensor([[0, 10, 0, 3, 0], [3, 6, 3, 6, 1], [6, 10, 6, 10, 1]])
    shown = torch.zeros(10, 10, dtype=torch.bool)
    shown[:, :3] = True
    for start, end in ((3, 6), (6, 10)):
        shown[start:end, start:end] |= torch.tril(torch.ones(end - start, end - start, dtype=torch.bool))
    wanted, _ = torch_reference.attention(q, k, v, mask=shown)
    torch.testing.assert_close(attention(q, k, v, slices=slices), wanted, rtol=1e-12, atol=1e-12)

    used = torch.tensor([4, 0], dtype=torch.int32)
    out = attention(q, k, v, seqused_k=used)
    wanted, _ = torch_reference.attention(q[:1], k[:1, :4], v[:1, :4])
    torch.testing.assert_close(out[:1], wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(out[1], torch.zeros_like(out[1]))


def test_pages_have_the_bits_of_rows() -> None:
    q, k, v = torch.randn(2, 3, 4, 16), torch.randn(6, 8, 2, 16), torch.randn(6, 8, 2, 16)
    table, used = torch.tensor([[5, 0, 3], [1, 2, -9]], dtype=torch.int32), torch.tensor([24, 13])
    rows = [torch.stack([torch.cat([cache[max(int(p), 0)] for p in row]) for row in table]) for cache in (k, v)]
    options = {"seqused_k": used, "causal": True}
    wanted = attention(q, *rows, **options)
    for run in (attention, torch.compile(attention, backend="aot_eager", fullgraph=True)):
        assert torch.equal(run(q, k, v, page_table=table, **options), wanted)
    mapped = torch.vmap(lambda q: attention(q, k, v, page_table=table, **options))(torch.stack([q, 2 * q]))
    assert torch.equal(mapped[0], wanted)
    for leaf in (q, k, v):
        leaf.requires_grad_()
        with pytest.raises(NotImplementedError, match="page_table: a paged cache has no gradients"):
            attention(q, k, v, page_table=table, **options)
        with torch.no_grad():
            assert torch.equal(attention(q, k, v, page_table=table, **options), wanted)
        leaf.requires_grad_(False)
    with pytest.raises(RuntimeError, match="page_table: dtype is int64, must be int32"):
        attention(q, k, v, page_table=table.long(), **options)


def test_gradients_with_seqused_q() -> None:
    q, k, v, dout = (torch.randn(2, 10, 2, 16, dtype=torch.float64) for _ in range(4))
    dlse = torch.randn(2, 2, 10, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    options = {"seqused_q": torch.tensor([4, 0]), "seqused_k": torch.tensor([7, 9]), "causal": True}
    for run in (attention, torch.compile(attention, backend="aot_eager", fullgraph=True)):
        out, lse = run(*leaves, **options, return_lse=True)
        wanted, wanted_lse = torch_reference.attention(q[:1, :4], k[:1, :7], v[:1, :7], causal=True)
        torch.testing.assert_close(out[:1, :4], wanted, rtol=1e-12, atol=1e-12)
        assert not out[0, 4:].any() and not out[1].any()
        assert torch.isneginf(lse[0, :, 4:]).all() and torch.isneginf(lse[1]).all()
        found = torch.autograd.grad((out, lse), leaves, (dout, dlse))
        true = torch.autograd.grad((wanted, wanted_lse), leaves, (dout[:1, :4], dlse[:1, :, :4]))
        for gradient, expected in zip(found, true, strict=True):
            torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_result_before_rounding(dtype: torch.dtype) -> None:
    tensors = [t.requires_grad_() for t in inputs(dtype)]
    wide = attention(*tensors, out_dtype=torch.float32)
    assert wide.dtype == torch.float32
    assert torch.equal(wide.to(dtype), attention(*tensors))
    wide.sum().backward()
    assert all(t.grad is not None and t.grad.dtype == dtype for t in tensors)


def test_nan_reaches_only_the_rows_that_see_it() -> None:
    q, k, v = (torch.randn(1, 8, 1, 16) for _ in range(3))
    clean = attention(q, k, v, causal=True)
    k[:, 5] = math.nan
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    assert torch.equal(out[:, :5], clean[:, :5])
    assert out[:, 5:].isnan().all() and lse[..., 5:].isnan().all() and not lse[..., :5].isnan().any()
    hidden = torch.ones(8, dtype=torch.bool)
    hidden[5] = False
    assert not attention(q, k, v, mask=hidden).isnan().any()


@pytest.mark.parametrize(
    "sizes", [(0, 3, 4, 4), (2, 0, 4, 4), (2, 3, 0, 4), (2, 3, 4, 0)], ids=["B", "Sq", "Sk", "H"]
)
def test_empty(sizes: tuple[int, ...]) -> None:
    b, sq, sk, h = sizes
    q = torch.randn(b, sq, h, 16, requires_grad=True)
    k = torch.randn(b, sk, h, 16, requires_grad=True)
    out, lse = attention(q, k, k, return_lse=True)
    assert out.shape == q.shape and lse.shape == (b, h, sq)
    assert torch.equal(out, torch.zeros_like(out))
    out.sum().backward()
    assert torch.equal(q.grad, torch.zeros_like(q)) and torch.equal(k.grad, torch.zeros_like(k))


def test_bits_do_not_depend_on_threads_or_runs() -> None:
    tensors = [t.requires_grad_() for t in inputs(torch.float32, 130, 150)]
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 2):
            torch.set_num_threads(threads)
            out = attention(*tensors, causal=True)
            results.append([out, *torch.autograd.grad(out.sum(), tensors)])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
