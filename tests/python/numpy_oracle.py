"""Every kernel of libtilewise.so against numpy formulas. Usage: numpy_oracle.py LIBTILEWISE.SO"""
import sys

import numpy as np

import formulas
import tilewise_ctypes as tw

# |result - formula| <= tolerance * the largest size of the terms: float64 and float32 sums of some hundred products, float16 rounding.
TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "float16": 8e-3}


def random_case(rng, dtype):
    batch, kv_heads = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    heads = kv_heads * int(rng.integers(1, 4))
    rows, keys = int(rng.choice([1, 7, 33, 64])), int(rng.choice([1, 8, 50, 65, 130]))
    dim, value_dim = int(rng.choice([1, 8, 40, 64])), int(rng.choice([3, 16, 64]))
    normal = lambda *shape: rng.standard_normal(shape).astype(dtype)
    case = {"q": normal(batch, rows, heads, dim), "k": normal(batch, keys, kv_heads, dim),
            "v": normal(batch, keys, kv_heads, value_dim), "dout": normal(batch, rows, heads, value_dim)}
    maybe = lambda share=0.3: rng.random() < share
    full = (batch, heads, rows, keys)
    broadcast = lambda: tuple(n if maybe(0.7) else 1 for n in full)[int(rng.integers(0, 4)):]
    statistics = np.float64 if dtype == "float64" else np.float32
    if maybe(0.2):
        case["slices"] = []
        for _ in range(int(rng.integers(1, 5))):
            q0, k0 = int(rng.integers(0, rows + 1)), int(rng.integers(0, keys + 1))
            case["slices"].append((q0, int(rng.integers(q0, rows + 1)), k0, int(rng.integers(k0, keys + 1)),
                                   int(rng.integers(0, 4)), int(rng.integers(-1, heads))))
    else:
        case["causal"] = maybe(0.5)
        case["window"] = (int(rng.integers(-1, 40)), int(rng.integers(-1, 40))) if maybe() else (-1, -1)
    case["top_left"] = maybe()
    if maybe(): case["seqused_k"] = rng.integers(0, keys + 1, batch)
    if maybe(0.2): case["seqused_q"] = rng.integers(0, rows + 1, batch)
    if maybe(): case["mask"] = rng.random(broadcast()) < 0.8
    if maybe(): case["bias"] = normal(*broadcast())
    if maybe(): case["alibi_slopes"] = rng.random(heads).astype(np.float32)
    if maybe(): case["sink"] = rng.standard_normal(heads).astype(np.float32)
    if maybe(): case["softcap"] = float(rng.choice([1.5, 20]))
    if maybe(): case["scale"] = float(rng.choice([-0.3, 0, 0.5]))
    if maybe(): case["dlse"] = rng.standard_normal(full[:3]).astype(statistics)
    if maybe(): case.update(dropout=float(rng.choice([0.1, 0.6])), seed=int(rng.integers(0, 2**63)), offset=int(rng.integers(0, 2**32)))
    return case


def fill_problem(lib, case, results):
    """Points a problem at the arrays of the case (inputs) and of `results` (outputs)."""
    problem = lib.problem()
    arrays = {name: case[name] for name in ("q", "k", "v", "mask", "bias", "alibi_slopes", "sink", "dout", "dlse")
              if name in case}
    for name in ("seqused_q", "seqused_k"):
        if name in case:
            arrays[name] = np.asarray(case[name], np.int64)
    if "slices" in case:
        arrays["slices"] = np.asarray(case["slices"], np.int64)
    for name, array in {**arrays, **results}.items():
        tw.set_tensor(problem, name, array)
    problem.causal = int(case.get("causal", False))
    problem.alignment = tw.TOP_LEFT if case.get("top_left") else tw.BOTTOM_RIGHT
    problem.window_left, problem.window_right = case.get("window", (-1, -1))
    if "scale" in case:
        problem.softmax_scale = case["scale"]
    problem.softcap = case.get("softcap", 0)
    problem.dropout_p = case.get("dropout", 0)
    problem.dropout_seed, problem.dropout_offset = case.get("seed", 0), case.get("offset", 0)
    return problem, arrays


def empty_results(case, expected):
    """Returns arrays of NaN with the dtypes that the library requires."""
    dtype = case["q"].dtype
    statistics = np.float64 if dtype == np.float64 else np.float32
    dtypes = {"lse": statistics, "dsink": statistics, "dalibi_slopes": statistics}
    return {name: np.full(array.shape, np.nan, dtypes.get(name, dtype)) for name, array in expected.items()}


def compare(name, result, formula, size, tolerance):
    """Empty if they agree, else one line. size: of the terms that the formula adds up."""
    result = result.astype(np.float64)
    infinite = np.isinf(formula)
    if not (np.array_equal(np.isinf(result), infinite) and np.array_equal(result[infinite], formula[infinite])):
        return f"{name}: infinities differ"
    error = np.abs(result[~infinite] - formula[~infinite])
    if np.isnan(error).any():
        return f"{name}: NaN"
    limit = tolerance * max(1e-3, np.abs(size[~infinite]).max(initial=0))
    return f"{name}: error {error.max():.3g} over {limit:.3g}" if error.max(initial=0) > limit else ""


def check_case(lib, case):
    """Runs all kernels. Returns the lines of what failed."""
    failures = []
    expected, sizes = formulas.attention(case)
    tolerance = TOLERANCES[case["q"].dtype.name]
    for operation, names in ((tw.FORWARD, ("out", "lse")), (tw.BACKWARD, ("dq", "dk", "dv", "dbias", "dsink", "dalibi_slopes"))):
        for kernel in lib.kernels(operation):
            results = empty_results(case, expected)
            if operation == tw.BACKWARD:
                for name in ("out", "lse"):
                    results[name][...] = expected[name]
            problem, arrays = fill_problem(lib, case, results)
            if kernel.startswith(("cpu_", "cuda_")) and not lib.supports(operation, kernel, problem):
                continue  # an instruction set that this machine lacks, or another one is forced
            lib.run(operation, kernel, problem)
            for name in names:
                if name in expected:
                    line = compare(name, results[name], expected[name], sizes.get(name, expected[name]), tolerance)
                    if line:
                        failures.append(f"{kernel} {line}")
            del arrays
    return failures


def main():
    seed = tw.run_seed()
    rng = np.random.default_rng(seed)
    lib = tw.Library(sys.argv[1])
    failed = 0
    for step in range(60):
        case = random_case(rng, ("float64", "float32", "float16")[step % 3])
        failures = check_case(lib, case)
        if failures:
            failed += 1
            options = {k: v if not isinstance(v, np.ndarray) else v.shape for k, v in case.items()}
            print(f"TILEWISE_TEST_SEED={seed} case {step}: {options}", *failures, sep="\n  ")
    print(f"numpy: 60 cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
