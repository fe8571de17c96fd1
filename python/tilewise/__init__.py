"""Tilewise: exact attention in O(N) memory, on CPUs and GPUs, for any array."""

try:
    from tilewise import _core
except ImportError as error:  # a wheel of another platform, a half-copied package, no backend
    raise ImportError(
        f"tilewise: its compiled part does not load ({error}). Install the package with 'pip install .' in a checkout; "
        "a folder python/tilewise on sys.path is not enough"
    ) from error

__version__: str = _core.version

__all__ = ["__version__"]
