"""Hugging Face's Conv1D (GPT-2) on grids: a linear layer whose weight is (in, out)."""

from __future__ import annotations

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.nn.base import QuantizedLayer
from bitcycle.nn.swap import LAYERS

_GEOMETRY = LinearGeometry()


@LAYERS.register("transformers.pytorch_utils.Conv1D")
class QuantizedConv1D(QuantizedLayer, Conv1D):
    """A converted `transformers.pytorch_utils.Conv1D`; the weight's range is taken per column."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out); without bits exactly the float module."""
        if not self.is_active:
            output: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return output
        weight = self.weight.t()  # (out, in)
        return self.multiply(_GEOMETRY, x, weight, self.bias, second_keep=(0,), input_keep=(1,))

    def extra_repr(self) -> str:
        """The sizes, and the precision."""
        return f"nf={self.nf}, nx={self.nx}, {super().extra_repr()}"

    __repr__ = nn.Module.__repr__  # Conv1D's own leaves out what is added
