"""Ranges and rounding on the affine grid; powers of two."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.ops.affine import (
    grid_step,
    nearest_power,
    power_above,
    round_nearest,
    round_stochastic,
    value_range,
)

KEY = torch.tensor([123, 456], dtype=torch.int32)


def _scalar(x: float) -> Tensor:
    return torch.tensor(x)


def test_a_range_is_the_extremes_of_the_whole_tensor() -> None:
    low, high = value_range(torch.tensor([[1.0, -2.0], [3.0, 5.0]]))
    assert (low.item(), high.item()) == (-2.0, 5.0)
    assert low.shape == high.shape == ()


def test_a_range_can_keep_dimensions() -> None:
    for keep in ((0,), (1,), (0, 2), (1, 2)):
        torch.manual_seed(0)
        x = torch.randn(2, 3, 4)
        low, high = value_range(x, keep)
        assert low.shape == tuple(n if d in keep else 1 for d, n in enumerate(x.shape))
        for index in torch.cartesian_prod(*(torch.arange(n) for n in low.shape)):
            at = tuple(slice(None) if d not in keep else int(i) for d, i in enumerate(index))
            where = tuple(int(i) for i in index)
            assert low[where] == x[at].min()
            assert high[where] == x[at].max()


def test_the_range_of_an_empty_tensor_is_zero() -> None:
    for keep in ((), (0,), (0, 2)):
        low, high = value_range(torch.empty(2, 0, 3), keep)
        assert not low.any()
        assert not high.any()
        assert low.dim() == (3 if keep else 0)


def test_a_range_does_not_copy_a_channels_last_or_transposed_tensor() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 5)
    for turned in (x.to(memory_format=torch.channels_last), x.permute(3, 1, 0, 2)):
        assert [end.item() for end in value_range(turned)] == [x.min().item(), x.max().item()]
        rows = value_range(turned, (0,))[1].flatten()
        assert torch.equal(rows, turned.amax((1, 2, 3)))


def test_a_nan_makes_the_range_nan() -> None:
    low, high = value_range(torch.tensor([1.0, float("nan"), 2.0]))
    assert low.isnan()
    assert high.isnan()


def test_the_step_divides_the_range_by_the_levels() -> None:
    # range 3, 3 bits: 3 / 7
    assert grid_step(_scalar(-1.0), _scalar(2.0), _scalar(7.0)) == torch.tensor(3.0) / 7


def test_the_step_of_no_range_is_one() -> None:
    assert grid_step(_scalar(2.0), _scalar(2.0), _scalar(7.0)) == 1.0


def test_a_floor_keeps_the_step_from_vanishing() -> None:
    low, high, levels = _scalar(0.0), _scalar(1e-5), _scalar(65535.0)
    assert grid_step(low, high, levels) == high / levels  # 1.5e-10
    assert grid_step(low, high, levels, floor=1e-8) == torch.tensor(1e-8)
    assert grid_step(low, low, levels, floor=1e-8) == torch.tensor(1e-8)


def test_rounding_gives_the_check_values() -> None:
    # spec of the quantizers, "Check": x = [-1, -.4, .1, .7, 2], range [-1, 2]
    x = torch.tensor([-1.0, -0.4, 0.1, 0.7, 2.0])
    expected = {
        7: [-1.0, -0.571429, 0.285714, 0.714286, 2.0],
        255: [-1.0, -0.4, 0.105882, 0.694118, 2.0],
    }
    for levels, values in expected.items():
        count = _scalar(float(levels))
        rounded = round_nearest(x, _scalar(3.0) / count, _scalar(-1.0), count)
        torch.testing.assert_close(rounded, torch.tensor(values), rtol=0, atol=1e-6)


def test_ties_go_to_even() -> None:
    x = torch.tensor([0.5, 1.5, 2.5, 3.5])
    rounded = round_nearest(x, _scalar(1.0), _scalar(0.0), _scalar(7.0))
    assert rounded.tolist() == [0.0, 2.0, 2.0, 4.0]


def test_a_grid_per_row_rounds_each_row_on_its_own() -> None:
    x = torch.tensor([[0.0, 0.4, 1.0], [0.0, 40.0, 100.0]])
    scale = torch.tensor([[0.5], [50.0]])
    rounded = round_nearest(x, scale, torch.zeros(2, 1), _scalar(2.0))
    assert rounded.tolist() == [[0.0, 0.5, 1.0], [0.0, 50.0, 100.0]]


def test_stochastic_rounding_leaves_what_is_on_the_grid() -> None:
    x = torch.arange(8.0)
    assert torch.equal(round_stochastic(x, _scalar(1.0), _scalar(0.0), _scalar(7.0), KEY), x)


def test_stochastic_rounding_is_unbiased() -> None:
    # each x is rounded 2^16 times; z of the mean is normal: |z| < 6 for all 9, chance 2e-8
    num = 1 << 16
    for frac in torch.linspace(0.1, 0.9, 9):
        x = torch.full((num,), 3.0) + frac
        rounded = round_stochastic(x, _scalar(1.0), _scalar(0.0), _scalar(7.0), KEY).double()
        error = float(rounded.mean() - x[0].double())
        assert abs(error) / float((frac * (1 - frac) / num) ** 0.5) < 6


def test_noise_goes_row_by_row_whatever_the_strides_and_by_pixels_where_channels_are_last() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 5)
    args = (_scalar(0.5), _scalar(-2.0), _scalar(15.0), KEY)
    expected = round_stochastic(x, *args)
    turned = x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    assert turned.stride() != x.stride()
    for same in (turned, x[:, :, :, :5]):
        assert torch.equal(round_stochastic(same, *args), expected)
    gaps = torch.randn(2, 3, 4, 10)
    gaps[..., ::2] = x
    assert torch.equal(round_stochastic(gaps[..., ::2], *args), expected)
    pixels = x.permute(0, 2, 3, 1).contiguous()  # in memory a channels-last tensor is this one
    by_pixels = round_stochastic(pixels, *args).permute(0, 3, 1, 2)
    assert torch.equal(round_stochastic(x.to(memory_format=torch.channels_last), *args), by_pixels)
    volume = x.unsqueeze(2).to(memory_format=torch.channels_last_3d)
    assert torch.equal(round_stochastic(volume, *args), by_pixels.unsqueeze(2))
    rows = _scalar(0.5).expand(2, 1, 1, 1)  # a scale per sample takes another path
    per_sample = round_stochastic(x.to(memory_format=torch.channels_last), rows, *args[1:])
    assert torch.equal(per_sample, by_pixels)


def _layouts() -> dict[str, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 6, 5)
    return {
        "contiguous": x,
        "channels_last": x.to(memory_format=torch.channels_last),
        "transposed": x.permute(1, 0, 3, 2),
        "rows_last": x.permute(3, 0, 1, 2),
        "one_channel": x[:, :1].contiguous(memory_format=torch.channels_last),
        "single_row": torch.randn(6, 1).t(),
    }


def test_rounding_keeps_the_layout() -> None:
    for name in _layouts():
        x = _layouts()[name]
        per_tensor = (_scalar(0.5), _scalar(-2.0), _scalar(15.0))
        rows = torch.linspace(0.4, 0.6, x.shape[0]).view(-1, *[1] * (x.dim() - 1))
        per_row = (rows, -4 * rows, _scalar(15.0))
        for result, again in (
            (round_nearest(x, *per_tensor), round_nearest(x.contiguous(), *per_tensor)),
            (round_nearest(x, *per_row), round_nearest(x.contiguous(), *per_row)),
            (
                round_stochastic(x, *per_tensor, KEY),
                round_stochastic(x.contiguous(), *per_tensor, KEY),
            ),
        ):
            steps = zip(result.stride(), x.stride(), x.shape, strict=True)
            assert all(ours == theirs for ours, theirs, size in steps if size > 1)
            assert torch.equal(result, again) or name == "channels_last"  # numbered by pixels
        assert torch.equal(
            round_nearest(x, *per_tensor), round_nearest(x.contiguous(), *per_tensor)
        )


def test_an_expanded_or_gappy_tensor_gets_values_of_its_own() -> None:
    base = torch.tensor([[0.2], [1.3]])
    rounded = round_nearest(base.expand(2, 3), _scalar(1.0), _scalar(0.0), _scalar(3.0))
    assert rounded.tolist() == [[0.0] * 3, [1.0] * 3]
    rounded[0, 0] = 9.0
    assert rounded[0, 1] == 0.0
    assert base[0, 0] == torch.tensor(0.2)


positive = st.floats(2.0**-100, 2.0**100, width=32)


@given(positive)
def test_the_nearest_power_is_exact_and_nearest_in_the_exponent(x: float) -> None:
    power = nearest_power(torch.tensor(x)).item()
    mantissa, exponent = math.frexp(power)
    assert mantissa == 0.5
    assert exponent - 1 == round(math.log2(x))


@given(positive)
def test_the_power_above_is_exact_and_the_smallest_not_below(x: float) -> None:
    power = power_above(torch.tensor(x)).item()
    assert math.frexp(power)[0] == 0.5
    assert power / 2 < x <= power


def test_zero_has_no_power_and_stays_zero() -> None:
    zero = torch.zeros(2)
    assert nearest_power(zero).tolist() == power_above(zero).tolist() == [0.0, 0.0]


def test_what_is_not_finite_stays_visible() -> None:
    x = torch.tensor([math.nan, math.inf])
    assert not nearest_power(x).isfinite().any()
    assert not power_above(x).isfinite().any()
