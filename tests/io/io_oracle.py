"""Files of numpy and of the safetensors package, read and written again by io_convert, must come back bit for bit (of
.npz files, the arrays).

Usage: io_oracle.py IO_CONVERT
"""

import os
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

TYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.int16, np.int8,
         np.uint64, np.uint32, np.uint16, np.uint8, np.bool_]
SHAPES = [(), (0,), (1,), (5,), (2, 3), (3, 0, 2), (4, 1, 6, 2), (1,) * 32, (70, 33)]


def random_array(generator, dtype, shape):
    """Random bits: every NaN, infinity and denormal is as likely as any number."""
    if dtype is np.bool_:
        return generator.integers(0, 2, shape).astype(np.bool_)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(generator.bytes(size), dtype=dtype).reshape(shape)


def content(path):
    with open(path, "rb") as file:
        return file.read()


def convert(program, source, target):
    return subprocess.run([program, source, target], capture_output=True, text=True, timeout=60)


def check_npy(program, folder, generator):
    source, target = os.path.join(folder, "a.npy"), os.path.join(folder, "b.npy")
    count = 0
    for dtype in TYPES:
        for shape in SHAPES:
            for order in "CF":
                for version in [(1, 0), (2, 0), (3, 0)]:
                    array = np.array(random_array(generator, dtype, shape), order=order)
                    with open(source, "wb") as file:
                        np.lib.format.write_array(file, array, version=version)
                    result = convert(program, source, target)
                    assert result.returncode == 0, (dtype, shape, order, version, result.stderr)
                    np.save(source, np.ascontiguousarray(array).reshape(shape))
                    assert content(target) == content(source), (dtype, shape, order, version)
                    loaded = np.load(target)
                    loaded = loaded.view(dtype) if dtype is ml_dtypes.bfloat16 else loaded
                    assert loaded.dtype == dtype and loaded.shape == shape
                    assert loaded.tobytes() == array.tobytes(), (dtype, shape, order, version)
                    count += 1
    return count


def check_npy_refusals(program, folder):
    source, target = os.path.join(folder, "a.npy"), os.path.join(folder, "never.npy")
    refused = [np.zeros(3, ">f4"), np.zeros(3, np.complex64), np.zeros(3, "U4"), np.zeros(3, "V3"),
               np.zeros(3, [("x", "<f4")]), np.zeros(3, "M8[s]"), np.array([None])]
    for array in refused:
        np.save(source, array)
        result = convert(program, source, target)
        assert result.returncode == 2 and result.stderr.startswith(source + ": "), (array.dtype, result)
        assert result.stderr.count("\n") == 1 and not os.path.exists(target), (array.dtype, result)
    return len(refused)


def random_tensors(generator):
    tensors = {}
    for index in range(generator.integers(0, 12)):
        dtype = TYPES[generator.integers(len(TYPES))]
        shape = SHAPES[generator.integers(len(SHAPES))]
        name = f"layer.{generator.integers(100)}.\u00e9\"\\\n\x1f\x7f{index}"
        tensors[name] = random_array(generator, dtype, shape)
    return tensors


def check_safetensors(program, folder, generator):
    source, target = os.path.join(folder, "a.safetensors"), os.path.join(folder, "b.safetensors")
    every_type = {np.dtype(dtype).name: random_array(generator, dtype, (3, 5)) for dtype in TYPES}
    cases = [every_type] + [random_tensors(generator) for _ in range(100)]
    for index, tensors in enumerate(cases):
        # With two entries the package's own order, and so its bytes, would change from run to run.
        metadata = {"step": "1\u2028\"/"} if index % 2 else None
        safetensors.numpy.save_file(tensors, source, metadata=metadata)
        result = convert(program, source, target)
        assert result.returncode == 0, result.stderr
        assert content(target) == content(source), list(tensors)
        with safetensors.safe_open(target, "np") as file:
            assert file.metadata() == metadata
        loaded = safetensors.numpy.load_file(target)
        assert set(loaded) == set(tensors)
        for name, array in tensors.items():
            assert loaded[name].dtype == array.dtype and loaded[name].shape == array.shape, name
            assert loaded[name].tobytes() == array.tobytes(), name
    return len(cases)


def check_npz(program, folder, generator):
    source, target = os.path.join(folder, "a.npz"), os.path.join(folder, "b.npz")
    cases = [{np.dtype(dtype).name: random_array(generator, dtype, (3, 5)) for dtype in TYPES}, {}]
    cases += [{name.replace("\0", ""): array for name, array in random_tensors(generator).items()} for _ in range(40)]
    for tensors in cases:
        for save in (np.savez, np.savez_compressed):
            with open(source, "wb") as file:
                save(file, **tensors)
            result = convert(program, source, target)
            if result.returncode == 2 and "zlib was not found" in result.stderr:
                return 0
            assert result.returncode == 0, result.stderr
            with np.load(target) as loaded:
                assert loaded.files == list(tensors)
                for name, array in tensors.items():
                    found = loaded[name]
                    found = found.view(array.dtype) if array.dtype == ml_dtypes.bfloat16 else found
                    assert found.dtype == array.dtype and found.shape == array.shape, name
                    assert found.tobytes() == array.tobytes(), name
    return 2 * len(cases)


def main():
    program = sys.argv[1]
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}", flush=True)
    generator = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        print(f"npy: {check_npy(program, folder, generator)} files agree bit for bit")
        print(f"npy: {check_npy_refusals(program, folder)} files are refused")
        print(f"npz: {check_npz(program, folder, generator)} files agree bit for bit")
        print(f"safetensors: {check_safetensors(program, folder, generator)} files agree bit for bit")


if __name__ == "__main__":
    main()
