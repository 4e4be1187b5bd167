"""Matrices as tensor cores read them: elements of 8 or 4 bits, and the scales that decode them.

    value[r, k] = element[r, k] * scale of its block (* scale of the tensor)

    recipe      elements            a scale per                      scales are
    fp8_tensor  e4m3 or e5m2        tensor                           float32
    fp8_row     e4m3 or e5m2        row                              float32
    fp8_block   e4m3 or e5m2        1 x 128, or 128 x 128            float32
    mx          e4m3 or e5m2        1 x 32                           e8m0, swizzled
    nvfp4       e2m1, two per byte  1 x 16, and one of the tensor    e4m3, swizzled

The last axis is the one that a product sums over. Both axes are padded by elements 0 to sizes that
`torch.nn.functional.scaled_mm` takes. Elements and scales are those of `rounding.round_blocks`.
GPU kernels write a matrix in one or two launches, plain torch the same to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from bitcycle.formats.rounding import (
    flag_if_not_finite,
    hadamard,
    join_blocks,
    nvfp4_scales,
    round_split,
)
from bitcycle.gpu.driver import FLOATS
from bitcycle.native.formats import padded_shape
from bitcycle.ops.fused import scaled_for

ELEMENTS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
ROWS = 16  # rows are padded to a multiple; tiled ones to whole tiles
TILE = 128  # rows of a tile of swizzled scales
COLUMNS = 4  # scales of a row in a tile
BLOCKS = {"fp8_block": 128, "mx": 32, "nvfp4": 16}  # elements of a row that share a scale
# elements of a row are padded to a multiple
LENGTHS = {"fp8_tensor": 16, "fp8_row": 16, "fp8_block": TILE, "mx": 32, "nvfp4": 32}


@dataclass(frozen=True)
class Scaled:
    """A matrix (rows, length) for tensor cores.

    rows, length: without the padding. shape: of the tensor that was rounded. is_turned: its first
    axis is the one that a product sums over. is_tiled: fp8_block has a scale per 128 x 128.
    """

    recipe: str
    elements: Tensor
    scales: Tensor
    tensor_scale: Tensor | None
    rows: int
    length: int
    shape: tuple[int, ...]
    is_turned: bool = False
    is_tiled: bool = False

    def dequantize(self) -> Tensor:
        """The values in float32, in the shape of the tensor."""
        values = self.values()
        return (values.t() if self.is_turned else values).reshape(self.shape)

    def values(self) -> Tensor:
        """The matrix in float32."""
        values = _decode_elements(self.elements) * self._scale_matrix()
        return values[: self.rows, : self.length]

    def _scale_matrix(self) -> Tensor:
        """The scales, broadcastable against the padded elements."""
        rows, length = self.elements.shape
        scales, block = self.scales, BLOCKS.get(self.recipe)
        if block is None:
            return scales  # of the tensor, or (rows, 1)
        if self.is_tiled:
            scales = scales.t()[:, : length // block].repeat_interleave(TILE, 0)[:rows]
        elif self.recipe != "fp8_block":
            length *= 2 if self.recipe == "nvfp4" else 1  # two elements in a byte
            tiles = math.ceil(rows / TILE), math.ceil(length / block / COLUMNS)
            scales = unswizzle(scales, tiles)[:rows, : length // block].float()
        if self.tensor_scale is not None:
            scales = scales * self.tensor_scale
        return scales.repeat_interleave(block, 1)


def encode_scaled(
    x: Tensor,
    numbers: Tensor,
    *,
    recipe: str,
    stored_as: str,
    dim: int,
    dims: tuple[int, ...],
    blocks: tuple[int | None, ...],
    scale: str = "floor",
    key: Tensor | None = None,
    signs: Tensor | None = None,
    flag: Tensor | None = None,
) -> Scaled:
    """Round a tensor (..., n) that a product sums over its last axis, or a matrix over its first.

    dim: that axis of the matrix (rows, n), 0 or 1. dims, blocks: of the matrix, and numbers, scale,
    key, signs and flag as in `round_blocks`. stored_as: `Format.stored_as`.
    """
    shape: Sequence[int] = tuple(x.shape)
    x = x.detach().reshape(math.prod(shape[:-1]), shape[-1]).contiguous()
    if signs is not None:
        shape = padded_shape(x.shape, dim)
    n0, n1 = x.shape if signs is None else shape
    rows, length = (n1, n0) if dim == 0 else (n0, n1)
    is_tiled = recipe == "fp8_block" and len(dims) > 1
    given: dict[str, Any] = {
        "kind": recipe.partition("_")[0], "dims": dims, "blocks": blocks, "dim": dim,
        "rounds_up": scale == "rceil", "key": key, "signs": signs,
    }  # fmt: skip
    made: tuple[Tensor, Tensor, Tensor | None] | None = None
    if kernels := scaled_for(x, *FLOATS):
        made = kernels.encode(x, numbers, element=stored_as, flag=flag, **given)
    if made is None:
        flag_if_not_finite(x, flag)
        made = _encode(x.float(), numbers, recipe=recipe, element=stored_as, **given)
    return Scaled(recipe, *made, rows, length, tuple(shape), dim == 0, is_tiled)


# -- plain torch ----------------------------------------------------------------------------------


def _encode(
    x: Tensor,
    numbers: Tensor,
    *,
    recipe: str,
    element: str,
    kind: str,
    dims: tuple[int, ...],
    blocks: tuple[int | None, ...],
    dim: int,
    rounds_up: bool,
    key: Tensor | None,
    signs: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Elements, scales and the scale of the tensor."""
    if signs is not None:
        x = hadamard(x, dim, signs)
    rule = "rceil" if rounds_up else "floor"
    rounded, scales, amax = round_split(x, numbers, kind, dims, blocks, rule, True, key)
    is_finite, tensor_scale = scales.isfinite(), None
    elements = join_blocks(torch.where(is_finite, rounded, 0.0), x.shape, dims)
    if kind == "nvfp4":
        scales, tensor_scale = nvfp4_scales(amax, tensor_scale=True)
        scales = torch.where(is_finite, scales, math.nan)
    elif kind == "fp8":
        scales = torch.where(amax == 0, 1.0, 1.0 / scales)
    for d in sorted(dims):  # each block has one
        scales = scales.flatten(d, d + 1)
    if dim == 0:
        elements, scales = elements.t(), scales.t()
    is_tiled = recipe == "fp8_block" and len(dims) > 1
    if recipe == "nvfp4" and len(dims) > 1:  # the rows of a tile share a scale
        scales = scales.repeat_interleave(BLOCKS[recipe], 0)[: len(elements)]
    high = -len(elements) % (TILE if is_tiled else ROWS)
    elements = pad(elements, [0, -elements.shape[1] % LENGTHS[recipe], 0, high])
    return _store(elements, element), _lay_out_scales(scales, recipe, high, is_tiled), tensor_scale


def _lay_out_scales(scales: Tensor, recipe: str, high: int, is_tiled: bool) -> Tensor:
    """Scales (rows, blocks) as a recipe has them, with those of `high` rows of padding."""
    if recipe == "fp8_tensor":
        return scales.reshape(())
    if not recipe.startswith("fp8"):
        return swizzle(scales, recipe)
    if is_tiled:
        return pad(scales, [0, -scales.shape[1] % COLUMNS], value=1.0).contiguous().t()
    scales = pad(scales, [0, 0, 0, high], value=1.0)
    return scales.t().contiguous().t() if recipe == "fp8_block" else scales.contiguous()


def _store(elements: Tensor, element: str) -> Tensor:
    """Values of elements in their 8 or 4 bits."""
    elements = elements.contiguous()
    if element != "e2m1":
        return elements.to(ELEMENTS[element])
    u = elements.view(torch.int32)
    m = elements.abs()
    code = torch.where(m < 1, (m * 2).to(torch.int32), (m.view(torch.int32) >> 22) - 252)
    code = (code | ((u >> 28) & 8)).to(torch.uint8)
    return (code[:, ::2] | (code[:, 1::2] << 4)).view(torch.float4_e2m1fn_x2)


def _decode_elements(elements: Tensor) -> Tensor:
    """Values of elements, in float32."""
    if elements.dtype in ELEMENTS.values():
        return elements.float()
    pairs = elements.view(torch.uint8)
    code = torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2).to(torch.int32)
    m = code & 7
    large = (2.0 + (m & 1)) * torch.exp2((m >> 1) - 2.0)
    value = torch.where(m < 2, m * 0.5, large)
    return torch.where(code >= 8, -value, value)


def swizzle(scales: Tensor, kind: str) -> Tensor:
    """Scales (rows, columns) as tensor cores read them: tiles of 128 x 4, 32 rows interleaved.

    Scale (r, c) of a tile is number 16 (r % 32) + 4 (r // 32) + c. What pads the last tiles is the
    least scale.
    """
    rows, columns = scales.shape
    if kind == "nvfp4":
        dtype, least, stored = torch.float8_e4m3fn, 8, scales.to(torch.float8_e4m3fn)
    else:  # powers of two, or NaN: the exponent; compilers do not cast to e8m0
        dtype, least = torch.float8_e8m0fnu, 0
        stored = (scales.contiguous().view(torch.int32) >> 23).to(torch.uint8)
    stored = stored.view(torch.uint8)
    stored = pad(stored, [0, -columns % COLUMNS, 0, -rows % TILE], value=least)
    tiles = stored.view(-1, TILE // 32, 32, stored.shape[1] // COLUMNS, COLUMNS)
    return tiles.permute(0, 3, 2, 1, 4).reshape(-1).view(dtype)


def unswizzle(scales: Tensor, tiles: tuple[int, int]) -> Tensor:
    """The matrix of scales, padded to whole tiles; tiles: their number in both directions.

    >>> scales = torch.tensor([[2.0**r for r in range(6)]]).t()
    >>> unswizzle(swizzle(scales, "mx"), (1, 1))[:6, 0].float()
    tensor([ 1.,  2.,  4.,  8., 16., 32.])
    """
    stored = scales.view(torch.uint8).view(*tiles, 32, TILE // 32, COLUMNS)
    matrix = stored.permute(0, 3, 2, 1, 4).reshape(tiles[0] * TILE, tiles[1] * COLUMNS)
    return matrix.contiguous().view(scales.dtype)
