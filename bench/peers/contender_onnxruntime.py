"""ONNX Runtime's attention operators: com.microsoft MultiHeadAttention, and GroupQueryAttention, which is its only one
for grouped heads and often its quicker one for causal masks. Inputs and outputs stay bound: no copies but its own."""
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from inputs import aligned_empty

DTYPES = {"fp32": TensorProto.FLOAT, "bf16": TensorProto.BFLOAT16, "fp16": TensorProto.FLOAT16}
OPSET, IR_VERSION = 20, 10
WARM_UP_RUNS = 2  # the first run allocates its arena, the second rearranges it; the third is the first at full speed
VERSIONS = {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__}


class Refused(Exception):
    """This operator has no such thing."""


class MultiHeadAttention:
    name = "onnxruntime_mha"

    def __init__(self, threads):
        self.versions, self._threads = VERSIONS, threads

    def prepare(self, row, inputs):
        if row.op == "backward":
            raise Refused("ONNX Runtime has no backward of attention")
        if row.shape[3] != row.shape[4]:
            raise Refused("MultiHeadAttention has as many key heads as query heads")
        arrays = {name: flat(getattr(inputs, name)) for name in "qkv"}
        attributes = {"num_heads": row.shape[3], "unidirectional": int(row.causal)}
        job = Job("MultiHeadAttention", attributes, row.dtype, self._threads)
        return job.start(row, arrays, list(arrays), {"out": aligned_empty(arrays["q"].shape, arrays["q"].dtype)})


class GroupQueryAttention:
    name = "onnxruntime_gqa"

    def __init__(self, threads):
        self.versions, self._threads = VERSIONS, threads

    def prepare(self, row, inputs):
        if row.op == "backward":
            raise Refused("ONNX Runtime has no backward of attention")
        if not row.causal and row.op != "decode":
            raise Refused("GroupQueryAttention is causal")
        if row.op == "decode" and row.layout == "bshd":
            raise Refused("GroupQueryAttention keeps its cache head-major")
        attributes = {"num_heads": row.shape[3], "kv_num_heads": row.shape[4]}
        job = Job("GroupQueryAttention", attributes, row.dtype, self._threads)
        arrays, cache = self._decode(inputs) if row.op == "decode" else self._prefill(inputs)
        arrays["seqlens_k"] = np.full(row.shape[0], row.shape[2] - 1, np.int32)
        arrays["total_length"] = np.array(row.shape[2], np.int32)
        names = ["q", "k", "v", "past_k" * ("past_k" in arrays), "past_v" * ("past_v" in arrays)]
        outputs = {"out": aligned_empty(arrays["q"].shape, arrays["q"].dtype), **cache}
        return job.start(row, arrays, names + ["seqlens_k", "total_length"], outputs)

    @staticmethod
    def _prefill(inputs):
        batch, length, heads, dim = inputs.k.shape
        cache = {name: aligned_empty((batch, heads, length, dim), inputs.k.dtype) for name in ("now_k", "now_v")}
        return {name: flat(getattr(inputs, name)) for name in "qkv"}, cache

    @staticmethod
    def _decode(inputs):
        """The newest key and value come in and are written over themselves at the end of the cache."""
        past = {"past_" + name: inputs.head_major(name) for name in "kv"}
        arrays = {"q": flat(inputs.q), "k": flat(inputs.k[:, -1:]), "v": flat(inputs.v[:, -1:]), **past}
        return arrays, {"now_k": past["past_k"], "now_v": past["past_v"]}


def flat(array):
    """(B, S, H, D) to (B, S, H*D)."""
    return array.reshape(*array.shape[:2], array.shape[2] * array.shape[3])


def one_operator(operator, attributes, inputs, outputs):
    """A model of one node. inputs, outputs: lists of (name, element type, shape); name "" is absent."""
    info = [[helper.make_tensor_value_info(*entry) for entry in side if entry[0]] for side in (inputs, outputs)]
    node = helper.make_node(operator, [entry[0] for entry in inputs], [entry[0] for entry in outputs],
                            domain="com.microsoft", **attributes)
    graph = helper.make_graph([node], operator, *info)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString()


def value_of(array, element_type):
    if element_type == TensorProto.BFLOAT16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), element_type)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


class Job:
    details = {}

    def __init__(self, operator, attributes, dtype, threads):
        self._operator, self._attributes, self._type = operator, attributes, DTYPES[dtype]
        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = threads
        self._options.log_severity_level = 4  # refusals are raised as exceptions as well

    def start(self, row, arrays, names, outputs):
        """names: of the inputs in the operator's order. Two names with the same array share a buffer."""
        def entry(name, array):
            return name, TensorProto.INT32 if array.dtype == np.int32 else self._type, array.shape

        inputs = [entry(name, arrays[name]) if name else ("", 0, ()) for name in names]
        model = one_operator(self._operator, self._attributes, inputs,
                             [entry(name, array) for name, array in outputs.items()])
        session = onnxruntime.InferenceSession(model, self._options, providers=["CPUExecutionProvider"])
        binding, values = session.io_binding(), {}
        for bind, group in ((binding.bind_ortvalue_input, arrays), (binding.bind_ortvalue_output, outputs)):
            for name, array in group.items():
                value = values.setdefault(id(array), value_of(array, entry(name, array)[1]))
                bind(name, value)
        self._out, self._shape = values[id(outputs["out"])], (row.shape[0], row.shape[1], row.shape[3], row.shape[5])
        self.call = lambda: session.run_with_iobinding(binding)
        for _ in range(WARM_UP_RUNS):
            self.call()
        return self

    def results(self):
        return {"out": self._out.numpy().astype(np.float32).reshape(self._shape)}
