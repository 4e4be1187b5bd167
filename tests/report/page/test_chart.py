"""Charts as data."""

from bitcycle.report.page.chart import card, chart, choice, figure, stairs
from bitcycle.report.page.escape import tag

from .made_up import BREAKOUT, Elements


def test_a_chart_holds_its_figure_and_says_what_it_shows():
    drawn = figure([{"type": "scatter", "x": [1], "name": BREAKOUT}], height=200)
    seen = Elements(chart(drawn, label=f"of {BREAKOUT}"))
    assert seen.names() == ["div", "script"]
    assert seen.found[0][1]["aria-label"] == f"of {BREAKOUT}"
    assert seen.data == [drawn]


def test_stairs_hold_the_last_height_to_the_end_and_leave_gaps():
    drawn = stairs([(0, 5, 3), (5, 9, None), (9, 12, 8)], line={"width": 2}, yaxis="y2")
    assert (drawn["x"], drawn["y"]) == ([0, 5, 9, 12], [3, None, 8, 8])
    assert drawn["line"] == {"shape": "hv", "width": 2}
    assert stairs([])["x"] == []


def test_a_choice_shows_the_first_part_and_one_part_needs_no_choice():
    seen = Elements(choice("Show", {"a": tag("i", 1), "b": tag("i", 2)}))
    parts = [attributes for _, attributes in seen.found if attributes.get("class") == "part"]
    assert ["hidden" in attributes for attributes in parts] == [False, True]
    assert seen.names().count("option") == 2
    assert choice("Show", {"a": tag("i", 1)}) == "<i>1</i>"


def test_a_card_has_its_title_and_note_only_if_given():
    assert Elements(card("t", note="n")).names() == ["article", "h3", "p"]
    assert Elements(card(None)).names() == ["article"]
