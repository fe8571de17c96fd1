"""Tests what PyTorch requires of an operator: schema, tracing, strides, autograd, autocast, compile."""

import pytest
import torch
from tilewise.torch import attention
from torch._C import parse_schema
from torch._subclasses.fake_tensor import FakeTensorMode

FORWARD = torch.ops.tilewise.attention_forward.default
BACKWARD = torch.ops.tilewise.attention_backward.default
BACKWARD_SLOPES = torch.ops.tilewise.attention_backward_slopes.default

# These are frozen: an operator that a saved graph calls must keep its meaning. New arguments go to the end, with
# defaults.
TENSORS = (
    "Tensor? mask, Tensor? bias, Tensor? alibi_slopes, Tensor? sink, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "Tensor? seqused_k, Tensor? slices, Tensor? dropout_state"
)
OPTIONS = (
    "float? softmax_scale=None, bool causal=False, int window_left=-1, int window_right=-1, bool top_left=False, "
    "float softcap=0., float dropout_p=0., int max_seqlen_q=-1, int max_seqlen_k=-1, bool bhsd=False, "
    "bool deterministic=False, bool batch_invariant=False"
)
GIVEN = (
    f"Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {TENSORS}, {OPTIONS}, "
    "int gradients=7, Tensor? seqused_q=None"
)
GRADIENTS = "Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsink"
SCHEMAS = {
    FORWARD: f"tilewise::attention_forward(Tensor q, Tensor k, Tensor v, {TENSORS}, {OPTIONS}, bool out_fp32=False, "
    "Tensor? seqused_q=None, Tensor? page_table=None, Tensor? q_descale=None, Tensor? k_descale=None, "
    "Tensor? v_descale=None) "
    "-> (Tensor out, Tensor lse)",
    BACKWARD: f"tilewise::attention_backward({GIVEN}) -> ({GRADIENTS})",
    BACKWARD_SLOPES: f"tilewise::attention_backward_slopes({GIVEN}) -> ({GRADIENTS}, Tensor dalibi_slopes)",
}


def make(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=grad)


def no_tensors(**present: torch.Tensor) -> list[torch.Tensor | None]:
    names = [argument.name for argument in FORWARD._schema.arguments[3:12]]
    return [present.get(name) for name in names]


@pytest.mark.parametrize("operator", SCHEMAS, ids=str)
def test_schema_is_backward_compatible(operator: torch._ops.OpOverload) -> None:
    assert operator._schema.is_backward_compatible_with(parse_schema(SCHEMAS[operator]))


def test_schema_test_notices_a_change() -> None:
    changed = SCHEMAS[FORWARD].replace("bool causal", "int causal")
    assert not FORWARD._schema.is_backward_compatible_with(parse_schema(changed))


SAMPLES = {
    "bshd": lambda: ((make(2, 5, 4, 8), make(2, 7, 2, 8), make(2, 7, 2, 16), *no_tensors()), {"causal": True}),
    "bhsd": lambda: ((make(2, 4, 5, 8), make(2, 2, 7, 8), make(2, 2, 7, 8), *no_tensors()), {"bhsd": True}),
    "transposed": lambda: (
        (*(make(2, 5, 4, 8).transpose(1, 2).detach().requires_grad_() for _ in range(3)), *no_tensors()),
        {"bhsd": True, "softmax_scale": 0.5},
    ),
    "bias and sink": lambda: (
        (
            *(make(2, 5, 2, 8) for _ in range(3)),
            *no_tensors(bias=make(1, 2, 5, 5), sink=make(2), mask=torch.rand(5, 5) > 0.2),
        ),
        {},
    ),
    "slopes": lambda: (
        (*(make(2, 5, 2, 8) for _ in range(3)), *no_tensors(alibi_slopes=torch.rand(2, requires_grad=True))), {}
    ),
    "packed": lambda: (
        (
            *(make(9, 2, 8) for _ in range(3)),
            *no_tensors(cu_seqlens_q=torch.tensor([0, 4, 9]), cu_seqlens_k=torch.tensor([0, 4, 9])),
        ),
        {"causal": True, "max_seqlen_q": 5, "max_seqlen_k": 5},
    ),
    "dropout": lambda: (
        (*(make(1, 6, 2, 8) for _ in range(3)), *no_tensors(dropout_state=torch.tensor([7, 1]))),
        {"dropout_p": 0.25},
    ),
    "bf16 to fp32": lambda: (
        (*(make(1, 6, 2, 8, dtype=torch.bfloat16, grad=False) for _ in range(3)), *no_tensors()),
        {"out_fp32": True},
    ),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_opcheck_forward(sample: str) -> None:
    args, kwargs = SAMPLES[sample]()
    torch.library.opcheck(FORWARD, args, kwargs)


@pytest.mark.parametrize("sample", [name for name in SAMPLES if name != "bf16 to fp32"])
def test_opcheck_backward(sample: str) -> None:
    args, kwargs = SAMPLES[sample]()
    args = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
    out, lse = FORWARD(*args, **kwargs)
    kwargs["gradients"] = {"bias and sink": 31, "slopes": 39}.get(sample, 5)
    operator = BACKWARD_SLOPES if sample == "slopes" else BACKWARD
    torch.library.opcheck(operator, (torch.randn_like(out), torch.randn_like(lse), *args[:3], out, lse, *args[3:]), kwargs)


def layouts() -> dict[str, list[torch.Tensor]]:
    """q, k, v (B, S, H, D) whose memory lies in many ways."""
    dense = [make(2, 6, 4, 8, grad=False) for _ in range(3)]
    packed = make(2, 6, 3, 4, 8, grad=False)
    return {
        "dense": dense,
        "transposed": [make(2, 4, 6, 8, grad=False).transpose(1, 2) for _ in range(3)],
        "views of one": list(packed.unbind(2)),
        "expanded": [dense[0], *(make(2, 6, 1, 8, grad=False).expand(2, 6, 4, 8) for _ in range(2))],
        "rows not dense": [make(2, 6, 8, 4, grad=False).transpose(2, 3) for _ in range(3)],
        "batch inside": [make(6, 2, 4, 8, grad=False).transpose(0, 1) for _ in range(3)],
        "one row": [make(2, 1, 4, 8, grad=False) for _ in range(3)],
    }


@pytest.mark.parametrize("name", layouts())
def test_fake_strides_are_the_real_ones(name: str) -> None:
    q, k, v = layouts()[name]
    real = FORWARD(q, k, v, *no_tensors())
    dout = torch.randn(2, 4, q.shape[1], 8).transpose(1, 2)
    slopes = torch.rand(q.shape[2])
    with_slopes = (dout, None, q, k, v, *real, *no_tensors(alibi_slopes=slopes))
    real += BACKWARD(dout, None, q, k, v, *real, *no_tensors()) + BACKWARD_SLOPES(*with_slopes, gradients=33)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in (q, k, v, dout)]
        fake = FORWARD(*fakes[:3], *no_tensors())
        with_slopes = (fakes[3], None, *fakes[:3], *fake, *no_tensors(alibi_slopes=mode.from_tensor(slopes)))
        fake += BACKWARD(fakes[3], None, *fakes[:3], *fake, *no_tensors())
        fake += BACKWARD_SLOPES(*with_slopes, gradients=33)
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


@pytest.mark.parametrize("options", [{}, {"causal": True, "softcap": 3.0}, {"window_size": (2, 1)}], ids=str)
def test_gradcheck(options: dict) -> None:
    tensors = [make(1, 4, 4, 3, dtype=torch.float64), make(1, 5, 2, 3, dtype=torch.float64)]
    tensors += [make(1, 5, 2, 2, dtype=torch.float64), make(4, 4, 5, dtype=torch.float64)]
    sink = make(4, dtype=torch.float32, grad=False)

    def function(q, k, v, bias):  # noqa: ANN001, ANN202
        return attention(q, k, v, bias=bias, sink=sink, return_lse=True, **options)

    assert torch.autograd.gradcheck(function, tensors)


def test_compile_without_a_graph_break_and_with_dynamic_shapes() -> None:
    def step(q, k, v, bias, slopes):  # noqa: ANN001, ANN202
        out, lse = attention(
            q * 2, k, v, causal=True, window_size=(9, -1), bias=bias, alibi_slopes=slopes, return_lse=True
        )
        return out.sum() + lse.mean()

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    counted = torch.compile(step, fullgraph=True, dynamic=True, backend=counter)
    for length in (8, 12, 33):
        tensors = [make(2, length, h, 16) for h in (4, 2, 2)] + [make(4, length, length)]
        tensors.append(torch.rand(4, requires_grad=True))
        for function in (compiled, counted):
            wanted = torch.autograd.grad(step(*tensors), tensors)
            found = torch.autograd.grad(function(*tensors), tensors)
            for a, b in zip(found, wanted, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert counter.frame_count == 1  # one graph for every length


def test_compile_with_dropout_draws_anew() -> None:
    q = make(1, 64, 2, 16, grad=False)
    compiled = torch.compile(lambda q: attention(q, q, q, dropout_p=0.5), fullgraph=True, backend="aot_eager")
    assert not torch.equal(compiled(q), compiled(q))


def test_dropout_follows_manual_seed() -> None:
    q = make(1, 16, 2, 16, grad=False)
    results = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        results.append(attention(q, q, q, dropout_p=0.5))
    assert torch.equal(results[0], results[2]) and not torch.equal(results[0], results[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype: torch.dtype) -> None:
    q, k, v = make(2, 9, 4, 16), make(2, 9, 2, 16), make(2, 9, 2, 16).double()
    slopes = torch.rand(4)
    with torch.autocast("cpu", dtype=dtype):
        out = attention(q, k, v.float(), alibi_slopes=slopes)
        again = FORWARD(q, k, v.float(), *no_tensors(alibi_slopes=slopes))[0]
        assert attention(v, v, v).dtype == torch.float64
    assert out.dtype == dtype and torch.equal(out, again)
    assert torch.equal(out, attention(q.to(dtype), k.to(dtype), v.to(dtype), alibi_slopes=slopes))
    out.float().sum().backward()
    assert q.grad is not None and q.grad.dtype == torch.float32


def test_deterministic_mode() -> None:
    q = make(2, 65, 4, 32)
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(True)
        results = [torch.autograd.grad(attention(q, q, q, causal=True).sum(), q)[0] for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(before)
    assert all(torch.equal(results[0], other) for other in results)


def test_only_the_bias_requires_a_gradient() -> None:
    q, k, v = (make(1, 5, 2, 8, grad=False) for _ in range(3))
    bias = make(2, 5, 5)
    out = attention(q, k, v, bias=bias)
    out.sum().backward()
    assert bias.grad.shape == bias.shape and torch.isfinite(bias.grad).all()


def test_only_lse_is_used() -> None:
    q, k, v = (make(1, 5, 2, 8) for _ in range(3))
    _, lse = attention(q, k, v, return_lse=True)
    lse.sum().backward()
    assert q.grad.abs().sum() > 0 and torch.equal(v.grad, torch.zeros_like(v))


def test_checkpoint() -> None:
    q = make(1, 12, 2, 8)
    plain = torch.autograd.grad(attention(q, q, q, causal=True).sum(), q)[0]
    out = torch.utils.checkpoint.checkpoint(lambda q: attention(q, q, q, causal=True), q, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(out.sum(), q)[0], plain)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=["out", "lse", "both"])
def test_eager_and_operator_have_the_same_gradients(used: tuple[int, ...]) -> None:
    """Two ways to one formula: what attention() takes in eager calls, and what graphs and callers of the operator do."""
    tensors = [make(2, 7, 4, 8), make(2, 9, 2, 8), make(2, 9, 2, 16)]
    bias, sink, mask = make(4, 7, 9), make(4), torch.rand(7, 9) > 0.2
    results = (
        attention(*tensors, bias=bias, sink=sink, mask=mask, softcap=2.0, return_lse=True),
        FORWARD(*tensors, *no_tensors(bias=bias, sink=sink, mask=mask), softcap=2.0),
    )
    weights = [torch.randn_like(results[0][i]) for i in used]
    eager, operator = (
        torch.autograd.grad([result[i] for i in used], [*tensors, bias, sink], weights) for result in results
    )
    assert all(torch.equal(a, b) for a, b in zip(eager, operator, strict=True))


@pytest.mark.parametrize("shape", [(4,), (2, 4)], ids=["shared", "per sequence"])
def test_gradient_of_slopes(shape: tuple[int, ...]) -> None:
    """By the finite differences of attention, by the operator, and alone."""
    q, k, v = make(2, 7, 4, 8, grad=False), make(2, 9, 2, 8, grad=False), make(2, 9, 2, 8, grad=False)
    q, k, v = q.double(), k.double(), v.double()
    slopes = torch.rand(shape, requires_grad=True)
    weights = torch.randn(2, 7, 4, 8, dtype=torch.float64)

    def loss(slopes: torch.Tensor, function=attention) -> torch.Tensor:  # noqa: ANN001
        if function is attention:
            return (attention(q, k, v, alibi_slopes=slopes, causal=True) * weights).sum()
        return (function(q, k, v, *no_tensors(alibi_slopes=slopes), causal=True)[0] * weights).sum()

    (gradient,) = torch.autograd.grad(loss(slopes), slopes)
    assert gradient.shape == slopes.shape and gradient.dtype == torch.float32
    (of_operator,) = torch.autograd.grad(loss(slopes, FORWARD), slopes)
    assert torch.equal(of_operator, gradient)
    step = 2.0**-8  # exact in fp32, as is the rest of the slope
    with torch.no_grad():
        base = (slopes * 256).round() / 256
    base.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(base), base)
    for i in range(base.numel()):
        moved = [base.detach().clone() for _ in range(4)]
        for other, steps in zip(moved, (2, 1, -1, -2), strict=True):
            other.view(-1)[i] += steps * step
        far, near, nearer, farthest = (loss(x).item() for x in moved)
        difference = (-far + 8 * near - 8 * nearer + farthest) / (12 * step)
        assert abs(difference - gradient.view(-1)[i].item()) < 1e-5 * max(1, abs(difference))


def test_without_gradients_the_result_has_none() -> None:
    q = make(1, 5, 2, 8)
    wanted = attention(q, q, q)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            found = attention(q, q, q)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert attention(q, q, q).dtype == torch.bfloat16
        assert not found.requires_grad and torch.equal(found, wanted)
    with torch.no_grad():
        compiled = torch.compile(lambda q: attention(q, q, q), fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(q), wanted)
