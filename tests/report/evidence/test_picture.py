"""A committed picture changes only when what it shows does."""

import pytest

matplotlib = pytest.importorskip("matplotlib")

from matplotlib.figure import Figure  # noqa: E402

from bitcycle.report.evidence.picture import creator, plain_style, svg_text  # noqa: E402


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
