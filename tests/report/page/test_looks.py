"""How methods are told apart."""

import re
from importlib.resources import files

from bitcycle.report.page.looks import _DASHES, _MARKERS, _PATTERNS, _SHAPES, NUM_COLOURS, Look


def test_the_first_six_methods_share_neither_colour_nor_dash_nor_marker():
    looks = [Look(number) for number in range(6)]
    for kind in ("colour", "dash", "marker"):
        assert len({getattr(look, kind) for look in looks}) == 6


def test_no_two_of_forty_methods_look_the_same_as_a_line():
    assert len({(Look(n).colour, Look(n).dash) for n in range(40)}) == 40


def test_every_dash_and_marker_has_a_sample():
    assert len(_DASHES) == len(_PATTERNS)
    assert len(_MARKERS) == len(_SHAPES)


def test_the_style_has_every_colour_and_those_are_okabes_and_itos():
    css = files("bitcycle.report.page").joinpath("style.css").read_text(encoding="utf-8")
    light = css[: css.index("}")]
    colours = dict(re.findall(r"--(c\d): (#\w{6});", light))
    assert sorted(colours) == [f"c{n}" for n in range(NUM_COLOURS)]
    published = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}
    assert set(list(colours.values())[:6]) == published


def test_a_sample_has_the_colour_of_its_look():
    assert Look(9).colour in Look(9).sample()
