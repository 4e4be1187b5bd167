"""PyTorch Geometric's own Linear on grids: a range per node, and per row of the weight."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor
from torch_geometric.nn.conv import GATConv, GCNConv, GINConv, MessagePassing, SAGEConv
from torch_geometric.nn.dense.linear import Linear

from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.nn.class_swap import LAYERS
from bitcycle.nn.graph import PerNodeLayer
from bitcycle.nn.layer import LayerSettings, ModelState
from bitcycle.nn.product import LEVELS, Plan, error_on_grid, on_grid

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


_FLOAT_PROPAGATE = MessagePassing.propagate  # the one that knows explanations and decomposition


class Aggregation(PerNodeLayer, MessagePassing):  # type: ignore[misc]
    """Mixed in before a convolution that propagates node features `x`."""

    aggregates: ClassVar[bool] = True
    kernel_reason: ClassVar[str] = "values of the grids, summed along edges in float32"
    replaced_methods: ClassVar[tuple[str, ...]] = ()  # every class has a `propagate` of its own

    def propagate(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Tensor:
        """As the float layer's, of features and of an error that are on their grids."""
        is_special = self.explain or self.decomposed_layers != 1
        run = _FLOAT_PROPAGATE.__get__(self) if is_special else super().propagate
        if not self.is_active:
            return run(edge_index, size=size, **kwargs)  # type: ignore[no-any-return]
        control, plan = self._tick(), self._plan()
        if "act" in plan.roles:
            kwargs["x"] = self._on_grid(plan, kwargs.get("x"), control)
        output: Tensor = run(edge_index, size=size, **kwargs)
        return (
            error_on_grid(plan, output, control, self.health) if "error" in plan.roles else output
        )

    # what PyTorch Geometric puts in the place of `propagate` for explanations, and back
    _orig_propagate = _jinja_propagate = propagate

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Nothing: it would replace `propagate` when a copy is made or loaded."""

    def _on_grid(self, plan: Plan, x: Any, control: Tensor) -> Any:
        """The features that edges start from; of a pair, the other ones only receive."""
        if isinstance(x, (tuple, list)):
            source = 0 if self.flow == "source_to_target" else 1
            return tuple(
                self._on_grid(plan, part, control) if number == source else part
                for number, part in enumerate(x)
            )
        if not isinstance(x, Tensor):
            raise ValueError(
                f"layer {self.settings.name!r} ({self.float_type.__name__}) propagates no node "
                "features 'x' that could be quantized; leave it out with skip="
            )
        x = plan.quantizer.prepare("act", x, control[LEVELS["act"]])
        return on_grid(plan, x, control, self.node_range(x, self.node_dim % x.dim() + 1))

    def _plan(self) -> Plan:
        return Plan(
            quantizer=self.settings.quantizer,
            kernel=self.settings.kernel,
            geometry=LinearGeometry(),  # not read: nothing is handed to the kernel
            roles=self.quantized_roles,
            recorder=self.recorder,
        )

    def become_quantized(self, settings: LayerSettings, shared: ModelState) -> None:
        """As every layer; ours stands in for a `propagate` that was set on the instance."""
        super().become_quantized(settings, shared)
        self.__dict__.pop("propagate", None)

    def become_float(self) -> None:
        """The float convolution again, explained or decomposed if it was."""
        super().become_float()
        self.__dict__.pop("propagate", None)
        if self.explain or self.decomposed_layers != 1:
            self.__dict__["propagate"] = _FLOAT_PROPAGATE.__get__(self)


@LAYERS.register("torch_geometric.nn.conv.gcn_conv.GCNConv")
class QuantizedGCNConv(Aggregation, GCNConv):  # type: ignore[misc]
    """A converted GCNConv: x W on the grid of each node, times the normalized adjacency."""


@LAYERS.register("torch_geometric.nn.conv.sage_conv.SAGEConv")
class QuantizedSAGEConv(Aggregation, SAGEConv):  # type: ignore[misc]
    """A converted SAGEConv: neighbours are aggregated on their grids; the node's own x is not."""


@LAYERS.register("torch_geometric.nn.conv.gat_conv.GATConv")
class QuantizedGATConv(Aggregation, GATConv):  # type: ignore[misc]
    """A converted GATConv: x W on the grid of each node (all heads); attention is float32."""


@LAYERS.register("torch_geometric.nn.conv.gin_conv.GINConv")
class QuantizedGINConv(Aggregation, GINConv):  # type: ignore[misc]
    """A converted GINConv: neighbours are summed on their grids; (1 + eps) x is not."""
