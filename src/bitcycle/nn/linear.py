"""Quantized nn.Linear, with one weight range per output channel (row), and quantized `MatMul`."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from bitcycle.kernels.geometry import LinearGeometry, MatMulGeometry
from bitcycle.matmul import MatMul
from bitcycle.nn.class_swap import LAYERS
from bitcycle.nn.layer import QuantizedLayer

_LINEAR, _MATMUL = LinearGeometry(), MatMulGeometry()


@LAYERS.register("torch.nn.modules.linear.Linear")
class QuantizedLinear(QuantizedLayer, nn.Linear):
    """A converted nn.Linear."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) -> (..., out); without bits exactly nn.Linear."""
        if not self.quantizes(input, self.weight, self.bias):
            return super().forward(input)
        return self.multiply(_LINEAR, input, self.weight, self.bias)


@LAYERS.register("bitcycle.matmul.MatMul")
class QuantizedMatMul(QuantizedLayer, MatMul):
    """A converted `MatMul`; the bits of the role act apply to both operands."""

    num_act_inputs: ClassVar[int] = 2
    is_between_activations: ClassVar[bool] = True
    own_roles: ClassVar[tuple[str, ...]] = ("act", "error")

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """(..., M, K) x (..., K, N) -> (..., M, N); vectors as in torch.matmul."""
        if not self.quantizes(a, b):
            return super().forward(a, b)
        rows, columns = a.dim() == 1, b.dim() == 1
        a = a.unsqueeze(0) if rows else a
        b = b.unsqueeze(1) if columns else b
        output = self.multiply(_MATMUL, a, b)
        output = output.squeeze(-1) if columns else output
        return output.squeeze(-1 if columns else -2) if rows else output
