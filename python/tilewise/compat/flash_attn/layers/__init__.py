"""flash_attn.layers: rotary embeddings. Its patch embedding is left out."""
