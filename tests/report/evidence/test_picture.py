"""A committed picture changes only when what it shows does."""

import re

import pytest

matplotlib = pytest.importorskip("matplotlib")

from matplotlib.figure import Figure  # noqa: E402

from bitcycle.report.evidence.picture import (  # noqa: E402
    creator,
    plain_style,
    small_svg_text,
    svg_text,
)


def picture(values=(1, 3, 2)):
    with plain_style():
        figure = Figure(figsize=(3, 2))
        axes = figure.subplots()
        axes.plot(values, marker="o")
        axes.set_title("of a run")
        return svg_text(figure)


def test_the_bytes_depend_on_nothing_but_what_is_shown():
    first = picture()
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "svg.hashsalt": "other"}):
        assert picture() == first
    assert picture((1, 3, 4)) != first


def test_it_says_what_drew_it_but_not_when():
    text = picture()
    assert creator() in text
    assert "<dc:date>" not in text
    assert text.endswith("</svg>\n")
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_the_users_settings_are_as_before():
    before = dict(matplotlib.rcParams)
    picture()
    assert dict(matplotlib.rcParams) == before


def zigzag():
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([x / 7 for x in range(200)], [(x * x) % 17 / 3 for x in range(200)])
    return figure


def coordinates(text):
    paths = re.findall(r' d="([^"]*)"', text)
    return [float(word) for path in paths for word in path.split() if not word.isalpha()]


def test_a_small_picture_has_the_same_lines_to_a_hundredth_of_a_point():
    with plain_style():
        whole, small = svg_text(zigzag()), small_svg_text(zigzag())
    assert len(small) < len(whole)
    assert coordinates(small) == pytest.approx(coordinates(whole), abs=0.0051)
