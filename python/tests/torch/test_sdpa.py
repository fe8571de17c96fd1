"""enable_sdpa(): every call that F.scaled_dot_product_attention accepts gives PyTorch's result, and off means off."""

import itertools
from collections.abc import Callable

import pytest
import tilewise.torch
import torch
from tilewise.torch import _sdpa
from torch.nn.functional import scaled_dot_product_attention

OPERATORS = ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention_for_cpu")


@pytest.fixture
def enabled():  # noqa: ANN201
    with tilewise.torch.sdpa():
        yield


def counted(function):  # noqa: ANN001, ANN201
    """The result, and how often our operator ran."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
            self.count += operator is torch.ops.tilewise.attention_forward.default
            return operator(*args, **(kwargs or {}))

    with Counter() as counter:
        result = function()
    return result, counter.count


SHAPES = {  # q, k, v, keywords
    "self": ((2, 4, 9, 16), (2, 4, 9, 16), (2, 4, 9, 16), {}),
    "longer keys": ((2, 4, 5, 16), (2, 4, 12, 16), (2, 4, 12, 16), {}),
    "longer queries": ((2, 4, 12, 16), (2, 4, 5, 16), (2, 4, 5, 16), {}),
    "other value dim": ((2, 4, 9, 16), (2, 4, 9, 16), (2, 4, 9, 24), {}),
    "GQA": ((2, 4, 9, 16), (2, 2, 11, 16), (2, 2, 11, 16), {"enable_gqa": True}),
    "scale": ((2, 4, 9, 16), (2, 4, 9, 16), (2, 4, 9, 16), {"scale": 0.7}),
    "one head": ((3, 9, 16), (3, 11, 16), (3, 11, 16), {}),
}
MASKS = {
    "none": None,
    "causal": "causal",
    "bool": lambda q, k: torch.rand(q.shape[-2], k.shape[-2]) > 0.3,
    "bool with an empty row": lambda q, k: (torch.rand(q.shape[-2], k.shape[-2]) > 0.3).index_fill_(
        0, torch.tensor([1]), False
    ),
    "bool of keys": lambda q, k: (torch.rand(q.shape[0], *[1] * (q.dim() - 2), k.shape[-2]) > 0.3),
    "float": lambda q, k: torch.randn(*q.shape[:-1], k.shape[-2], dtype=q.dtype),
    "float, learned": lambda q, k: torch.randn(q.shape[-2], k.shape[-2], dtype=q.dtype, requires_grad=True),
    "float, -inf": lambda q, k: torch.randn(q.shape[-2], k.shape[-2], dtype=q.dtype).masked_fill(
        torch.rand(q.shape[-2], k.shape[-2]) > 0.5, float("-inf")
    ),
}
DTYPES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_result_and_gradients_are_pytorchs(shape: str, mask: str, dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(s, dtype=dtype, requires_grad=True) for s in SHAPES[shape][:3])
    keywords = dict(SHAPES[shape][3])
    if mask == "causal":
        keywords["is_causal"] = True
    elif mask != "none":
        keywords["attn_mask"] = MASKS[mask](q, k)
    leaves = [t for t in (q, k, v, keywords.get("attn_mask")) if t is not None and t.requires_grad]

    # Both approximate PyTorch's own formula in double precision.
    wide = {name: value.double() if torch.is_tensor(value) and value.is_floating_point() else value
            for name, value in keywords.items()}  # fmt: skip
    wanted = scaled_dot_product_attention(q.double(), k.double(), v.double(), **wide)
    with tilewise.torch.sdpa():
        found, runs = counted(lambda: scaled_dot_product_attention(q, k, v, **keywords))
    assert runs == 1
    assert found.dtype == dtype and found.shape == wanted.shape
    torch.testing.assert_close(found.double(), wanted, rtol=DTYPES[dtype], atol=DTYPES[dtype])
    dout = torch.randn_like(found)
    true = torch.autograd.grad(wanted, leaves, dout.double())
    for gradient, expected in zip(torch.autograd.grad(found, leaves, dout), true, strict=True):
        torch.testing.assert_close(
            gradient.double(), expected.double(), rtol=DTYPES[dtype], atol=4 * DTYPES[dtype] * expected.abs().max().item()
        )


def test_strides_are_the_querys(enabled: None) -> None:
    contiguous = torch.randn(2, 4, 9, 16)
    transposed = torch.randn(2, 9, 4, 16).transpose(1, 2)
    for q in (contiguous, transposed):
        assert scaled_dot_product_attention(q, q, q).stride() == q.stride()


def test_dropout(enabled: None) -> None:
    q = torch.ones(1, 2, 40, 16)
    v = torch.eye(40)[None, None].expand(1, 2, 40, 40)
    state = torch.get_rng_state()
    probs, runs = counted(lambda: scaled_dot_product_attention(q, q, v, dropout_p=0.25))
    assert runs == 1
    kept = probs > 0
    torch.testing.assert_close(probs[kept], torch.full_like(probs[kept], 1 / 40 / 0.75))
    assert 0.70 < kept.float().mean() < 0.80
    torch.set_rng_state(state)
    assert torch.equal(scaled_dot_product_attention(q, q, v, dropout_p=0.25), probs)


THEIRS = {
    "other batch": lambda q: scaled_dot_product_attention(q, q[:1], q[:1]),
    "empty": lambda q: scaled_dot_product_attention(q[:, :, :0], q, q),
    "five dimensions": lambda q: scaled_dot_product_attention(q[None], q[None], q[None]),
    "two dimensions": lambda q: scaled_dot_product_attention(q[0, 0], q[0, 0], q[0, 0]),
    "meta": lambda q: scaled_dot_product_attention(*(q.to("meta"),) * 3).shape,
    "vmap": lambda q: torch.func.vmap(lambda x: scaled_dot_product_attention(x, x, x))(q[None]),
    "grad of torch.func": lambda q: torch.func.grad(lambda x: scaled_dot_product_attention(x, x, x).sum())(q),
    "forward mode": lambda q: torch.func.jvp(
        lambda x: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)(scaled_dot_product_attention)(x, x, x),
        (q,), (q,),
    )[1],
    "math back end": lambda q: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)(
        scaled_dot_product_attention
    )(q, q, q),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("case", THEIRS)
def test_the_rest_goes_pytorchs_way_bit_for_bit(case: str) -> None:
    q = torch.randn(2, 4, 9, 16)
    wanted = THEIRS[case](q)
    with tilewise.torch.sdpa():
        found, runs = counted(lambda: THEIRS[case](q))
    assert runs == 0
    assert found == wanted if case == "meta" else torch.equal(found, wanted)


WRONG = {
    "heads": lambda q: scaled_dot_product_attention(q, q[:, :3], q[:, :3]),
    "mask shape": lambda q: scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(9, 8)),
    "mask dtype": lambda q: scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(9, 9, dtype=torch.int32)),
    "mask and causal": lambda q: scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(9, 9), is_causal=True),
    "dtypes": lambda q: scaled_dot_product_attention(q, q.double(), q),
    "dropout": lambda q: scaled_dot_product_attention(q, q, q, dropout_p=1.5),
}


def outcome(call: Callable[[], torch.Tensor]) -> torch.Tensor | tuple[type, str]:
    """The result, or the exception and the first line of its message."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  (whichever PyTorch raises)
        return type(error), str(error).splitlines()[0]


@pytest.mark.parametrize("case", WRONG)
def test_errors_are_pytorchs(case: str) -> None:
    q = torch.randn(2, 4, 9, 16)
    theirs = outcome(lambda: WRONG[case](q))
    with tilewise.torch.sdpa():
        ours = outcome(lambda: WRONG[case](q))
    if torch.is_tensor(theirs):
        assert case == "mask and causal"  # which PyTorch 2.10 takes on the CPU
        assert torch.equal(ours, theirs)
    else:
        assert ours == theirs


@pytest.mark.parametrize("scale", [float("inf"), float("-inf"), float("nan")])
def test_a_scale_that_is_not_finite_is_pytorchs(enabled: None, scale: float) -> None:
    q = torch.randn(1, 2, 8, 16)
    found, runs = counted(lambda: scaled_dot_product_attention(q, q, q, scale=scale))
    tilewise.torch.disable_sdpa()
    assert runs == 0
    torch.testing.assert_close(found, scaled_dot_product_attention(q, q, q, scale=scale), equal_nan=True)


def test_off_is_bit_for_bit_as_before(seed: int) -> None:
    def results() -> list[torch.Tensor]:
        torch.manual_seed(seed)
        collected = []
        for shape, mask in itertools.product(SHAPES.values(), ("none", "causal", "bool")):
            q, k, v = (torch.randn(s, requires_grad=True) for s in shape[:3])
            keywords = dict(shape[3])
            if mask == "causal":
                keywords["is_causal"] = True
            elif mask == "bool":
                keywords["attn_mask"] = MASKS[mask](q, k)
            out = scaled_dot_product_attention(q, k, v, **keywords)
            collected += [out, *torch.autograd.grad(out.sum(), (q, k, v))]
        return collected

    tables = [torch._C._dispatch_dump_table(name) for name in OPERATORS]
    before = results()
    tilewise.torch.enable_sdpa()
    tilewise.torch.enable_sdpa()
    assert tilewise.torch.sdpa_enabled()
    during = results()
    tilewise.torch.disable_sdpa()
    tilewise.torch.disable_sdpa()
    assert not tilewise.torch.sdpa_enabled()
    assert all(torch.equal(a, b) for a, b in zip(before, results(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before, during, strict=True))
    assert [torch._C._dispatch_dump_table(name) for name in OPERATORS] == tables


def test_context_manager_restores_what_it_found() -> None:
    with tilewise.torch.sdpa():
        with tilewise.torch.sdpa():
            pass
        assert tilewise.torch.sdpa_enabled()
    assert not tilewise.torch.sdpa_enabled()
    with pytest.raises(ZeroDivisionError), tilewise.torch.sdpa():
        raise ZeroDivisionError
    assert not tilewise.torch.sdpa_enabled()


def test_compiled_graphs_are_pytorchs(enabled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(1, 2, 8, 16)
    eager = scaled_dot_product_attention(q, q, q, is_causal=True)
    monkeypatch.setattr(_sdpa, "forward", None)  # calling it would raise
    compiled = torch.compile(
        lambda q: scaled_dot_product_attention(q, q, q, is_causal=True), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(q), eager, rtol=2e-5, atol=2e-5)


def test_modules_use_it(enabled: None) -> None:
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True).train()
    x = torch.randn(2, 7, 32)
    (found, _), runs = counted(lambda: layer(x, x, x, need_weights=False))
    assert runs == 1
    tilewise.torch.disable_sdpa()
    torch.testing.assert_close(found, layer(x, x, x, need_weights=False)[0], rtol=2e-5, atol=2e-5)


def test_autocast(enabled: None) -> None:
    q = torch.randn(1, 2, 8, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, runs = counted(lambda: scaled_dot_product_attention(q, q, q))
    assert runs == 1 and found.dtype == torch.bfloat16
