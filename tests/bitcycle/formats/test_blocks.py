"""Blocks that share a scale: against exact arithmetic, at the edges, and by their properties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.formats import Format, list_formats, parse_format, round_to
from bitcycle.formats.rounding import hadamard, round_blocks
from tests.bitcycle.formats import reference

properties = settings(max_examples=100, derandomize=True)
FORMATS = {each.name: each for each in list_formats()}
MX = [each for each in list_formats() if each.kind == "mx"]
BLOCKS = [each for each in list_formats() if each.kind != "float"]
E4M3, NVFP4 = FORMATS["fp8"], FORMATS["nvfp4"]
INF, NAN = math.inf, math.nan
SIGNS = torch.tensor([1.0, -1, -1, 1, 1, 1, -1, 1, -1, -1, 1, -1, 1, 1, 1, -1])


def rounded(x: Tensor, each: Format, **options: Any) -> Tensor:
    numbers = torch.tensor(each.numbers, dtype=torch.int32)
    place = {"dims": (-1,), "blocks": (each.block,)} | options
    return round_blocks(x, numbers, kind=each.kind, **place)


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = 2.0 ** torch.randint(-6, 6, shape, generator=generator)
    return torch.randn(shape, generator=generator) * spread


# ---- exact arithmetic ---------------------------------------------------------------------------


def tensors() -> st.SearchStrategy[list[float]]:
    anything = st.floats(width=32, allow_nan=False, allow_infinity=False)
    near = st.floats(-8, 8, width=32)
    halves = st.integers(-64, 64).map(lambda n: n / 8)
    return st.one_of(
        *(st.lists(each, min_size=1, max_size=40) for each in (anything, near, halves))
    )


@properties
@given(x=tensors(), each=st.sampled_from(MX), scale=st.sampled_from(("floor", "rceil")))
def test_mx_is_exact_arithmetic(x: list[float], each: Format, scale: Any) -> None:
    found = round_to(torch.tensor(x), each, scale=scale).tolist()
    with np.errstate(over="ignore"):
        blocks = [reference.round_mx(x[at : at + 32], each, scale) for at in range(0, len(x), 32)]
        expected = np.array(sum(blocks, []), dtype=np.float32).tolist()
    assert found == expected
    assert [math.copysign(1, v) for v in found] == [math.copysign(1, v) for v in x]


@properties
@given(x=tensors(), has_tensor_scale=st.booleans())
def test_nvfp4_is_the_rule_in_float32(x: list[float], has_tensor_scale: bool) -> None:
    amax = max(map(abs, x))
    if amax and not 1e-30 < amax < 3e38:  # below and above, see the tests of the edges
        return
    with np.errstate(under="ignore"):
        g = reference.tensor_scale(x) if has_tensor_scale and amax else np.float32(1)
        blocks = [
            reference.round_nvfp4(x[at : at + 16], NVFP4, E4M3, g) for at in range(0, len(x), 16)
        ]
    found = round_to(torch.tensor(x), "nvfp4", tensor_scale=has_tensor_scale)
    assert found.tolist() == sum(blocks, [])


@properties
@given(x=tensors(), each=st.sampled_from([E4M3, FORMATS["e5m2"]]))
def test_fp8_is_the_rule_in_float32(x: list[float], each: Format) -> None:
    if 0 < max(map(abs, x)) < 1e-30:
        return
    with np.errstate(under="ignore"):
        expected = reference.round_fp8(x, each)
    assert round_to(torch.tensor(x), each).tolist() == expected


# ---- literal values -----------------------------------------------------------------------------


def test_mxfp4_by_hand() -> None:
    # amax 5: the scale is 2^(2 - 2) = 1, so values are those of e2m1, ties to even
    x = torch.tensor([5.0, 0.25, 0.75, 1.25, 2.5, 3.5, -0.26, -4.9])
    assert round_to(x, "mxfp4").tolist() == [4.0, 0.0, 1.0, 1.0, 2.0, 4.0, -0.5, -4.0]
    # 7.5 is above the largest element, 6: the floor clips it, rceil takes the scale 2
    assert round_to(torch.tensor([7.5, 1.0]), "mxfp4").tolist() == [6.0, 1.0]
    assert round_to(torch.tensor([7.5, 1.0]), "mxfp4", scale="rceil").tolist() == [8.0, 1.0]
    assert round_to(torch.tensor([6.0, 1.0]), "mxfp4", scale="rceil").tolist() == [6.0, 1.0]


@pytest.mark.parametrize("each", MX, ids=str)
@pytest.mark.parametrize("exponent", [-126, -20, 0, 1, 63, 126, 127])
def test_a_power_of_two_as_largest_value_stays(each: Format, exponent: int) -> None:
    x = torch.tensor([2.0**exponent, -(2.0 ** (exponent - 1)), 0.0])
    assert torch.equal(round_to(x, each), x)
    assert torch.equal(round_to(x, each, scale="rceil"), x)


@pytest.mark.parametrize("each", MX, ids=str)
def test_subnormal_blocks_have_the_least_scale(each: Format) -> None:
    step = 2.0 ** (each.min_exponent - each.mantissa - 127)
    x = torch.tensor([step, 3 * step, -2 * step, step / 4])
    assert round_to(x, each).tolist() == [step, 3 * step, -2 * step, 0.0]


def test_a_huge_value_takes_the_others_to_zero() -> None:
    x = torch.full((64,), 1e-3)
    x[40] = 1e6
    for name, size in (("mxfp8", 32), ("mxfp4", 32), ("nvfp4", 16)):
        found = round_to(x, name)
        start = 40 // size * size
        others = torch.cat([found[start:40], found[41 : start + size]])
        assert others.count_nonzero() == 0, name
        assert found[40] > 0.75e6  # mxfp4 clips to 6 * 2^17
    assert round_to(x, "mxfp8")[:32].sub(1e-3).abs().max() < 1e-4  # another block is as it was


@pytest.mark.parametrize("each", BLOCKS, ids=str)
def test_zeros_keep_their_signs(each: Format) -> None:
    x = torch.tensor([0.0, -0.0] * 20)
    for values in (x, torch.cat([x, torch.tensor([1.0, 1e-30, -1e-30])])):
        found = round_to(values, each)
        assert torch.equal(found.signbit(), values.signbit())
        assert found[:40].count_nonzero() == 0


@pytest.mark.parametrize("each", BLOCKS, ids=str)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_value_that_is_not_finite_makes_its_block_nan(each: Format, value: float) -> None:
    x = normal(3, 64)
    x[1, 5] = value
    found = round_to(x, each)
    if each.kind in ("fp8", "nvfp4"):  # the scale of the tensor
        assert found.isnan().all()
        local = {"granularity": "row"} if each.kind == "fp8" else {"tensor_scale": False}
        found = round_to(x, each, **local)
    size = each.block or 64
    assert found[1, :size].isnan().all()
    found[1, :size] = 0
    assert found.isfinite().all()


def test_the_least_scales_keep_tiny_tensors_finite() -> None:
    # 1 / g and max / amax would be infinite, and 0 * infinity NaN
    x = torch.tensor([1e-37, 0.0, -5e-38, 1e-45])
    for name in ("nvfp4", "fp8", "e5m2"):
        found = round_to(x, name)
        assert found.isfinite().all(), name
        assert (found - x).abs().max() < 1e-38, name
    assert round_to(torch.tensor([1e-45, -0.0]), "nvfp4").tolist() == [0.0, 0.0]


# ---- where blocks are ---------------------------------------------------------------------------


@pytest.mark.parametrize("each", BLOCKS, ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_blocks_along_a_dimension_are_those_of_the_moved_tensor(each: Format, dim: int) -> None:
    x = normal(20, 35, 18)
    size = each.block or 16
    expected = rounded(x.movedim(dim, -1).contiguous(), each, dims=(-1,), blocks=(size,))
    found = rounded(x, each, dims=(dim,), blocks=(size,))
    assert torch.equal(found, expected.movedim(-1, dim))


@pytest.mark.parametrize("each", BLOCKS, ids=str)
def test_a_tile_is_one_block(each: Format) -> None:
    x = normal(33, 20, 3, 2)
    found = rounded(x, each, dims=(0, 1), blocks=(16, 16), tensor_scale=False)
    for row in range(0, 33, 16):
        for column in range(0, 20, 16):
            for tap in range(6):
                tile = x.flatten(2)[row : row + 16, column : column + 16, tap].flatten()
                alone = rounded(tile, each, dims=(0,), blocks=(None,), tensor_scale=False)
                piece = found.flatten(2)[row : row + 16, column : column + 16, tap]
                assert torch.equal(piece.flatten(), alone)


def test_a_tile_transposes_with_its_tensor() -> None:
    x = normal(40, 56)
    tiles = {"dims": (0, 1), "blocks": (16, 16)}
    assert torch.equal(rounded(x, NVFP4, **tiles).t(), rounded(x.t(), NVFP4, **tiles))
    swapped = rounded(x, NVFP4, dims=(1, 0), blocks=(16, 16))
    assert torch.equal(swapped, rounded(x, NVFP4, **tiles))


def test_granularity_of_fp8() -> None:
    x = normal(4, 300)
    assert not torch.equal(round_to(x, "fp8"), round_to(x, "fp8", granularity="row"))
    by_row = torch.stack([round_to(row, "fp8") for row in x])
    assert torch.equal(round_to(x, "fp8", granularity="row"), by_row)
    by_block = torch.cat([round_to(part, "fp8", granularity="row") for part in x.split(128, 1)], 1)
    assert torch.equal(round_to(x, "fp8", granularity="block"), by_block)
    assert torch.equal(round_to(x, "fp8", 0, granularity="row"), round_to(x.t(), "fp8",
                       granularity="row").t())  # fmt: skip


# ---- properties ---------------------------------------------------------------------------------

floats = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=48)


@properties
@given(x=floats, each=st.sampled_from(list_formats()), is_stochastic=st.booleans())
def test_signs_are_symmetric(x: list[float], each: Format, is_stochastic: bool) -> None:
    rounding: Any = "stochastic" if is_stochastic else "nearest"
    values = torch.tensor(x)
    found = round_to(values, each, rounding=rounding)
    assert torch.equal(round_to(-values, each, rounding=rounding), -found)


@properties
@given(x=floats, each=st.sampled_from(list_formats()))
def test_rounding_keeps_order_inside_a_block(x: list[float], each: Format) -> None:
    values = torch.tensor(x[:16]).sort().values
    assert bool((round_to(values, each).diff() >= 0).all())


@properties
@given(x=floats, each=st.sampled_from([FORMATS["bf16"], FORMATS["fp16"], *MX]))
def test_rounded_values_stay(x: list[float], each: Format) -> None:
    # an MX block stays unless its largest value has reached the next power of two
    once = round_to(torch.tensor(x[:32]), each)
    if each.kind == "mx":
        amax = torch.tensor(x[:32]).abs().max()
        if torch.frexp(once.abs().max()).exponent != torch.frexp(amax).exponent:
            return
    assert torch.equal(round_to(once, each), once)


@properties
@given(x=floats, each=st.sampled_from(MX))
def test_the_error_is_half_a_step_at_most(x: list[float], each: Format) -> None:
    values = torch.tensor(x[:32], dtype=torch.float64)
    found = round_to(values.float(), each, scale="rceil").double()  # nothing clips
    amax = values.abs().max()
    if amax == 0:
        return
    # elements reach at least half of the largest value: a bound of the scale from above
    scale = 2.0 ** torch.ceil(torch.log2(amax / each.max_value) + 1e-9)
    exponent = torch.frexp(values / scale).exponent - 1
    step = scale * 2.0 ** (exponent.clamp_min(each.min_exponent) - each.mantissa)
    assert bool(((found - values).abs() <= step / 2 + 1e-40).all())


# ---- Hadamard -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 15, 16, 37, 128])
def test_a_pair_of_transforms_leaves_the_product_unchanged(tokens: int) -> None:
    a, b = torch.randn(tokens, 6), torch.randn(tokens, 5)
    padded = hadamard(a, 0, SIGNS), hadamard(b, 0, SIGNS)
    assert padded[0].shape == (-(-tokens // 16) * 16, 6)
    product = padded[0].double().t() @ padded[1].double()
    expected = a.double().t() @ b.double()
    assert bool(((product - expected).abs() <= 1e-6 * max(1.0, tokens**0.5)).all())


def test_the_transform_is_the_matrix_of_sylvester() -> None:
    h = torch.ones(1, 1)
    while len(h) < 16:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    found = hadamard(torch.eye(16), 0, SIGNS)
    assert torch.equal(found, h * SIGNS / 4)


def test_rounding_with_signs_rounds_the_transform() -> None:
    x = normal(37, 20)
    for each in (NVFP4, FORMATS["mxfp4"]):
        expected = rounded(hadamard(x, 0, SIGNS), each, dims=(0,))
        assert torch.equal(rounded(x, each, dims=(0,), signs=SIGNS), expected)


# ---- the public function ------------------------------------------------------------------------


def test_dtypes_and_shapes_stay() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for name in ("bf16", "fp8", "mxfp8", "nvfp4", "int8"):
            x = normal(3, 33).to(dtype)
            found = round_to(x, name)
            assert (found.dtype, found.shape) == (x.dtype, x.shape)
            assert not torch.equal(found, x) or (name, dtype) == ("bf16", torch.bfloat16)
    for shape in ((), (0,), (3, 0, 2), (1,)):
        for name in ("bf16", "fp8", "mxfp8", "nvfp4", "int8", "fp32"):
            assert round_to(torch.ones(shape), name).tolist() == torch.ones(shape).tolist()


def test_formats_by_name_value_and_bits() -> None:
    x = normal(4, 40)
    assert torch.equal(round_to(x, "e4m3"), round_to(x, parse_format("fp8")))
    assert torch.equal(round_to(x, "int4"), round_to(x, 4))
    assert round_to(x, None) is x
    assert round_to(x, "fp32") is x
    assert round_to(torch.tensor([-1.0, -0.4, 0.1, 0.7, 2.0]), 3).tolist() == pytest.approx(
        [-1.0, -0.5714286, 0.2857143, 0.7142857, 2.0]
    )  # the numbers of SBM's docstring


def test_gradients_stop() -> None:
    x = torch.ones(4, 32, requires_grad=True)
    for name in ("bf16", "fp8", "mxfp8", "nvfp4", "int8"):
        assert not round_to(x, name).requires_grad


@pytest.mark.parametrize(
    ("format", "options", "named"),
    [
        ("fp7", {}, "'fp7'"),
        (0, {}, "0"),
        ("nvfp4", {"scale": "rceil"}, "scale='rceil'.*nvfp4"),
        ("mxfp8", {"granularity": "row"}, "granularity='row'"),
        ("bf16", {"tensor_scale": False}, "tensor_scale=False.*bf16"),
        (None, {"scale": "rceil"}, "fp32"),
        (8, {"scale": "rceil"}, "int8"),
        ("mxfp8", {"rounding": "up"}, "'up'"),
        ("mxfp8", {"scale": "ceil"}, "'ceil'"),
        ("fp8", {"granularity": "channel"}, "'channel'"),
        ("mxfp8", {"dim": 2}, "dim=2"),
    ],
)
def test_wrong_options_are_refused(format: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        round_to(torch.ones(2, 3), format, **options)


def test_integers_are_no_tensor_to_round() -> None:
    with pytest.raises(ValueError, match="int64"):
        round_to(torch.ones(2, dtype=torch.int64), "bf16")
