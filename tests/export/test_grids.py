"""Fixed grids against hand-computed numbers and the rules they come from."""

import pytest
import torch

import bitcycle as bc
from bitcycle.export.freeze import Grid, grid_of


def number(value):
    return torch.tensor(value)


def test_codes_round_half_to_even_and_stop_at_the_ends():
    grid = Grid(bits=2, scale=number(0.5), offset=number(-1.0))
    x = number([-9.0, -1.0, -0.75, -0.25, 0.5, 9.0])
    assert grid.codes_of(x).tolist() == [0, 0, 0, 2, 3, 3]
    assert grid.put(x).tolist() == [-1.0, -1.0, -1.0, 0.0, 0.5, 0.5]


def test_a_symmetric_grid_leaves_out_its_lowest_code():
    grid = Grid(bits=3, scale=number(1.0), offset=number(-4.0), lowest=1)
    assert grid.put(number([-9.0, 9.0])).tolist() == [-3.0, 3.0]
    assert [end.item() for end in grid.limits()] == [-3.0, 3.0]


@pytest.mark.parametrize(
    ("offset", "zero"),
    [(0.0, 0), (-127.5, 255), (-128.0, None), (0.5, None), (-0.6, None)],
)
def test_a_zero_point_is_a_code_or_there_is_none(offset, zero):
    found = Grid(bits=8, scale=number(0.5), offset=number(offset)).zero_point
    assert (None if found is None else found.item()) == zero


@pytest.mark.parametrize(
    "rule",
    [bc.quantizers.SBM(), bc.quantizers.SBM(zero="integer"), "absmax", "pow2"],
    ids=["real", "integer", "absmax", "pow2"],
)
@pytest.mark.parametrize(("bits", "role"), [(1, "weight"), (3, "act"), (8, "weight"), (11, "act")])
def test_a_grid_puts_values_where_its_rule_does(rule, bits, role):
    if bits == 1 and rule == "pow2":
        rule = "absmax"
    rule = bc.quantizers.base.make_quantizer(rule)
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(bits)) + 0.3
    within = rule.range_of(role, x, (0,) if role == "weight" else ())
    levels = number(2**bits - 1)
    grid = grid_of(rule, role, x, levels, within)
    expected = rule.encode(role, 1.5 * x, levels, within).dequantize()
    assert grid.bits == bits
    torch.testing.assert_close(grid.put(1.5 * x), expected, rtol=1e-6, atol=1e-6)
