"""Small random models: transformers' eager attention against ours."""

import copy

import pytest
import tilewise.transformers
import torch
import transformers
from small_models import CONFIGS, SIZES, assert_same_tokens, padded, pair

tilewise.transformers.register()

CLOSE = {"rtol": 1e-4, "atol": 2e-5}


@pytest.fixture
def no_large_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a mask of Sq x Sk is made."""

    def refuse(**_: object) -> None:
        raise AssertionError("a mask of Sq x Sk was made")

    monkeypatch.setattr(tilewise.transformers.masking_utils, "sdpa_mask", refuse)


@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_gradients(name: str, side: str) -> None:
    eager, ours = pair(name)
    ids, mask = padded(side) if side != "none" else (torch.randint(3, 97, (2, 20)), None)
    shown = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    results = []
    for model in (eager, ours):
        logits = model(ids, attention_mask=mask).logits[shown]
        loss = torch.nn.functional.cross_entropy(logits, ids[shown])
        gradients = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
        results.append([logits, *(g for g in gradients if g is not None)])
    assert len(results[0]) == len(results[1])
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("name", CONFIGS)
def test_no_mask_of_all_pairs_is_made(name: str, no_large_masks: None) -> None:
    ours = pair(name)[1]
    for side in ("right", "left"):
        ids, mask = padded(side)
        ours(ids, attention_mask=mask)
    ours(ids)
    positions = torch.cat((torch.arange(8), torch.arange(12)))[None]
    ours(ids[:1], position_ids=positions)


@pytest.mark.parametrize("name", CONFIGS)
def test_packed_position_ids(name: str) -> None:
    if name == "GPT-2":
        positions = torch.cat((torch.arange(8), torch.arange(12)))[None]
    else:
        positions = torch.stack((torch.cat((torch.arange(8), torch.arange(12))), torch.arange(20)))
    ids = torch.randint(3, 97, positions.shape)
    eager, ours = pair(name)
    wanted, found = (model(ids, position_ids=positions, use_cache=False).logits for model in (eager, ours))
    torch.testing.assert_close(found, wanted, **CLOSE)
    if name == "GPT-OSS":
        return  # a sequence alone has other logits there, also with eager attention
    alone = ours(ids[:1, 8:], use_cache=False).logits
    torch.testing.assert_close(found[:1, 8:], alone, **CLOSE)


@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
@pytest.mark.parametrize("name", CONFIGS)
def test_generation_is_token_for_token(name: str, cache: str) -> None:
    ids, mask = padded("left")
    keywords = {"static": {"cache_implementation": "static"}, "dynamic": {}, "none": {"use_cache": False}}[cache]
    keywords |= {"max_new_tokens": 24, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    wanted, found = (model.generate(ids, attention_mask=mask, **keywords) for model in pair(name))
    assert wanted.sequences.shape == (4, 44)
    assert_same_tokens(found, wanted, prompt=20)


@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_static_cache_needs_no_mask_of_all_pairs(name: str, side: str, no_large_masks: None) -> None:
    ids, mask = padded("left") if side == "left" else (torch.randint(3, 97, (2, 20)), None)
    pair(name)[1].generate(
        ids, attention_mask=mask, max_new_tokens=3, do_sample=False, cache_implementation="static"
    )


def test_prefill_in_pieces() -> None:
    for name in CONFIGS:
        for model in pair(name)[1:]:
            ids = torch.randint(3, 97, (2, 20))
            whole = model(ids).logits
            first = model(ids[:, :11], use_cache=True)
            second = model(ids[:, 11:], past_key_values=first.past_key_values, use_cache=True)
            torch.testing.assert_close(second.logits, whole[:, 11:], **CLOSE)


def bert_pair() -> list[torch.nn.Module]:
    models = []
    for implementation in ("eager", tilewise.transformers.NAME):
        config = transformers.BertConfig(
            **SIZES, num_attention_heads=6, max_position_embeddings=128, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, attn_implementation=implementation,
        )  # fmt: skip
        models.append(transformers.BertModel(config).eval())
    models[1].load_state_dict(models[0].state_dict())
    return models


@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_bert(side: str, request: pytest.FixtureRequest) -> None:
    eager, ours = bert_pair()
    ids, mask = padded(side) if side != "none" else (torch.randint(3, 97, (2, 20)), None)
    shown = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    wanted = eager(ids, attention_mask=mask).last_hidden_state[shown]
    request.getfixturevalue("no_large_masks")
    found = ours(ids, attention_mask=mask).last_hidden_state[shown]
    torch.testing.assert_close(found, wanted, **CLOSE)


def test_bert_packed_by_cu_seq_lens() -> None:
    eager, ours = bert_pair()
    ids, mask = padded("right")
    wanted = eager(ids, attention_mask=mask).last_hidden_state[mask.bool()]
    lengths = mask.sum(-1)
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    positions = torch.cat([torch.arange(int(n)) for n in lengths])[None]
    found = ours(
        ids[mask.bool()][None], position_ids=positions, cu_seq_lens_q=starts, cu_seq_lens_k=starts, max_length_q=20,
        max_length_k=20,
    ).last_hidden_state[0]  # fmt: skip
    torch.testing.assert_close(found, wanted, **CLOSE)


def test_a_mask_that_a_user_composed() -> None:
    for dtype in (torch.bool, torch.float32):
        eager, ours = pair("Llama")
        ids = torch.randint(3, 97, (2, 12))
        shown = torch.tril(torch.rand(2, 1, 12, 12) > 0.3) | torch.eye(12, dtype=torch.bool)
        additive = torch.zeros(2, 1, 12, 12, dtype=torch.float32).masked_fill(~shown, float("-inf"))
        wanted = eager(ids, attention_mask=additive).logits
        found = ours(ids, attention_mask=shown if dtype == torch.bool else additive).logits
        torch.testing.assert_close(found, wanted, **CLOSE)


def test_dropout_trains() -> None:
    config = transformers.GPT2Config(vocab_size=97, n_embd=48, n_layer=1, n_head=6, attn_pdrop=0.5, resid_pdrop=0.0)
    config._attn_implementation = tilewise.transformers.NAME
    model = transformers.GPT2LMHeadModel(config).train()
    ids = torch.randint(3, 97, (1, 16))
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        out = model(ids, labels=ids)
        out.loss.backward()
        results.append(out.loss.item())
    assert results[0] == results[1] != results[2]


def test_compiled() -> None:
    ours = pair("Llama")[1]
    ids = torch.randint(3, 97, (2, 12))
    compiled = torch.compile(copy.deepcopy(ours), backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids).logits, ours(ids).logits, **CLOSE)


def test_a_paged_cache_is_refused() -> None:
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(NotImplementedError, match="paged cache"):
        tilewise.transformers.attention_forward(torch.nn.Identity(), q, q, q, None, cache=object())
