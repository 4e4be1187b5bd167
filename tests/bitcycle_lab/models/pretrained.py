"""Writes a small model folder as a model's page offers it."""

from __future__ import annotations

from pathlib import Path

import torch

from bitcycle_lab.data.pairs import train_tokenizer
from tests.bitcycle_lab.data.pair_layouts import some_pairs


def write_model(folder: Path, kind: str = "Bert", **options: int) -> Path:
    """config.json, model.safetensors and tokenizer.json of an encoder without a classifier."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    texts = [text for pair in some_pairs(30) for text in pair[:2]]
    (folder / "tokenizer.json").write_text(train_tokenizer(texts, 300), encoding="utf-8")
    sizes = {"vocab_size": 300, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
             "num_attention_heads": 2, "max_position_embeddings": 32}  # fmt: skip
    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **options})
    getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    settings = '{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}'
    (folder / "tokenizer_config.json").write_text(settings, encoding="utf-8")
    return folder
