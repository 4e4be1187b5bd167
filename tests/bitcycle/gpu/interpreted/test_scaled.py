"""Matrices as `scaled_mm` reads them decode to what plain torch rounds, to the last bit."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import ScalingType, SwizzleType

from bitcycle.formats.catalogue import FORMATS
from bitcycle.formats.rounding import round_blocks
from bitcycle.gpu import driver
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
    flat, out, used = values_of(scales, TABLES[scales.dtype]).tolist(), [], set()
    for r in range(rows):
        for c in range(columns):
            at = (r // 128 * tiles + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
            out.append(flat[at])
            used.add(at)
    assert len(used) == rows * columns
    padding = [scale for at, scale in enumerate(flat) if at not in used]
    return torch.tensor(out).view(rows, columns), torch.tensor(padding)


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


def check(
    x, name, way, dim, *, element=None, rounds_up=False, key=None, signs=None, flag=None
):  # fmt: skip
    """Encode, decode, and compare with plain torch; returns what was encoded."""
    kind, block, named, multiple = WAYS[way]
    element = element or STORED[name]
    dims = () if block is None else (dim,) if block[0] == 1 else (dim, 1 - dim)
    sizes = () if block is None else (block[1],) if block[0] == 1 else block
    options = {"kind": kind, "dims": dims, "blocks": sizes, "key": key, "signs": signs}
    number = torch.tensor(FORMATS[name].numbers, dtype=torch.int32)
    found = encode(
        x, number, dim=dim, element=element, rounds_up=rounds_up, flag=flag, **options
    )  # fmt: skip
    with plain_torch():
        scale = "rceil" if rounds_up else "floor"
        expected = round_blocks(x.float(), number, scale=scale, **options)
    expected = expected if dim else expected.t()
    rows, summed = expected.shape

    elements, (scales, padding) = elements_of(found), scales_of(found, named)
    whole = 128 if way == "128 x 128" else 16
    assert elements.shape == (-(-rows // whole) * whole, -(-summed // multiple) * multiple)
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
def test_every_format_along_both_axes(name, way, dim):
    check(numbers(17, 45), name, way, dim)


MAIN = [(name, way) for name, way in CASES if name in ("fp8", "mxfp8", "nvfp4")]


@pytest.mark.parametrize(("name", "way"), MAIN)
@pytest.mark.parametrize("dim", [0, 1])
def test_one_row_and_several_tiles(name, way, dim):
    check(numbers(1, 16), name, way, dim)
    check(numbers(130, 260), name, way, dim)


@pytest.mark.parametrize(("name", "way"), MAIN)
@pytest.mark.parametrize("dim", [0, 1])
def test_stochastic_rounding_has_the_noise_of_the_matrix_as_it_stands(name, way, dim):
    check(numbers(18, 35), name, way, dim, key=KEY)


@pytest.mark.parametrize("way", ["nvfp4", "nvfp4 16 x 16"])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("key", [None, KEY])
def test_the_transform_makes_the_summed_axis_longer(way, dim, key):
    check(numbers(19, 35), "nvfp4", way, dim, signs=SIGNS, key=key)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_read_as_it_is(dtype):
    for dim, (name, way) in enumerate([("nvfp4", "nvfp4"), ("fp8", "tensor")]):
        check(numbers(9, 33).to(dtype), name, way, dim)


@pytest.mark.parametrize("name", ["mxfp8", "mxfp8_e5m2", "mxfp4"])
def test_scales_that_are_rounded_up(name):
    check(numbers(17, 45), name, "mx", 1, rounds_up=True)


def test_elements_of_mx_in_4_bits():
    assert check(numbers(17, 45), "mxfp4", "mx", 0, element="e2m1").elements.shape == (48, 16)


@pytest.mark.parametrize(("name", "way"), MAIN)
@pytest.mark.parametrize("value", [0.0, 1e-44, 3e38, math.inf, math.nan])
def test_extreme_numbers(name, way, value):
    x = numbers(18, 35).clamp(-4, 4)  # the largest of most blocks is a power of two
    x[:, 3] = value
    x[17] = 0
    x[2, 2] = -0.0
    check(x, name, way, 1)


@pytest.mark.parametrize(("name", "way"), MAIN)
@pytest.mark.parametrize("value", [0.0, 1e-44])
def test_a_matrix_of_one_number(name, way, value):
    check(torch.full((3, 20), value), name, way, 0)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    values=st.lists(st.floats(width=32), min_size=1, max_size=40),
    case=st.sampled_from(MAIN),
    dim=st.integers(0, 1),
    key=st.sampled_from([None, KEY]),
)
def test_any_floats(values, case, dim, key):
    x = torch.tensor(values)
    check(x[None] if dim else x[:, None], *case, dim, key=key)


# -- bits and places, by hand ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values", "codes"),
    [
        (
            "fp8",
            [448.0, -448, 1, -1.125, 2**-6, 7 * 2**-9, 2**-9, 2**-10, -0.0],
            [0x7E, 0xFE, 0x38, 0xB9, 0x08, 0x07, 0x01, 0x00, 0x80],
        ),
        (
            "e5m2",
            [57344.0, -57344, 1, -1.25, 2**-14, 3 * 2**-16, 2**-16, 2**-17, -0.0],
            [0x7B, 0xFB, 0x3C, 0xBD, 0x04, 0x03, 0x01, 0x00, 0x80],
        ),
    ],
)
def test_codes_of_elements(name, values, codes):
    found = check(torch.tensor([values]), name, "tensor", 1)
    assert found.scales.tolist() == 1.0
    assert found.elements.view(torch.uint8)[0].tolist() == codes + [0] * (16 - len(codes))


def test_the_even_element_is_in_the_low_half_of_a_byte():
    values = [6.0, -6, 0.5, -0.5, 1, 1.5, 2, 3, 4, -0.0, 0, 0, 0, 0, 0, 0]
    # nvfp4's scale of the block is 448 and its tensor's 6 / 2688
    found = check(torch.tensor([values]), "nvfp4", "nvfp4", 1)
    expected = [0xF7, 0x91, 0x32, 0x54, 0x86, 0, 0, 0] + [0] * 8
    assert found.elements.view(torch.uint8)[0].tolist() == expected
    assert found.scales.view(torch.uint8)[0] == 0x7E


def test_scales_stand_in_tiles_of_32_by_4_by_4():
    x = torch.ones(130, 260)
    x[33, 64:96] = 4.0  # row 33, block 2
    x[129, 256:] = 0.5  # the second tile of both axes
    found = check(x, "mxfp8", "mx", 1)
    codes = found.scales.view(torch.uint8)
    assert codes.shape == (256 * 12,)
    one = 127 - 8  # e4m3 has an exponent up to 8
    assert codes[1 * 16 + 1 * 4 + 2] == one + 2
    assert codes[(1 * 3 + 2) * 512 + 1 * 16] == one - 1
    assert (codes == one).sum() == 130 * 9 - 2


def test_scales_of_a_tile_are_those_of_its_16_rows():
    x = torch.ones(32, 16)
    x[20, 3] = 6.0
    found = check(x, "nvfp4", "nvfp4 16 x 16", 1)
    scales, _ = unswizzled(found.scales, 32, 2)
    assert scales[:16, 0].unique().tolist() == [72.0]  # 448 / 6, rounded to e4m3
    assert scales[16:, 0].unique().tolist() == [448.0]


# -- what the product takes -----------------------------------------------------------------------


def multiply(a, b, recipe, dtype):
    recipe = getattr(ScalingType, recipe)
    scales = b.scales.t() if b.scales.dim() == 2 else b.scales
    return F.scaled_mm(
        a.elements, b.elements.t(), a.scales, recipe, scales, recipe, output_dtype=dtype
    )


@pytest.mark.parametrize(("way", "recipe"), [("tensor", "TensorWise"), ("row", "RowWise")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scaled_mm_multiplies_fp8(way, recipe, dtype):
    x, y = numbers(17, 45), numbers(45, 20, seed=1)
    a, b = check(x, "fp8", way, 1), check(y, "e5m2", way, 0)
    found = multiply(a, b, recipe, dtype)
    assert found.shape == (32, 32)
    assert not found[17:].any()
    assert not found[:, 20:].any()
    left = elements_of(a).double() * a.scales.double()
    right = elements_of(b).double() * b.scales.double()
    bound = 2**-18 * (left.abs() @ right.abs().t())
    if dtype is torch.bfloat16:
        bound += 2**-8 * (left @ right.t()).abs()
    assert ((found.double() - left @ right.t()).abs() <= bound).all()


RECIPES = {
    "tensor": ["TensorWise"], "row": ["RowWise"], "1 x 128": ["BlockWise1x128"],
    "128 x 128": ["BlockWise128x128"], "mx": ["BlockWise1x32"],
    "nvfp4": ["BlockWise1x16", "TensorWise"], "nvfp4 16 x 16": ["BlockWise1x16", "TensorWise"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("fp8", "tensor", "tensor"), ("fp8", "row", "row"), ("fp8", "1 x 128", "1 x 128"),
        ("fp8", "1 x 128", "128 x 128"), ("fp8", "128 x 128", "1 x 128"), ("mxfp8", "mx", "mx"),
        ("nvfp4", "nvfp4", "nvfp4"), ("nvfp4", "nvfp4", "nvfp4 16 x 16"),
    ],
)  # fmt: skip
def test_scaled_mm_takes_the_layout(name, left, right):
    """By torch's checks of CUDA operands, which the meta device has."""

    def on_meta(x):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")

    def operand(rows, dim, way):
        x = numbers(rows, 130) if dim else numbers(130, rows)
        found = check(x, name, way, dim)
        scales = [on_meta(each) for each in found[1:] if each is not None]
        recipe = [getattr(ScalingType, each) for each in RECIPES[way]]
        is_swizzled = found.scales.dim() == 1
        swizzle = [SwizzleType.SWIZZLE_32_4_4 if is_swizzled else SwizzleType.NO_SWIZZLE]
        swizzle += [SwizzleType.NO_SWIZZLE] * (len(recipe) - 1)
        return on_meta(found.elements), scales, recipe, swizzle

    a, a_scales, a_recipe, a_swizzle = operand(128 if left == "128 x 128" else 40, 1, left)
    b, b_scales, b_recipe, b_swizzle = operand(128 if right == "128 x 128" else 40, 0, right)
    if right == "row":
        b_scales = [b_scales[0].t()]
    out = F.scaled_mm(
        a, b.t(), a_scales, a_recipe, b_scales, b_recipe, a_swizzle, b_swizzle,
        output_dtype=torch.bfloat16,
    )  # fmt: skip
    assert out.shape == (len(a), len(b))


# -- calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "way"), MAIN)
def test_a_scale_of_the_tensor_takes_a_launch_before(name, way, launched):
    check(numbers(17, 45), name, way, 1)
    has_amax = way == "tensor" or name == "nvfp4"
    assert launched == ["_amax"] * has_amax + ["_encode_scaled"]


@pytest.mark.parametrize(("name", "way"), MAIN)
@pytest.mark.parametrize("value", [1.0, math.inf, math.nan])
def test_what_is_not_finite_raises_the_flag(name, way, value):
    x, flag = numbers(37, 50), torch.zeros(())
    x[20, 31] = value
    check(x, name, way, 1, flag=flag)
    assert flag.isnan() == (not math.isfinite(value))


@pytest.mark.parametrize("kernel", ["amax", "encode_scaled"])
def test_without_a_kernel_there_is_no_result(kernel):
    driver.leave_out([kernel])
    number = torch.tensor(FORMATS["fp8"].numbers, dtype=torch.int32)
    given = {"kind": "fp8", "dims": (), "blocks": (), "dim": 1, "element": "e4m3"}
    assert encode(numbers(16, 16), number, **given) is None
