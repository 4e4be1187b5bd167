"""Matrices as `scaled_mm` reads them decode to what plain torch rounds, to the last bit."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import ScalingType

from bitcycle.formats.catalogue import FORMATS
from bitcycle.formats.rounding import round_blocks
from bitcycle.gpu.scaled import encode
from tests.bitcycle.gpu.interpreted.comparison import assert_same_bits, plain_torch

KEY = torch.tensor([31, -7], dtype=torch.int32)
SIGNS = torch.tensor([1.0, -1, -1, 1, 1, 1, -1, 1, -1, -1, 1, -1, 1, 1, 1, -1])
LARGEST = torch.finfo(torch.float32).max


# -- what the bits mean ---------------------------------------------------------------------------


def decoded(bits, exponent_bits):
    """The value of every code of a float with a sign, by the formats' definition."""
    mantissa_bits, bias = bits - 1 - exponent_bits, 2 ** (exponent_bits - 1) - 1
    values = []
    for code in range(2**bits):
        exponent, mantissa = divmod(code % 2 ** (bits - 1), 2**mantissa_bits)
        fraction = mantissa / 2**mantissa_bits
        value = (fraction + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias)
        values.append(-value if code >= 2 ** (bits - 1) else value)
    return values


E4M3, E5M2, E2M1 = decoded(8, 4), decoded(8, 5), decoded(4, 2)
E4M3[0x7F] = E4M3[0xFF] = math.nan
E5M2[0x7C:0x80] = E5M2[0xFC:] = [math.inf, math.nan, math.nan, math.nan]
E8M0 = [2.0 ** (code - 127) for code in range(255)] + [math.nan]
TABLES = {
    torch.float8_e4m3fn: E4M3,
    torch.float8_e5m2: E5M2,
    torch.float8_e8m0fnu: E8M0,
}


def values_of(codes, table):
    return torch.tensor(table)[codes.view(torch.uint8).long()]


def elements_of(found):
    """(rows, summed) in float32."""
    elements = found.elements
    assert elements.is_contiguous()
    if elements.dtype is not torch.float4_e2m1fn_x2:
        return values_of(elements, TABLES[elements.dtype])
    bytes_ = elements.view(torch.uint8)
    return values_of(torch.stack([bytes_ % 16, bytes_ // 16], dim=-1).flatten(1), E2M1)


def unswizzled(scales, rows, columns):
    """The scales of rows x columns, in tiles of 128 x 4; and those of the padding."""
    tiles = -(-columns // 4)
    assert scales.shape == (-(-rows // 128) * tiles * 512,)
    flat, out = values_of(scales, TABLES[scales.dtype]), torch.empty(rows, columns)
    is_used = torch.zeros(len(flat), dtype=torch.bool)
    for r in range(rows):
        for c in range(columns):
            at = (r // 128 * tiles + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
            out[r, c], is_used[at] = flat[at], True
    assert is_used.sum() == rows * columns
    return out, flat[~is_used]


def scales_of(found, block):
    """A scale for each element, in float32; and those of the padding."""
    rows, columns = elements_of(found).shape
    scales, padding = found.scales, torch.empty(0)
    if block in (16, 32):
        scales, padding = unswizzled(scales, rows, columns // block)
        scales = scales.repeat_interleave(block, 1)
    elif block == "tensor":
        assert scales.numel() == 1
        scales = scales.expand(rows, columns)
    elif block == "row":
        assert (scales.shape, scales.is_contiguous()) == ((rows, 1), True)
        scales = scales.expand(rows, columns)
    elif block == "square":
        across = columns // 128
        assert scales.shape == (-(-across // 4) * 4, -(-rows // 128))
        assert scales.stride() == (1, scales.shape[0])
        scales, padding = scales.t()[:, :across], scales[across:].flatten()
        scales = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)
    else:
        assert scales.shape == (rows, columns // 128)
        assert scales.stride() == (1, rows)
        scales = scales.repeat_interleave(128, 1)
    return scales, padding


# -- comparison -----------------------------------------------------------------------------------

# name of the format: kind, rows and length of a block, how it is named here, padding of the length
WAYS = {
    "tensor": ("fp8", None, "tensor", 16),
    "row": ("fp8", (1, None), "row", 16),
    "1 x 128": ("fp8", (1, 128), "block", 128),
    "128 x 128": ("fp8", (128, 128), "square", 128),
    "mx": ("mx", (1, 32), 32, 32),
    "nvfp4": ("nvfp4", (1, 16), 16, 32),
    "nvfp4 16 x 16": ("nvfp4", (16, 16), 16, 32),
}
STORED = {
    "fp8": "e4m3", "e5m2": "e5m2", "mxfp8": "e4m3", "mxfp8_e5m2": "e5m2", "mxfp6": "e4m3",
    "mxfp6_e3m2": "e4m3", "mxfp4": "e4m3", "nvfp4": "e2m1",
}  # fmt: skip


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    powers = torch.randint(-4, 5, shape, generator=generator)
    return torch.randn(shape, generator=generator) * 2.0**powers


def largest_of_blocks(x, block):
    """|x|'s largest in the block of each element, NaN and infinity above all."""
    if block is None:
        return x.abs().amax().expand(x.shape)
    height, length = block[0], block[1] or x.shape[1]
    out = torch.empty_like(x)
    for r in range(0, x.shape[0], height):
        for c in range(0, x.shape[1], length):
            part = x[r : r + height, c : c + length]
            out[r : r + height, c : c + length] = part.abs().amax()
    return out


def check(x, name, way, dim, *, element=None, rounds_up=False, key=None, signs=None):
    """Encode, decode, and compare with plain torch; returns what was encoded."""
    kind, block, named, multiple = WAYS[way]
    element = element or STORED[name]
    dims = () if block is None else (dim,) if block[0] == 1 else (0, 1)
    sizes = () if block is None else (block[1],) if block[0] == 1 else block
    given = {"kind": kind, "dims": dims, "blocks": sizes, "key": key, "signs": signs}
    number = torch.tensor(FORMATS[name].numbers, dtype=torch.int32)
    found = encode(x, number, dim=dim, element=element, rounds_up=rounds_up, **given)
    with plain_torch():
        scale = "rceil" if rounds_up else "floor"
        expected = round_blocks(x.float(), number, scale=scale, **given)
    expected = expected if dim else expected.t()
    rows, summed = expected.shape

    elements, (scales, padding) = elements_of(found), scales_of(found, named)
    assert elements.shape == (-(-rows // 16) * 16, -(-summed // multiple) * multiple)
    inside = elements[:rows, :summed]
    is_padding = torch.ones_like(elements, dtype=torch.bool)
    is_padding[:rows, :summed] = False
    assert (elements.view(torch.int32)[is_padding] == 0).all()
    assert not inside[expected.isnan()].any()
    assert scales[:rows, :summed][expected.isnan()].isnan().all()
    if not expected.isnan().any():
        assert scales.isfinite().all()
        assert padding.isfinite().all()
    scales = scales[:rows, :summed]
    if kind == "fp8":
        a = largest_of_blocks(x.float() if dim else x.float().t(), block)
        # torch would multiply a Python number by the reciprocal
        s = (torch.tensor(FORMATS[name].max_value) / a).clamp_max(LARGEST)
        s = torch.where(a.isfinite(), s, math.nan)
        assert_same_bits(scales, torch.where(a == 0, 1.0, s.reciprocal()))
        values = inside / s
    elif kind == "mx":
        values = inside * scales
    else:
        assert found.tensor_scale.dtype is torch.float32
        values = inside * (scales * found.tensor_scale)
    assert_same_bits(values, expected)
    return found


CASES = [
    ("fp8", "tensor"), ("e5m2", "tensor"), ("fp8", "row"), ("e5m2", "row"), ("fp8", "1 x 128"),
    ("fp8", "128 x 128"), ("mxfp8", "mx"), ("mxfp8_e5m2", "mx"), ("mxfp6", "mx"),
    ("mxfp6_e3m2", "mx"), ("mxfp4", "mx"), ("nvfp4", "nvfp4"), ("nvfp4", "nvfp4 16 x 16"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "way"), CASES)
@pytest.mark.parametrize("dim", [0, 1])
def test_every_kind_along_both_axes(name, way, dim):
    check(numbers(17, 45), name, way, dim)
