"""What the language models share: example token batches."""

from __future__ import annotations

import torch

from bitcycle.models.base import Model, check_positive, cpu_generator


class LanguageModel(Model):
    """Predicts each next token: tokens (N, T) in 0..vocab_size - 1 -> logits (N, T, vocab_size)."""

    def __init__(self, *, vocab_size: int, example_length: int) -> None:
        super().__init__()
        check_positive(vocab_size=vocab_size, example_length=example_length)
        self.vocab_size = vocab_size
        self.example_length = example_length  # of the examples; sequences may have any length

    def example_inputs(
        self, batch_size: int = 2, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> tuple[torch.Tensor, ...]:
        """One batch of uniform tokens, (batch_size, example_length)."""
        shape = (batch_size, self.example_length)
        tokens = torch.randint(self.vocab_size, shape, generator=cpu_generator(seed), device="cpu")
        return (tokens.to(device),)
