"""Styles, numbers and text that all figures share."""

import re
from importlib.resources import files

from hypothesis import given
from hypothesis import strategies as st

from bitcycle.report.figures.style import COLORS, Style, plain_text, rounded, thin


@given(st.integers(1, 3000), st.integers(2, 400))
def test_thinned_points_are_few_in_order_and_keep_both_ends(number, limit):
    points = thin(range(number), limit)
    assert len(points) == min(number, limit)
    assert points == sorted(set(points))
    assert (points[0], points[-1]) == (0, number - 1)


def test_what_is_not_finite_is_a_gap():
    assert [rounded(x) for x in (float("nan"), float("inf"), None, 98.7654321)] == [
        None, None, None, 98.7654,
    ]  # fmt: skip


def test_no_two_of_forty_methods_have_the_same_line():
    assert len({(Style(n).css(), Style(n).dash) for n in range(40)}) == 40


def test_the_page_has_the_same_colours_but_for_black_which_follows_the_theme():
    css = files("bitcycle.report.page").joinpath("style.css").read_text(encoding="utf-8")
    colors = re.findall(r"--c\d: (#\w{6});", css[: css.index("}")])
    assert len(colors) == len(COLORS)
    assert [color.upper() for color in colors[:6]] == list(COLORS[:6])


def test_a_chart_takes_no_markup_and_no_template_from_a_name():
    shown = plain_text("</script><b> %{y}")
    assert "<" not in shown
    assert "%{" not in shown
