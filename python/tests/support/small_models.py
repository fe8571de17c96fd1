"""Small random models of transformers, batches for them, and what they generate."""

from typing import Any

import tilewise.transformers
import torch
import transformers

SIZES = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
CONFIGS = {
    "Llama": lambda: transformers.LlamaConfig(**SIZES, **HEADS, **TOKENS),
    "Mistral": lambda: transformers.MistralConfig(**SIZES, **HEADS, **TOKENS, sliding_window=7),
    "GPT-2": lambda: transformers.GPT2Config(vocab_size=97, n_embd=48, n_layer=3, n_head=6, n_positions=128, **TOKENS),
    "Gemma-2": lambda: transformers.Gemma2Config(
        **SIZES, **HEADS, **TOKENS, head_dim=8, sliding_window=7, attn_logit_softcapping=2.0, query_pre_attn_scalar=8
    ),
    "GPT-OSS": lambda: transformers.GptOssConfig(
        **SIZES, **HEADS, **TOKENS, head_dim=8, sliding_window=7, num_local_experts=4, num_experts_per_tok=2,
        experts_implementation="eager",
    ),
}


def pair(name: str, device: str = "cpu") -> list[torch.nn.Module]:
    """The model with eager attention and with ours, with the same weights.

    In fp32: eager attention in fp64 gives NaN where a row is padding.
    """
    models = []
    for implementation in ("eager", tilewise.transformers.NAME):
        config = CONFIGS[name]()
        config._attn_implementation = implementation
        models.append(transformers.AutoModelForCausalLM.from_config(config).eval())
        assert models[-1].config._attn_implementation == implementation
    state = {key: torch.randn_like(value) if "sinks" in key else value for key, value in models[0].state_dict().items()}
    for model in models:
        model.load_state_dict(state)
    return [model.to(device) for model in models]


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and mask (4, 20), sequences of 20, 13, 5 and 1 tokens."""
    ids = torch.randint(3, 97, (4, 20))
    place = torch.arange(20)
    lengths = torch.tensor([20, 13, 5, 1])[:, None]
    mask = place < lengths if side == "right" else place >= 20 - lengths
    return ids * mask, mask.long()


def assert_same_tokens(found: Any, wanted: Any, prompt: int) -> None:
    """Compares results of generate() token by token, up to one where both choices are equal up to rounding."""
    assert found.sequences.shape == wanted.sequences.shape
    for row, (theirs, ours) in enumerate(zip(wanted.sequences, found.sequences, strict=True)):
        parted = (theirs != ours).nonzero().flatten().tolist()
        if parted:
            logits = wanted.logits[parted[0] - prompt][row]
            torch.testing.assert_close(logits[theirs[parted[0]]], logits[ours[parted[0]]], rtol=0, atol=1e-6)
