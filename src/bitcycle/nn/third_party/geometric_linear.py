"""PyTorch Geometric's own Linear on grids: a range per node, and per row of the weight."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.nn.dense.linear import Linear

from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.nn.per_node import PerNodeLayer
from bitcycle.nn.swap import LAYERS

_GEOMETRY = LinearGeometry()


@LAYERS.register("torch_geometric.nn.dense.linear.Linear")
class QuantizedLinear(PerNodeLayer, Linear):  # type: ignore[misc]
    """A converted `torch_geometric.nn.Linear`."""

    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out); without bits exactly the float module."""
        if not self.is_active:
            output: Tensor = super().forward(x)
            return output
        return self.multiply(
            _GEOMETRY, x, self.weight, self.bias, second_keep=(0,), input_keep=(1,)
        )
