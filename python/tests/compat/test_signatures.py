"""The names, order and defaults of flash-attn 2.8 and 3, as a table, and install()."""

import inspect
import subprocess
import sys

import pytest
import tilewise.compat
import tilewise.compat.flash_attn as fa2
import tilewise.compat.flash_attn_interface as fa3

TAIL = "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, " \
    "deterministic=False, return_attn_probs=False"  # fmt: skip
LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
SCALES = "qv=None, q_descale=None, k_descale=None, v_descale=None"
HINTS = "num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False"
SIGNATURES = {
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
