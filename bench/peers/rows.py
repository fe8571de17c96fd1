"""The rows that are measured, their useful flops and the bytes they must read."""
from dataclasses import dataclass

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
BACKWARD_FACTOR = 2.5  # five matrix products instead of the forward's two


@dataclass(frozen=True)
class Row:
    """One problem. op: forward, backward, decode (one query on a cache), overhead (of a call)."""
    name: str
    op: str
    dtype: str
    shape: tuple  # (B, Sq, Sk, H, Hk, D)
    causal: bool = False
    # The layout of the caches of decode; in other rows each contender uses the order that suits it best.
    layout: str = "bshd"
    one_call: bool = False  # Tilewise without a plan
    quick: bool = False  # part of --quick

    def visible_pairs(self):
        """Returns the query-key pairs that the mask lets through, over all heads."""
        batch, queries, keys, heads, _, _ = self.shape
        if not self.causal:
            return batch * heads * queries * keys
        if queries != keys:
            raise ValueError(f"{self.name}: causal with Sq != Sk, whose alignment differs between the contenders")
        return batch * heads * (queries * (queries + 1) // 2)

    def flops(self):
        """Multiply-adds of visible pairs only, two flops each."""
        forward = 4 * self.visible_pairs() * self.shape[5]
        return BACKWARD_FACTOR * forward if self.op == "backward" else forward

    def cache_bytes(self):
        """K and V, which every run reads at least once."""
        batch, _, keys, _, kv_heads, dim = self.shape
        return 2 * batch * keys * kv_heads * dim * DTYPE_BYTES[self.dtype]


def squares():
    """B=1 H=8, the shapes of docs/benchmarking.md."""
    rows = []
    for op, dtypes in (("forward", ("fp32", "bf16", "fp16")), ("backward", ("fp32", "bf16"))):
        for dtype in dtypes:
            for dim in (64, 128):
                for length in (512, 2048, 8192):
                    for causal in (False, True):
                        name = f"{op} {dtype} D{dim} S{length}{' causal' if causal else ''}"
                        rows.append(Row(name, op, dtype, (1, length, length, 8, 8, dim), causal,
                                        quick=length == 512 and dim == 128 and dtype != "fp16"))
    return rows


def models():
    """The attention of known models, forward."""
    rows = []
    for dtype in ("fp32", "bf16"):
        for model, length, heads, dim in (("ViT", 197, 12, 64), ("BERT", 384, 12, 64), ("MiniLM", 128, 12, 32)):
            rows.append(Row(f"{model} {dtype} D{dim} S{length}", "forward", dtype,
                            (1, length, length, heads, heads, dim), quick=True))
        for length in (512, 2048, 8192):
            rows.append(Row(f"Llama {dtype} D128 S{length} causal", "forward", dtype,
                            (1, length, length, 32, 8, 128), causal=True, quick=length == 512))
    return rows


def decodes():
    """Llama's heads, one query on a cache. 128k keys do not fit any processor's cache; 8k may."""
    rows = []
    for dtype in ("fp32", "bf16"):
        for length in (8192, 131072):
            for layout, words in (("bhsd", "head-major"), ("bshd", "token-major")):
                rows.append(Row(f"Llama decode {dtype} L{length} {words}", "decode", dtype,
                                (1, 1, length, 32, 8, 128), layout=layout, quick=length == 8192 and layout == "bhsd"))
    return rows


def overheads():
    """Rows for the cost of a call: one query and one key of one number, and no queries at all."""
    rows = []
    for words, shape in (("smallest", (1, 1, 1, 1, 1, 1)), ("empty", (1, 0, 0, 1, 1, 64))):
        for one_call in (False, True):
            rows.append(Row(f"overhead {words} {'one-call' if one_call else 'planned'}", "overhead", "fp32", shape,
                            one_call=one_call, quick=True))
    return rows


def shorts():
    """A dozen heads on few queries and keys, and gradients of one query on a long cache."""
    rows = []
    for op in ("forward", "backward"):
        for length in (1, 2, 4, 8, 16, 17, 20, 32, 64, 128)[op == "backward":]:  # gradients of one key are rounding
            rows.append(Row(f"short {op} fp32 D64 S{length}", op, "fp32", (1, length, length, 12, 12, 64)))
        rows.append(Row(f"short {op} fp32 D64 Sq1 Sk4096", op, "fp32", (1, 1, 4096, 12, 12, 64)))
    return rows


def all_rows():
    return squares() + models() + decodes() + overheads() + shorts()
