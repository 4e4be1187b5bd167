"""The ways of counting behind published costs: every layer at the scheduled bits, norms included.

Both take q (weights and activations) and b (errors) as the bits of the whole model, whether a layer
is converted or not, and all three products of every layer as computed. They differ in how they
count a normalization and in the unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bitcycle.cost.bitops import CONVENTIONS, Convention, divide, operand_traffic
from bitcycle.cost.result import LayerCost
from bitcycle.cost.trace import Trace
from bitcycle.cost.usage import Usage
from bitcycle.nn.base import QuantizedLayer


def paper(trace: Trace, usages: Sequence[Usage]) -> tuple[LayerCost, ...]:
    """Cyclic Precision Training, Tables 2 and 3: BitOPs = K x sum over samples of (q^2 + 2 q b).

    K = MACs of a forward pass + 2 x the number of BatchNorm outputs, of one sample.
    """
    return _count(trace, usages, norm_ops={"batch": 2}, unit_bitops=1)


def followup(trace: Trace, usages: Sequence[Usage]) -> tuple[LayerCost, ...]:
    """Better Schedules for Low Precision Training: F x sum over steps of (q^2 + 2 q b) / 1024.

    F = MACs of a forward pass + 2 x BatchNorm outputs + 4 x LayerNorm outputs, of one batch: a
    product at 32 bits is the unit, and a step at float32 costs 3 F.
    """
    return _count(trace, usages, norm_ops={"batch": 2, "layer": 4}, unit_bitops=32 * 32)


CONVENTIONS.register("paper")(Convention(count=paper, needs_conversion=False))
CONVENTIONS.register("followup")(
    Convention(count=followup, unit="MACs (32-bit)", needs_conversion=False)
)


def _count(
    trace: Trace, usages: Sequence[Usage], *, norm_ops: Mapping[str, int], unit_bitops: int
) -> tuple[LayerCost, ...]:
    if not trace.layers:
        return ()
    usage = _scheduled(trace, usages)
    # sums over samples of w a, w e and a e: q^2, q b and q b
    sums = {"output": 0, "grad_input": 0, "grad_weight": 0}
    for (w, a, e), (_, num_samples) in usage.items():
        sums["output"] += w * a * num_samples
        sums["grad_input"] += w * e * num_samples
        sums["grad_weight"] += a * e * num_samples
    uniform = sum(2 * sum(bits) * num_steps for bits, (num_steps, _) in usage.items())

    def row(name: str, kind: str, forward: int, traffic: int, uniform: int) -> LayerCost:
        whole = {m: divide(forward * n, trace.batch_size * unit_bitops) for m, n in sums.items()}
        return LayerCost(name=name, kind=kind, **whole, traffic=traffic, uniform=uniform)

    rows = []
    for layer in trace.layers:
        if not layer.is_aggregation:
            traffic, _ = operand_traffic(layer, usage, trace.batch_size)
            rows.append(row(layer.name, layer.kind, layer.output, traffic, uniform))
    for norm in trace.norms:
        if norm.family in norm_ops:
            rows.append(row(norm.name, norm.kind, norm_ops[norm.family] * norm.elements, 0, 0))
    place = {name: number for number, name in enumerate(trace.order)}
    return tuple(sorted(rows, key=lambda row: place[row.name]))


def _scheduled(trace: Trace, usages: Sequence[Usage]) -> Usage:
    """The bits of the whole model: those that its converted layers share."""
    pairs = list(zip(trace.layers, trace.modules, usages, strict=True))
    converted = [(layer, usage) for layer, m, usage in pairs if isinstance(m, QuantizedLayer)]
    if not converted:
        return usages[0]  # nothing is converted: the same for all
    first, usage = converted[0]
    for layer, other in converted:
        if other != usage:
            raise ValueError(
                f"this convention counts one precision for the whole model, and layers "
                f"{first.name!r} and {layer.name!r} differ; count with convention='exact', or "
                "give all layers the same schedules"
            )
    return usage
