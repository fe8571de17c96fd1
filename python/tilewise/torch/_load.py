"""Loads the operators into the PyTorch of this process."""

import ctypes
import pathlib

OLDEST = (2, 10)


def load() -> None:
    """Registers ``torch.ops.tilewise``. Raises ImportError that says what to do; does nothing if it is there."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "tilewise.torch: PyTorch is not installed; install it with 'pip install torch'"
        ) from error
    _check_version(torch.__version__)
    if hasattr(torch.ops.tilewise, "attention_forward"):
        return
    library = _open(pathlib.Path(__file__).with_name("_operators.so"))
    register = library.tilewise_torch_register
    register.restype = ctypes.c_char_p
    problem = register().decode()
    if problem:
        raise ImportError(f"tilewise.torch: {problem} (PyTorch {torch.__version__})")


def _check_version(version: str) -> None:
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if numbers < OLDEST:
        raise ImportError(
            f"tilewise.torch: PyTorch is {version}, must be {OLDEST[0]}.{OLDEST[1]} or later; "
            "upgrade it with 'pip install -U torch'"
        )


def _open(path: pathlib.Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"tilewise.torch: {path} does not load ({error}); install the package again with "
            "'pip install --force-reinstall .' in a checkout"
        ) from error
