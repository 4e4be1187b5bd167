"""Quantized layers of PyTorch Geometric: its Linear, and convolutions that aggregate neighbours.

Activations have one range per node (`nn.graph`), weights one per row. Aggregation along edges is
quantized only if the quantizer says so (`aggregation="quantized"`, Q-Agg).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor
from torch_geometric.nn.conv import GATConv, GCNConv, GINConv, MessagePassing, SAGEConv
from torch_geometric.nn.dense.linear import Linear

from bitcycle.kernels import make_kernel
from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.nn.class_swap import LAYERS
from bitcycle.nn.control import LEVELS
from bitcycle.nn.graph import PerNodeLayer
from bitcycle.nn.plan import LayerPlan, make_plan
from bitcycle.nn.rounding import round_error_straight_through, round_straight_through
from bitcycle.nn.settings import LayerSettings, ModelState

_GEOMETRY = LinearGeometry()


@LAYERS.register("torch_geometric.nn.dense.linear.Linear")
class QuantizedGraphLinear(PerNodeLayer, Linear):  # type: ignore[misc]
    """A converted `torch_geometric.nn.Linear`."""

    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out); without bits exactly the float module."""
        if not self.quantizes(x, self.weight, self.bias):
            output: Tensor = super().forward(x)
            return output
        return self.multiply(_GEOMETRY, x, self.weight, self.bias)


_FLOAT_PROPAGATE = MessagePassing.propagate  # supports explanations and decomposition


class Aggregation(PerNodeLayer, MessagePassing):  # type: ignore[misc]
    """Mixed in before a convolution that propagates node features `x`."""

    aggregates: ClassVar[bool] = True
    own_roles: ClassVar[tuple[str, ...]] = ("act", "error")
    replaced_methods: ClassVar[tuple[str, ...]] = ()  # every class has a `propagate` of its own

    @classmethod
    def adapt(cls, settings: LayerSettings) -> LayerSettings:
        """Use values: there is no product."""
        reason = "values of the grids, summed along edges in float32"
        return replace(settings, kernel=make_kernel("simulate"), kernel_reason=reason)

    def propagate(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Tensor:
        """The float layer's `propagate`, with the features and the error rounded to their grids."""
        is_special = self.explain or self.decomposed_layers != 1
        run = _FLOAT_PROPAGATE.__get__(self) if is_special else super().propagate
        if not self.is_active or _has_integers(kwargs.get("x")):  # the next product refuses those
            return run(edge_index, size=size, **kwargs)  # type: ignore[no-any-return]
        control, plan = self.next_control(), self._rounding_plan()
        if "act" in self.quantized_roles:
            kwargs["x"] = self._round_features(plan, kwargs.get("x"), control)
        output: Tensor = run(edge_index, size=size, **kwargs)
        if "error" not in self.quantized_roles:
            return output
        return round_error_straight_through(plan, output, control, self.health, self.recorder)

    # PyTorch Geometric replaces `propagate` by these for explanations, and back
    _orig_propagate = _jinja_propagate = propagate

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Do nothing: the float method replaces `propagate` when a copy is made or loaded."""

    def _round_features(self, plan: LayerPlan, x: Any, control: Tensor) -> Any:
        """Round the features of source nodes; of a pair, the other one is not propagated."""
        if isinstance(x, (tuple, list)):
            source = 0 if self.flow == "source_to_target" else 1
            return tuple(
                self._round_features(plan, part, control) if number == source else part
                for number, part in enumerate(x)
            )
        if not isinstance(x, Tensor):
            raise ValueError(
                f"layer {self.settings.name!r} ({self.float_type.__name__}) propagates no node "
                "features 'x' that could be quantized; leave it out with skip="
            )
        if "act" in self.grid_roles:
            x = plan.quantizer.prepare("act", x, control[LEVELS["act"]])
        within = self.node_range(x, self.node_dim % x.dim() + 1)
        return round_straight_through(plan, x, control, within, recorder=self.recorder)

    def _rounding_plan(self) -> LayerPlan:
        """A plan of which nothing is multiplied."""
        return make_plan(self.settings.quantizer, _GEOMETRY, self.settings.kernel, kinds=self.kinds)

    def become_quantized(self, settings: LayerSettings, shared: ModelState) -> None:
        """Convert; this class's `propagate` replaces one that was set on the instance."""
        super().become_quantized(settings, shared)
        self.__dict__.pop("propagate", None)

    def become_float(self) -> None:
        """Convert back; a convolution that was explained or decomposed still is."""
        super().become_float()
        self.__dict__.pop("propagate", None)
        if self.explain or self.decomposed_layers != 1:
            self.__dict__["propagate"] = _FLOAT_PROPAGATE.__get__(self)


def _has_integers(x: Any) -> bool:
    parts = x if isinstance(x, (tuple, list)) else (x,)
    return any(isinstance(part, Tensor) and not part.is_floating_point() for part in parts)


@LAYERS.register("torch_geometric.nn.conv.gcn_conv.GCNConv")
class QuantizedGCNConv(Aggregation, GCNConv):  # type: ignore[misc]
    """A converted GCNConv: quantized x W, times the normalized adjacency."""


@LAYERS.register("torch_geometric.nn.conv.sage_conv.SAGEConv")
class QuantizedSAGEConv(Aggregation, SAGEConv):  # type: ignore[misc]
    """A converted SAGEConv: quantized neighbours are aggregated; the node's own x stays float32."""


@LAYERS.register("torch_geometric.nn.conv.gat_conv.GATConv")
class QuantizedGATConv(Aggregation, GATConv):  # type: ignore[misc]
    """A converted GATConv: quantized x W (all heads of a node); attention stays float32."""


@LAYERS.register("torch_geometric.nn.conv.gin_conv.GINConv")
class QuantizedGINConv(Aggregation, GINConv):  # type: ignore[misc]
    """A converted GINConv: quantized neighbours are summed; (1 + eps) x stays float32."""
