"""Freeze a trained model: a copy with fixed quantization grids, from which all files are written.

Every converted layer multiplies through `QuantizedLayer.multiply`. `freeze` calls the copy once on
example inputs and records the grids of each product: those of weights from the weights, those of
activations from the ranges that training observed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bitcycle.kernels.geometry import Geometry
from bitcycle.model_precision import is_converted, quantized_layers
from bitcycle.nn.control import LEVELS
from bitcycle.nn.embedding import QuantizedLookup
from bitcycle.nn.graph import PerNodeLayer
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.nn.norm import QuantizedNorm
from bitcycle.nn.recurrent import RecurrentLayer
from bitcycle.quantizers.absmax import AbsMax
from bitcycle.quantizers.base import Quantizer, Range
from bitcycle.quantizers.sbm import SBM
from bitcycle.tables import THE_MODEL

EXPORTABLE = (SBM, AbsMax)  # quantizers with plain affine grids; pow2 is an absmax


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The affine grid of one operand: value = code * scale + offset.

    scale and offset broadcast against the operand. lowest: the smallest code in use; a symmetric
    grid does not use 0.
    """

    bits: int
    scale: Tensor
    offset: Tensor
    lowest: int = 0

    @property
    def highest(self) -> int:
        """The largest code."""
        return int(2**self.bits - 1)

    @property
    def zero_point(self) -> Tensor | None:
        """The integer code of 0; None if an offset is not an integer multiple of its scale.

        >>> Grid(bits=8, scale=torch.tensor(0.5), offset=torch.tensor(-2.0)).zero_point
        tensor(4.)
        >>> Grid(bits=8, scale=torch.tensor(0.5), offset=torch.tensor(-2.2)).zero_point is None
        True
        """
        zero = torch.round(-self.offset / self.scale)
        is_code = (zero >= 0) & (zero <= self.highest) & (-zero * self.scale == self.offset)
        return zero.abs() if bool(is_code.all()) else None

    def limits(self) -> tuple[Tensor, Tensor]:
        """The values of the smallest and the largest code."""
        return self.lowest * self.scale + self.offset, self.highest * self.scale + self.offset

    def round(self, x: Tensor) -> Tensor:
        """Round to the nearest values of the grid, half to even."""
        return self.decode(self.codes_of(x))

    def codes_of(self, x: Tensor) -> Tensor:
        """The codes of values, as integers in the dtype of `x`."""
        return ((x - self.offset) / self.scale).round().clamp(self.lowest, self.highest)

    def decode(self, codes: Tensor) -> Tensor:
        """The values of codes."""
        return codes.to(self.scale.dtype) * self.scale + self.offset


@dataclass(frozen=True, kw_only=True)
class FrozenProduct:
    """One product of a layer, with the grids of its two operands; None for a float operand.

    row: the row of the layer's activation ranges, which identifies the product. weight: the part of
    a parameter that is multiplied, in the shape against which its grid broadcasts; None for a
    product of two activations.
    """

    layer: str
    row: int
    first: Grid | None
    second: Grid | None
    weight: Tensor | None

    @property
    def codes(self) -> Tensor:
        """The weight's codes, as integers in float."""
        assert self.weight is not None
        assert self.second is not None
        return self.second.codes_of(self.weight)


@dataclass
class Frozen:
    """A copy of a model in evaluation mode, and its products in the order of their calls."""

    model: nn.Module
    products: list[FrozenProduct] = field(default_factory=list)

    def by_layer(self) -> dict[str, dict[int, FrozenProduct]]:
        """Products by layer and row."""
        found: dict[str, dict[int, FrozenProduct]] = {}
        for product in self.products:
            found.setdefault(product.layer, {})[product.row] = product
        return found


def freeze(model: nn.Module, inputs: Sequence[Any]) -> Frozen:
    """Copy a converted model and record its grids at its current bits; the model is unchanged.

    >>> from bitcycle.model_precision import set_precision
    >>> from bitcycle.calibrate import calibrate
    >>> from bitcycle.convert import quantize_model
    >>> model, x = quantize_model(nn.Linear(4, 2)), torch.ones(3, 4)
    >>> set_precision(model, "w8a8")
    >>> _ = calibrate(model, [x])
    >>> [(p.layer, p.first.bits, p.codes.shape) for p in freeze(model, (x,)).products]
    [('', 8, torch.Size([2, 4]))]
    """
    frozen = Frozen(copy.deepcopy(model).eval())
    for parameter in frozen.model.parameters():
        parameter.data = parameter.data.contiguous()  # a channels_last model is not
    if not is_converted(model):
        return frozen
    layers = [(entry.name, layer) for entry, layer in quantized_layers(frozen.model)]
    formats = set(find_formats(frozen.model))
    for name, layer in layers:
        _check_exportable(name, layer)

    def record(name: str, layer: QuantizedLayer) -> Callable[..., Tensor]:
        def multiply(
            geometry: Geometry, a: Tensor, w: Tensor, bias: Any = None, *, act_row: int = 0
        ) -> Tensor:
            frozen.products.append(_product(name, layer, geometry, a, w, act_row))
            return QuantizedLayer.multiply(layer, geometry, a, w, bias, act_row=act_row)

        return multiply

    with torch.no_grad(), replaced_multiply(layers, record):
        frozen.model(*inputs)
    each = {(product.layer, product.row): product for product in frozen.products}
    frozen.products = list(each.values())  # a layer that is called twice has one grid only
    used = {product.layer for product in frozen.products}
    missing = [name for name, layer in layers if layer.is_active and name not in used | formats]
    if missing:
        raise _refused(missing[0], "the call on the example inputs did not use it")
    return frozen


@contextmanager
def replaced_multiply(
    layers: Sequence[tuple[str, QuantizedLayer]],
    make: Callable[[str, QuantizedLayer], Callable[..., Tensor]],
) -> Iterator[None]:
    """Replace the `multiply` of layers inside the `with`."""
    for name, layer in layers:
        layer.__dict__["multiply"] = make(name, layer)
    try:
        yield
    finally:
        for _, layer in layers:
            del layer.__dict__["multiply"]


def _product(
    name: str,
    layer: QuantizedLayer,
    geometry: Geometry,
    a: Tensor,
    w: Tensor,
    act_row: int,
) -> FrozenProduct:
    first = _act_grid(layer, a, act_row)
    if geometry.second == "act":
        return FrozenProduct(
            layer=name, row=act_row, first=first, second=_act_grid(layer, w, act_row + 1),
            weight=None,
        )  # fmt: skip
    weight = w.view(geometry.channel_view(w.shape))
    grid = None
    if has_grid(layer, "weight"):
        quantizer = layer.settings.quantizer
        within = quantizer.range_of("weight", weight, geometry.channel_dims)
        grid = grid_of(quantizer, "weight", weight, layer.control[LEVELS["weight"]], within)
    return FrozenProduct(layer=name, row=act_row, first=first, second=grid, weight=weight)


def _act_grid(layer: QuantizedLayer, x: Tensor, row: int) -> Grid | None:
    if not has_grid(layer, "act"):
        return None
    _, low, spread = layer.act_range[row].unbind()
    levels = layer.control[LEVELS["act"]]
    return grid_of(layer.settings.quantizer, "act", x.new_zeros(()), levels, (low, low + spread))


def has_grid(layer: QuantizedLayer, role: str) -> bool:
    """Whether a role is rounded to a grid of integers; a format has none."""
    return role in layer.quantized_roles and layer.precision.bits[role].kind == "integer"


def find_formats(model: nn.Module) -> dict[str, str]:
    """The layers whose weights or activations have a format, and the formats by role."""
    if not is_converted(model):
        return {}
    found: dict[str, str] = {}
    for entry, layer in quantized_layers(model):
        rounded = {
            r: layer.precision.bits[r] for r in ("weight", "act") if r in layer.quantized_roles
        }
        formats = [f"{role} {each}" for role, each in rounded.items() if each.is_format]
        if formats:
            found[entry.name] = ", ".join(formats)
    return found


def grid_of(quantizer: Quantizer, role: str, x: Tensor, levels: Tensor, within: Range) -> Grid:
    """The grid of a quantizer for `x` within this range."""
    quantized = quantizer.encode(role, x, levels, within)
    assert quantized.scale is not None
    assert quantized.offset is not None
    bits = int(levels).bit_length()
    lowest, _ = quantizer.integer_range(min(bits, 8)) or (0, 0)
    return Grid(bits=bits, scale=quantized.scale, offset=quantized.offset, lowest=lowest)


def _check_exportable(name: str, layer: QuantizedLayer) -> None:
    """Raise ValueError for a layer whose evaluation is not a product on fixed affine grids."""
    if not any(has_grid(layer, role) for role in layer.quantized_roles):
        return
    quantizer: Quantizer = layer.settings.quantizer
    if isinstance(layer, RecurrentLayer):
        raise _refused(name, f"the time steps of {layer.float_type.__name__} are not exported")
    if isinstance(layer, QuantizedLookup):
        raise _refused(name, "a lookup on grids is not exported")
    if isinstance(layer, PerNodeLayer):
        raise _refused(name, "its grids are computed for every node")
    if isinstance(layer, QuantizedNorm):
        raise _refused(name, f"{type(quantizer).__name__} quantizes the normalization itself")
    if not isinstance(quantizer, EXPORTABLE):
        raise _refused(
            name,
            f"grids of {type(quantizer).__name__} are not exported (sbm, absmax and pow2 are)",
        )
    if has_grid(layer, "act") and not layer.is_observed:
        raise _refused(
            name,
            "its activation range was never observed: train it quantized, or calibrate",
        )


def _refused(name: str, reason: str) -> ValueError:
    return ValueError(
        f"layer {name or THE_MODEL!r} cannot be exported: {reason}. Leave it float "
        "(skip=) or export at full precision"
    )
