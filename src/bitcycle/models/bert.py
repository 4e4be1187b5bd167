"""Encoders of transformers that classify pairs of sentences, built from a config."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from bitcycle.extras import require
from bitcycle.models.base import Model, check_positive, cpu_generator, register_model

PURPOSE = "models of Hugging Face"


class PairClassifier(Model):
    """A `...ForSequenceClassification` of transformers: tokens, mask, sentence -> logits.

    net: the model itself, as its package builds it.
    """

    def __init__(self, net: nn.Module, *, num_classes: int, vocab_size: int, length: int) -> None:
        super().__init__()
        self.net = net
        self.num_classes = num_classes
        self.vocab_size = vocab_size
        self.length = length  # of the examples
        takes = inspect.signature(type(net).forward).parameters
        num_types = getattr(net.config, "type_vocab_size", 0)
        self.takes_types = "token_type_ids" in takes and num_types > 1

    def forward(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor | None = None,
        types: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Tokens (N, T), mask (N, T) with 0 for padding, sentence (N, T) -> (N, num_classes).

        Without a mask every token counts; without sentences all belong to the first.
        """
        more = {"token_type_ids": types} if self.takes_types else {}
        logits: torch.Tensor = self.net(input_ids=tokens, attention_mask=mask, **more).logits
        return logits

    def example_inputs(
        self, batch_size: int = 2, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> tuple[torch.Tensor, ...]:
        """Uniform tokens without padding, the second half of them the second sentence."""
        shape = (batch_size, self.length)
        tokens = torch.randint(self.vocab_size, shape, generator=cpu_generator(seed), device="cpu")
        mask = torch.ones(shape, dtype=torch.int64, device="cpu")
        types = (torch.arange(self.length, device="cpu") >= self.length // 2).long().expand(shape)
        return tokens.to(device), mask.to(device), types.to(device)


@register_model(extra="transformers")
def bert(
    *,
    vocab_size: int = 4096,
    num_classes: int = 3,
    dim: int = 128,
    ffn_dim: int = 512,
    num_layers: int = 2,
    num_heads: int = 2,
    dropout: float = 0.1,
    max_length: int = 128,
) -> PairClassifier:
    """BERT encoder with a classifier of sentence pairs: 2 layers of 128."""
    check_positive(
        vocab_size=vocab_size,
        num_classes=num_classes,
        dim=dim,
        ffn_dim=ffn_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        max_length=max_length,
    )
    if dim % num_heads:
        raise ValueError(f"dim ({dim}) must be a multiple of num_heads ({num_heads})")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout ({dropout}) must be in [0, 1)")
    transformers = require("transformers", extra="transformers", purpose=PURPOSE)
    config = transformers.BertConfig(
        vocab_size=vocab_size,
        hidden_size=dim,
        intermediate_size=ffn_dim,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        max_position_embeddings=max_length,
        num_labels=num_classes,
    )
    net = transformers.BertForSequenceClassification(config)
    return PairClassifier(net, num_classes=num_classes, vocab_size=vocab_size, length=max_length)
