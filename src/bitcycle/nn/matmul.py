"""`bitcycle.MatMul` on grids: both operands are activations with running ranges of their own."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from bitcycle.kernels.geometry import MatMulGeometry
from bitcycle.matmul import MatMul
from bitcycle.nn.base import QuantizedLayer
from bitcycle.nn.swap import LAYERS

_GEOMETRY = MatMulGeometry()


@LAYERS.register("bitcycle.matmul.MatMul")
class QuantizedMatMul(QuantizedLayer, MatMul):
    """A converted `MatMul`; the bits of the role act apply to both operands."""

    num_act_inputs: ClassVar[int] = 2

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """(..., M, K) x (..., K, N) -> (..., M, N); vectors as in torch.matmul."""
        if not self.is_active:
            return super().forward(a, b)
        rows, columns = a.dim() == 1, b.dim() == 1
        a = a.unsqueeze(0) if rows else a
        b = b.unsqueeze(1) if columns else b
        output = self.multiply(_GEOMETRY, a, b, second="act")
        output = output.squeeze(-1) if columns else output
        return output.squeeze(-1 if columns else -2) if rows else output
