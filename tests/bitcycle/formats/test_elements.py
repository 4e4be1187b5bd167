"""Single elements: every finite bf16 number against the casts of torch and ml_dtypes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bitcycle.formats import Format, list_formats, parse_format, round_to
from bitcycle.formats.rounding import round_elements
from tests.bitcycle.formats.reference import element

FORMATS = {each.name: each for each in list_formats()}
INF, NAN = math.inf, math.nan


def numbers_of(each: Format) -> Tensor:
    return torch.tensor(each.numbers, dtype=torch.int32)


def every_bf16() -> Tensor:
    """All finite numbers of bfloat16, both zeros too."""
    bits = torch.arange(0x7F80, dtype=torch.int32)
    return torch.cat([bits, bits | 0x8000]).to(torch.int16).view(torch.bfloat16).float()


def neighbours() -> Tensor:
    """Every bf16 number and the float32 numbers next to it: values just beside ties."""
    x = every_bf16()
    beside = [x, torch.nextafter(x, torch.tensor(INF)), torch.nextafter(x, torch.tensor(-INF))]
    return torch.cat(beside)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        ("fp8", torch.float8_e4m3fn),
        ("e5m2", torch.float8_e5m2),
    ],
)
def test_elements_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    each, x = FORMATS[name], neighbours()
    expected = x.clamp(-each.max_value, each.max_value).to(dtype).float()
    found = round_elements(x, numbers_of(each))
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))  # the sign of 0 too


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("mxfp4", "float4_e2m1fn"), ("mxfp6", "float6_e2m3fn"), ("mxfp6_e3m2", "float6_e3m2fn")],
)
def test_elements_are_those_of_ml_dtypes(name: str, dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    each, x = FORMATS[name], neighbours()
    clamped = x.clamp(-each.max_value, each.max_value).numpy()
    expected = torch.from_numpy(clamped.astype(getattr(ml_dtypes, dtype)).astype("float32"))
    found = round_elements(x, numbers_of(each))
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("each", FORMATS.values(), ids=str)
def test_elements_are_those_of_exact_fractions(each: Format) -> None:
    x = neighbours()[::97]
    found = round_elements(x, numbers_of(each))
    assert found.tolist() == [float(element(value, each)) for value in x.tolist()]


@pytest.mark.parametrize("each", FORMATS.values(), ids=str)
def test_values_of_a_format_stay_and_nothing_else_comes_out(each: Format) -> None:
    if each.bits == 16:
        pytest.skip("65536 values: the casts of torch cover them")
    values = torch.tensor(each.values)
    assert torch.equal(round_elements(values, numbers_of(each)), values)
    assert set(round_elements(every_bf16().abs(), numbers_of(each)).tolist()) == set(each.values)
    middles = (values[:-1] + values[1:]) / 2  # ties go to even: every other value
    down = round_elements(middles, numbers_of(each)) == values[:-1]
    assert down.tolist() == [place % 2 == 0 for place in range(len(middles))]


def test_infinity_and_nan_stay_while_finite_values_saturate() -> None:
    x = torch.tensor([INF, -INF, NAN, 3e38, -3.4e38, -0.0])
    fp16 = round_to(x, "fp16")
    assert fp16[:2].tolist() == [INF, -INF]
    assert fp16[2].isnan()
    assert fp16[3:].tolist() == [65504.0, -65504.0, 0.0]
    assert fp16[5].signbit()
    largest = parse_format("bf16").max_value
    assert round_to(torch.tensor(3.4028234e38), "bf16").item() == largest


def test_numbers_are_the_bits_that_kernels_read() -> None:
    assert FORMATS["mxfp4"].numbers == (1, 0, 0x40C00000)
    assert FORMATS["fp16"].numbers == (10, -14, 0x477FE000)
    for each in FORMATS.values():
        assert numbers_of(each)[2].view(torch.float32).item() == each.max_value
