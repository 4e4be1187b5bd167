"""A decoder-only Transformer language model; the products of its attention are modules."""

from __future__ import annotations

import math

import torch
from torch import nn

from bitcycle.matmul import MatMul
from bitcycle_lab.models.base import LanguageModel, check_positive, register_model


class CausalSelfAttention(nn.Module):
    """softmax(q k^T / sqrt(head_dim)) v over the past; `qk` and `pv` name the two products."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)
        self.qk = MatMul()
        self.pv = MatMul()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, T, dim) -> (N, T, dim)."""
        q, k, v = (self.split_heads(project(x)) for project in (self.q, self.k, self.v))
        scores = self.qk(q / math.sqrt(q.shape[-1]), k.transpose(-2, -1))  # (N, heads, T, T)
        length = x.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        attention = scores.masked_fill(future, -math.inf).softmax(dim=-1)
        mixed = self.pv(attention, v)  # (N, heads, T, head_dim)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))  # (N, T, dim)
        return out

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """(N, T, dim) -> (N, heads, T, head_dim)."""
        num, length, dim = x.shape
        return x.view(num, length, self.num_heads, dim // self.num_heads).transpose(1, 2)


class DecoderLayer(nn.Module):
    """Pre-norm attention and ReLU feed-forward, each with dropout and a residual connection."""

    def __init__(self, dim: int, ffn_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = CausalSelfAttention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, ffn_dim)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(ffn_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, T, dim) -> (N, T, dim)."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        out: torch.Tensor = x + self.dropout(self.fc2(self.relu(self.fc1(self.norm2(x)))))
        return out


@register_model("transformer_lm")
class TransformerLM(LanguageModel):
    """Transformer language model: 6 pre-norm decoder layers of 512, tied embeddings.

    Scaled embedding plus sinusoidal positions, `num_layers` decoder layers, norm, decoder.
    Pre-norm, because a post-norm model needs a careful warm-up, the more so at low precision.
    Dropout acts on the embedding and on each branch, not on attention weights. Initialization:
    embedding N(0, 1 / sqrt(dim)); linear layers Xavier-uniform with zero bias, q, k, v scaled by
    1 / sqrt(2).
    """

    def __init__(
        self,
        *,
        vocab_size: int = 10_000,
        dim: int = 512,
        ffn_dim: int = 2048,
        num_layers: int = 6,
        num_heads: int = 8,
        dropout: float = 0.1,
        tie: bool = True,
    ) -> None:
        super().__init__(vocab_size=vocab_size, example_length=64)
        check_positive(dim=dim, ffn_dim=ffn_dim, num_layers=num_layers, num_heads=num_heads)
        if dim % 2 or dim % num_heads:
            raise ValueError(f"dim ({dim}) must be even and a multiple of num_heads ({num_heads})")
        self.dim = dim
        self.embedding = nn.Embedding(vocab_size, dim)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            DecoderLayer(dim, ffn_dim, num_heads, dropout) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.decoder = nn.Linear(dim, vocab_size, bias=False)
        self.init_weights()
        if tie:
            self.decoder.weight = self.embedding.weight

    def init_weights(self) -> None:
        """Initialize all weights."""
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.decoder:
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, CausalSelfAttention):
                for project in (module.q, module.k, module.v):
                    nn.init.xavier_uniform_(project.weight, gain=1 / math.sqrt(2))
        for weight in (self.embedding.weight, self.decoder.weight):
            nn.init.normal_(weight, 0.0, self.dim**-0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (N, T) -> logits (N, T, vocab_size), for any T."""
        x = self.embedding(tokens) * math.sqrt(self.dim)  # (N, T, dim)
        x = self.dropout(x + sinusoids(tokens.shape[1], self.dim, device=x.device).to(x.dtype))
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.decoder(self.norm(x))
        return logits


def sinusoids(length: int, dim: int, *, device: torch.device | str) -> torch.Tensor:
    """Position codes (length, dim): sin(p w_i), then cos(p w_i), with w_i = 10000^(-2 i / dim).

    >>> [round(value, 4) for value in sinusoids(2, 4, device="cpu")[1].tolist()]
    [0.8415, 0.01, 0.5403, 0.9999]
    """
    w = 10_000.0 ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
    angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] * w
    return torch.cat([angles.sin(), angles.cos()], dim=1)
