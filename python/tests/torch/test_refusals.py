"""Tests that the operators refuse what they cannot do, by messages that name it."""

import contextlib

import pytest
import torch
from tilewise.torch import attention

FORWARD = torch.ops.tilewise.attention_forward.default
BACKWARD = torch.ops.tilewise.attention_backward.default
BACKWARD_SLOPES = torch.ops.tilewise.attention_backward_slopes.default


def make(*shape: int, grad: bool = True) -> torch.Tensor:
    return torch.randn(shape, requires_grad=grad)


def no_tensors() -> list[None]:
    return [None] * 9


@contextlib.contextmanager
def refused(error: type[Exception], *words: str):  # noqa: ANN201
    with pytest.raises(error) as caught:
        yield
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_double_backward_is_refused() -> None:
    q = make(1, 5, 2, 8)
    (gradient,) = torch.autograd.grad(attention(q, q, q).square().sum(), q, create_graph=True)
    with refused(NotImplementedError, "tilewise", "differentiated twice", "create_graph"):
        gradient.sum().backward()


def test_forward_mode_is_refused() -> None:
    q = make(1, 5, 2, 8, grad=False)
    with refused(NotImplementedError, "tilewise", "jvp"):
        torch.func.jvp(lambda q: attention(q, q, q), (q,), (q,))
    for context in (torch.enable_grad, torch.no_grad):
        with context(), torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q, q)
            with refused(NotImplementedError, "tilewise", "jvp"):
                attention(q, dual, q)
            assert torch.equal(attention(q, q, q), attention(q, q, q, causal=False))


def test_gradients_of_torch_func_are_refused() -> None:
    q = make(1, 5, 2, 8, grad=False)
    with refused(NotImplementedError, "tilewise", "torch.func.grad", "torch.autograd.grad"):
        torch.func.grad(lambda q: attention(q, q, q).sum())(q)


BAD = {
    "k: head dimension is 16": lambda q: attention(q, q.repeat(1, 1, 1, 2), q),
    "v": lambda q: attention(q, q, q[:, :3]),
    "k": lambda q: attention(q, q.double(), q),
    "q: has 2 dimensions": lambda q: attention(q[0, 0], q, q),
    "k: has 2 dimensions": lambda q: attention(q, q[0, 0], q),
    "q: has 5 dimensions": lambda q: attention(q[None], q, q),
    "q: this dtype is not supported, must be float64": lambda q: attention(q.to(torch.int8), q, q),
    "or float8_e5m2": lambda q: attention(q.to(torch.float8_e5m2fnuz), q, q),
    "k: this dtype is not supported, must be float64, float32": lambda q: attention(q, *[q.to(torch.int8)] * 2),
    "v: dtype is fp32, must be e4m3": lambda q: attention(q, q.to(torch.float8_e4m3fn), q),
    "mask: this dtype is not supported, must be bool, or uint8": lambda q: attention(q, q, q, mask=q[0, :, 0].char()),
    "sink: this dtype is not supported, must be float32": lambda q: attention(q, q, q, sink=q[0, 0, :, 0].byte()),
    "softmax_scale: is nan, must be finite": lambda q: attention(q, q, q, softmax_scale=float("nan")),
    "softmax_scale: is inf, must be finite; None": lambda q: attention(q, q, q, softmax_scale=float("inf")),
    "softmax_scale: is -inf": lambda q: FORWARD(q, q, q, *no_tensors(), softmax_scale=-float("inf")),
    "dropout_p: is nan": lambda q: attention(q, q, q, dropout_p=float("nan")),
    "dropout_p: is -0.5": lambda q: attention(q, q, q, dropout_p=-0.5),
    "softcap": lambda q: attention(q, q, q, softcap=-1.0),
    "dropout_p": lambda q: attention(q, q, q, dropout_p=1.0),
    "mask": lambda q: attention(q, q, q, mask=torch.ones(3, 5)),
    "bias": lambda q: attention(q, q, q, bias=torch.ones(3, 5)),
    "alibi_slopes": lambda q: attention(q, q, q, alibi_slopes=torch.ones(2, dtype=torch.float64)),
    "sink": lambda q: attention(q, q, q, sink=torch.ones(3)),
    "cu_seqlens_q": lambda q: attention(q[0], q, q),
    "slices": lambda q: attention(q, q, q, causal=True, slices=torch.zeros(1, 5, dtype=torch.int64)),
    "dropout_state": lambda q: FORWARD(q, q, q, *no_tensors(), dropout_p=0.5),
    "gradients": lambda q: BACKWARD(q, None, q, q, q, q, q[..., 0], *no_tensors(), gradients=8),
    "gradients: dalibi_slopes": lambda q: BACKWARD_SLOPES(
        q, None, q, q, q, q, q[..., 0], *no_tensors(), gradients=32
    ),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_names_the_argument(words: str) -> None:
    with refused(RuntimeError, words):
        BAD[words](make(1, 5, 2, 8, grad=False))


MEANINGLESS = [
    (ValueError, "alignment: is 'middle'", {"alignment": "middle"}),
    (ValueError, "layout: is 'sbhd'", {"layout": "sbhd"}),
    (ValueError, "out_dtype: is torch.int8", {"out_dtype": torch.int8}),
    (ValueError, "window_size: is (-2, 0), must be a pair", {"window_size": (-2, 0)}),
    (TypeError, "window_size: is (1.5, 0), must be a pair", {"window_size": (1.5, 0)}),
    (TypeError, "window_size: is (1, 0, 2), must be a pair", {"window_size": (1, 0, 2)}),
    (TypeError, "window_size: is 3, must be a pair", {"window_size": 3}),
    (ValueError, "max_seqlen_q: is -1, must be 0 or more", {"max_seqlen_q": -1}),
    (ValueError, "max_seqlen_k: is -1, must be 0 or more", {"max_seqlen_k": -1}),
    (TypeError, "causal: is 'no', must be True or False", {"causal": "no"}),
    (TypeError, "causal: is 2, must be True or False", {"causal": 2}),
    (TypeError, "return_lse: is 'no', must be True or False", {"return_lse": "no"}),
    (ValueError, "dropout_seed: is -1, must be an integer from 0", {"dropout_p": 0.5, "dropout_seed": -1}),
    (ValueError, "dropout_offset: is 4294967296", {"dropout_p": 0.5, "dropout_seed": 1, "dropout_offset": 2**32}),
    (TypeError, "interpreted as an integer", {"dropout_p": 0.5, "dropout_seed": 1.5}),
]


@pytest.mark.parametrize(("error", "words", "option"), MEANINGLESS, ids=[words for _, words, _ in MEANINGLESS])
def test_a_value_that_an_option_does_not_have(error: type[Exception], words: str, option: dict) -> None:
    q = make(1, 5, 2, 8, grad=False)
    with refused(error, words):
        attention(q, q, q, **option)


def test_other_spellings_of_an_option() -> None:
    q, shown = make(1, 5, 2, 8, grad=False), torch.rand(5, 5) < 0.6
    assert torch.equal(attention(q, q, q, mask=shown.byte()), attention(q, q, q, mask=shown))
    assert torch.equal(attention(q, q, q, mask=255 * shown.byte()), attention(q, q, q, mask=shown))
    assert torch.equal(attention(q, q, q, window_size=[2, None]), attention(q, q, q, window_size=(2, -1)))
    assert torch.equal(attention(q, q, q, window_size=None), attention(q, q, q))
    for causal in (1, torch.tensor(True), torch.tensor(1)):
        assert torch.equal(attention(q, q, q, causal=causal), attention(q, q, q, causal=True))


def test_a_device_that_is_not_ours() -> None:
    q = make(1, 5, 2, 8, grad=False)
    with pytest.raises((RuntimeError, NotImplementedError)):
        attention(q, q.to("meta"), q)
    assert attention(q.to("meta"), q.to("meta"), q.to("meta")).shape == q.shape


def test_an_old_pytorch_is_told_what_to_do() -> None:
    from tilewise.torch import _load

    with refused(ImportError, "2.9.1", "2.10", "pip install"):
        _load._check_version("2.9.1+cpu")
    _load._check_version("2.10.0a0+git1234")
    _load._check_version("3.0.1")


def test_a_missing_library_is_told_what_to_do(tmp_path) -> None:  # noqa: ANN001
    from tilewise.torch import _load

    with refused(ImportError, "_operators.so", "pip install"):
        _load._open(tmp_path / "_operators.so")
