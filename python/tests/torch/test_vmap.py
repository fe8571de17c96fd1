"""torch.vmap over attention: index for index what each gives alone."""

import pytest
import torch
from tilewise.torch import _vmap, attention
from torch_cases import CASES, make_options

COUNT = 3
MAPPED = {
    "all": (0, 0, 0), "queries": (0, None, None), "keys": (None, 0, 0), "values": (None, None, 0), "inside": (2, 1, 3),
}  # fmt: skip


def inputs(batch: int, axes: tuple) -> list[torch.Tensor]:
    """q, k, v of the shapes that the cases name, with a mapped dimension where `axes` says."""
    shapes = [(batch, 11, 4, 24), (batch, 17, 2, 24), (batch, 17, 2, 16)]
    tensors = [torch.randn(shape if axis is None else (COUNT, *shape)) for shape, axis in zip(shapes, axes, strict=True)]
    return [t if axis is None else t.movedim(0, axis) for t, axis in zip(tensors, axes, strict=True)]


def of(tensors: list, axes: list, index: int) -> list:
    return [t if axis is None else t.select(axis, index) for t, axis in zip(tensors, axes, strict=True)]


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call, whether the problems were one with a larger batch."""
    seen = []
    real = _vmap._larger_batch

    def spy(*args: object) -> object:
        larger = real(*args)
        seen.append(larger is not None)
        return larger

    monkeypatch.setattr(_vmap, "_larger_batch", spy)
    return seen


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("own", [False, True], ids=["shared options", "own options"])
@pytest.mark.parametrize("axes", MAPPED.values(), ids=MAPPED)
@pytest.mark.parametrize("case", CASES)
def test_each_index_is_alone(case: str, axes: tuple, own: bool, batch: int) -> None:
    options = make_options({n: (batch if isinstance(x, tuple) and len(x) == 4 and x[0] == 3 else x[0], *x[1:])
                            if isinstance(x, tuple) and n in ("mask", "bias") else x
                            for n, x in CASES[case].items()}, torch.float32)  # fmt: skip
    if "alibi_slopes" in options and options["alibi_slopes"].dim() == 2:
        options["alibi_slopes"] = torch.rand(batch, 4)
    named = {name: value for name, value in options.items() if isinstance(value, torch.Tensor)}
    fixed = {name: value for name, value in options.items() if name not in named}
    if own:
        named = {name: torch.stack([value, value.roll(1, -1), value]) for name, value in named.items()}
    tensors = [*inputs(batch, axes), *named.values()]
    in_dims = [*axes, *[0 if own else None for _ in named]]

    def call(q, k, v, *rest):  # noqa: ANN001, ANN202
        return attention(q, k, v, **dict(zip(named, rest, strict=True)), **fixed, return_lse=True)

    mapped = torch.vmap(call, tuple(in_dims))(*tensors)
    for i in range(COUNT):
        for found, wanted in zip(mapped, call(*of(tensors, in_dims, i)), strict=True):
            torch.testing.assert_close(found[i], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("axes", MAPPED.values(), ids=MAPPED)
def test_gradients(axes: tuple, batch: int) -> None:
    tensors = [t.requires_grad_() for t in inputs(batch, axes)]
    bias, sink = torch.randn(4, 11, 17, requires_grad=True), torch.randn(4, requires_grad=True)
    weights = torch.randn(COUNT, batch, 11, 4, 16)

    def call(q, k, v):  # noqa: ANN001, ANN202
        return attention(q, k, v, causal=True, bias=bias, sink=sink)

    leaves = [*tensors, bias, sink]
    found = torch.autograd.grad((torch.vmap(call, axes)(*tensors) * weights).sum(), leaves)
    alone = torch.stack([call(*of(tensors, list(axes), i)) for i in range(COUNT)])
    for a, b in zip(found, torch.autograd.grad((alone * weights).sum(), leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("learned", [("q", "k", "v"), ("q",), ("bias", "sink"), ("k", "alibi_slopes")])
def test_several_gradients_of_one_result(learned: tuple[str, ...]) -> None:
    """is_grads_batched maps the backward operator."""
    tensors = {"q": (2, 5, 4, 8), "k": (2, 7, 2, 8), "v": (2, 7, 2, 8), "bias": (2, 4, 5, 7), "sink": (4,)}
    tensors["alibi_slopes"] = (4,)
    tensors = {name: torch.randn(shape, requires_grad=name in learned) for name, shape in tensors.items()}
    out = attention(**tensors, causal=True)
    leaves = [tensors[name] for name in learned]
    douts = torch.randn(COUNT, *out.shape)
    found = torch.autograd.grad(out, leaves, douts, is_grads_batched=True, retain_graph=True)
    for i in range(COUNT):
        for a, b in zip(found, torch.autograd.grad(out, leaves, douts[i], retain_graph=True), strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-5, atol=1e-5)


def test_what_runs_as_one_larger_batch(together: list[bool]) -> None:
    q, k = torch.randn(COUNT, 2, 5, 4, 8), torch.randn(COUNT, 2, 7, 2, 8)
    torch.vmap(lambda q, k: attention(q, k, k, causal=True, layout="bshd"))(q, k)
    torch.vmap(lambda q, k: attention(q, k, k, mask=torch.ones(5, 7, dtype=torch.bool)))(q, k)
    torch.vmap(lambda q: attention(q, k[0, :1], k[0, :1]))(q[:, :1])
    assert together == [True] * 3
    torch.vmap(lambda q: attention(q, k[0], k[0]))(q)  # two sequences of keys, which would be copied
    torch.vmap(lambda q: attention(q, q, q, dropout_p=0.5, dropout_seed=1))(q)
    assert together[3:] == [False] * 2


def test_packed_batches_slices_and_lengths() -> None:
    q, starts = torch.randn(COUNT, 9, 4, 8), torch.tensor([[0, 4, 9], [0, 9, 9], [0, 1, 9]])
    found = torch.vmap(lambda q, s: attention(q, q, q, cu_seqlens_q=s, cu_seqlens_k=s, causal=True))(q, starts)
    for i in range(COUNT):
        wanted = attention(q[i], q[i], q[i], cu_seqlens_q=starts[i], cu_seqlens_k=starts[i], causal=True)
        assert torch.equal(found[i], wanted)
    q, slices = torch.randn(COUNT, 2, 9, 4, 8), torch.tensor([[[0, 9, 0, 5, 0]], [[0, 9, 0, 9, 1]], [[2, 9, 1, 9, 2]]])
    used = torch.tensor([[3, 9], [0, 1], [9, 9]])
    lengths = {"seqused_q": used.flip(0), "seqused_k": used}
    for given in ({"slices": slices}, lengths, {"slices": slices, "seqused_k": used}):
        names = list(given)
        call = lambda q, *rest, n=names: attention(q, q, q, **dict(zip(n, rest, strict=True)))  # noqa: E731
        found = torch.vmap(call)(q, *given.values())
        for i in range(COUNT):
            own = {name: value[i] for name, value in given.items()}
            torch.testing.assert_close(found[i], attention(q[i], q[i], q[i], **own))
        shared = {name: value[0] for name, value in given.items()}
        found = torch.vmap(lambda q, s=shared: attention(q, q, q, **s))(q)
        for i in range(COUNT):
            torch.testing.assert_close(found[i], attention(q[i], q[i], q[i], **shared))


def test_of_vmap_without_gradients_and_head_major() -> None:
    q = torch.randn(2, COUNT, 2, 4, 5, 8)
    with torch.no_grad():
        found = torch.vmap(torch.vmap(lambda q: attention(q, q, q, layout="bhsd")), in_dims=1, out_dims=1)(q)
    for i in range(2):
        for j in range(COUNT):
            torch.testing.assert_close(found[i, j], attention(q[i, j], q[i, j], q[i, j], layout="bhsd"))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_dropout_draws_as_vmap_is_told(randomness: str) -> None:
    q = torch.randn(1, 16, 2, 8).expand(COUNT, 1, 16, 2, 8)
    found = torch.vmap(lambda q: attention(q, q, q, dropout_p=0.5), randomness=randomness)(q)
    assert torch.equal(found[0], found[1]) == (randomness == "same")
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(lambda q: attention(q, q, q, dropout_p=0.5))(q)
