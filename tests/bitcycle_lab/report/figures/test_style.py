"""What all figures share."""

from hypothesis import given
from hypothesis import strategies as st

from bitcycle_lab.report.figures.style import Style, thin


@given(st.integers(1, 3000), st.integers(2, 400))
def test_thinned_points_are_few_in_order_and_keep_both_ends(number, limit):
    points = thin(range(number), limit)
    assert len(points) == min(number, limit)
    assert points == sorted(set(points))
    assert (points[0], points[-1]) == (0, number - 1)


def test_no_two_of_forty_methods_have_the_same_line():
    assert len({(Style(n).color, Style(n).dash) for n in range(40)}) == 40
