"""Models of which torch.compile has some part: what a mask says is not frozen in a graph."""

import copy

import pytest
import tilewise.transformers
import torch
import transformers
from small_models import CONFIGS, padded, pair
from tilewise.transformers import attention_forward, attention_mask_for
from torch._dynamo.testing import CompileCounter
from transformers import masking_utils

tilewise.transformers.register()

CLOSE = {"rtol": 1e-4, "atol": 2e-5}


@pytest.fixture(autouse=True)
def _fresh_tracer() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_compiled_layers(name: str) -> None:
    """Each layer by itself, one call after the other with other masks, as regional compilation does."""
    ours = pair(name)[1]
    compiled = copy.deepcopy(ours)
    layers = compiled.transformer.h if name == "GPT-2" else compiled.model.layers
    for i, layer in enumerate(layers):
        layers[i] = torch.compile(layer, backend="aot_eager")
    ids, positions = torch.randint(3, 97, (4, 20)), torch.cat((torch.arange(8), torch.arange(12)))[None]
    calls = [{"input_ids": ids}, *({"input_ids": i, "attention_mask": m} for i, m in (padded("right"), padded("left")))]
    calls += [{"input_ids": ids[:1], "position_ids": positions}, {"input_ids": ids[:, :9]}, {"input_ids": ids}]
    for call in calls:
        shown = call.get("attention_mask", torch.ones_like(call["input_ids"])).bool()
        found, wanted = (model(**call, use_cache=False).logits[shown] for model in (compiled, ours))
        torch.testing.assert_close(found, wanted, **CLOSE)


def test_a_compiled_function_follows_its_mask() -> None:
    q = torch.randn(2, 2, 20, 8)
    layer = torch.nn.Identity()
    compiled = torch.compile(lambda m: attention_forward(layer, q, q, q, m)[0], backend="aot_eager")
    functions = [
        masking_utils.causal_mask_function, masking_utils.sliding_window_causal_mask_function(3),
        masking_utils.sliding_window_causal_mask_function(5), masking_utils.bidirectional_mask_function,
        masking_utils.sliding_window_bidirectional_mask_function(2), masking_utils.causal_mask_function,
        masking_utils.chunked_causal_mask_function(6, torch.zeros(2, dtype=torch.int64)),
        masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.int64)),
    ]  # fmt: skip
    for function in functions:
        mask = attention_mask_for(2, 20, 20, mask_function=function)
        torch.testing.assert_close(compiled(mask), attention_forward(layer, q, q, q, mask.whole())[0], **CLOSE)


@torch.no_grad()
def test_compiled_layers_follow_a_static_cache() -> None:
    """Layer by layer, a graph serves all steps of decoding after the first few."""
    ours = pair("Llama")[1]
    compiled, counter = copy.deepcopy(ours), CompileCounter()
    for i, layer in enumerate(compiled.model.layers):
        compiled.model.layers[i] = torch.compile(layer, backend=counter)
    ids, graphs = torch.randint(3, 97, (2, 20)), []
    caches = [transformers.StaticCache(config=ours.config, max_cache_len=32) for _ in range(2)]
    for step in (slice(0, 6), *(slice(n, n + 1) for n in range(6, 20))):
        found, wanted = (m(ids[:, step], past_key_values=c).logits for m, c in zip((compiled, ours), caches, strict=True))
        torch.testing.assert_close(found, wanted, **CLOSE)
        graphs.append(counter.frame_count)
    assert graphs[-1] == graphs[4] > 0
