"""Rounding and the checks of bits and steps."""

import pytest

from bitcycle.schedules.checks import check_range, check_step, check_total, order, rint


@pytest.mark.parametrize(
    ("value", "expected"), [(3.5, 4), (4.5, 4), (5.5, 6), (6.5, 6), (4.5000000001, 4), (4.51, 5)]
)
def test_ties_go_to_even_after_nine_decimals(value, expected):
    assert rint(value) == expected


def test_float32_is_above_every_number_of_bits():
    assert sorted([None, 32, 3], key=order) == [3, 32, None]


@pytest.mark.parametrize("total", [0, -1, 2.0, "8", None])
def test_a_run_has_a_positive_whole_number_of_steps(total):
    with pytest.raises(ValueError, match="total_steps must be"):
        check_total(total)


@pytest.mark.parametrize("step", [-1, 10, 1.0, None])
def test_a_step_lies_inside_the_run(step):
    with pytest.raises(ValueError, match="step"):
        check_step(step, 10)


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (8, 3, r"low \(8\) must be <= high \(3\)"),
        (0, 8, "low must be"),
        (3, 33, "high must be"),
        (3, None, "high must be a whole number of bits, got None"),
        (True, 8, "low must be"),
        (3.0, 8, "low must be"),
    ],
)
def test_a_bad_range_names_value_and_rule(low, high, message):
    with pytest.raises(ValueError, match=message):
        check_range(low, high)
