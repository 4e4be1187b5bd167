"""Count BitOPs: the conventions `exact`, `paper` (CPT) and `followup` (Better Schedules).

A convention is a function from one traced batch (`cost/trace.py`) and the bits of its layers to the
BitOPs of each layer. `exact` counts every product that training computes:

    BitOPs = sum over products of MACs x bits of one operand x bits of the other

A format counts with the bits of an element: 4 for nvfp4, 16 for bf16. In a run with formats each
layer also has its MACs by the formats of the operands, for `cost/throughput.py`.

`cost/bitops.py` applies a convention to the schedules of a run, `cost/meter.py` to the bits of a
run in progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from bitcycle.bits import MAX_BITS, Bits, PlainBits, has_format
from bitcycle.cost.count import OPERANDS
from bitcycle.cost.trace import LayerMacs, Trace
from bitcycle.formats.catalogue import Format
from bitcycle.kernels.base import MATMULS
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.precision import FORWARD_OPERANDS, Precision
from bitcycle.registry import Registry

# of weight, act and error, and where the backward products read other ones of weight and act, these
# two; float32 is 32
OperandBits = tuple[int | Format, ...]
Usage = Mapping[OperandBits, tuple[int, int]]  # bits of a layer -> number of steps, of samples
ProductBits = tuple[str, int | Format, int | Format]  # a matmul, and the bits of its two operands


@dataclass(frozen=True, kw_only=True)
class LayerCost:
    """The cost of one layer over a run: BitOPs of its three matmuls, and operand bits read.

    macs: MACs by matmul and bits, in a run with formats; empty in others.
    """

    name: str
    kind: str
    output: int
    grad_input: int
    grad_weight: int
    traffic: int  # by tensor sizes
    uniform: int = 0  # as if every operand had one element
    macs: Mapping[ProductBits, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def bitops(self) -> int:
        """Of all three matmuls."""
        return self.output + self.grad_input + self.grad_weight


Count = Callable[[Trace, Sequence[Usage]], tuple[LayerCost, ...]]


@dataclass(frozen=True, kw_only=True)
class Convention:
    """A way to count the cost of a run.

    count: a function from a trace and the bits of its layers to the cost of each layer.
    needs_conversion: whether only converted layers have the scheduled bits. The published
    conventions count every layer at these bits.
    """

    count: Count
    unit: str = "BitOPs"
    needs_conversion: bool = True

    def __call__(self, trace: Trace, usages: Sequence[Usage]) -> tuple[LayerCost, ...]:
        """Return the cost of each layer."""
        return self.count(trace, usages)


CONVENTIONS: Registry[Convention] = Registry("cost convention", "bitcycle.cost")


def exact(trace: Trace, usages: Sequence[Usage]) -> tuple[LayerCost, ...]:
    """Count every product that training computes, at the bits of its operands.

    BitOPs = sum over the products p of a layer and its bits (a, b)
             of macs(p) a b samples / batch_size

    Operand bits read are summed in the same way, except that a weight is read once per step.
    """
    size = trace.batch_size
    has_formats = use_formats(usages)
    costs = []
    for layer, module, usage in zip(trace.layers, trace.modules, usages, strict=True):
        totals = dict.fromkeys(MATMULS, 0)  # times size: whole numbers
        macs: Counter[ProductBits] = Counter()  # times size
        for bits, (_, num_samples) in usage.items():
            error = grad_weight_error_bits(module, bits)
            amounts = layer.at_bits(element_bits(bits), Bits.of(error).cost_bits)
            for matmul, number in amounts.bitops.items():
                totals[matmul] += number * num_samples
            if has_formats:
                for product, number in layer.macs_at(bits, error).items():
                    macs[product] += number * num_samples
        whole = {matmul: divide(number, size) for matmul, number in totals.items()}
        traffic, uniform = operand_traffic(layer, usage, size, module)
        costs.append(
            LayerCost(
                name=layer.name,
                kind=layer.kind,
                **whole,
                traffic=traffic,
                uniform=uniform,
                macs={product: divide(number, size) for product, number in macs.items()},
            )
        )
    return tuple(costs)


CONVENTIONS.register("exact")(Convention(count=exact))


def operand_traffic(
    layer: LayerMacs, usage: Usage, batch_size: int, module: nn.Module | None = None
) -> tuple[int, int]:
    """Operand bits that a layer reads: by tensor sizes, and as if each operand had one element.

    module: the layer, whose quantizer may round the error of grad_weight to bits of its own.
    """
    sized = uniform = 0
    for bits, (num_steps, num_samples) in usage.items():
        error = None if module is None else Bits.of(grad_weight_error_bits(module, bits)).cost_bits
        amounts = layer.at_bits(element_bits(bits), error)
        sized += amounts.batch_reads * num_samples + amounts.weight_reads * num_steps * batch_size
        uniform += amounts.uniform_reads * num_steps
    return divide(sized, batch_size), uniform


def divide(number: int, by: int) -> int:
    """The nearest whole number; exact if the layer's work is proportional to the samples.

    >>> divide(12, 4), divide(13, 4), divide(15, 4)
    (3, 3, 4)
    """
    return (2 * number + by) // (2 * by)


def paper(trace: Trace, usages: Sequence[Usage]) -> tuple[LayerCost, ...]:
    """Cyclic Precision Training, Tables 2 and 3: BitOPs = K x sum over samples of (q^2 + 2 q b).

    K = MACs of a forward pass + 2 x the number of BatchNorm outputs, of one sample.
    """
    return _count_whole_model(trace, usages, norm_ops={"batch": 2}, unit_bitops=1)


def followup(trace: Trace, usages: Sequence[Usage]) -> tuple[LayerCost, ...]:
    """Better Schedules for Low Precision Training: F x sum over steps of (q^2 + 2 q b) / 1024.

    F = MACs of a forward pass + 2 x BatchNorm outputs + 4 x LayerNorm outputs, of one batch. The
    unit is a MAC at 32 bits, so a step at float32 costs 3 F.
    """
    return _count_whole_model(trace, usages, norm_ops={"batch": 2, "layer": 4}, unit_bitops=32 * 32)


CONVENTIONS.register("paper")(Convention(count=paper, needs_conversion=False))
CONVENTIONS.register("followup")(
    Convention(count=followup, unit="MACs (32-bit)", needs_conversion=False)
)


def _count_whole_model(
    trace: Trace, usages: Sequence[Usage], *, norm_ops: Mapping[str, int], unit_bitops: int
) -> tuple[LayerCost, ...]:
    if not trace.layers:
        return ()
    usage = _common_usage(trace, usages)
    # sums over samples of a w, e w and e a, which are q^2, q b and q b
    sums = {"output": 0, "grad_input": 0, "grad_weight": 0}
    samples: Counter[ProductBits] = Counter()
    uniform = 0
    for bits, (num_steps, num_samples) in usage.items():
        weight, act, error, back_weight, back_act = with_backward(bits)
        for matmul, first, second in (
            ("output", act, weight),
            ("grad_input", error, back_weight),
            ("grad_weight", error, back_act),
        ):
            one, other = element_bits((first, second))
            sums[matmul] += one * other * num_samples
            uniform += (one + other) * num_steps
            if use_formats(usages):
                samples[matmul, first, second] += num_samples

    def row(name: str, kind: str, forward: int, traffic: int, uniform: int) -> LayerCost:
        whole = {m: divide(forward * n, trace.batch_size * unit_bitops) for m, n in sums.items()}
        macs = {product: divide(forward * n, trace.batch_size) for product, n in samples.items()}
        return LayerCost(name=name, kind=kind, **whole, traffic=traffic, uniform=uniform, macs=macs)

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


def _common_usage(trace: Trace, usages: Sequence[Usage]) -> Usage:
    """The bits of the whole model, which all converted layers must share."""
    rows = zip(trace.layers, trace.modules, usages, strict=True)
    converted = [(layer, usage) for layer, m, usage in rows if isinstance(m, QuantizedLayer)]
    if not converted:
        return usages[0]  # a float model: all layers have the same bits
    first, usage = converted[0]
    for layer, other in converted:
        if other != usage:
            raise ValueError(
                f"layers {first.name!r} and {layer.name!r} have different bits; this convention "
                "counts one precision for the whole model, 'exact' counts any"
            )
    return usage


# -- bits of a layer -------------------------------------------------------------------------------


def operand_bits(module: nn.Module, precision: Precision) -> OperandBits:
    """The bits of a layer's operands at a precision.

    A float layer stays at 32, and so do the roles that the layer's quantizer does not round. A
    format stays itself.

    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), skip=["1"])
    >>> [operand_bits(layer, Precision.parse("w3a4")) for layer in model]
    [(3, 4, 32), (32, 32, 32)]
    """
    if not isinstance(module, QuantizedLayer):
        return (MAX_BITS,) * len(OPERANDS)
    quantizer = module.settings.quantizer
    given = {r: Bits.of(getattr(precision, r) if r in quantizer.roles else None) for r in OPERANDS}
    if module.is_between_activations:
        given = {r: quantizer.bits_between_activations(bits) for r, bits in given.items()}
    own = {role: bits.plain for role, bits in given.items()}
    return scheduled_bits(Precision(**own, backward_operands=precision.backward_operands))


def scheduled_bits(precision: Precision) -> OperandBits:
    """The bits of the operands at a precision, whatever a layer's quantizer rounds.

    >>> scheduled_bits(Precision.parse("w=bf16/nvfp4,a=bf16/nvfp4,e=nvfp4"))
    (bf16, bf16, nvfp4, nvfp4, nvfp4)
    """
    forward = tuple(counted_bits(getattr(precision, role)) for role in OPERANDS)
    backward = tuple(counted_bits(precision.in_backward(role)) for role in FORWARD_OPERANDS)
    return forward if backward == forward[: len(backward)] else (*forward, *backward)


def with_backward(bits: OperandBits) -> OperandBits:
    """The bits with those of weight and act in the backward products, if they were left out.

    >>> with_backward((4, 5, 8))
    (4, 5, 8, 4, 5)
    """
    return bits if len(bits) > len(OPERANDS) else (*bits, *bits[: len(FORWARD_OPERANDS)])


def counted_bits(bits: PlainBits | Bits) -> int | Format:
    """A format as it is, and the number that a cost counts for other bits: 32 for float32."""
    read = Bits.of(bits)
    return read.plain if read.is_format else read.cost_bits  # type: ignore[return-value]


def element_bits(bits: OperandBits) -> tuple[int, ...]:
    """The numbers that BitOPs are counted with.

    >>> from bitcycle.formats.catalogue import FORMATS
    >>> element_bits((FORMATS["nvfp4"], FORMATS["bf16"], 8))
    (4, 16, 8)
    """
    return tuple(Bits.of(each).cost_bits for each in bits)


def use_formats(usages: Iterable[Usage]) -> bool:
    """Whether any operand has a format at some step."""
    return has_format(each for usage in usages for bits in usage for each in bits)


def grad_weight_error_bits(module: nn.Module, bits: OperandBits) -> int | Format:
    """The bits of the error in grad_weight, which some quantizers round a second time.

    The error is the gradient with respect to the layer's output; grad_input multiplies it too.

    >>> from bitcycle.convert import quantize_model
    >>> layer = quantize_model(nn.Linear(4, 8), "sbm_full")
    >>> grad_weight_error_bits(layer, (8, 8, 8)), grad_weight_error_bits(nn.Linear(2, 2), (8, 8, 8))
    (32, 8)
    """
    error = bits[OPERANDS.index("error")]
    grid_bits = Bits.of(error).grid_bits
    if not isinstance(module, QuantizedLayer) or not grid_bits:
        return error
    return Bits.of(module.settings.quantizer.grad_weight_bits(grid_bits)).cost_bits


def present_bits(module: nn.Module) -> OperandBits:
    """The bits of a layer's operands at its present precision."""
    now = module.precision if isinstance(module, QuantizedLayer) else Precision()
    return operand_bits(module, now)
