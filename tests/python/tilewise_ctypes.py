"""The C interface of libtilewise.so by ctypes: structs, plans, and runs on numpy arrays."""
import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p

import numpy as np


def run_seed():
    """The seed of this run: fixed, unless TILEWISE_TEST_SEED is a number or "random" (tests/support/seed.h)."""
    given = os.environ.get("TILEWISE_TEST_SEED") or "1"
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if given == "random" else int(given)
    print(f"TILEWISE_TEST_SEED={seed}")
    return seed


FORWARD, BACKWARD = 0, 1
BSHD, BHSD = 0, 1
BOTTOM_RIGHT, TOP_LEFT = 0, 1
DTYPES = {"float64": 1, "float32": 2, "bfloat16": 3, "float16": 4, "int32": 5, "int64": 6, "bool": 7, "float8_e4m3fn": 8,
          "float8_e5m2": 9}
TENSORS = ("q", "k", "v", "out", "lse", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "slices", "mask", "bias",
           "alibi_slopes", "sink", "dout", "dlse", "dq", "dk", "dv", "dbias", "dsink",
           "seqused_q", "dalibi_slopes", "parts", "phi", "phi_fallbacks", "page_table",
           "q_descale", "k_descale", "v_descale")
LAST = TENSORS.index("parts")  # the tensors before it come before `accumulate`


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int32), ("rank", c_int32), ("device", c_int32),
                ("device_index", c_int32), ("shape", c_int64 * 4), ("strides", c_int64 * 4)]


class ScoreFunction(ctypes.Structure):
    _fields_ = [("forward", c_void_p), ("backward", c_void_p), ("user_data", c_void_p), ("reserved", c_int64)]


class Problem(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("layout", c_int32), ("causal", c_int32), ("alignment", c_int32),
                ("deterministic", c_int32), ("batch_invariant", c_int32), ("reserved", c_int32),
                ("window_left", c_int64), ("window_right", c_int64), ("softmax_scale", c_double),
                ("softcap", c_double), ("dropout_p", c_double), ("dropout_seed", c_uint64),
                ("dropout_offset", c_uint64), ("max_seqlen_q", c_int64), ("max_seqlen_k", c_int64),
                ] + [(name, Tensor) for name in TENSORS[:LAST]] + [
                ("accumulate", c_int32), ("reserved2", c_int32)] + [(name, Tensor) for name in TENSORS[LAST:]] + [
                ("score_function", ScoreFunction)]


class PlanOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("kernel", c_char_p), ("cpu_target", c_char_p),
                ("max_concurrency", c_int32), ("reserved", c_int32)]


class Executor(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("max_concurrency", c_int32), ("reserved", c_int32),
                ("parallel_for", c_void_p), ("self", c_void_p), ("stream", c_void_p)]


class TilewiseError(Exception):
    """A status other than OK: `status`, and the library's line as the message."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Library:
    def __init__(self, path):
        self._lib = ctypes.CDLL(path)
        for name in ("last_error", "kernel_name", "plan_kernel", "version"):
            getattr(self._lib, "tilewise_" + name).restype = c_char_p
        self._lib.tilewise_plan_destroy.argtypes = [c_void_p]
        self._lib.tilewise_plan_workspace.argtypes = [c_void_p, POINTER(c_size_t), POINTER(c_size_t)]
        self._lib.tilewise_plan_run.argtypes = [c_void_p, POINTER(Problem), c_void_p, c_size_t, c_void_p]
        self._lib.tilewise_pool_destroy.argtypes = [c_void_p]
        self._lib.tilewise_pool_executor.argtypes = [c_void_p, POINTER(Executor)]
        for name in ("forward", "backward"):
            getattr(self._lib, "tilewise_" + name).argtypes = [POINTER(Problem), c_void_p]
        if self.problem().struct_size != ctypes.sizeof(Problem):
            raise AssertionError("the structs of this file are not those of the library")

    def problem(self):
        problem = Problem()
        self._lib.tilewise_problem_init(byref(problem))
        return problem

    def kernels(self, operation):
        count = self._lib.tilewise_kernel_count(operation)
        return [self._lib.tilewise_kernel_name(operation, i).decode() for i in range(count)]

    def _check(self, status):
        if status != 0:
            raise TilewiseError(status, self._lib.tilewise_last_error().decode())

    def supports(self, operation, kernel, problem):
        return self._lib.tilewise_kernel_supports(operation, kernel.encode(), byref(problem)) == 0

    def version(self):
        return self._lib.tilewise_version().decode()

    def plan(self, operation, problem, kernel=None, max_concurrency=0):
        return Plan(self, operation, problem, kernel, max_concurrency)

    def run(self, operation, kernel, problem):
        """Plans, allocates the workspace and runs. Raises TilewiseError."""
        self.plan(operation, problem, kernel).runner(problem)()

    def one_call(self, operation, problem, executor=None):
        """A function of no arguments that plans and runs at once."""
        function = (self._lib.tilewise_forward, self._lib.tilewise_backward)[operation]
        return self.checked(function, byref(problem), None if executor is None else byref(executor))

    def checked(self, function, *arguments):
        """A function of no arguments that calls `function` and raises TilewiseError if it fails."""
        def call():
            status = function(*arguments)
            if status != 0:
                self._check(status)
        return call


class Plan:
    """A plan with a workspace of its own, filled with 0xFF; both go with it."""

    def __init__(self, library, operation, problem, kernel, max_concurrency):
        self._library, self._lib, self._plan = library, library._lib, c_void_p()
        options = PlanOptions()
        self._lib.tilewise_plan_options_init(byref(options))
        options.kernel = None if kernel is None else kernel.encode()
        options.max_concurrency = max_concurrency
        library._check(self._lib.tilewise_plan_create(operation, byref(problem), byref(options), byref(self._plan)))
        size, alignment = c_size_t(), c_size_t()
        library._check(self._lib.tilewise_plan_workspace(self._plan, byref(size), byref(alignment)))
        self.workspace_bytes = size.value
        self._memory = np.full(size.value + alignment.value, 0xFF, np.uint8)
        self._start = self._memory.ctypes.data + -self._memory.ctypes.data % alignment.value

    def __del__(self):
        self._lib.tilewise_plan_destroy(self._plan)

    def kernel(self):
        return self._lib.tilewise_plan_kernel(self._plan).decode()

    def runner(self, problem, executor=None):
        """A function of no arguments that runs the plan. Raises TilewiseError."""
        executor = None if executor is None else byref(executor)
        call = self._library.checked(self._lib.tilewise_plan_run, self._plan, byref(problem), self._start,
                                     self.workspace_bytes, executor)
        call.plan = self  # the plan and its workspace live as long as the function
        return call


class Pool:
    """Threads of the library's own, and the executor that runs on them."""

    def __init__(self, library, threads):
        self._library, self._pool, self.executor = library, c_void_p(), Executor()
        library._check(library._lib.tilewise_pool_create(threads, byref(self._pool)))
        self.executor.struct_size = ctypes.sizeof(Executor)
        library._check(library._lib.tilewise_pool_executor(self._pool, byref(self.executor)))

    def __del__(self):
        self._library._lib.tilewise_pool_destroy(self._pool)


def set_tensor(problem, name, array):
    """Points a tensor of the problem at a numpy array, which must stay alive."""
    tensor = getattr(problem, name)
    tensor.data = array.ctypes.data
    tensor.dtype = DTYPES[array.dtype.name]
    tensor.rank = array.ndim
    for d in range(array.ndim):
        tensor.shape[d] = array.shape[d]
        tensor.strides[d] = array.strides[d] // array.itemsize
