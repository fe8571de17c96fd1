"""Plans: a kernel chosen once for shapes and options, then run many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from tilewise import _core
from tilewise._attention import Gradients, empty_out, gradient_arrays
from tilewise._options import Options, TensorOptions, demand_results, spelled_out, truth, with_parts
from tilewise._outputs import empty, finished, lse_dtype, lse_shape

if TYPE_CHECKING:
    from typing_extensions import Unpack

    Array = Any


class RunOptions(TensorOptions, total=False):
    """The options of a run: the arrays among the options of the plan, and those that may differ from the plan."""

    softmax_scale: Optional[float]
    dropout_seed: Optional[int]
    dropout_offset: Optional[int]
    parts: Optional[Array]


class _Plan:
    def __init__(self, plan: _core.Plan, accumulate: bool) -> None:
        self._plan = plan
        self._accumulate = accumulate

    @property
    def kernel(self) -> str:
        """Name of the kernel that was chosen."""
        return self._plan.kernel

    @property
    def reason(self) -> str:
        """One line: why this kernel, and why not those before it."""
        return self._plan.reason

    @property
    def workspace_bytes(self) -> int:
        """Bytes that each run needs. On the CPU the plan owns one workspace for each thread that runs it."""
        return self._plan.workspace_bytes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kernel}, {self.workspace_bytes} bytes>"


class ForwardPlan(_Plan):
    """Made by plan(). Many threads may run it at once; a run into `out` allocates nothing."""

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        out: Optional[Array] = None,
        lse: Optional[Array] = None,
        workspace: Optional[Array] = None,
        stream: Any = None,
        **options: Unpack[RunOptions],
    ) -> Array:
        """Runs it on arrays of the planned shapes and returns out, a new array if None.

        lse: if and only if the plan was made with return_lse. workspace: for CUDA arrays, one row of numbers of the
        device's memory, at least workspace_bytes of them; on the CPU the plan has its own. A plan that was made with
        accumulate needs `out` and `lse`, which hold the result so far.
        """
        if self._accumulate:
            demand_results(out=out, lse=lse)
        result = empty_out(q, v, None) if out is None else out
        _core.run_plan(self._plan, "plan", (q, k, v, result, lse), options, workspace, stream)
        return finished(q, result) if out is None else result


class BackwardPlan(_Plan):
    """Made by plan_backward(). Many threads may run it at once, each into gradients of its own."""

    def __call__(
        self,
        dout: Array,
        q: Array,
        k: Array,
        v: Array,
        out: Array,
        lse: Array,
        *,
        dlse: Optional[Array] = None,
        dq: Optional[Array] = None,
        dk: Optional[Array] = None,
        dv: Optional[Array] = None,
        dbias: Optional[Array] = None,
        dsink: Optional[Array] = None,
        dalibi_slopes: Optional[Array] = None,
        workspace: Optional[Array] = None,
        stream: Any = None,
        **options: Unpack[RunOptions],
    ) -> Gradients:
        """Runs it on arrays of the planned shapes, into the gradients that it was made for."""
        tensors = (dout, q, k, v, out, lse, dlse, dq, dk, dv, dbias, dsink, dalibi_slopes)
        _core.run_plan(self._plan, "plan", tensors, options, workspace, stream)
        return Gradients(dq, dk, dv, dbias, dsink, dalibi_slopes)


@spelled_out
def plan(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: bool = False,
    out_dtype: Any = None,
    accumulate: bool = False,
    parts: Optional[Array] = None,
    kernel: Optional[str] = None,
    cpu_target: Optional[str] = None,
    threads: Optional[int] = None,
    **options: Unpack[Options],
) -> ForwardPlan:
    """Chooses a kernel for arrays of these shapes and these options, and finds out what workspace it needs.

    Only shapes, dtypes and options count; no content is read. kernel, cpu_target: forced by name (tilewise.kernels()).
    Contents of cu_seqlens_q, cu_seqlens_k, seqused_k, slices and parts are clamped by a run, where attention() refuses
    them. accumulate, parts: as in attention_forward; runs are given parts of their own.
    """
    out = empty_out(q, v, out_dtype)
    lse = empty(q, lse_shape(q, options.get("layout")), lse_dtype(q)) if truth("return_lse", return_lse) else None
    given = with_parts(options, accumulate, parts)
    made = _core.make_plan(_core.FORWARD, "plan", (q, k, v, out, lse), given, kernel, cpu_target, threads)
    return ForwardPlan(made, "accumulate" in given)


@spelled_out
def plan_backward(
    q: Array,
    k: Array,
    v: Array,
    *,
    with_dlse: bool = False,
    want: Optional[tuple[str, ...]] = None,
    grad_dtype: Any = None,
    accumulate: bool = False,
    parts: Optional[Array] = None,
    kernel: Optional[str] = None,
    cpu_target: Optional[str] = None,
    threads: Optional[int] = None,
    **options: Unpack[Options],
) -> BackwardPlan:
    """plan() for the gradients. want: which, as attention_backward; with_dlse: runs will be given dlse.

    accumulate: runs add to the gradients, all float32 (float64 for float64 inputs).
    """
    out = empty_out(q, v, None)
    lse = empty(q, lse_shape(q, options.get("layout")), lse_dtype(q))
    gradients = gradient_arrays(q, k, v, options, want, grad_dtype, bool(accumulate))
    tensors = (out, q, k, v, out, lse, lse if truth("with_dlse", with_dlse) else None, *gradients.values())
    given = with_parts(options, accumulate, parts)
    made = _core.make_plan(_core.BACKWARD, "plan_backward", tensors, given, kernel, cpu_target, threads)
    return BackwardPlan(made, "accumulate" in given)
