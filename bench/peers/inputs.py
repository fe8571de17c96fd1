"""Random inputs, and arrays that start at a cache line, as every contender's own allocations do."""
import math

import ml_dtypes
import numpy as np

DTYPES = {"fp32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16), "fp16": np.dtype(np.float16)}
ALIGNMENT = 64
SEED = 20260


def aligned_empty(shape, dtype):
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start:start + size].view(dtype).reshape(shape)


class Inputs:
    """q, k, v and (backward) dout of one row, normal numbers in its dtype, (B, S, H, D)."""

    def __init__(self, row):
        batch, queries, keys, heads, kv_heads, dim = row.shape
        rng = np.random.default_rng(SEED)

        def normal(*shape):
            values = rng.standard_normal(shape, dtype=np.float32)
            array = aligned_empty(shape, DTYPES[row.dtype])
            array[...] = values
            return array

        self.q = normal(batch, queries, heads, dim)  # (B, Sq, H, D)
        self.k = normal(batch, keys, kv_heads, dim)  # (B, Sk, Hk, D)
        self.v = normal(batch, keys, kv_heads, dim)  # (B, Sk, Hk, D)
        self.dout = normal(batch, queries, heads, dim) if row.op == "backward" else None  # (B, Sq, H, D)
        self._major = {}

    def head_major(self, name):
        """The same values as (B, H, S, D); one copy for all contenders."""
        if name not in self._major:
            array = getattr(self, name).transpose(0, 2, 1, 3)
            self._major[name] = aligned_empty(array.shape, array.dtype)
            self._major[name][...] = array
        return self._major[name]
