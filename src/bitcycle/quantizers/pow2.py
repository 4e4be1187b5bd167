"""`pow2`: `absmax` with steps that are powers of two, so that scaling is a shift.

    h = 2^(b-1),  s = 2^ceil(log2(max|x| / (h - 1))),  n = rint(x / s),  x^ = n * s

The step is the smallest power of two that clips nothing, at most twice that of `absmax`. Not from a
paper: a baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bitcycle.ops.affine import Rule, power_above
from bitcycle.quantizers.absmax import AbsMax
from bitcycle.quantizers.base import QUANTIZERS


@QUANTIZERS.register("pow2")
@dataclass(frozen=True, kw_only=True)
class PowerOfTwo(AbsMax):
    """`absmax` with steps that are powers of two.

    error_rounding: "stochastic" or "nearest".

    >>> import torch
    >>> x = torch.tensor([-0.9, 0.0, 0.2, 0.4])
    >>> rule = PowerOfTwo()
    >>> rule.encode("act", x, torch.tensor(7), rule.range_of("act", x)).dequantize()
    tensor([-1.0000,  0.0000,  0.0000,  0.5000])
    """

    @property
    def rule(self) -> Rule | None:
        """The native library's; None for a subclass that has its own."""
        return Rule.POWER if type(self).step is PowerOfTwo.step else None

    def step(self, bound: Tensor, num_steps: Tensor) -> Tensor:
        """s = 2^ceil(log2(bound / num_steps)), exact."""
        return power_above(bound / num_steps)
