"""The operators, SDPA, flash-attn's functions and a model on a CUDA device: the definition, streams, devices, graphs."""

import pytest
import tilewise
import tilewise.torch
import torch
import torch_reference
from tilewise.compat.flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from tilewise.torch import attention
from torch.nn.functional import scaled_dot_product_attention

if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no CUDA device", allow_module_level=True)
if not any(name.startswith("cuda") for name in tilewise.kernels()):
    pytest.skip("this build of tilewise has no CUDA kernels", allow_module_level=True)

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5}
HAS_BACKWARD = any(name.startswith("cuda") for name in tilewise.kernels(backward=True))


def qkv(dtype: torch.dtype, device: str = "cuda", dim: int = 64, sq: int = 130, sk: int = 190) -> list[torch.Tensor]:
    return [torch.randn(2, s, h, dim, device=device, dtype=dtype) for s, h in ((sq, 4), (sk, 2), (sk, 2))]


def cpu(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t.detach().cpu() for t in tensors]


OPTIONS = [
    ({}, {}),
    ({"causal": True}, {"causal": True}),
    ({"window_size": (40, 3), "softcap": 9.0}, {"window": (40, 3), "softcap": 9.0}),
]


@pytest.mark.parametrize("dim", [64, 128, 80])
@pytest.mark.parametrize(("ours", "theirs"), OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_forward(dtype: torch.dtype, ours: dict, theirs: dict, dim: int) -> None:
    q, k, v = qkv(dtype, dim=dim)
    slopes, sink = torch.rand(4, device="cuda"), torch.randn(4, device="cuda")
    for extra in ({}, {"alibi_slopes": slopes, "sink": sink}):
        out, lse = attention(q, k, v, **ours, **extra, return_lse=True)
        wanted, wanted_lse = torch_reference.attention(*cpu(q, k, v), **theirs, **{n: t.cpu() for n, t in extra.items()})
        assert out.device == q.device and out.dtype == dtype
        torch.testing.assert_close(out.cpu().double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        torch.testing.assert_close(lse.cpu().double(), wanted_lse, rtol=1e-4, atol=1e-4)


def test_backward_works_or_says_why_not() -> None:
    tensors = [t.requires_grad_() for t in qkv(torch.bfloat16)]
    out = attention(*tensors, causal=True)
    dout = torch.randn_like(out)
    if not HAS_BACKWARD:
        with pytest.raises(RuntimeError, match="(?i)backward|kernel|device"):
            out.backward(dout)
        return
    leaves = [t.requires_grad_() for t in cpu(*tensors)]
    wanted, _ = torch_reference.attention(*leaves, causal=True)
    true = torch.autograd.grad(wanted, leaves, dout.cpu().double())
    for found, expected in zip(torch.autograd.grad(out, tensors, dout), true, strict=True):
        torch.testing.assert_close(found.cpu().double(), expected.double(), rtol=5e-2, atol=5e-2)


def test_runs_on_the_current_stream() -> None:
    """A producer that is still busy on a stream of its own must be waited for: by order, not by luck."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [qkv(torch.bfloat16) for _ in streams]
    wanted = [attention(*tensors) for tensors in inputs]
    torch.cuda.synchronize()
    results = []
    for stream, (q, k, v) in zip(streams, inputs, strict=True):
        with torch.cuda.stream(stream):
            late = torch.zeros_like(q)
            torch.cuda._sleep(50_000_000)
            late.copy_(q)
            results.append(attention(late, k, v))
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))


def test_captured_in_a_graph() -> None:
    q, k, v = qkv(torch.bfloat16)
    attention(q, k, v, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(q, k, v, causal=True)
    for _ in range(3):
        q.copy_(torch.randn_like(q))
        graph.replay()
        assert torch.equal(out, attention(q, k, v, causal=True))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_another_device_than_the_current_one() -> None:
    on_first = qkv(torch.bfloat16, "cuda:0")
    on_second = [t.to("cuda:1") for t in on_first]
    out = attention(*on_second, causal=True)
    assert out.device == torch.device("cuda:1") and torch.cuda.current_device() == 0
    assert torch.equal(out.to("cuda:0"), attention(*on_first, causal=True))
    with pytest.raises(RuntimeError):
        attention(on_first[0], on_second[1], on_second[2])


def test_a_mix_of_devices_is_refused() -> None:
    q, k, v = qkv(torch.bfloat16)
    with pytest.raises((RuntimeError, NotImplementedError)):
        attention(q, k.cpu(), v.cpu())


def test_opcheck() -> None:
    q, k, v = qkv(torch.bfloat16, sq=16, sk=24)
    utilities = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(
        torch.ops.tilewise.attention_forward.default, (q, k, v, *[None] * 9), test_utils=utilities
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sdpa(dtype: torch.dtype, causal: bool) -> None:
    q, k, v = (torch.randn(2, 4, 256, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    flash = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION)
    with flash:
        before = scaled_dot_product_attention(q, k, v, is_causal=causal)
        with tilewise.torch.sdpa():
            found = scaled_dot_product_attention(q, k, v, is_causal=causal)
            found.sum().backward()  # PyTorch's backward pass reads our result
        gradients = [t.grad.clone() for t in (q, k, v)]
        after = scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert torch.equal(before, after)
    wanted = attention(q.detach(), k.detach(), v.detach(), causal=causal, layout="bhsd")
    if hasattr(torch.nn.attention, "register_flash_attention_impl") and hasattr(torch.library, "get_kernel"):
        assert torch.equal(found, wanted)
    torch.testing.assert_close(found, before, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    for gradient, true in zip(gradients, torch.autograd.grad(after.sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(gradient, true, rtol=5e-2, atol=5e-2)


def test_sdpa_leaves_the_rest_to_pytorch() -> None:
    q = torch.randn(2, 4, 33, 64, device="cuda")  # fp32: no flash attention
    before = scaled_dot_product_attention(q, q, q)
    with tilewise.torch.sdpa():
        assert torch.equal(scaled_dot_product_attention(q, q, q), before)


def test_flash_attn_functions() -> None:
    starts = torch.tensor([0, 70, 70, 200], dtype=torch.int32, device="cuda")
    q, k, v = (torch.randn(200, h, 64, device="cuda", dtype=torch.bfloat16) for h in (4, 2, 2))
    out = flash_attn_varlen_func(q, k, v, starts, starts, 130, 130, causal=True)
    wanted, _ = torch_reference.packed_attention(*cpu(q, k, v, starts, starts), causal=True)
    torch.testing.assert_close(out.cpu().double(), wanted, rtol=2e-2, atol=2e-2)

    cache = [torch.randn(2, 64, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    token = torch.randn(2, 1, 4, 64, device="cuda", dtype=torch.bfloat16)
    new = torch.randn(2, 1, 2, 64, device="cuda", dtype=torch.bfloat16)
    lengths = torch.tensor([5, 40], dtype=torch.int32, device="cuda")
    out = flash_attn_with_kvcache(token, *cache, new, new, cache_seqlens=lengths, causal=True)
    for b, length in enumerate((6, 41)):
        keys, values = (c[b : b + 1, :length].cpu() for c in cache)
        assert torch.equal(keys[0, -1], new[b, 0].cpu())
        wanted, _ = torch_reference.attention(token[b : b + 1].cpu(), keys, values)
        torch.testing.assert_close(out[b : b + 1].cpu().double(), wanted, rtol=2e-2, atol=2e-2)


def test_a_model_generates(seed: int) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import tilewise.transformers

    tilewise.transformers.register()
    results = []
    ids = torch.randint(3, 97, (2, 20), device="cuda")
    mask = (torch.arange(20, device="cuda") >= torch.tensor([[0], [7]], device="cuda")).long()
    for implementation in ("eager", "tilewise"):
        torch.manual_seed(seed)
        config = transformers.LlamaConfig(
            vocab_size=97, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, attn_implementation=implementation, pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config).to("cuda").eval()
        results.append(model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False))
    assert torch.equal(results[0], results[1])
