"""The operators, SDPA, flash-attn's functions and a model on a CUDA device: the definition, streams, devices, graphs."""

import pytest
import tilewise
import tilewise.torch
import torch
import torch_reference
from tilewise.compat.flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from tilewise.torch import _sdpa_cuda, attention
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch_cases import CASES, inputs, make_options, reference

if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no CUDA device", allow_module_level=True)
if not any(name.startswith("cuda") for name in tilewise.kernels()):
    pytest.skip("this build of tilewise has no CUDA kernels", allow_module_level=True)

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5}
FORWARD = torch.ops.tilewise.attention_forward.default
# What PyTorch's registry of flash attention implementations needs.
HAS_REGISTRY = hasattr(torch.nn.attention, "register_flash_attention_impl") and hasattr(torch.library, "get_kernel")


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


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_option(dtype: torch.dtype, case: str) -> None:
    """D and Dv that are no power of two, and few keys: the corners; and a list of slices, which no case has."""
    tensors = inputs(dtype)
    options = make_options(CASES[case], dtype)
    wanted, wanted_lse = reference(*tensors, options)
    on_cuda = {name: value.cuda() if torch.is_tensor(value) else value for name, value in options.items()}
    out, lse = attention(*(t.cuda() for t in tensors), **on_cuda, return_lse=True)
    scale = max(1.0, wanted.abs().max().item())
    torch.testing.assert_close(out.cpu().double(), wanted, rtol=TOLERANCE[dtype], atol=scale * TOLERANCE[dtype])
    torch.testing.assert_close(lse.cpu().double(), wanted_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_slices_and_lengths(dtype: torch.dtype) -> None:
    q, k, v = inputs(dtype, 40, 40)
    slices = torch.tensor([[0, 40, 0, 3, 0], [3, 17, 3, 17, 1], [17, 40, 17, 40, 1]])
    for options in ({"slices": slices}, {"seqused_k": torch.tensor([40, 0, 13])}, {"seqused_q": torch.tensor([40, 0, 13])}):
        wanted = attention(q, k, v, **options)
        found = attention(q.cuda(), k.cuda(), v.cuda(), **{name: value.cuda() for name, value in options.items()})
        torch.testing.assert_close(found.cpu(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_backward_is_that_of_the_formula() -> None:
    tensors = [t.requires_grad_() for t in qkv(torch.bfloat16)]
    out = attention(*tensors, causal=True)
    dout = torch.randn_like(out)
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


def samples() -> dict[str, tuple[list, dict]]:
    """Arguments of the operator: q, k, v, nine tensors that may be absent, options."""
    q, k, v = qkv(torch.bfloat16, sq=16, sk=24)
    starts = torch.tensor([0, 16, 32], dtype=torch.int32, device="cuda")
    packed = [t.flatten(0, 1) for t in qkv(torch.bfloat16, sq=16, sk=16)]
    return {
        "dense": ([q, k, v, *[None] * 9], {"causal": True}),
        "heads first": ([*(t.transpose(1, 2) for t in (q, k, v)), *[None] * 9], {"bhsd": True}),
        "packed": ([*packed, *[None] * 4, starts, starts, *[None] * 3], {"max_seqlen_q": 16, "max_seqlen_k": 16}),
        "sink, to fp32": ([q, k, v, *[None] * 3, torch.randn(4, device="cuda"), *[None] * 5], {"out_fp32": True}),
    }


@pytest.mark.parametrize("sample", ["dense", "heads first", "packed", "sink, to fp32"])
def test_opcheck(sample: str) -> None:
    args, options = samples()[sample]
    torch.library.opcheck(FORWARD, args, options)


@pytest.mark.parametrize("sample", ["dense", "heads first", "packed", "sink, to fp32"])
def test_fake_kernels_are_like_the_real_ones(sample: str) -> None:
    args, options = samples()[sample]
    real = FORWARD(*args, **options)
    with FakeTensorMode() as mode:
        fake = FORWARD(*(mode.from_tensor(t) if torch.is_tensor(t) else t for t in args), **options)
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)


def test_compile_without_a_graph_break() -> None:
    compiled = torch.compile(lambda *a: attention(*a, causal=True) * 2, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (33, 64, 130):
        tensors = qkv(torch.bfloat16, sq=length, sk=length)
        assert torch.equal(compiled(*tensors), attention(*tensors, causal=True) * 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype: torch.dtype) -> None:
    tensors = qkv(torch.float32)
    with torch.autocast("cuda", dtype=dtype):
        out = attention(*tensors)
    assert torch.equal(out, attention(*(t.to(dtype) for t in tensors)))


def test_runs_give_the_same_bits() -> None:
    tensors = qkv(torch.bfloat16, sq=700, sk=700)
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(True)
        results = [attention(*tensors, causal=True) for _ in range(5)]
    finally:
        torch.use_deterministic_algorithms(before)
    assert all(torch.equal(results[0], other) for other in results)


def test_no_copy_of_q_k_v() -> None:
    """Bytes that a call's peak is above its result: not even one operand's (a workspace is small)."""
    q, k, v = (torch.randn(1, 8192, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    for layout, turn in (("bshd", lambda t: t), ("bhsd", lambda t: t.transpose(1, 2))):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out, lse = attention(turn(q), turn(k), turn(v), causal=True, layout=layout, return_lse=True)
        grown = torch.cuda.max_memory_allocated() - before - out.nbytes - lse.nbytes
        assert grown < q.nbytes / 4


# ---- scaled_dot_product_attention ---------------------------------------------------------------------------------


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of q of the calls that PyTorch's flash back end left to us."""
    shapes, forward = [], _sdpa_cuda._forward

    def counted(*args):  # noqa: ANN002, ANN202
        shapes.append(args[0].shape)
        return forward(*args)

    monkeypatch.setattr(_sdpa_cuda, "_forward", counted)
    return shapes


def heads_first(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> list[torch.Tensor]:
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=grad) for _ in range(3)]


needs_registry = pytest.mark.skipif(not HAS_REGISTRY, reason="this PyTorch has no registry of implementations")


@needs_registry
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sdpa(dtype: torch.dtype, dim: int, causal: bool, runs: list) -> None:
    """The line that users write, nothing more; the backward pass is PyTorch's and reads our result."""
    q, k, v = heads_first(2, 4, 256, dim, dtype=dtype, grad=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        before = scaled_dot_product_attention(q, k, v, is_causal=causal)
    with tilewise.torch.sdpa():
        found = scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert runs == [q.shape]
    assert torch.equal(found, attention(q.detach(), k.detach(), v.detach(), causal=causal, layout="bhsd"))
    torch.testing.assert_close(found, before, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    dout = torch.randn_like(found)
    for gradient, true in zip(*(torch.autograd.grad(out, (q, k, v), dout) for out in (found, before)), strict=True):
        torch.testing.assert_close(gradient, true, rtol=5e-2, atol=5e-2)


@needs_registry
def test_sdpa_with_grouped_heads_and_strides(runs: list) -> None:
    q = torch.randn(2, 100, 8, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    k, v = torch.randn(2, 140, 2, 2, 64, device="cuda", dtype=torch.bfloat16).permute(2, 0, 3, 1, 4)
    with tilewise.torch.sdpa():
        found = scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=0.2)
    assert len(runs) == 1 and found.stride() == q.stride()
    wanted, _ = torch_reference.attention(*cpu(*(t.transpose(1, 2) for t in (q, k, v))), scale=0.2)
    torch.testing.assert_close(found.transpose(1, 2).cpu().double(), wanted, rtol=2e-2, atol=2e-2)


@needs_registry
def test_packed_sequences_of_pytorch(runs: list) -> None:
    """torch.nn.attention.varlen, whose rows without keys have the log-sum-exp +inf in PyTorch: gradients show it."""
    varlen_attn = pytest.importorskip("torch.nn.attention.varlen", reason="this PyTorch has no varlen_attn").varlen_attn
    starts_q, starts_k = (torch.tensor(x, dtype=torch.int32, device="cuda") for x in ([0, 70, 140], [0, 30, 170]))
    q, k, v = (torch.randn(n, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for n in (140, 170, 170))
    results = []
    for context in (torch.enable_grad, tilewise.torch.sdpa):
        with context():
            out = varlen_attn(q, k, v, starts_q, starts_k, 70, 140, window_size=(-1, 0))
        results.append([out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))])
    assert len(runs) == 1
    for found, wanted in zip(*reversed(results), strict=True):
        torch.testing.assert_close(found, wanted, rtol=5e-2, atol=5e-2)


@needs_registry
def test_sdpa_compiled(runs: list) -> None:
    q, k, v = heads_first(2, 4, 128, 64)
    compiled = torch.compile(
        lambda *a: scaled_dot_product_attention(*a, is_causal=True), fullgraph=True, backend="aot_eager"
    )
    with tilewise.torch.sdpa():
        found = compiled(q, k, v)
    assert torch.equal(found, attention(q, k, v, causal=True, layout="bhsd")) and len(runs) == 1


def test_sdpa_off_is_as_before() -> None:
    """The registry, the order of back ends, the kernels; and the bits of what PyTorch answers."""
    operators = ("aten::_scaled_dot_product_flash_attention", "aten::_flash_attention_forward")
    q, k, v = heads_first(2, 4, 200, 64)
    wanted = scaled_dot_product_attention(q, k, v, is_causal=True)
    order = torch._C._get_sdp_priority_order()
    tables = [torch._C._dispatch_dump_table(name) for name in operators]
    for _ in range(2):
        with tilewise.torch.sdpa():
            scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.equal(scaled_dot_product_attention(q, k, v, is_causal=True), wanted)
    assert torch._C._get_sdp_priority_order() == order
    assert [torch._C._dispatch_dump_table(name) for name in operators] == tables
    if HAS_REGISTRY:
        assert torch.nn.attention.current_flash_attention_impl() is None


THEIRS = {
    "fp32": lambda q: scaled_dot_product_attention(q.float(), q.float(), q.float()),
    "mask": lambda q: scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(33, 33, device="cuda").tril().bool()),
    "bias": lambda q: scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(33, 33, device="cuda", dtype=q.dtype)),
    "dropout": lambda q: scaled_dot_product_attention(q, q, q, dropout_p=0.5),
    "causal, not square": lambda q: scaled_dot_product_attention(q, q[:, :, :20], q[:, :, :20], is_causal=True),
    "other back end": lambda q: sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)(scaled_dot_product_attention)(q, q, q),
}


@pytest.mark.parametrize("case", THEIRS)
def test_sdpa_leaves_the_rest_to_pytorch(case: str, seed: int, runs: list) -> None:
    q = torch.randn(2, 4, 33, 64, device="cuda", dtype=torch.bfloat16)
    back_ends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    results = []
    for context in (torch.enable_grad, tilewise.torch.sdpa):
        torch.manual_seed(seed)
        with sdpa_kernel(back_ends), context():  # without cuDNN, which PyTorch prefers where we are not enabled
            results.append(THEIRS[case](q))
    assert torch.equal(*results) and runs == []


# ---- flash-attn's functions -----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8(dtype: torch.dtype) -> None:
    q, q_descale = tilewise.quantise(torch.randn(2, 130, 4, 64), dtype, scales="head", kv_heads=2)
    k, k_descale = tilewise.quantise(torch.randn(2, 190, 2, 64), dtype, scales="head")
    v, v_descale = tilewise.quantise(torch.randn(2, 190, 2, 64), dtype, scales="head")
    scales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    out, lse = attention(
        q.cuda(), k.cuda(), v.cuda(), **{name: scale.cuda() for name, scale in scales.items()}, return_lse=True
    )
    wanted, wanted_lse = attention(q, k, v, **scales, return_lse=True)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.cpu(), wanted, rtol=0, atol=3e-2)  # probs in e4m3
    torch.testing.assert_close(lse.cpu(), wanted_lse, rtol=0, atol=2e-3)


STORES = ["rows", "cache_batch_idx", "cache_leftpad", "block_table"]


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("store", STORES)
def test_with_kvcache(store: str, interleaved: bool) -> None:
    """The CPU's result with the same cache, which test_kvcache.py compares with the definition."""
    keywords = {"cache_seqlens": torch.tensor([5, 40, 17], dtype=torch.int32), "causal": True}
    if store == "block_table":
        cache = [torch.randn(15, 16, 2, 64, dtype=torch.bfloat16) for _ in range(2)]
        keywords["block_table"] = torch.randperm(15).view(3, 5).int()
    else:
        cache = [torch.randn(5, 64, 2, 64, dtype=torch.bfloat16) for _ in range(2)]
    if store == "cache_batch_idx":
        keywords["cache_batch_idx"] = torch.tensor([4, 0, 2], dtype=torch.int32)
    if store == "cache_leftpad":
        keywords["cache_leftpad"] = torch.tensor([0, 11, 3], dtype=torch.int32)
    angles = torch.randn(64, 32).bfloat16()
    keywords |= {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}
    q, *new = (torch.randn(3, 2, heads, 64, dtype=torch.bfloat16) for heads in (4, 2, 2))
    on_cuda = [t.cuda() for t in (q, *cache, *new)]
    moved = {name: value.cuda() if torch.is_tensor(value) else value for name, value in keywords.items()}
    found = flash_attn_with_kvcache(*on_cuda, **moved, rotary_interleaved=interleaved)
    wanted = flash_attn_with_kvcache(q, *cache, *new, **keywords, rotary_interleaved=interleaved)
    torch.testing.assert_close(found.cpu(), wanted, rtol=2e-2, atol=2e-2)
    for theirs, ours in zip(cache, on_cuda[1:3], strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-2, atol=1e-2)


def test_kvcache_captured_in_a_graph() -> None:
    cache = [torch.randn(2, 64, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    q, *new = (torch.randn(2, 1, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (4, 2, 2))
    lengths = torch.tensor([5, 40], dtype=torch.int32, device="cuda")
    call = lambda: flash_attn_with_kvcache(q, *cache, *new, cache_seqlens=lengths, causal=True)  # noqa: E731
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for _ in range(3):
        lengths += 1
        graph.replay()
        assert torch.equal(out, call())
