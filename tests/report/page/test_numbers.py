"""Numbers for charts."""

import math

from hypothesis import given
from hypothesis import strategies as st

from bitcycle.report.page.numbers import MOST_POINTS, plain, points_per_curve, thin


@given(st.integers(1, 3000), st.integers(2, 400))
def test_thinned_points_are_few_in_order_and_keep_both_ends(number, limit):
    points = thin(range(number), limit)
    assert len(points) == min(number, limit)
    assert points == sorted(set(points))
    assert (points[0], points[-1]) == (0, number - 1)


def test_few_curves_get_all_points_and_many_share_them():
    assert points_per_curve(1) == MOST_POINTS
    assert points_per_curve(600) * 600 <= 60_000


def test_what_is_not_finite_is_a_gap():
    assert [plain(x) for x in (math.nan, math.inf, -math.inf, None)] == [None] * 4


def test_six_digits_are_kept():
    assert plain(98.7654321) == 98.7654
