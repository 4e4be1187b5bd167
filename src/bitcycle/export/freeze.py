"""A copy of a trained model whose grids are fixed: what all three kinds of files are made from.

Every converted layer multiplies through `QuantizedLayer.multiply`. The copy is called once on
example inputs, and each such product leaves its grids: the weight's, from the weight; the
activations', from the ranges that training observed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bitcycle.model_precision import quantized_layers
from bitcycle.nn.embedding import QuantizedLookup
from bitcycle.nn.graph import PerNodeLayer
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.nn.norm import QuantizedNorm
from bitcycle.nn.product import LEVELS
from bitcycle.nn.recurrent import RecurrentLayer
from bitcycle.quantizers.absmax import AbsMax
from bitcycle.quantizers.base import Quantizer, Range
from bitcycle.quantizers.sbm import SBM
from bitcycle.train.evaluate import is_converted


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The grid of one operand; scale and offset broadcast against it.

    lowest: the smallest code that is used; a symmetric grid leaves out 0.
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
        """The whole-numbered code of 0, if every offset is exactly that many steps; else None.

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

    def put(self, x: Tensor) -> Tensor:
        """The nearest values of the grid, half to even."""
        return self.decode(self.codes_of(x))

    def codes_of(self, x: Tensor) -> Tensor:
        """Codes as whole numbers in the dtype of `x`."""
        return ((x - self.offset) / self.scale).round().clamp(self.lowest, self.highest)

    def decode(self, codes: Tensor) -> Tensor:
        """The values of codes."""
        return codes.to(self.scale.dtype) * self.scale + self.offset


def grid_of(quantizer: Quantizer, role: str, x: Tensor, levels: Tensor, within: Range) -> Grid:
    """The grid on which a rule puts `x` within this range, whatever `x` holds."""
    quantized = quantizer.encode(role, x, levels, within)
    assert quantized.scale is not None
    assert quantized.offset is not None
    bits = int(levels).bit_length()
    lowest, _ = quantizer.integer_range(min(bits, 8)) or (0, 0)
    return Grid(bits=bits, scale=quantized.scale, offset=quantized.offset, lowest=lowest)


KINDS = (SBM, AbsMax)  # affine grids, and nothing before them; pow2 is an absmax


@dataclass(frozen=True, kw_only=True)
class Product:
    """One product of a layer: where its second operand comes from, and the grids of both.

    row: which of the layer's products (the row of its activation range). weight: the part of a
    parameter that is multiplied, in the shape against which its grid broadcasts; None for a
    product of two activations, and then `second` is the other one's grid. A grid that is None:
    the operand has no bits.
    """

    layer: str
    row: int
    first: Grid | None
    second: Grid | None
    weight: Tensor | None

    @property
    def codes(self) -> Tensor:
        """The weight's codes, as whole numbers of float."""
        assert self.weight is not None
        assert self.second is not None
        return self.second.codes_of(self.weight)


@dataclass
class Frozen:
    """The copy, in evaluation mode, and its products in the order of the first call."""

    model: nn.Module
    products: list[Product] = field(default_factory=list)

    def by_layer(self) -> dict[str, dict[int, Product]]:
        """Products by layer and row."""
        found: dict[str, dict[int, Product]] = {}
        for product in self.products:
            found.setdefault(product.layer, {})[product.row] = product
        return found


def freeze(model: nn.Module, inputs: Sequence[Any]) -> Frozen:
    """The grids of a converted model at its present bits; the model itself is not touched.

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
        parameter.data = parameter.data.contiguous()  # a channels_last model, for one
    if not is_converted(model):
        return frozen
    layers = [(entry.name, layer) for entry, layer in quantized_layers(frozen.model)]
    for name, layer in layers:
        _check(name, layer)

    def record(name: str, layer: QuantizedLayer) -> Callable[..., Tensor]:
        def multiply(geometry: Any, a: Tensor, w: Tensor, bias: Any = None, **how: Any) -> Tensor:
            frozen.products.append(_product(name, layer, a, w, **how))
            return QuantizedLayer.multiply(layer, geometry, a, w, bias, **how)

        return multiply

    with torch.no_grad(), multiplying(layers, record):
        frozen.model(*inputs)
    each = {(product.layer, product.row): product for product in frozen.products}
    frozen.products = list(each.values())  # a layer that is called twice has one grid
    used = {product.layer for product in frozen.products}
    missing = [name for name, layer in layers if layer.is_active and name not in used]
    if missing:
        raise _refused(missing[0], "it was not used when the model was called on the example")
    return frozen


@contextmanager
def multiplying(
    layers: Sequence[tuple[str, QuantizedLayer]],
    make: Callable[[str, QuantizedLayer], Callable[..., Tensor]],
) -> Iterator[None]:
    """Layers whose products are computed by another function, for a while."""
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
    a: Tensor,
    w: Tensor,
    *,
    second: str = "weight",
    second_keep: tuple[int, ...] = (),
    second_view: tuple[int, ...] = (),
    input_keep: tuple[int, ...] = (),
    act_row: int = 0,
) -> Product:
    first = _act_grid(layer, a, act_row)
    if second == "act":
        return Product(
            layer=name, row=act_row, first=first, second=_act_grid(layer, w, act_row + 1),
            weight=None,
        )  # fmt: skip
    weight = w.view(second_view) if second_view else w
    grid = None
    if "weight" in layer.quantized_roles:
        quantizer = layer.settings.quantizer
        within = quantizer.range_of("weight", weight, second_keep)
        grid = grid_of(quantizer, "weight", weight, layer.control[LEVELS["weight"]], within)
    return Product(layer=name, row=act_row, first=first, second=grid, weight=weight)


def _act_grid(layer: QuantizedLayer, x: Tensor, row: int) -> Grid | None:
    if "act" not in layer.quantized_roles:
        return None
    _, low, spread = layer.act_range[row].unbind()
    levels = layer.control[LEVELS["act"]]
    return grid_of(layer.settings.quantizer, "act", x.new_zeros(()), levels, (low, low + spread))


def _check(name: str, layer: QuantizedLayer) -> None:
    """Raise for a layer whose evaluation is not a product on fixed affine grids."""
    if not layer.is_active:
        return
    quantizer: Quantizer = layer.settings.quantizer
    if isinstance(layer, RecurrentLayer):
        raise _refused(name, f"the time steps of {layer.float_type.__name__} are not exported")
    if isinstance(layer, QuantizedLookup):
        raise _refused(name, "a lookup on grids is not exported")
    if isinstance(layer, PerNodeLayer):
        raise _refused(name, "its grids are taken anew for every node")
    if isinstance(layer, QuantizedNorm):
        raise _refused(name, f"{type(quantizer).__name__} normalizes by a rule of its own")
    if not isinstance(quantizer, KINDS):
        raise _refused(
            name,
            f"grids of {type(quantizer).__name__} are not exported (sbm, absmax and pow2 are)",
        )
    if "act" in layer.quantized_roles and not layer.is_observed:
        raise _refused(
            name,
            "its activation range was never observed: train it quantized, or calibrate",
        )


def _refused(name: str, reason: str) -> ValueError:
    return ValueError(
        f"layer {name or '(the model itself)'!r} cannot be exported: {reason}. Leave it float "
        "(skip=) or export at full precision"
    )
