"""flash-attn 2's functions, with its names, order of arguments, defaults and results.

They differ from the original in three ways: they run on the CPU too; every dtype, head dimension and page size is
taken; a row that sees no key has the log-sum-exp -inf (flash-attn: +inf).
"""

import tilewise.torch  # noqa: F401  (first: it says what to do where PyTorch is missing)
from tilewise.compat.flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__version__ = "2.8.4"  # of the interface

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
