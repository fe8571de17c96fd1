"""Small random models on a CUDA device: transformers' eager attention against ours."""

import pytest
import tilewise
import tilewise.transformers
import torch
from small_models import CONFIGS, assert_same_tokens, padded, pair

if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no CUDA device", allow_module_level=True)
if not any(name.startswith("cuda") for name in tilewise.kernels()):
    pytest.skip("this build of tilewise has no CUDA kernels", allow_module_level=True)

tilewise.transformers.register()

CLOSE = {"rtol": 1e-4, "atol": 2e-5}


@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_logits(name: str, side: str) -> None:
    ids, mask = (None if x is None else x.cuda() for x in (padded(side) if side != "none" else (padded("right")[0], None)))
    shown = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    wanted, found = (model(ids, attention_mask=mask).logits[shown] for model in pair(name, "cuda"))
    torch.testing.assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_packed_position_ids(name: str) -> None:
    positions = torch.cat((torch.arange(8), torch.arange(12)))[None].cuda()
    ids = torch.randint(3, 97, positions.shape).cuda()
    wanted, found = (model(ids, position_ids=positions, use_cache=False).logits for model in pair(name, "cuda"))
    torch.testing.assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["Llama", "GPT-OSS"])
def test_generation_is_token_for_token(name: str, cache: str) -> None:
    ids, mask = (x.cuda() for x in padded("left"))
    keywords = {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
    keywords |= {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    wanted, found = (model.generate(ids, attention_mask=mask, **keywords) for model in pair(name, "cuda"))
    assert_same_tokens(found, wanted, prompt=20)


def test_gradients_are_those_of_the_eager_model() -> None:
    eager, ours = pair("Llama", "cuda")
    ids = padded("right")[0].cuda()
    for model in (eager, ours):
        model(ids, labels=ids).loss.backward()
    for a, b in zip(eager.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, **CLOSE)
