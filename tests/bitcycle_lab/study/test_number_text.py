"""Numbers to their uncertainty."""

import math
from statistics import median_high

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitcycle_lab.study.number_text import (
    bitops_text,
    bitops_texts,
    common_decimals,
    decimals_for,
    difference_text,
    p_text,
    three_digits,
    with_uncertainty,
)
from bitcycle_lab.study.statistics import Difference


@pytest.mark.parametrize(
    ("value", "uncertainty", "text"),
    [
        (91.4283, 0.2134, "91.43 ± 0.21"),
        (91.4283, 0.0996, "91.43 ± 0.10"),  # two digits after rounding, not three
        (91.4283, 9.96, "91 ± 10"),
        (1234.5, 512.0, "1230 ± 510"),
        (91.4283, 1e-12, "91.428300 ± 0.000000"),
        (91.4283, 0.0, "91.43 ± 0.00"),
        (91.4283, None, "91.43"),
        (-0.004, None, "0.00"),
        (math.inf, None, "inf"),
    ],
)
def test_a_value_has_the_decimals_of_two_digits_of_its_uncertainty(value, uncertainty, text):
    assert with_uncertainty(value, uncertainty) == text


def test_a_difference_without_an_interval_is_the_bare_number():
    assert difference_text(Difference(mean=0.277, low=None, high=None, p=None, n=1)) == "+0.28"
    assert difference_text(Difference(mean=-1.5, low=-2.5, high=-0.5, p=0.02, n=3)) == (
        "-1.5 (-2.5 to -0.5)"
    )
    assert difference_text(None) == "-"


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.05, "0.050"), (0.0996, "0.100"), (0.5, "0.500"), (0.001, "0.001"),
     (0.0009, "< 0.001"), (None, "-")],
)  # fmt: skip
def test_p_values(p, text):
    assert p_text(p) == text


@pytest.mark.parametrize(
    ("bitops", "text"),
    [(0, "0 BitOPs"), (999.0, "999 BitOPs"), (9.996e11, "1.00 TBitOPs"), (5e20, "500 EBitOPs")],
)
def test_bitops_have_three_digits_and_a_prefix(bitops, text):
    assert bitops_text(bitops) == text


def test_three_digits_of_small_and_rounded_up_numbers():
    assert [three_digits(x) for x in (0.0, 0.00123456, 0.9996, 99.96)] == [
        "0", "0.00123", "1.00", "100",
    ]  # fmt: skip


@given(st.lists(st.floats(1e-12, 1e12), min_size=1), st.randoms())
def test_a_column_shows_its_median_uncertainty_and_does_not_depend_on_the_order(column, random):
    decimals = common_decimals(column)
    assert decimals >= decimals_for(median_high(column))
    random.shuffle(column)
    assert common_decimals(column) == decimals


def test_bitops_of_a_column_have_one_prefix():
    assert bitops_texts([2.645e17, 1.5e15, 0.0]) == [
        "264.50 PBitOPs", "1.50 PBitOPs", "0.00 PBitOPs",
    ]  # fmt: skip
    assert bitops_texts([None, 12.0]) == ["-", "12 BitOPs"]
    assert bitops_texts([]) == []
