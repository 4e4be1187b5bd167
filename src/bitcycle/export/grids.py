"""Fixed grids of a trained model: value = scale * code + offset, code in lowest..highest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bitcycle.quantizers.base import Quantizer, Range


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The grid of one operand; scale and offset broadcast against it.

    lowest: the smallest code that is used; a symmetric grid leaves out 0.
    """

    bits: int
    scale: Tensor
    offset: Tensor
    lowest: int = 0

    @property
    def highest(self) -> int:
        """The largest code."""
        return int(2**self.bits - 1)

    @property
    def zero_point(self) -> Tensor | None:
        """The whole-numbered code of 0, if every offset is exactly that many steps; else None.

        >>> Grid(bits=8, scale=torch.tensor(0.5), offset=torch.tensor(-2.0)).zero_point
        tensor(4.)
        >>> Grid(bits=8, scale=torch.tensor(0.5), offset=torch.tensor(-2.2)).zero_point is None
        True
        """
        zero = torch.round(-self.offset / self.scale)
        is_code = (zero >= 0) & (zero <= self.highest) & (-zero * self.scale == self.offset)
        return zero.abs() if bool(is_code.all()) else None

    def limits(self) -> tuple[Tensor, Tensor]:
        """The values of the smallest and the largest code."""
        return self.lowest * self.scale + self.offset, self.highest * self.scale + self.offset

    def put(self, x: Tensor) -> Tensor:
        """The nearest values of the grid, half to even."""
        return self.decode(self.codes_of(x))

    def codes_of(self, x: Tensor) -> Tensor:
        """Codes as whole numbers in the dtype of `x`."""
        return ((x - self.offset) / self.scale).round().clamp(self.lowest, self.highest)

    def decode(self, codes: Tensor) -> Tensor:
        """The values of codes."""
        return codes.to(self.scale.dtype) * self.scale + self.offset


def grid_of(quantizer: Quantizer, role: str, x: Tensor, levels: Tensor, within: Range) -> Grid:
    """The grid on which a rule puts `x` within this range, whatever `x` holds."""
    quantized = quantizer.encode(role, x, levels, within)
    assert quantized.scale is not None
    assert quantized.offset is not None
    bits = int(levels).bit_length()
    lowest, _ = quantizer.integer_range(min(bits, 8)) or (0, 0)
    return Grid(bits=bits, scale=quantized.scale, offset=quantized.offset, lowest=lowest)
