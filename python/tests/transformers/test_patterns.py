"""Every kind of mask that transformers composes, with and without padding and packing, against its own eager mask."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import tilewise.transformers
import torch
import transformers
from tilewise.transformers import attention_forward, attention_mask_for
from transformers import masking_utils

tilewise.transformers.register()

CLOSE = {"rtol": 1e-4, "atol": 2e-5}
BATCH, LENGTH, HEADS, KV_HEADS, DIM = 2, 20, 4, 2, 8
BLOCKS = torch.full((BATCH, LENGTH), -1).index_fill_(1, torch.arange(4, 9), 0).index_fill_(1, torch.arange(12, 15), 1)


def prefix(batch_idx: Any, head_idx: Any, q_idx: Any, kv_idx: Any) -> Any:
    """PrefixLM: everybody sees the first five tokens."""
    return kv_idx < 5


def chunked(padding: torch.Tensor | None) -> Callable[..., Any]:
    """As create_chunked_causal_mask makes it: chunks are counted from a row's first token."""
    left = torch.zeros(BATCH, dtype=torch.int64)
    if padding is not None:
        left = (padding.cumsum(-1) == 0).sum(-1)
    return masking_utils.chunked_causal_mask_function(6, left)


PATTERNS: dict[str, Callable[[torch.Tensor | None], Callable[..., Any]]] = {
    "causal": lambda _: masking_utils.causal_mask_function,
    "bidirectional": lambda _: masking_utils.bidirectional_mask_function,
    "sliding": lambda _: masking_utils.sliding_window_causal_mask_function(7),
    "sliding, one key": lambda _: masking_utils.sliding_window_causal_mask_function(1),
    "sliding, no key": lambda _: masking_utils.sliding_window_causal_mask_function(0),
    "local bidirectional": lambda _: masking_utils.sliding_window_bidirectional_mask_function(3),
    "local bidirectional, one key": lambda _: masking_utils.sliding_window_bidirectional_mask_function(0),
    "chunked": chunked,
    "prefix": lambda _: masking_utils.or_masks(masking_utils.causal_mask_function, prefix),
    "blockwise": lambda _: masking_utils.or_masks(
        masking_utils.causal_mask_function, masking_utils.blockwise_overlay(BLOCKS)
    ),
    "sliding and prefix": lambda _: masking_utils.and_masks(
        masking_utils.sliding_window_causal_mask_function(9), prefix
    ),
}  # fmt: skip
PADDINGS = {"none": None, "right": [20, 13], "left": [20, -13]}


def padding_of(name: str) -> torch.Tensor | None:
    """(B, S) bool; a negative length is padded on the left."""
    if PADDINGS[name] is None:
        return None
    place = torch.arange(LENGTH)
    return torch.stack([place < n if n > 0 else place >= LENGTH + n for n in PADDINGS[name]])


class Layer(torch.nn.Module):
    """A layer that says the contrary of its mask: the mask is what counts."""

    is_causal = True


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shown: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The result (B, S, H, D), and which rows see any key (B, S)."""
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1).double() for t in (k, v))
    scores = (q.double() @ k.transpose(2, 3) * DIM**-0.5).masked_fill(~shown, -torch.inf)
    rows = shown.any(-1)[:, 0].expand(q.shape[0], -1)
    return (scores.softmax(-1).nan_to_num() @ v).transpose(1, 2), rows


def qkv(rows: int = LENGTH) -> list[torch.Tensor]:
    return [torch.randn(BATCH, h, s, DIM) for h, s in ((HEADS, rows), (KV_HEADS, LENGTH), (KV_HEADS, LENGTH))]


def in_sequences(starts: list[int]) -> torch.Tensor:
    """(B, 1, S, S): whether two tokens of a row belong to one sequence of the flattened batch."""
    numbers = torch.bucketize(torch.arange(BATCH * LENGTH), torch.tensor(starts), right=True).view(BATCH, LENGTH)
    return (numbers[:, None, :, None] == numbers[:, None, None, :]) & (numbers < len(starts))[:, None, :, None]


# Lengths of the sequences in each row, as position ids say them and as cu_seq_lens do.
PACKINGS = {
    "none": (None, None), "position ids": ([[8, 12], [20]], None), "cu_seq_lens": (None, [0, 8, 20, 33, 40]),
    "both": ([[8, 12], [20]], [0, 8, 20, 40]), "both, finer": ([[8, 12], [20]], [0, 5, 20, 33, 40]),
}  # fmt: skip


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_pattern(pattern: str, padding: str, packing: str) -> None:
    tokens = padding_of(padding)
    function = PATTERNS[pattern](tokens)
    lengths, starts = PACKINGS[packing]
    if lengths is not None:
        if tokens is not None:
            return  # transformers looks at position ids only where there is no padding
        positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
        numbers = torch.stack([torch.cat([torch.full((n,), i) for i, n in enumerate(row)]) for row in lengths])
        function = masking_utils.packed_sequence_compatibility_function(function, positions, numbers)
    use_vmap = pattern in ("prefix", "blockwise", "sliding and prefix")
    request = {
        "batch_size": BATCH, "q_length": LENGTH, "kv_length": LENGTH, "mask_function": function,
        "attention_mask": tokens, "use_vmap": use_vmap,
    }  # fmt: skip
    shown = masking_utils.sdpa_mask(**request, allow_is_causal_skip=False)
    if starts is not None:
        shown = shown & in_sequences(starts)
    mask = attention_mask_for(**request)
    assert mask.shape == (BATCH, 1, LENGTH, LENGTH) and mask.dtype == torch.bool
    q, k, v = qkv()
    wanted, rows = eager(q, k, v, shown)
    packed = {} if starts is None else dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), torch.tensor(starts))
    layers = itertools.product((Layer(),), (None, 3))
    for layer, window in layers:
        found, _ = attention_forward(layer, q, k, v, mask, scaling=None, sliding_window=window, **packed)
        torch.testing.assert_close(found[rows].double(), wanted[rows], **CLOSE)
        assert torch.equal(found[~rows], torch.zeros_like(found[~rows]))


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_pattern_with_a_cache(pattern: str, padding: str, rows: int) -> None:
    tokens = padding_of(padding)
    for q_offset, kv_offset in ((LENGTH - rows, 0), (LENGTH - rows + 4, 4), (3, 0)):  # grown, rolled, static
        if kv_offset and (pattern == "blockwise" or tokens is not None):
            continue
        request = {
            "batch_size": BATCH, "q_length": rows, "kv_length": LENGTH, "q_offset": q_offset, "kv_offset": kv_offset,
            "mask_function": PATTERNS[pattern](tokens), "attention_mask": tokens,
            "use_vmap": pattern in ("prefix", "blockwise", "sliding and prefix"),
        }  # fmt: skip
        q, k, v = qkv(rows)
        wanted, seen = eager(q, k, v, masking_utils.sdpa_mask(**request, allow_is_causal_skip=False))
        where = torch.tensor(q_offset)  # as a static cache says it, which counts on before the mask is used
        masks = [attention_mask_for(**request), attention_mask_for(**{**request, "q_offset": where})]
        where += rows
        for mask in masks:
            for same in (mask, mask & True):  # the second is a tensor with the mask's contents
                found, _ = attention_forward(Layer(), q, k, v, same)
                torch.testing.assert_close(found[seen].double(), wanted[seen], **CLOSE)


def test_keys_of_a_static_cache_that_are_not_filled_yet_are_never_read() -> None:
    """Neither with a bias of the model's own, nor where cu_seq_lens divides the batch, is the mask another one."""
    mask = attention_mask_for(BATCH, 3, LENGTH, q_offset=torch.tensor(5))
    shown = torch.ones(3, LENGTH, dtype=torch.bool).tril(5)
    q, k, v = qkv(3)
    bias = torch.randn(1, HEADS, 3, LENGTH)
    bias = bias.masked_fill(~shown, 0)
    wanted = attention_forward(Layer(), q, k, v, torch.where(shown, bias, -torch.inf))[0]
    whole = {"cu_seq_lens_q": torch.tensor([0, 3, 6]), "cu_seq_lens_k": torch.tensor([0, LENGTH, 2 * LENGTH])}
    plain = attention_forward(Layer(), q, k, v, shown[None, None])[0]
    torch.testing.assert_close(attention_forward(Layer(), q, k, v, mask, **whole)[0], plain, **CLOSE)
    for t in (k, v):
        t[:, :, 8:] = torch.nan
    torch.testing.assert_close(attention_forward(Layer(), q, k, v, mask, position_bias=bias)[0], wanted, **CLOSE)
    torch.testing.assert_close(attention_forward(Layer(), q, k, v, mask)[0], plain, **CLOSE)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("starts", [None, [0, 8, 20, 33, 40]])
def test_a_layer_without_a_mask_says_it_itself(causal: bool, window: int | None, starts: list[int] | None) -> None:
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)[None, :]
    shown = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)
    if causal:
        shown &= distance >= 0
    if window is not None:
        shown &= distance.abs() < window
    packed = {}
    if starts is not None:
        shown &= in_sequences(starts)
        packed = {"cu_seq_lens_q": torch.tensor(starts), "max_length_q": 20, "max_length_k": 20}
    q, k, v = qkv()
    layer = Layer()
    layer.is_causal = causal
    found, _ = attention_forward(layer, q, k, v, None, sliding_window=window, **packed)
    torch.testing.assert_close(found.double(), eager(q, k, v, shown)[0], **CLOSE)
    bias = torch.randn(1, HEADS, LENGTH, LENGTH)
    found, _ = attention_forward(layer, q, k, v, None, sliding_window=window, position_bias=bias, **packed)
    scores = q @ k.repeat_interleave(2, 1).transpose(2, 3) * DIM**-0.5 + bias
    wanted = scores.masked_fill(~shown, -torch.inf).softmax(-1) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(found, wanted.transpose(1, 2), **CLOSE)


def test_a_mask_of_the_models_own_is_the_whole_mask() -> None:
    q, k, v = qkv()
    keys = torch.rand(BATCH, 1, 1, LENGTH) < 0.6
    keys[..., 0] = True
    wanted, _ = eager(q, k, v, keys.expand(-1, -1, LENGTH, -1))
    additive = torch.zeros(keys.shape).masked_fill(~keys, torch.finfo(torch.float32).min)
    for mask in (keys, additive, additive.bfloat16(), additive.double()):
        found, _ = attention_forward(Layer(), q, k, v, mask, sliding_window=3)
        torch.testing.assert_close(found.double(), wanted, **CLOSE)
    starts = [0, 8, 20, 33, 40]
    wanted, rows = eager(q, k, v, keys & in_sequences(starts))
    for mask in (keys, additive.masked_fill(~keys, -torch.inf)):
        found, _ = attention_forward(Layer(), q, k, v, mask, cu_seq_lens_q=torch.tensor(starts))
        torch.testing.assert_close(found[rows].double(), wanted[rows], **CLOSE)
    with pytest.raises(TypeError, match=r"attention_mask: dtype is torch\.int64"):
        attention_forward(Layer(), q, k, v, keys.long())


OPERATIONS = {
    "slice": lambda m: m[:, :, 2:, :7], "and": lambda m: m & torch.ones_like(m), "not": lambda m: ~m,
    "fill": lambda m: torch.zeros(m.shape).masked_fill(m, 1.0), "where": lambda m: torch.where(m, 0.0, -1.0),
    "cat": lambda m: torch.cat((m, m), -1), "to": lambda m: m.to(torch.float32), "copy": copy.deepcopy,
    "expand": lambda m: m.expand(-1, 3, -1, -1), "sum": lambda m: m.sum(-1), "add": lambda m: 1.0 - m.float(),
    "clone": lambda m: m.clone(), "tolist": lambda m: torch.tensor(m.tolist()), "same": lambda m: torch.zeros(1) + m,
}  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("pattern", ["causal", "bidirectional", "sliding", "chunked"])
def test_models_may_compute_with_the_mask(pattern: str, operation: str) -> None:
    tokens = padding_of("right")
    request = {
        "batch_size": BATCH, "q_length": LENGTH, "kv_length": LENGTH, "mask_function": PATTERNS[pattern](tokens),
        "attention_mask": tokens,
    }  # fmt: skip
    whole = masking_utils.sdpa_mask(**request, allow_is_causal_skip=False)
    found = OPERATIONS[operation](attention_mask_for(**request))
    assert type(found) is torch.Tensor and torch.equal(found, OPERATIONS[operation](whole))


REFUSED = ["cache", "block_table", "indices", "block_indices", "sinks", "head_mask", "output_attentions"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_layer_asks_for_in_vain_is_named(name: str) -> None:
    q, k, v = qkv()
    with pytest.raises(NotImplementedError, match=rf"tilewise\.transformers: {name} asks for"):
        attention_forward(Layer(), q, k, v, None, **{name: True})
    attention_forward(Layer(), q, k, v, None, **{name: None})


def test_a_window_without_keys_is_refused() -> None:
    q, k, v = qkv()
    for window in (0, -1):
        with pytest.raises(ValueError, match=f"sliding_window: is {window}, must be at least 1"):
            attention_forward(Layer(), q, k, v, None, sliding_window=window)


# ---- models -------------------------------------------------------------------------------------------------------------

SIZES = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "pad_token_id": 0}
HEADS_OF = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 8}
MODELS = {
    "Llama 4": lambda: transformers.Llama4ForCausalLM(
        transformers.Llama4TextConfig(
            **SIZES, **HEADS_OF, num_hidden_layers=4, intermediate_size_mlp=64, attention_chunk_size=6,
            num_local_experts=2, num_experts_per_tok=1, bos_token_id=1, eos_token_id=2,
        )
    ),
    "ModernBERT": lambda: transformers.ModernBertModel(
        transformers.ModernBertConfig(
            **SIZES, num_attention_heads=6, num_hidden_layers=4, local_attention=8, global_attn_every_n_layers=3,
            bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
        )
    ),
    "Mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SIZES, **HEADS_OF, num_hidden_layers=3, sliding_window=7)
    ),
}  # fmt: skip


def pair(name: str) -> list[torch.nn.Module]:
    """The model with eager attention and with ours, with the same weights."""
    eager_model = MODELS[name]().eval()
    ours = copy.deepcopy(eager_model)
    eager_model.set_attn_implementation("eager")
    ours.set_attn_implementation(tilewise.transformers.NAME)
    assert ours.config._attn_implementation == tilewise.transformers.NAME
    return [eager_model, ours]


def result(model: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
    out = model(*args, **kwargs)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_models(name: str, padding: str) -> None:
    ids, tokens = torch.randint(3, 97, (BATCH, LENGTH)), padding_of(padding)
    shown = torch.ones_like(ids, dtype=torch.bool) if tokens is None else tokens
    given = {} if tokens is None else {"attention_mask": tokens.long()}
    wanted, found = (result(model, ids, **given)[shown] for model in pair(name))
    torch.testing.assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("padding", ["none", "right"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_no_mask_of_all_pairs_is_made(name: str, padding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise AssertionError("a mask of Sq x Sk was made")

    monkeypatch.setattr(masking_utils, "sdpa_mask", refuse)
    tokens = padding_of(padding)
    given = {} if tokens is None else {"attention_mask": tokens.long()}
    pair(name)[1](torch.randint(3, 97, (BATCH, LENGTH)), **given)


TOLD = [
    *itertools.product(("Llama 4", "Mistral"), ("position_ids", "both", "both, with lengths")),
    *itertools.product(("ModernBERT",), ("both", "both, with lengths")),  # its masks know nothing of position ids
]


@pytest.mark.parametrize(("name", "told"), TOLD)
@torch.no_grad()
def test_packed_models(name: str, told: str) -> None:
    """Packed sentences give what they give alone, however the model is told where they start."""
    lengths = [9, 14, 17]
    sentences = [torch.randint(3, 97, (1, n)) for n in lengths]
    eager_model, ours = pair(name)
    wanted = torch.cat([result(eager_model, sentence)[0] for sentence in sentences])
    given: dict[str, Any] = {"position_ids": torch.cat([torch.arange(n) for n in lengths])[None]}
    if told != "position_ids":
        given |= dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), torch.tensor([0, *lengths]).cumsum(0))
    if told == "both, with lengths":
        given |= dict.fromkeys(("max_length_q", "max_length_k"), max(lengths))
    if name != "ModernBERT":
        given["use_cache"] = False
    torch.testing.assert_close(result(ours, torch.cat(sentences, -1), **given)[0], wanted, **CLOSE)


@torch.no_grad()
def test_chunks_of_a_row_whose_sequences_only_cu_seq_lens_tell() -> None:
    """Positions and chunks are then counted from the row's first token, and sequences stay apart."""
    lengths = [9, 14, 17]
    ids, place = torch.randint(3, 97, (1, sum(lengths))), torch.arange(sum(lengths))
    eager_model, ours = pair("Llama 4")
    shown = torch.block_diag(*[torch.ones(n, n) for n in lengths]).bool() & (place[:, None] >= place)
    masks = {"full_attention": shown, "chunked_attention": shown & (place[:, None] // 6 == place // 6)}
    masks = {n: torch.zeros(1, 1, *m.shape).masked_fill(~m, torch.finfo(torch.float32).min) for n, m in masks.items()}
    starts = torch.tensor([0, *lengths]).cumsum(0)
    found = result(ours, ids, cu_seq_lens_q=starts, cu_seq_lens_k=starts, use_cache=False)
    torch.testing.assert_close(found, result(eager_model, ids, attention_mask=masks, use_cache=False), **CLOSE)


@pytest.mark.parametrize("name", MODELS)
def test_output_attentions_is_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match="output_attentions"):
        pair(name)[1](torch.randint(3, 97, (1, 5)), output_attentions=True)
