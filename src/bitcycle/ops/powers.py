"""Powers of two, exact: taken from a number's own exponent, never from exp2 or log2."""

from __future__ import annotations

import torch
from torch import Tensor

_ROOT_HALF = 0.5**0.5


def nearest_power(x: Tensor) -> Tensor:
    """2^rint(log2 x) for x > 0; 0 for 0.

    x = mantissa * 2^exponent with the mantissa in [1/2, 1), so x / mantissa is 2^exponent to the
    last bit, and log2 x rounds down to exponent - 1 if the mantissa is below sqrt(1/2).

    >>> nearest_power(torch.tensor([0.3, 0.36, 1.0, 0.0]))
    tensor([0.2500, 0.5000, 1.0000, 0.0000])
    """
    mantissa = torch.frexp(x).mantissa
    power = x / (mantissa + (mantissa == 0))
    return torch.where(mantissa < _ROOT_HALF, power * 0.5, power)


def power_above(x: Tensor) -> Tensor:
    """2^ceil(log2 x) for x > 0, the smallest power of two that is not below x; 0 for 0.

    >>> power_above(torch.tensor([0.3, 0.5, 5.0, 0.0]))
    tensor([0.5000, 0.5000, 8.0000, 0.0000])
    """
    mantissa = torch.frexp(x).mantissa
    power = x / (mantissa + (mantissa == 0))
    return torch.where(mantissa == 0.5, power * 0.5, power)
