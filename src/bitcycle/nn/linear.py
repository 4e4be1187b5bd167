"""nn.Linear on grids: the weight's range is taken per output channel (row)."""

from __future__ import annotations

from torch import Tensor, nn

from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.nn.base import QuantizedLayer
from bitcycle.nn.swap import LAYERS

_GEOMETRY = LinearGeometry()


@LAYERS.register("torch.nn.modules.linear.Linear")
class QuantizedLinear(QuantizedLayer, nn.Linear):
    """A converted nn.Linear."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) -> (..., out); without bits exactly nn.Linear."""
        if not self.is_active:
            return super().forward(input)
        return self.multiply(
            _GEOMETRY, input, self.weight, self.bias, second_keep=(0,), input_keep=(1,)
        )
