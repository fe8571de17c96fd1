"""torch.nn.functional.scaled_dot_product_attention, and its gradient by torch.autograd.grad."""
import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Torch:
    name = "torch"

    def __init__(self, threads):
        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        self.versions = {"torch": torch.__version__}

    def prepare(self, row, inputs):
        return Job(row, inputs)


def tensor(array, dtype):
    """A tensor over the same memory; numpy and torch know bf16 by different names."""
    return torch.from_numpy(array.view(np.uint8)).view(DTYPES[dtype]) if array.size else \
        torch.empty(array.shape, dtype=DTYPES[dtype])


class Job:
    details = {}

    def __init__(self, row, inputs):
        # PyTorch's own order is (B, H, S, D); it gets a token-major cache as a view.
        def load(name):
            if row.op == "decode" and row.layout == "bshd":
                return tensor(getattr(inputs, name), row.dtype).transpose(1, 2)
            return tensor(inputs.head_major(name), row.dtype)

        self._q, self._k, self._v = (load(name) for name in "qkv")
        self._options = {"is_causal": row.causal, "enable_gqa": row.shape[3] != row.shape[4]}
        self._result = None
        if row.op == "backward":
            self._prepare_backward(load("dout"))
        else:
            self.call = self._forward

    def _forward(self):
        with torch.inference_mode():
            self._result = scaled_dot_product_attention(self._q, self._k, self._v, **self._options)

    def _prepare_backward(self, dout):
        inputs = tuple(x.requires_grad_() for x in (self._q, self._k, self._v))
        out = scaled_dot_product_attention(*inputs, **self._options)

        def call():
            self._result = torch.autograd.grad(out, inputs, dout, retain_graph=True)

        self.call = call

    def results(self):
        tensors = self._result if isinstance(self._result, tuple) else (self._result,)
        names = ("dq", "dk", "dv") if len(tensors) == 3 else ("out",)
        return {name: x.detach().transpose(1, 2).float().numpy() for name, x in zip(names, tensors)}
