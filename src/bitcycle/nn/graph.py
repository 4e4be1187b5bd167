"""Layers of graph nets: an activation has one range per node (row), taken anew at every call.

Nodes differ far more than samples of a batch do, and a node has no neighbour to share a running
range with, so none is kept: training and evaluation take the same range, and nothing is observed.
Rules whose range does not come from single values (dorefa, wageubn: fixed; sbm_full: the mean over
samples) keep theirs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from bitcycle.kernels import make_kernel
from bitcycle.nn.layer import LayerSettings, QuantizedLayer
from bitcycle.nn.product import watch
from bitcycle.quantizers.base import Range


class PerNodeLayer(QuantizedLayer):
    """Mixed in before a float graph layer."""

    num_act_inputs: ClassVar[int] = 0
    kernel_reason: ClassVar[str] = "one scale per node, and integer kernels take one per tensor"

    @classmethod
    def adapt(cls, settings: LayerSettings) -> LayerSettings:
        """Whatever kernel is asked for, the values of the grids are multiplied."""
        kernel = make_kernel("simulate")
        return replace(settings, kernel=kernel, kernel_reason=cls.kernel_reason)

    def node_range(self, x: Tensor, num_dims: int) -> Range:
        """The range of every node: the first `num_dims` dimensions number the nodes."""
        x = x.detach()
        within = self.settings.quantizer.range_of("act", x, tuple(range(num_dims)))
        watch(self.health, "act", within)
        return within

    def _act_range(self, x: Tensor, index: int) -> Range | None:
        """Of rows: all dimensions but the last number the nodes."""
        return self.node_range(x, x.dim() - 1) if "act" in self.quantized_roles else None

    def __repr__(self) -> str:
        """PyTorch Geometric's line, which knows no extra_repr, with the precision."""
        own = f"precision={self.precision}, quantizer={type(self.settings.quantizer).__name__}"
        return f"{super().__repr__().removesuffix(')')}, {own})"
