"""flash_attn.ops: the function of rotary embeddings alone. Norms, losses and dense layers are left out."""
