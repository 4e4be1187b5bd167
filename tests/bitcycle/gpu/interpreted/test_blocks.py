"""Number formats and the Hadamard transform equal plain torch to the last bit."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bitcycle.bits import Bits
from bitcycle.formats.rounding import hadamard, round_blocks, round_elements, to_bf16
from tests.bitcycle.gpu.interpreted.comparison import assert_same_bits, plain_torch

KEY = torch.tensor([31, -7], dtype=torch.int32)
SIGNS = torch.tensor([1.0, -1, -1, 1, 1, 1, -1, 1, -1, -1, 1, -1, 1, 1, 1, -1])
FORMATS = {"fp8": ("fp8", "e5m2"), "mx": ("mxfp8", "mxfp4"), "nvfp4": ("nvfp4",)}


def element(name):
    return torch.tensor(Bits.of(name).numbers, dtype=torch.int32)


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    powers = torch.randint(-4, 5, shape, generator=generator)
    return torch.randn(shape, generator=generator) * 2.0**powers


def compare(call):
    found = call()
    with plain_torch():
        assert_same_bits(found, call())


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("key", [None, KEY])
def test_elements_without_a_scale(name, key, launched):
    x = numbers(1100) * 10.0 ** torch.arange(-44, 38).repeat(14)[:1100]
    x[:4] = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
    compare(lambda: round_elements(x, element(name), key))
    compare(lambda: round_elements(x.view(50, 22).t(), element(name), key))
    assert launched == ["_round_elements"] * 2


def test_to_bf16_saturates_and_flags(launched):
    x = numbers(1030)
    x[:6] = torch.tensor([3.4e38, -3.4e38, 3.3895e38, 1e-45, -0.0, 3.3961e38])
    compare(lambda: to_bf16(x))
    flag = torch.zeros(())
    to_bf16(x, flag)
    assert flag == 0
    x[1029] = math.inf
    compare(lambda: to_bf16(x))
    to_bf16(x, flag)
    assert flag.isnan()
    half_flag = torch.zeros(())
    half = x.to(torch.bfloat16)
    assert to_bf16(half, half_flag) is not None
    assert half_flag.isnan()
    assert set(launched) == {"_to_bf16"}


@pytest.mark.parametrize("value", [1.0, math.inf, -math.inf, math.nan])
def test_rounding_flags_what_is_not_finite(value):
    x = numbers(37, 50)
    x[20, 31] = value
    for kind, dims, blocks, scale in CASES:
        flag, number = torch.zeros(()), element(FORMATS[kind][0])
        round_blocks(x, number, kind=kind, dims=dims, blocks=blocks, scale=scale, flag=flag)
        assert flag.isnan() == (not math.isfinite(value)), kind
    flag = torch.zeros(())
    round_elements(x, element("fp16"), flag=flag)
    assert flag.isnan() == (not math.isfinite(value))


CASES = [
    ("fp8", (), (), "floor"),
    ("fp8", (1,), (None,), "floor"),
    ("fp8", (0,), (128,), "floor"),
    ("fp8", (0, 1), (128, 128), "floor"),
    ("mx", (1,), (32,), "floor"),
    ("mx", (0,), (32,), "rceil"),
    ("nvfp4", (1,), (16,), "floor"),
    ("nvfp4", (0,), (16,), "floor"),
    ("nvfp4", (0, 1), (16, 16), "floor"),
]


@pytest.mark.parametrize(("kind", "dims", "blocks", "scale"), CASES)
@pytest.mark.parametrize("key", [None, KEY])
def test_blocks_of_every_kind(kind, dims, blocks, scale, key):
    x = numbers(37, 50)
    for name in FORMATS[kind]:
        compare(
            lambda name=name: round_blocks(
                x, element(name), kind=kind, dims=dims, blocks=blocks, scale=scale, key=key
            )
        )


@pytest.mark.parametrize(("kind", "dims", "blocks", "scale"), CASES)
@pytest.mark.parametrize("value", [0.0, 1e-44, 3e38, math.inf, math.nan])
def test_blocks_with_extreme_numbers(kind, dims, blocks, scale, value):
    x = numbers(18, 35)
    x[:, 3] = value
    x[17] = 0
    x[2, 2] = -0.0
    compare(
        lambda: round_blocks(
            x, element(FORMATS[kind][0]), kind=kind, dims=dims, blocks=blocks, scale=scale
        )
    )


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_blocks_along_any_dimension_and_layout(dim):
    x = numbers(3, 20, 4, 5)
    last = x.contiguous(memory_format=torch.channels_last)
    for each, key in ((x, KEY), (last, None), (last, KEY)):
        compare(
            lambda each=each, key=key: round_blocks(
                each, element("mxfp4"), kind="mx", dims=(dim,), blocks=(32,), key=key
            )
        )
    compare(
        lambda: round_blocks(
            x, element("nvfp4"), kind="nvfp4", dims=(dim, 3), blocks=(16, 16), tensor_scale=False
        )
    )


@pytest.mark.parametrize("shape", [(33, 5), (4, 16), (2, 40, 3)])
@pytest.mark.parametrize("key", [None, KEY])
def test_the_transform_and_blocks_of_it(shape, key, launched):
    x = numbers(*shape)
    for dim in range(len(shape)):
        compare(lambda dim=dim: hadamard(x, dim, SIGNS))
        launched.clear()
        compare(
            lambda dim=dim: round_blocks(
                x, element("nvfp4"), kind="nvfp4", dims=(dim,), blocks=(16,), key=key, signs=SIGNS
            )
        )
        assert launched == ["_amax_of_transform", "_round_in_blocks"]


def test_a_transform_before_blocks_that_are_not_its_groups():
    x = numbers(20, 18)
    compare(
        lambda: round_blocks(
            x, element("nvfp4"), kind="nvfp4", dims=(1, 0), blocks=(16, 16), signs=SIGNS
        )
    )


def test_launches_of_each_kind(launched):
    for kind, dims, blocks, scale in CASES:
        round_blocks(numbers(32, 32), element(FORMATS[kind][0]), kind=kind, dims=dims,
                     blocks=blocks, scale=scale)  # fmt: skip
        has_amax = kind == "nvfp4" or not dims
        assert launched == ["_amax"] * has_amax + ["_round_in_blocks"], (kind, dims)
        launched.clear()


def test_half_precision_is_read_as_it_is():
    from bitcycle.gpu import blocks

    x = numbers(9, 33)
    for dtype in (torch.bfloat16, torch.float16):
        half = x.to(dtype)
        given = {"kind": "mx", "dims": (1,), "blocks": (32,)}
        found = blocks.round_blocks(half, element("mxfp8"), rounds_up=False, tensor_scale=True,
                                    key=None, signs=None, **given)  # fmt: skip
        with plain_torch():
            assert_same_bits(found, round_blocks(half, element("mxfp8"), **given))


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    values=st.lists(st.floats(width=32), min_size=1, max_size=40),
    case=st.sampled_from([("fp8", None), ("mx", 32), ("nvfp4", 16)]),
    is_stochastic=st.booleans(),
)
def test_any_floats(values, case, is_stochastic):
    kind, block = case
    x = torch.tensor(values)
    compare(
        lambda: round_blocks(
            x,
            element(FORMATS[kind][-1]),
            kind=kind,
            dims=(0,),
            blocks=(block,),
            key=KEY if is_stochastic else None,
        )  # fmt: skip
    )
