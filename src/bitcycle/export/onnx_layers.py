"""A frozen model with its products written as ONNX can say them: integer weights and QDQ inputs.

offset = -zero * scale:   QuantizeLinear, DequantizeLinear
a real offset:            Sub offset, QuantizeLinear, DequantizeLinear, Add offset
not 4 or 8 bits:          Clip to the ends of the grid first; the codes travel as 8 bits
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bitcycle.assign import quantized_layers
from bitcycle.export import onnx_nodes  # noqa: F401 (registers the operators)
from bitcycle.export.freeze import Frozen, Product
from bitcycle.export.grids import Grid
from bitcycle.nn.base import QuantizedLayer
from bitcycle.train.evaluate import is_converted

MAX_BITS = 8
Ends = tuple[float, float] | None


def carrier_bits(bits: int) -> int:
    """The width of the ONNX integer that holds codes: 4 for 4 bits, else 8."""
    return 4 if bits == 4 else 8


def write_products(frozen: Frozen) -> Counter[str]:
    """Make the frozen model multiply from codes; returns how many grids map in which way."""
    ways: Counter[str] = Counter()
    if not is_converted(frozen.model):
        return ways
    products = frozen.by_layer()
    for entry, layer in quantized_layers(frozen.model):
        for row, product in products.get(entry.name, {}).items():
            _check(product)
            for grid, name in ((product.first, f"row{row}"), (product.second, f"second{row}")):
                if grid is None:
                    continue
                is_weight = name.startswith("second") and product.weight is not None
                if is_weight:
                    _keep_weight(layer, product, grid)
                else:
                    _keep_grid(layer, name, grid)
                ways[way_of(grid, is_weight=is_weight)] += 1
        if entry.name in products:
            layer.__dict__["multiply"] = _multiplier(layer, products[entry.name])
    return ways


def way_of(grid: Grid, *, is_weight: bool) -> str:
    """How a grid is said in ONNX, in words."""
    zero = "explicit Add of the real offset" if grid.zero_point is None else "one to one"
    carried = "" if grid.bits in (4, 8) else ", carried in 8 bits"
    clipped = "" if is_weight or _ends(grid) is None else ", clipped first"
    return f"{'weights' if is_weight else 'inputs'} of {grid.bits} bits: {zero}{carried}{clipped}"


def _check(product: Product) -> None:
    for grid in (product.first, product.second):
        if grid is not None and grid.bits > MAX_BITS:
            raise ValueError(
                f"layer {product.layer!r} has {grid.bits} bits, and ONNX files are written up to "
                f"{MAX_BITS}; evaluate at fewer bits, or export to safetensors or torch"
            )


def _ends(grid: Grid | None) -> Ends:
    """What the input is clipped to where its codes do not fill their integer; None: they do."""
    if grid is None or (grid.lowest == 0 and grid.bits == carrier_bits(grid.bits)):
        return None
    low, high = grid.limits()
    return float(low.min()), float(high.max())


def _multiplier(layer: QuantizedLayer, products: dict[int, Product]) -> Callable[..., Tensor]:
    ends = {row: (_ends(each.first), _ends(each.second)) for row, each in products.items()}

    def multiply(
        geometry: Any, a: Tensor, w: Tensor, bias: Any = None, *, act_row: int = 0, **how: Any
    ) -> Tensor:
        product, (first, second) = products[act_row], ends[act_row]
        if product.first is not None:
            a = _put(layer, f"row{act_row}", product.first, first, a)
        if product.second is not None:
            if product.weight is None:
                w = _put(layer, f"second{act_row}", product.second, second, w)
            else:
                w = _weight(layer, act_row, product.second).view(w.shape)
        output: Tensor = geometry.output(a, w, bias)
        return output

    return multiply


def _keep_grid(layer: QuantizedLayer, name: str, grid: Grid) -> None:
    carrier = carrier_bits(grid.bits)
    zero = grid.zero_point
    layer.register_buffer(f"{name}_scale", grid.scale.clone())
    whole = torch.zeros_like(grid.scale) if zero is None else zero
    layer.register_buffer(f"{name}_zero{carrier}", whole.to(torch.uint8))
    if zero is None:
        layer.register_buffer(f"{name}_offset", grid.offset.clone())


def _put(layer: QuantizedLayer, name: str, grid: Grid, ends: Ends, x: Tensor) -> Tensor:
    carrier = carrier_bits(grid.bits)
    buffers = layer._buffers
    offset = buffers.get(f"{name}_offset")
    if ends is not None:
        x = x.clamp(*ends)
    if offset is not None:
        x = x - offset
    x = torch.ops.bitcycle.on_codes(
        x, buffers[f"{name}_scale"], buffers[f"{name}_zero{carrier}"], carrier
    )
    return x if offset is None else x + offset


def _keep_weight(layer: QuantizedLayer, product: Product, grid: Grid) -> None:
    row, carrier, zero = product.row, carrier_bits(grid.bits), grid.zero_point
    if sum(size > 1 for size in grid.scale.shape) > 1:
        raise ValueError(
            f"layer {product.layer!r} has scales along two dimensions of its weight (a grouped "
            "transposed convolution), which ONNX cannot say; leave it float (skip=)"
        )
    codes = product.codes.to(torch.uint8)
    whole = torch.zeros_like(grid.scale) if zero is None else zero
    layer.register_buffer(f"weight{row}_codes{carrier}", codes)
    layer.register_buffer(f"weight{row}_scale", grid.scale.reshape(-1).clone())
    layer.register_buffer(f"weight{row}_zero{carrier}", whole.reshape(-1).to(torch.uint8))
    if zero is None:
        layer.register_buffer(f"weight{row}_offset", grid.offset.clone())


def _weight(layer: QuantizedLayer, row: int, grid: Grid) -> Tensor:
    carrier, buffers = carrier_bits(grid.bits), layer._buffers
    axis = next((dim for dim, size in enumerate(grid.scale.shape) if size > 1), 0)
    weight: Tensor = torch.ops.bitcycle.of_codes(
        buffers[f"weight{row}_codes{carrier}"],
        buffers[f"weight{row}_scale"],
        buffers[f"weight{row}_zero{carrier}"],
        axis,
    )
    offset = buffers.get(f"weight{row}_offset")
    return weight if offset is None else weight + offset
