"""Tilewise through its C interface, as a user would call it: plan once, run many, on a pool of threads."""
import pathlib
import sys

import numpy as np

from inputs import aligned_empty

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "python"))
import tilewise_ctypes as tw  # noqa: E402


class Tilewise:
    name = "tilewise"

    def __init__(self, threads, library):
        self._library = tw.Library(str(library))
        self._pool = tw.Pool(self._library, threads)
        self._threads = threads
        self.versions = {"tilewise": self._library.version()}

    def foreign_call(self):
        """A call of the library that does nothing: what Python itself adds to every figure."""
        return self._library.version

    def prepare(self, row, inputs):
        return Job(self._library, self._pool, self._threads, row, inputs)


class Job:
    def __init__(self, library, pool, threads, row, inputs):
        self._major = row.op == "decode" and row.layout == "bhsd"
        self._problem = library.problem()
        self._problem.causal = int(row.causal)
        self._problem.layout = tw.BHSD if self._major else tw.BSHD
        self._arrays = {}
        for name in ("q", "k", "v"):
            self._set(name, inputs.head_major(name) if self._major else getattr(inputs, name))
        self._set("out", aligned_empty(self._arrays["q"].shape, inputs.q.dtype))
        self.details, self._pool = {}, pool
        if row.op == "backward":
            self._forward_for(library, inputs)
        operation = tw.BACKWARD if row.op == "backward" else tw.FORWARD
        self.call = self._caller(library, pool, threads, operation, row.one_call)

    def _set(self, name, array):
        self._arrays[name] = array
        tw.set_tensor(self._problem, name, array)

    def _forward_for(self, library, inputs):
        """Returns the inputs of backward: out and the LSE of a forward run."""
        batch, queries, heads, _ = inputs.q.shape
        self._set("lse", aligned_empty((batch, heads, queries), np.float32))
        library.one_call(tw.FORWARD, self._problem)()
        self._set("dout", inputs.dout)
        for name in ("q", "k", "v"):
            self._set("d" + name, aligned_empty(self._arrays[name].shape, self._arrays[name].dtype))

    def _caller(self, library, pool, threads, operation, one_call):
        if one_call:
            return library.one_call(operation, self._problem, pool.executor)
        plan = library.plan(operation, self._problem, max_concurrency=threads)
        self.details = {"kernel": plan.kernel(), "workspace_bytes": plan.workspace_bytes}
        return plan.runner(self._problem, pool.executor)

    def results(self):
        """Returns the result of the last call, (B, S, H, D) in fp32."""
        names = ("dq", "dk", "dv") if "dq" in self._arrays else ("out",)
        order = (lambda array: array.transpose(0, 2, 1, 3)) if self._major else (lambda array: array)
        return {name: order(self._arrays[name]).astype(np.float32) for name in names}
