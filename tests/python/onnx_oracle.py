"""libtilewise.so against the reference implementation of ONNX Attention, opsets 23, 24 and 25.
Usage: onnx_oracle.py LIBTILEWISE.SO

How ONNX says it, and how Tilewise does: without a cache is_causal and windows are top-left; with past keys or
nonpad_kv_seqlen they are bottom-right, counted from the last valid key. A float mask is a bias, a boolean one a mask.
"""
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewise_ctypes as tw

OPSETS = (23, 24, 25)
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "float64": TensorProto.DOUBLE,
         "bool": TensorProto.BOOL, "int64": TensorProto.INT64}
INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")


def onnx_attention(opset, feeds, attributes):
    """Y of one Attention node on (B, H, S, D) arrays."""
    present = [name if name in feeds else "" for name in INPUTS]
    while not present[-1]:
        present.pop()
    node = helper.make_node("Attention", present, ["Y"], **attributes)
    values = [helper.make_tensor_value_info(name, TYPES[array.dtype.name], array.shape) for name, array in feeds.items()]
    shape = feeds["Q"].shape[:3] + feeds["V"].shape[3:]
    output = helper.make_tensor_value_info("Y", TYPES[feeds["Q"].dtype.name], shape)
    graph = helper.make_graph([node], "attention", values, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    onnx.checker.check_model(model)
    return ReferenceEvaluator(model).run(None, feeds)[0]


def random_case(rng, opset, dtype):
    batch, kv_heads = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    heads = kv_heads * int(rng.integers(1, 4))
    rows, keys, past = (int(rng.integers(low, 40)) for low in (1, 1, 1))
    dim, value_dim = int(rng.choice([8, 32])), int(rng.choice([8, 24]))
    normal = lambda *shape: rng.standard_normal(shape).astype(dtype)
    feeds = {"Q": normal(batch, heads, rows, dim), "K": normal(batch, kv_heads, keys, dim),
             "V": normal(batch, kv_heads, keys, value_dim)}
    attributes = {"is_causal": int(rng.random() < 0.6)}
    cache = rng.choice(["none", "past", "nonpad"] if opset >= 24 else ["none", "past"])
    if cache == "past":
        feeds["K"], feeds["V"] = normal(batch, kv_heads, rows, dim), normal(batch, kv_heads, rows, value_dim)
        feeds["past_key"] = normal(batch, kv_heads, past, dim)
        feeds["past_value"] = normal(batch, kv_heads, past, value_dim)
        keys = past + rows
    if cache == "nonpad":
        feeds["nonpad_kv_seqlen"] = rng.integers(1, keys + 1, batch)
    choice = rng.random()
    shape = [(rows, keys), (heads, rows, keys), (batch, 1, rows, keys), (batch, heads, rows, keys)][rng.integers(0, 4)]
    if choice < 0.3:
        feeds["attn_mask"] = rng.random(shape) < 0.7
    elif choice < 0.6:
        feeds["attn_mask"] = normal(*shape)
    if rng.random() < 0.3:
        attributes["softcap"] = 3.0
    if rng.random() < 0.3:
        attributes["scale"] = 0.25
    if opset >= 25 and rng.random() < 0.6:
        attributes["left_window_size"] = int(rng.integers(-1, 12))
        attributes["right_window_size"] = int(rng.integers(-1, 12))
    return feeds, attributes, cache


def tilewise_problem(lib, feeds, attributes, cache):
    """Makes the same problem for Tilewise. Returns the problem, its output and what must stay alive."""
    arrays = {"q": feeds["Q"], "k": feeds["K"], "v": feeds["V"]}
    if cache == "past":
        arrays["k"] = np.concatenate((feeds["past_key"], feeds["K"]), axis=2)
        arrays["v"] = np.concatenate((feeds["past_value"], feeds["V"]), axis=2)
    if cache == "nonpad":
        arrays["seqused_k"] = feeds["nonpad_kv_seqlen"]
    if "attn_mask" in feeds:
        arrays["mask" if feeds["attn_mask"].dtype == bool else "bias"] = feeds["attn_mask"]
    out = np.full(arrays["q"].shape[:3] + arrays["v"].shape[3:], np.nan, arrays["q"].dtype)
    problem = lib.problem()
    for name, array in {**arrays, "out": out}.items():
        tw.set_tensor(problem, name, array)
    problem.layout = tw.BHSD
    problem.causal = attributes["is_causal"]
    problem.alignment = tw.TOP_LEFT if cache == "none" else tw.BOTTOM_RIGHT
    problem.window_left = attributes.get("left_window_size", -1)
    problem.window_right = attributes.get("right_window_size", -1)
    problem.softcap = attributes.get("softcap", 0)
    if "scale" in attributes:
        problem.softmax_scale = attributes["scale"]
    return problem, out, arrays


def main():
    seed = tw.run_seed()
    rng = np.random.default_rng(seed)
    lib = tw.Library(sys.argv[1])
    tolerances = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2}
    failed = 0
    for step in range(90):
        opset = OPSETS[step % 3]
        dtype = ("float64", "float32", "float16")[step // 3 % 3]
        feeds, attributes, cache = random_case(rng, opset, dtype)
        expected = onnx_attention(opset, feeds, attributes).astype(np.float64)
        for kernel in lib.kernels(tw.FORWARD):
            problem, out, arrays = tilewise_problem(lib, feeds, attributes, cache)
            if kernel.startswith(("cpu_", "cuda_")) and not lib.supports(tw.FORWARD, kernel, problem):
                continue  # an instruction set that this machine lacks, or another one is forced
            lib.run(tw.FORWARD, kernel, problem)
            error = np.abs(out.astype(np.float64) - expected).max(initial=0)
            if not error <= tolerances[dtype] * max(1, np.abs(expected).max(initial=0)):
                failed += 1
                shapes = {name: array.shape for name, array in feeds.items()}
                print(f"TILEWISE_TEST_SEED={seed} case {step} opset {opset} {dtype} {cache} {kernel}: error {error:.3g}",
                      f"{attributes} {shapes}", sep="\n  ")
            del arrays
    print(f"onnx {onnx.__version__}: 90 cases of opsets {OPSETS}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
