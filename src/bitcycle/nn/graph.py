"""The base of graph layers: an activation has one range per node (row), computed at every call.

Nodes differ far more than the samples of a batch, so no running range is kept: training and
evaluation use the same ranges. Quantizers whose range does not come from single values keep their
own rule (dorefa, wageubn: fixed; sbm_full: the mean over samples).
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from bitcycle.nn.control import LEVELS
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.ops.state import flag_nonfinite
from bitcycle.quantizers.base import Range


class PerNodeLayer(QuantizedLayer):
    """Mixed in before a float graph layer."""

    num_act_inputs: ClassVar[int] = 0
    has_row_ranges: ClassVar[bool] = True

    def node_range(self, x: Tensor, num_dims: int) -> Range:
        """The range of every node: the first `num_dims` dimensions number the nodes."""
        x = x.detach()
        within = self.settings.quantizer.range_of("act", x, tuple(range(num_dims)))
        flag_nonfinite(self.health, LEVELS["act"], *within)
        return within

    def activation_range(self, x: Tensor, index: int) -> Range | None:
        """All dimensions but the last number the nodes."""
        return self.node_range(x, x.dim() - 1) if "act" in self.grid_roles else None

    def __repr__(self) -> str:
        """PyTorch Geometric's text, which ignores extra_repr, with the precision."""
        own = f"precision={self.bits_in_force}, quantizer={type(self.settings.quantizer).__name__}"
        return f"{super().__repr__().removesuffix(')')}, {own})"
