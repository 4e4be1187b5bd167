"""Cyclic minus static bits over the length of a run."""

import pytest

from bitcycle.report.evidence.lengths import draw_lengths, length_lines
from bitcycle.report.evidence.study import render_study
from tests.study.made_up import method, study_result
from tests.study.publish.made import ALIKE, BETTER, STATIC, WORSE, evidence_of

pytest.importorskip("matplotlib")

LENGTHS = {30: WORSE, 60: ALIKE, 120: BETTER}


def evidence(lengths=LENGTHS):
    entries = []
    for steps, values in lengths.items():
        of = {"group": f"{steps} steps", "changes": {"steps": steps}}
        entries += [
            (method("8", 8, **of), STATIC, 100.0),
            (method("3-8", "CR:3-8:8", **of), values, 60.0),
        ]
    return evidence_of(study_result(entries, baseline="8"))


def test_a_line_has_the_difference_and_its_interval_at_every_length():
    (axes,) = draw_lengths(evidence()).axes
    (bars,) = axes.containers
    line, _, (intervals,) = bars.lines
    assert list(line.get_xdata()) == [30, 60, 120]
    assert list(line.get_ydata()) == pytest.approx([-1.0, 0.2 / 3, 1.0])
    half = 4.302653 * 0.1 / 3**0.5  # t at two degrees of freedom, deviation 0.1
    low, high = intervals.get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((-1 - half, -1 + half), abs=1e-5)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["30", "60", "120"]


def test_one_comparison_is_named_in_the_title_with_its_seeds():
    (axes,) = draw_lengths(evidence()).axes
    title = axes.get_title(loc="left")
    assert "3-8 minus 8" in title
    assert "95 % interval of 3 paired seeds; above 0: the cycle is better" in title


def test_two_lengths_are_no_line():
    assert not length_lines(evidence({30: WORSE, 60: ALIKE}))


def test_the_page_shows_it_first():
    page = render_study("lengths", evidence())
    first, second = [line for line in page.files["lengths.md"].splitlines() if "![" in line]
    assert "lengths-lengths.svg" in first
    assert "lengths.svg" in second
    assert set(page.files) == {"lengths.md", "lengths.svg", "lengths-lengths.svg"}
    short = render_study("lengths", evidence({30: WORSE, 60: ALIKE}))
    assert "lengths-lengths.svg" not in short.files


def test_groups_that_differ_in_more_than_length_have_their_own_panel():
    entries = []
    for width, values in ((64, WORSE), (32, BETTER)):
        for steps in LENGTHS:
            of = {"group": f"{width} wide, {steps} steps", "changes": {"steps": steps}}
            entries += [
                (method("8", 8, **of), STATIC, 100.0),
                (method("3-8", "CR:3-8:8", **of), values, 60.0),
            ]
    found = length_lines(evidence_of(study_result(entries, baseline="8")))
    means = {
        name: [pair.difference.mean for pair in line["3-8 minus 8"].values()]
        for name, line in found.items()
    }
    assert means["64 wide"] == pytest.approx([-1.0] * 3)
    assert means["32 wide"] == pytest.approx([1.0] * 3)


def test_one_seed_has_no_bars():
    (axes,) = draw_lengths(evidence(dict.fromkeys((30, 60, 120), {0: 95.0}))).axes
    assert "one seed each; above 0" in axes.get_title(loc="left")
    (bars,) = axes.containers
    drawn = [segment for segment in bars.lines[2][0].get_segments() if len(segment) == 2]
    assert not drawn
