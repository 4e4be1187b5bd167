"""Stochastic rounding to formats: one of the two neighbours, without bias, by number and key."""

from __future__ import annotations

import pytest
import torch

from bitcycle.formats import Format, list_formats, round_to
from bitcycle.native.library import library

FORMATS = {each.name: each for each in list_formats()}
BLOCKS = [each for each in list_formats() if each.kind != "float"]


@pytest.mark.parametrize("each", BLOCKS, ids=str)
def test_values_between_two_neighbours_are_rounded_without_bias(each: Format) -> None:
    """Chi-square over 200 places between neighbours, 1000 draws each.

    The largest value of a block fixes the scale at 1 or a power of two; nvfp4 without tensor scale.
    """
    top = each.max_value
    low, high = each.values[len(each.values) // 3], each.values[len(each.values) // 3 + 1]
    shares = torch.linspace(0.004, 0.996, 200)
    size = each.block or 32
    x = (low + (high - low) * shares)[:, None].repeat(1, 1100)
    x = x[:, : 1100 // (size - 1) * (size - 1)].reshape(200, -1, size - 1)
    x = torch.cat([x, torch.full((*x.shape[:2], 1), top)], 2)
    options = {"tensor_scale": False} if each.kind == "nvfp4" else {}
    found = round_to(x, each, rounding="stochastic", seed=3, **options)
    assert bool((found[..., -1] == top).all())
    drawn = found[..., :-1].flatten(1)
    is_up = drawn == high
    assert bool((is_up | (drawn == low)).all())
    count = drawn.shape[1]
    p = shares.double()
    z = (is_up.double().sum(1) - count * p) / (count * p * (1 - p)).sqrt()
    chi_square = float((z**2).sum())  # 200 degrees of freedom: 4.5 sigma are 90
    assert abs(chi_square - 200) < 90
    assert abs(float(z.mean())) < 4.5 / 200**0.5


@pytest.mark.parametrize("each", list_formats(), ids=str)
def test_values_on_the_grid_stay_and_others_take_a_neighbour(each: Format) -> None:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    options = {"scale": "rceil"} if each.kind == "mx" else {}
    nearest = round_to(x, each, **options)
    found = round_to(x, each, rounding="stochastic", **options)
    assert not torch.equal(found, nearest)
    inside = (found - x).abs() <= 2.1 * x.abs() * 2.0**-each.mantissa
    smallest = x.abs().amax() * 2.0 ** (each.min_exponent - each.max_exponent)
    assert bool((inside | (x.abs() <= 4 * smallest)).all())
    if each.kind in ("float", "mx"):
        again = round_to(nearest, each, rounding="stochastic", **options)
        assert torch.equal(again, nearest)


def test_the_largest_values_saturate() -> None:
    x = torch.full((4096,), 500.0)  # between 448 and 512, mxfp8 with the scale 1
    found = round_to(x, "mxfp8", rounding="stochastic")
    assert bool((found == 448).all())


def test_subnormals_of_bf16_are_unbiased() -> None:
    x = torch.full((1 << 16,), 2.0**-133 * 2.25)
    found = round_to(x, "bf16", rounding="stochastic") / 2.0**-133
    assert set(found.tolist()) == {2.0, 3.0}
    assert found.mean().item() == pytest.approx(2.25, abs=4 * (0.1875 / (1 << 16)) ** 0.5)


def test_the_same_seed_draws_the_same_numbers() -> None:
    x = torch.randn(64, 64)
    for name in ("bf16", "fp8", "mxfp4", "nvfp4", "int4"):
        draws = [round_to(x, name, rounding="stochastic", seed=seed) for seed in (0, 0, 1)]
        assert torch.equal(draws[0], draws[1])
        assert not torch.equal(draws[0], draws[2])


def test_noise_follows_elements_and_not_memory() -> None:
    x = torch.randn(2, 40, 5, 6)
    for layout in (x.contiguous(memory_format=torch.channels_last), x.mT.contiguous().mT):
        for name in ("bf16", "mxfp4", "nvfp4"):
            found = round_to(layout, name, 1, rounding="stochastic")
            assert torch.equal(found, round_to(x, name, 1, rounding="stochastic"))
            if library() is not None:
                assert found.stride() == layout.stride()
