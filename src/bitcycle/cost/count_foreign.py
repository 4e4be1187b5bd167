"""Products of layers that other packages define; filed by name, so that nothing is imported."""

from __future__ import annotations

from torch import Tensor

from bitcycle.cost.count_layers import with_weight
from bitcycle.cost.product import COUNTERS, Call, Product


@COUNTERS.register("transformers.pytorch_utils.Conv1D")
@COUNTERS.register("torch_geometric.nn.dense.linear.Linear")
def count_linear_of_x(call: Call) -> list[Product]:
    """A linear layer whose argument is called x: elements(output) x in MACs."""
    x: Tensor = call.argument(0, "x")
    return with_weight(call, x, call.result.numel() * x.shape[-1])
