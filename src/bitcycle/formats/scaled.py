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
    magnitude,
    noise_of,
    nvfp4_scales,
    round_element,
    scales_of_blocks,
    split_blocks,
)
from bitcycle.gpu.driver import FLOATS
from bitcycle.native.formats import padded_shape
from bitcycle.ops.fused import scaled_for

ELEMENTS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
ROWS = 16  # rows are padded to a multiple; tiled ones to whole tiles
TILE = 128  # rows of a tile of swizzled scales; the length of a block of fp8_block
COLUMNS = 4  # scales of a row in a tile
# elements of a row are padded to a multiple
LENGTHS = {"fp8_tensor": 16, "fp8_row": 16, "fp8_block": TILE, "mx": 32, "nvfp4": 32}


@dataclass(frozen=True)
class Scaled:
    """A matrix (rows, length) for tensor cores.

    rows, length: without the padding. shape: of the tensor that was rounded. is_turned: its first
    axis is the one that a product sums over. block: elements of a row that share a scale; 0 for
    all. is_tiled: fp8_block has a scale per 128 x 128.
    """

    recipe: str
    elements: Tensor
    scales: Tensor
    tensor_scale: Tensor | None
    rows: int
    length: int
    shape: tuple[int, ...]
    is_turned: bool
    block: int
    is_tiled: bool

    @property
    def is_e5m2(self) -> bool:
        """Whether elements are e5m2."""
        return self.elements.dtype is torch.float8_e5m2

    def dequantize(self) -> Tensor:
        """The values in float32, in the shape of the tensor."""
        values = _decode_elements(self.elements) * self._scale_matrix()
        values = values[: self.rows, : self.length]
        return (values.t() if self.is_turned else values).reshape(self.shape)

    def _scale_matrix(self) -> Tensor:
        """The scales, broadcastable against the padded elements."""
        rows, length = self.elements.shape
        scales = self.scales
        if self.recipe == "fp8_tensor":
            return scales.view(1, 1)
        if self.recipe == "fp8_row":
            return scales
        if self.is_tiled:
            scales = scales.t()[:, : length // TILE].repeat_interleave(TILE, 0)[:rows]
        elif self.tensor_scale is not None or self.recipe == "mx":
            length *= 1 if self.recipe == "mx" else 2  # two elements in a byte
            tiles = math.ceil(rows / TILE), math.ceil(length / self.block / COLUMNS)
            scales = unswizzle(scales, tiles)[:rows, : length // self.block].float()
        if self.tensor_scale is not None:
            scales = scales * self.tensor_scale
        return scales.repeat_interleave(self.block, 1)


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
    block = 0 if recipe in ("fp8_tensor", "fp8_row") else blocks[-1] or 0
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
    return Scaled(recipe, *made, rows, length, tuple(shape), dim == 0, block, is_tiled)


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
    noise = noise_of(x.shape, key)
    split, inside = split_blocks(x, dims, blocks)
    amax = magnitude(split).amax(inside, keepdim=True)
    rule = "rceil" if rounds_up else "floor"
    factor, back = scales_of_blocks(amax, numbers, kind, rule, tensor_scale=True)
    noise = noise if noise is None else split_blocks(noise, dims, blocks)[0]
    is_finite = back.isfinite()
    rounded = round_element(torch.where(is_finite, split * factor, 0.0), numbers, noise)
    numbers_of_rows = rounded.reshape([-(-n // b) * b for n, b in _sides(x.shape, dims, blocks)])
    numbers_of_rows = numbers_of_rows[: x.shape[0], : x.shape[1]]

    def turned(m: Tensor) -> Tensor:
        return m.t() if dim == 0 else m

    elements = turned(numbers_of_rows)
    rows, length = elements.shape
    wide = -length % LENGTHS[recipe]
    is_tiled = recipe == "fp8_block" and len(dims) > 1
    high = -rows % (TILE if is_tiled else ROWS)
    elements = _store(pad(elements, [0, wide, 0, high]), element)
    tensor_scale = None
    if kind == "nvfp4":
        back, tensor_scale = nvfp4_scales(amax, tensor_scale=True)
        back = torch.where(is_finite, back, math.nan)
    elif kind == "fp8":
        back = torch.where(amax == 0, 1.0, 1.0 / back)
    if recipe == "fp8_tensor":
        return elements, back.reshape(()), None
    per_block = turned(back.squeeze(tuple(inside)))
    if recipe == "fp8_row":
        scales = pad(per_block.reshape(-1, 1), [0, 0, 0, high], value=1.0)
    elif is_tiled:
        scales = pad(per_block, [0, -per_block.shape[1] % COLUMNS], value=1.0).contiguous().t()
    elif recipe == "fp8_block":
        scales = pad(per_block, [0, 0, 0, high], value=1.0).t().contiguous().t()
    else:
        if len(dims) > 1:  # tiles of a weight: their rows share a scale
            per_block = per_block.repeat_interleave(blocks[0] or 1, 0)[:rows]
        scales = swizzle(per_block, kind)
    return elements, scales, tensor_scale


def _sides(
    shape: torch.Size, dims: tuple[int, ...], blocks: tuple[int | None, ...]
) -> list[tuple[int, int]]:
    """Each side of the matrix, and the length of its blocks."""
    sizes = dict(zip(dims, blocks, strict=True))
    return [(n, sizes.get(d, 1) or n) for d, n in enumerate(shape)]


def _store(elements: Tensor, element: str) -> Tensor:
    """Values of elements in their 8 or 4 bits."""
    elements = elements.contiguous()
    if element != "e2m1":
        return elements.to(ELEMENTS[element])
    u = elements.view(torch.int32)
    m = elements.abs()
    code = torch.where(m < 1, (m * 2).to(torch.int32), (magnitude(elements) >> 22) - 252)
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
