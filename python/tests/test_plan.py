"""Plans: the choice of a kernel, and runs."""

import numpy as np
import pytest
from cases import OPTIONS, add_option, options_of, tensors

import tilewise

ARRAYS = ("mask", "bias", "alibi_slopes", "sink", "seqused_q", "seqused_k", "slices")


@pytest.mark.parametrize("option", OPTIONS)
def test_plan_gives_the_same_bits(option: str, rng: np.random.Generator) -> None:
    case = tensors(rng, "float32")
    add_option(case, option, rng)
    q, k, v, dout = (case[name] for name in ("q", "k", "v", "dout"))
    options = options_of(case)
    arrays = {name: options[name] for name in ARRAYS if name in options}
    out, lse = tilewise.attention_forward(q, k, v, **options)

    plan = tilewise.plan(q, k, v, return_lse=True, **options)
    planned_lse = np.empty_like(lse)
    assert np.array_equal(plan(q, k, v, lse=planned_lse, **arrays), out)
    assert np.array_equal(planned_lse, lse)

    made = tilewise.attention_backward(dout, q, k, v, out, lse, dlse=case.get("dlse"), **options)
    backward = tilewise.plan_backward(q, k, v, with_dlse="dlse" in case, **options)
    given = {name: np.full_like(g, np.nan) for name, g in made._asdict().items() if g is not None}
    backward(dout, q, k, v, out, lse, dlse=case.get("dlse"), **given, **arrays)
    for name, gradient in given.items():
        assert np.array_equal(gradient, getattr(made, name)), name


def test_every_kernel_by_name(rng: np.random.Generator) -> None:
    case = tensors(rng, "float32")
    q, k, v = case["q"], case["k"], case["v"]
    expected = tilewise.attention(q, k, v)
    ran = []
    for name in tilewise.kernels():
        try:
            plan = tilewise.plan(q, k, v, kernel=name)
        except NotImplementedError as error:
            assert str(error)
            continue
        assert plan.kernel == name and name in plan.reason and name in repr(plan)
        np.testing.assert_allclose(plan(q, k, v), expected, atol=2e-5)
        ran.append(name)
    assert "three_pass" in ran and "three_pass" in tilewise.kernels(backward=True)


def test_scale_and_seed_may_differ_from_the_plan(rng: np.random.Generator) -> None:
    case = tensors(rng, "float32")
    q, k, v = case["q"], case["k"], case["v"]
    plan = tilewise.plan(q, k, v, dropout_p=0.5, dropout_seed=1)
    again = tilewise.attention(q, k, v, dropout_p=0.5, dropout_seed=2, softmax_scale=0.5)
    assert np.array_equal(plan(q, k, v, dropout_seed=2, softmax_scale=0.5), again)
    with pytest.raises(ValueError, match="causal"):
        plan(q, k, v, causal=True)


def test_other_shapes_are_refused(rng: np.random.Generator) -> None:
    case = tensors(rng, "float32")
    q, k, v = case["q"], case["k"], case["v"]
    plan = tilewise.plan(q, k, v)
    with pytest.raises(ValueError, match="k"):
        plan(q, k[:, :-1], v[:, :-1])
    with pytest.raises(ValueError, match="lse"):
        plan(q, k, v, lse=np.empty((2, 4, 33), np.float32))


def test_workspace_of_the_caller(rng: np.random.Generator) -> None:
    case = tensors(rng, "float32")
    q, k, v = case["q"], case["k"], case["v"]
    plan = tilewise.plan(q, k, v)
    raw = np.full(plan.workspace_bytes // 4 + 32, np.nan, np.float32)
    start = -raw.ctypes.data % 64 // 4
    workspace = raw[start : start + (plan.workspace_bytes + 3) // 4]
    assert np.array_equal(plan(q, k, v, workspace=workspace), tilewise.attention(q, k, v))
    assert np.array_equal(plan(q, k, v, workspace=workspace.view(np.uint8)), tilewise.attention(q, k, v))
    with pytest.raises(ValueError, match="workspace"):
        plan(q, k, v, workspace=workspace[:10])
    with pytest.raises(ValueError, match="workspace: must be one contiguous row"):
        plan(q, k, v, workspace=raw[::2])


def test_threads_of_a_plan(rng: np.random.Generator) -> None:
    case = tensors(rng, "float32")
    q, k, v = case["q"], case["k"], case["v"]
    one, four = (tilewise.plan(q, k, v, threads=n) for n in (1, 4))
    assert one.workspace_bytes < four.workspace_bytes
    assert np.array_equal(one(q, k, v), four(q, k, v))
