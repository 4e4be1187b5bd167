"""A float matrix product as a module, so that a model can name its products of activations.

An attention layer written with `MatMul` instead of `@` can be converted like any other layer:
the product has a name, a precision, a cost and a row in the audit.
"""

from __future__ import annotations

import torch
from torch import nn


class MatMul(nn.Module):
    """`torch.matmul(a, b)` of two activations, batch dimensions broadcast.

    >>> MatMul()(torch.ones(2, 3), torch.ones(3, 4)).shape
    torch.Size([2, 4])
    """

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """(..., M, K) x (..., K, N) -> (..., M, N)."""
        return torch.matmul(a, b)
