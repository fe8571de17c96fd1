"""Attention over tokens that are divided between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

from tilewise import _core
from tilewise._attention import Gradients, empty_out, gradient_arrays
from tilewise._options import Options, spelled_out, truth
from tilewise._outputs import empty, finished, lse_dtype, lse_shape
from tilewise.distributed._group import TIMEOUT, Group, checked_timeout, group_of
from tilewise.distributed._token_plan import TokenPlan

if TYPE_CHECKING:
    from typing_extensions import Unpack

    Array = Any

_LENGTHS = "lengths of the ranks' shards"


@spelled_out
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    schedule: Optional[str] = None,
    token_plan: Optional[TokenPlan] = None,
    group: Any = None,
    q_len: Optional[int] = None,
    k_len: Optional[int] = None,
    timeout: float = TIMEOUT,
    out_dtype: Any = None,
    return_lse: bool = False,
    threads: Optional[int] = None,
    **options: Unpack[Options],
) -> Any:
    """softmax(scores) v over the tokens of all ranks, exactly: this rank's rows of the result. Collective.

    q (B, rows, H, D), k (B, keys, Hk, D), v (B, keys, Hk, Dv), or packed (rows, H, D): this rank's tokens of the whole,
    in the order of shard() and positions(). On the CPU, or tensors of PyTorch on a CUDA device for each rank: their
    messages go over NCCL while the rank computes on its current stream, and the call does not wait for the device.
    For tensors of PyTorch the result has gradients of q, k, v, bias and sink, and the backward pass is collective too:
    every rank has to run it.

    schedule: how the tokens were cut: "contiguous", "zigzag", "striped", or "automatic", what choose_schedule() says.
    token_plan: instead of a schedule, a TokenPlan, which has the mask. Tensors are packed or have B = 1, and have its
    tokens in the order of TokenPlan.dispatch() and positions(). Then options that describe a mask or depend on
    positions are refused: causal, window_size, slices, cu_seqlens, seqused, mask, bias, alibi_slopes, dropout_p.
    group: a process group or one-dimensional DeviceMesh of PyTorch (None: that of the token plan or the default
    group), or a communicator of mpi4py. Its first use makes connections of our own.
    q_len, k_len: tokens of the whole axes. None, on every rank alike: those of the token plan, or the sum of the
    shards, which takes one more exchange.
    timeout: seconds that an exchange may take.
    return_lse: also return the log-sum-exp, (B, H, rows) or (H, rows), with a gradient.
    threads: how many; None is all that the process may use, for tensors torch.get_num_threads().
    options: tilewise.Options, those of the whole, the same on every rank: cu_seqlens_q, cu_seqlens_k, seqused_q,
    seqused_k, alibi_slopes, sink. mask and bias have this rank's rows and all columns. dropout_seed None, for tensors:
    rank 0 draws it. Not slices without a token plan, page_table, phi and the scales of float8.

    Raises ValueError on every rank if the ranks' problems do not fit together, TypeError and NotImplementedError;
    RankError if a rank fails, RankTimeout if it does not answer in time. These name the rank, and the group cannot be
    used any more.
    """
    wants_lse = truth("return_lse", return_lse)
    call = Call(group, (schedule, token_plan), q_len, k_len, timeout, threads, {**options})
    if type(q).__module__.partition(".")[0] == "torch":
        from tilewise.distributed import _autograd

        out, lse = _autograd.attention(q, k, v, call, out_dtype)
    else:
        out, lse = call.forward(q, k, v, out_dtype=out_dtype)
    return (out, lse) if wants_lse else out


@spelled_out
def attention_forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    schedule: Optional[str] = None,
    token_plan: Optional[TokenPlan] = None,
    group: Any = None,
    q_len: Optional[int] = None,
    k_len: Optional[int] = None,
    timeout: float = TIMEOUT,
    out: Optional[Array] = None,
    lse: Optional[Array] = None,
    out_dtype: Any = None,
    threads: Optional[int] = None,
    **options: Unpack[Options],
) -> tuple[Array, Array]:
    """attention() for any array, without a graph: (out, lse), what attention_backward() needs. Collective.

    out, lse: where this rank's rows go; without them new arrays of q's framework.
    """
    call = Call(group, (schedule, token_plan), q_len, k_len, timeout, threads, {**options})
    return call.forward(q, k, v, out, lse, out_dtype)


@spelled_out
def attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    schedule: Optional[str] = None,
    token_plan: Optional[TokenPlan] = None,
    group: Any = None,
    q_len: Optional[int] = None,
    k_len: Optional[int] = None,
    timeout: float = TIMEOUT,
    dlse: Optional[Array] = None,
    want: Optional[Sequence[str]] = None,
    grad_dtype: Any = None,
    threads: Optional[int] = None,
    **options: Unpack[Options],
) -> Gradients:
    """The gradients of attention_forward(), whose out and lse it reads; the options must be the same. Collective.

    dq, dk and dv have this rank's tokens. dsink and dalibi_slopes are those of the whole, on every rank. dbias is
    float32 (float64 for float64 inputs), of this rank's rows; the bias must not broadcast over them.
    want: the names of gradients, the same on every rank; None is dq, dk, dv, and dbias and dsink if there is a bias and
    a sink. grad_dtype: of dq, dk and dv.
    """
    call = Call(group, (schedule, token_plan), q_len, k_len, timeout, threads, {**options})
    return call.backward(dout, q, k, v, out, lse, dlse, want, grad_dtype)


class Call:
    """What the two passes of one call have in common."""

    def __init__(
        self, group: Any, tokens: tuple[Optional[str], Optional[TokenPlan]], q_len: Optional[int],
        k_len: Optional[int], timeout: float, threads: Optional[int], options: dict[str, Any],
    ) -> None:  # fmt: skip
        """tokens: the schedule and the token plan, one of which says how the tokens were cut."""
        schedule, self._token_plan = tokens
        if schedule is None:
            if self._token_plan is None:
                raise TypeError("schedule: is missing, and so is a token_plan, which may be given instead")
            schedule = "balanced"
        if not isinstance(self._token_plan, (TokenPlan, type(None))):
            raise TypeError(f"token_plan: is {self._token_plan!r}, must be a TokenPlan")
        own = None if self._token_plan is None else self._token_plan.group
        self.group: Group = group_of(own if group is None else group)
        self.timeout = checked_timeout(timeout)
        self.options: Any = options
        self.threads = threads
        self._schedule = schedule
        self._lengths = (q_len, k_len)

    def forward(
        self, q: Any, k: Any, v: Any, out: Any = None, lse: Any = None, out_dtype: Any = None
    ) -> tuple[Any, Any]:
        """Returns out and lse, the arrays that are given or new ones."""

        def tensors() -> tuple[Any, ...]:
            result = empty_out(q, v, out_dtype) if out is None else out
            sums = empty(q, lse_shape(q, self.options.get("layout")), lse_dtype(q)) if lse is None else lse
            return q, k, v, result, sums

        made = self._run(_core.FORWARD, "attention_forward", q, k, tensors)
        return finished(q, made[3]), finished(q, made[4])

    def backward(
        self, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dlse: Any, want: Optional[Sequence[str]],
        grad_dtype: Any = None,
    ) -> Gradients:  # fmt: skip
        """Returns the gradients that `want` names."""

        def tensors() -> tuple[Any, ...]:
            results = gradient_arrays(q, k, v, self.options, want, grad_dtype)
            if results["dbias"] is not None:
                results["dbias"] = empty(q, self.options["bias"].shape, lse_dtype(q))
            return dout, q, k, v, out, lse, dlse, *results.values()

        made = self._run(_core.BACKWARD, "attention_backward", q, k, tensors)
        return Gradients(*(finished(q, array) for array in made[7:]))

    def _run(
        self, operation: int, caller: str, q: Any, k: Any, tensors: Callable[[], tuple[Any, ...]]
    ) -> tuple[Any, ...]:
        """Runs an operation. A rank that cannot even start takes part, so that no other one waits for it."""
        lengths = self._whole_lengths(q, k)
        engine, communicator = self.group.communicator(self.timeout)
        try:
            held = None if self._token_plan is None else self._token_plan.checked(self.group)
            made = tensors()
            stream = self._stream(q, communicator)
        except BaseException:
            _core.refuse_distributed(communicator, self.timeout)
            raise
        whole = (self._schedule, *lengths, self.timeout, held)
        try:
            _core.run_distributed(operation, caller, made, self.options, communicator, whole, stream, self.threads)
        except RuntimeError as error:
            status, _, message = str(error).partition(": ")
            if status not in ("TIMEOUT", "REMOTE_ERROR"):
                raise
            raise engine.error(message) from None
        return made

    def _stream(self, q: Any, communicator: Any) -> Any:
        """The current stream of a tensor's CUDA device, for whose memory the communicator is made ready."""
        if not getattr(q, "is_cuda", False):
            return None
        import torch

        self.group.use_device(communicator, q.device.index, self.timeout)
        return torch.cuda.current_stream(q.device)

    def _whole_lengths(self, q: Any, k: Any) -> tuple[int, int]:
        """The given lengths, or the sums of the shards."""
        q_len, k_len = self._lengths
        if q_len is not None and k_len is not None:
            return q_len, k_len
        if self._token_plan is not None:
            return q_len or 0, k_len or 0  # 0 stands for the plan's
        try:
            own = (_rows(q, self.options), _rows(k, self.options))
        except (AttributeError, IndexError, TypeError):
            own = (-1, -1)  # is refused below, by this rank and with a better message
        gathered = self.group.gather(own, self.timeout, _LENGTHS)
        sums = [sum(max(row[side], 0) for row in gathered) for side in (0, 1)]
        lengths = (sums[0] if q_len is None else q_len, sums[1] if k_len is None else k_len)
        self._lengths = lengths
        return lengths


def _rows(x: Any, options: dict[str, Any]) -> int:
    if len(x.shape) == 3:
        return x.shape[0]
    return x.shape[2 if options.get("layout") == "bhsd" else 1]
