"""A matrix product as a module, so that products of activations can be converted.

An attention layer written with `MatMul` instead of `@` is converted like any other layer: the
product has a name, a precision, a cost and a row in the audit.
"""

from __future__ import annotations

import torch
from torch import nn


class MatMul(nn.Module):
    """`torch.matmul(a, b)` of two activations; batch dimensions broadcast.

    Use it in attention instead of `@`, so that `quantize_model` converts the product.

    >>> MatMul()(torch.ones(2, 3), torch.ones(3, 4)).shape
    torch.Size([2, 4])
    """

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """(..., M, K) x (..., K, N) -> (..., M, N)."""
        return torch.matmul(a, b)
