"""The products of every kernel against float64 on the CPU: forward, grad_input, grad_weight.

A layer is converted twice. One copy multiplies with the kernel, the other hands its quantized
operands to an exact product, which also sums the magnitudes that `Kernel.error_bound` is a share
of. Both round alike, so only the products can differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from bitcycle.bits import Bits, PlainBits
from bitcycle.convert import quantize_model
from bitcycle.kernels.base import KERNELS, MATMULS, Kernel, Products
from bitcycle.kernels.choice import MAX_CODE_BITS
from bitcycle.kernels.geometry import Geometry, LinearGeometry, multiply_rows, transposed
from bitcycle.kernels.simulate import FloatKernel
from bitcycle.matmul import MatMul
from bitcycle.model_precision import set_precision
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.quantizers.base import QUANTIZERS, Quantized, Quantizer
from bitcycle.quantizers.sbm import SBM
from bitcycle.role_schedules import quantizer_for
from bitcycle_lab.bench.tune import TuneCase, cases
from bitcycle_lab.doctor.check import Check, Device
from bitcycle_lab.doctor.choices import all_bits, integer_bits, precision_of

_TINY = 1e-30  # of the magnitudes of a sum, where all of its terms are 0


@dataclass(frozen=True)
class LayerCase:
    """A float layer and the shapes of its inputs."""

    name: str
    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]


CASES = (
    LayerCase("linear", lambda: nn.Linear(131, 45), ((67, 131),)),
    LayerCase("linear of tokens", lambda: nn.Linear(64, 96), ((3, 10, 64),)),
    LayerCase("linear, long sums", lambda: nn.Linear(40_000, 3), ((5, 40_000),)),
    LayerCase("matmul", MatMul, ((6, 33, 47), (6, 47, 21))),
    LayerCase("convolution", lambda: nn.Conv2d(19, 23, 3, padding=1), ((3, 19, 15, 13),)),
    LayerCase("strided convolution", lambda: nn.Conv2d(16, 24, 3, 2, 1), ((3, 16, 15, 13),)),
    LayerCase("1x1 convolution", lambda: nn.Conv2d(19, 23, 1), ((3, 19, 15, 13),)),
    LayerCase("strided 1x1 convolution", lambda: nn.Conv2d(16, 24, 1, 2), ((3, 16, 15, 13),)),
    LayerCase("grouped convolution", lambda: nn.Conv2d(24, 16, 3, groups=4), ((3, 24, 9, 8),)),
    LayerCase("depthwise convolution", lambda: nn.Conv2d(24, 24, 3, groups=24), ((3, 24, 9, 8),)),
    LayerCase("convolution of 1 dimension", lambda: nn.Conv1d(13, 17, 5), ((3, 13, 40),)),
    LayerCase("transposed convolution", lambda: nn.ConvTranspose2d(12, 10, 3, 2), ((3, 12, 7, 6),)),
)
# many tiles of every product; at one number of bits, as float64 takes long
GPU_CASES = (LayerCase("large linear", lambda: nn.Linear(1024, 1024), ((2048, 1024),)),)
NODES, RECURRENT = "linear of nodes", "recurrent"


# -- the exact products ---------------------------------------------------------------------------


@dataclass
class Exact:
    """A product in float64, and the sums of the magnitudes of its terms."""

    values: Tensor
    terms: Tensor

    def share_of(self, made: Tensor, bound: float) -> float:
        """The largest error, as a share of what the bound allows; infinite for a NaN."""
        if made.shape != self.values.shape:
            raise ArithmeticError(f"a product {tuple(made.shape)}, not {tuple(self.values.shape)}")
        error = (made.detach().cpu().double() - self.values).abs()
        share = (error / (bound * self.terms.clamp_min(_TINY))).max()
        return float("inf") if bool(share.isnan()) else float(share)


@dataclass(frozen=True)
class ExactKernel(FloatKernel):
    """Multiplies in float64 on the CPU, and keeps what it computed."""

    takes_codes: ClassVar[bool] = True

    name: str = "exact"
    made: list[ExactProducts] = field(default_factory=list, compare=False)

    def products(self, geometry: Geometry) -> Products:
        """Of the operands as they are."""
        self.made.append(ExactProducts(geometry))
        return self.made[-1]


@dataclass(frozen=True)
class ExactProducts:
    """The three products of a geometry; `found` has them by name."""

    geometry: Geometry
    found: dict[str, Exact] = field(default_factory=dict, compare=False)

    def output(
        self, a: Quantized, w: Quantized, bias: Tensor | None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """a x w (+ bias)."""
        sides = (_values(a), _values(w)), (_magnitudes(a), _magnitudes(w))
        own = None if bias is None else bias.detach().cpu().double()
        ends = own, None if own is None else own.abs()
        made = (self.geometry.output(*x, end) for x, end in zip(sides, ends, strict=True))
        return self._keep("output", made, a, dtype)

    def grad_input(
        self, e: Quantized, w: Quantized, a_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """e x w."""
        sides = (_values(e), _values(w)), (_magnitudes(e), _magnitudes(w))
        made = (self.geometry.grad_input(*x, a_shape) for x in sides)
        return self._keep("grad_input", made, e, dtype)

    def grad_weight(
        self, e: Quantized, a: Quantized, w_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """e x a."""
        sides = (_values(e), _values(a)), (_magnitudes(e), _magnitudes(a))
        made = (self.geometry.grad_weight(*x, w_shape) for x in sides)
        return self._keep("grad_weight", made, e, dtype)

    def _keep(
        self, matmul: str, made: Iterator[Tensor], like: Quantized, dtype: torch.dtype | None
    ) -> Tensor:
        exact = self.found[matmul] = Exact(*made)
        numbers = like.codes if like.values is None else like.values
        assert numbers is not None
        return exact.values.float().to(numbers.device, dtype)


def _values(q: Quantized) -> Tensor:
    """The values of an operand in float64."""
    if q.codes is None:
        assert q.values is not None
        return q.values.detach().cpu().double()
    assert q.scale is not None
    assert q.offset is not None
    return q.codes.cpu().double() * q.scale.cpu().double() + q.offset.cpu().double()


def _magnitudes(q: Quantized) -> Tensor:
    """|value| + the length of the grid."""
    if q.codes is None:
        return _values(q).abs()
    assert q.scale is not None
    assert q.half is not None
    return _values(q).abs() + q.scale.cpu().double() * 2 * q.half.cpu().double()


# -- checks ---------------------------------------------------------------------------------------


def check_products(device: Device, advance: Callable[[], None] = lambda: None) -> list[Check]:
    """A check per kernel, layer and bits; one that says so for a kernel that cannot run here."""
    found: dict[str, list[Check]] = {name: [] for name in KERNELS}
    running = _running(device.torch, found)
    for case, bits, rule in _layer_cases(device.torch):
        exact: Callable[[], _Reference] = functools.cache(
            functools.partial(_Reference, case, bits, rule, device.torch)
        )
        text = str(bits) if isinstance(rule, str) else f"{bits}, weights by input channel"
        for name in running:
            if _takes(KERNELS[name], bits):
                compare = functools.partial(_compare_layer, exact, name)
                found[name].append(device.run(name, case.name, text, compare))
        advance()
    for name in running:
        for width in integer_bits():
            if _takes(KERNELS[name], width):
                compare = functools.partial(_compare_prepacked, name, width, device.torch)
                found[name].append(device.run(name, RECURRENT, str(width), compare))
    return [check for checks in found.values() for check in checks]


def count_products(device: torch.device) -> int:
    """The number of calls of `advance`."""
    return sum(1 for _ in _layer_cases(device))


def _running(device: torch.device, found: dict[str, list[Check]]) -> list[str]:
    """The kernels that multiply on this device; the others get a check that says why not."""
    for name, checks in found.items():
        why = KERNELS[name].reason_against_device(device.type)
        if why is not None:
            checks.append(Check(by=name, what="products", outcome="not run", reason=why))
    return [name for name, checks in found.items() if not checks]


def _takes(kernel: Kernel, bits: PlainBits) -> bool:
    return not (kernel.takes_codes and isinstance(bits, int) and bits > MAX_CODE_BITS)


def _nodes() -> list[LayerCase]:
    """A linear layer whose input has a scale for each row, if PyTorch Geometric is installed."""
    found: TuneCase | None = next((case for case in cases() if case.layer == "node"), None)
    if found is None:
        return []
    build = found.build
    return [LayerCase(NODES, lambda: build()[0], tuple(tuple(x.shape) for x in build()[1]))]


def _layer_cases(device: torch.device) -> Iterator[tuple[LayerCase, PlainBits, str | Quantizer]]:
    """Layers, bits and what rounds to them.

    With a second grid for the weight of grad_input a kernel forms each product by itself, also
    where it has one call for a direction of the layer.
    """
    for case in (*CASES, *_nodes()):
        yield from ((case, bits, quantizer_for([bits])) for bits in all_bits())
        yield case, MAX_CODE_BITS, SBM(grad_input_weight="per_input_channel")
    for case in GPU_CASES if device.type == "cuda" else ():
        yield case, MAX_CODE_BITS, quantizer_for([MAX_CODE_BITS])


class _Reference:
    """The exact products of a layer at some bits."""

    def __init__(
        self, case: LayerCase, bits: PlainBits, rule: str | Quantizer, device: torch.device
    ) -> None:
        torch.manual_seed(0)
        self.case, self.bits, self.rule, self.device = case, bits, rule, device
        self.layer = case.build()
        self.inputs = [torch.randn(shape) for shape in case.shapes]
        kernel, layer = ExactKernel(), self.convert("simulate")
        layer.change_settings(replace(layer.settings, kernel=kernel, kernel_reason="exact"))
        self.step(layer)
        self.products = kernel.made[-1]
        # products of activations may have other bits than the layer
        self.bits_in_force = Bits.of(layer.bits_in_force.act)

    def convert(self, kernel: str) -> QuantizedLayer:
        """A converted copy of the layer."""
        own = self.case.build()
        own.load_state_dict(self.layer.state_dict())
        model = nn.Sequential(own).to(self.device)
        quantize_model(model, self.rule, kernel=kernel)
        set_precision(model.to(self.device).train(), precision_of(self.bits))
        converted = model[0]
        assert isinstance(converted, QuantizedLayer)
        return converted

    def step(self, layer: QuantizedLayer) -> list[Tensor]:
        """Output, grad_input and grad_weight; of a product of activations both gradients."""
        leaves = [x.clone().to(self.device).requires_grad_() for x in self.inputs]
        output: Tensor = layer(*leaves)
        error = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
        output.backward((1e-3 * error).to(self.device))  # type: ignore[no-untyped-call]
        first, second = leaves[0].grad, next(iter([*leaves[1:], *layer.parameters()])).grad
        assert first is not None
        assert second is not None
        return [output, first, second]


def _compare_layer(make: Callable[[], _Reference], name: str) -> float:
    """The largest error of the three products, as a share of the kernel's bound."""
    exact = make()
    made = exact.step(exact.convert(name))
    bound = KERNELS[name].error_bound(exact.products.geometry, exact.bits_in_force)
    return max(
        exact.products.found[matmul].share_of(x, bound)
        for matmul, x in zip(MATMULS, made, strict=True)
    )


@torch.no_grad()
def _compare_prepacked(name: str, bits: int, device: torch.device) -> float:
    """The steps of a recurrent layer, and those backward, whose scales lie on the summed axis."""
    kernel, rule = KERNELS[name], QUANTIZERS["sbm"]()
    generator = torch.Generator().manual_seed(0)
    levels = torch.full((), 2**bits - 1, dtype=torch.int32, device=device)

    def rounded(role: str, *shape: int) -> Quantized:
        x = torch.randn(shape, generator=generator).to(device)
        keep = (0,) if role == "weight" else ()
        made, _ = rule.quantize(role, x, levels, keep, as_codes=kernel.takes_codes)
        return made.with_top(bits)

    weight, bias = rounded("weight", 90, 70), torch.randn(90, generator=generator)
    forward = kernel.prepack(weight, bias.to(device)), weight, bias.double(), 70
    backward = kernel.prepack(transposed(weight)), transposed(weight), None, 90
    bound, worst = kernel.error_bound(LinearGeometry()), 0.0
    for multiply, second, added, length in (forward, backward):
        for _ in range(2):  # the first call may pack
            x = rounded("act", 7, length)
            exact = Exact(
                multiply_rows(_values(x), _values(second), added),
                multiply_rows(
                    _magnitudes(x), _magnitudes(second), None if added is None else added.abs()
                ),
            )
            worst = max(worst, exact.share_of(multiply(x), bound))
    return worst
