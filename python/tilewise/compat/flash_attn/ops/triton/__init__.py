"""flash_attn.ops.triton: the function of rotary embeddings alone, in PyTorch."""
