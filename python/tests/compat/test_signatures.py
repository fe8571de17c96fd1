"""The names, order and defaults of flash-attn 2.8 and 3, as a table, and install()."""

import inspect
import subprocess
import sys

import pytest
import tilewise.compat
import tilewise.compat.flash_attn as fa2
import tilewise.compat.flash_attn_interface as fa3
from tilewise.compat.flash_attn import flash_attn_interface as fa2_interface
from tilewise.compat.flash_attn.layers import rotary
from tilewise.compat.flash_attn.ops.triton import rotary as triton_rotary

TAIL = "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, " \
    "deterministic=False, return_attn_probs=False"  # fmt: skip
LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
SCALES = "qv=None, q_descale=None, k_descale=None, v_descale=None"
HINTS = "num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False"
RAW = "dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes"
TO_BACKWARD = "dout, q, k, v, out, softmax_lse, dq, dk, dv"
OWN = ["kv_cache_dtype", "q_descale", "k_descale", "v_descale"]
SIGNATURES = {
    (fa2_interface, "_flash_attn_forward"): f"q, k, v, {RAW}, return_softmax",
    (fa2_interface, "_flash_attn_varlen_forward"): f"q, k, v, {LENGTHS}, dropout_p, softmax_scale, causal, "
    "window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False, block_table=None, "
    "leftpad_k=None, seqused_k=None, zero_tensors=False",
    (fa2_interface, "_flash_attn_backward"): f"{TO_BACKWARD}, {RAW}, deterministic, rng_state=None",
    (fa2_interface, "_flash_attn_varlen_backward"): f"{TO_BACKWARD}, {LENGTHS}, {RAW}, deterministic, rng_state=None, "
    "zero_tensors=False",
    (rotary, "apply_rotary_emb"): "x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, "
    "max_seqlen=None",
    (rotary, "apply_rotary_emb_torch"): "x, cos, sin, interleaved=False",
    (rotary, "apply_rotary_emb_qkv_"): "qkv, cos, sin, cos_k=None, sin_k=None, interleaved=False, seqlen_offsets=0, "
    "num_heads_q=None",
    (rotary, "apply_rotary_emb_kv_"): "kv, cos, sin, interleaved=False, seqlen_offsets=0",
    (rotary, "rotate_half"): "x, interleaved=False",
    (rotary, "RotaryEmbedding"): "dim, base=10000.0, interleaved=False, scale_base=None, device=None",
    (triton_rotary, "apply_rotary"): "x, cos, sin, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None, "
    "interleaved=False, inplace=False, conjugate=False",
    (fa3, "flash_attn_qkvpacked_func"): "qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None, "
    "v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, deterministic=False, num_heads_q=None, "
    "sm_margin=0, return_attn_probs=False",
    (fa2, "flash_attn_func"): f"q, k, v, {TAIL}",
    (fa2, "flash_attn_qkvpacked_func"): f"qkv, {TAIL}",
    (fa2, "flash_attn_kvpacked_func"): f"q, kv, {TAIL}",
    (fa2, "flash_attn_varlen_func"): f"q, k, v, {LENGTHS}, {TAIL}, block_table=None",
    (fa2, "flash_attn_varlen_qkvpacked_func"): f"qkv, cu_seqlens, max_seqlen, {TAIL}",
    (fa2, "flash_attn_varlen_kvpacked_func"): f"q, kv, {LENGTHS}, {TAIL}",
    (fa2, "flash_attn_with_kvcache"): "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
    "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
    "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
    "return_softmax_lse=False",
    (fa3, "flash_attn_func"): f"q, k, v, softmax_scale=None, causal=False, {SCALES}, window_size=(-1, -1), "
    f"attention_chunk=0, softcap=0.0, {HINTS}",
    (fa3, "flash_attn_varlen_func"): f"q, k, v, {LENGTHS}, seqused_q=None, seqused_k=None, softmax_scale=None, "
    f"causal=False, {SCALES}, window_size=(-1, -1), attention_chunk=0, softcap=0.0, {HINTS}",
    (fa3, "flash_attn_with_kvcache"): "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, "
    "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, "
    "cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None, "
    "softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True, "
    "scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False",
    (fa3, "flash_attn_combine"): "out_partial, lse_partial, out=None, out_dtype=None",
}


def spelled(function) -> str:  # noqa: ANN001
    """Names and defaults, without annotations."""
    parameters = inspect.signature(function).parameters.values()
    own = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]  # what flash-attn does not have
    assert own == (OWN if function is fa2.flash_attn_with_kvcache else [])
    parameters = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    return ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)


@pytest.mark.parametrize(("module", "name"), SIGNATURES, ids=lambda value: getattr(value, "__name__", value))
def test_signature(module, name: str) -> None:  # noqa: ANN001
    assert spelled(getattr(module, name)) == SIGNATURES[module, name]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_install_makes_the_imports_work() -> None:
    assert run(
        "import importlib.util, tilewise.compat as c; c.install(); c.install(); import flash_attn, flash_attn_interface;"
        "from flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb; import flash_attn.layers.rotary;"
        "from flash_attn.ops.triton.rotary import apply_rotary; flash_attn.ops.triton.rotary.apply_rotary;"
        "from flash_attn.flash_attn_interface import _flash_attn_forward, _flash_attn_varlen_backward;"
        "from flash_attn import flash_attn_func; from flash_attn.bert_padding import unpad_input, pad_input, "
        "index_first_axis; from flash_attn.flash_attn_interface import flash_attn_varlen_func;"
        "assert importlib.util.find_spec('flash_attn') is not None; print(flash_attn_func.__module__)"
    ).startswith("tilewise.")


def test_uninstall_undoes_it() -> None:
    assert run(
        "import sys, tilewise.compat as c; c.install(); c.uninstall();"
        "print([n for n in sys.modules if n.startswith('flash_attn')])"
    ) == "[]"  # fmt: skip


def test_install_refuses_to_replace_what_is_in_use() -> None:
    assert "before anything imports it" in run(
        "import sys, types, tilewise.compat as c; sys.modules['flash_attn'] = m = types.ModuleType('flash_attn');"
        "m.__file__ = 'there'\ntry: c.install()\nexcept ImportError as error: print(error)"
    )


def test_without_pytorch_the_message_says_so() -> None:
    assert "pip install torch" in run(
        "import sys; sys.modules['torch'] = None\nimport tilewise, tilewise.compat\n"
        "try: import tilewise.compat.flash_attn\nexcept ImportError as error: print(error)"
    )
