"""A word-level LSTM language model: embedding, LSTM, decoder (Zaremba et al. 2014)."""

from __future__ import annotations

import torch
from torch import nn

from bitcycle_lab.models.base import LanguageModel, check_positive, register_model

State = tuple[torch.Tensor, torch.Tensor]  # h and c, each (num_layers, N, hidden_dim)


@register_model("lstm_lm")
class LSTMLM(LanguageModel):
    """LSTM language model: 1 layer of 800 units, 10,000 words (Penn Treebank).

    Dropout follows the embedding, is between LSTM layers and before the decoder. The weights of
    embedding and decoder start uniform in +-0.1, the decoder's bias at zero, the LSTM as in torch.
    `tie` makes the decoder's weight the embedding's, one Parameter.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 10_000,
        embedding_dim: int = 800,
        hidden_dim: int = 800,
        num_layers: int = 1,
        dropout: float = 0.5,
        tie: bool = False,
    ) -> None:
        super().__init__(vocab_size=vocab_size, example_length=35)
        check_positive(embedding_dim=embedding_dim, hidden_dim=hidden_dim, num_layers=num_layers)
        if tie and embedding_dim != hidden_dim:
            raise ValueError(
                f"tie needs embedding_dim ({embedding_dim}) equal to hidden_dim ({hidden_dim})"
            )
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        self.lstm = nn.LSTM(
            embedding_dim,
            hidden_dim,
            num_layers,
            batch_first=True,
            dropout=dropout if num_layers > 1 else 0.0,  # torch warns of dropout in one layer
        )
        self.dropout = nn.Dropout(dropout)
        self.decoder = nn.Linear(hidden_dim, vocab_size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        if tie:
            self.decoder.weight = self.embedding.weight

    def forward(
        self, tokens: torch.Tensor, state: State | None = None
    ) -> tuple[torch.Tensor, State]:
        """Tokens (N, T) -> logits (N, T, vocab_size) and the state for the next segment.

        Without a state it is zero. The returned state is part of the graph: detach it between
        segments for truncated backpropagation.
        """
        x = self.dropout(self.embedding(tokens))  # (N, T, embedding_dim)
        x, state = self.lstm(x, state)  # (N, T, hidden_dim)
        assert state is not None
        return self.decoder(self.dropout(x)), state
