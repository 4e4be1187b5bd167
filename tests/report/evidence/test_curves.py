"""The metric over training."""

from dataclasses import replace

import pytest

from bitcycle.report.evidence.curves import draw_curves, has_curves
from tests.study.made_up import method, study_result
from tests.study.publish.made import ALIKE, BETTER, STATIC, evidence_of

pytest.importorskip("matplotlib")

CURVE = ((80, 80.0), (160, 85.0), (240, 90.0))
EVERY = ("one: 8", "one: 3-8", "two: 8", "two: 4-8")


def evidence(keys, curve=CURVE):
    """Two groups of two methods, which have only one label in common."""
    entries = [
        (method("8", 8, group="one"), STATIC, 100.0),
        (method("3-8", "CR:3-8:8", group="one"), BETTER, 60.0),
        (method("8", 8, group="two"), STATIC, 100.0),
        (method("4-8", "CR:4-8:8", group="two"), ALIKE, 60.0),
    ]
    found = evidence_of(study_result(entries, baseline="8"))
    curves = {key: {0: curve if key in keys else ()} for key in found.ids}
    return replace(found, curves=curves)


def test_the_legend_names_the_methods_of_all_panels():
    (legend,) = draw_curves(evidence(EVERY)).legends
    assert [text.get_text() for text in legend.get_texts()] == ["8", "3-8", "4-8"]


def test_a_group_without_curves_has_no_panel():
    (axes,) = draw_curves(evidence(EVERY[:2])).axes
    assert axes.get_title(loc="left").startswith("one: over training")


def test_one_curve_of_a_group_compares_nothing():
    assert has_curves(evidence(EVERY[:2]))
    assert not has_curves(evidence(("one: 8", "two: 8")))


def test_steps_without_a_finite_mean_are_left_out():
    axes, _ = draw_curves(evidence(EVERY, ((40, float("inf")), *CURVE))).axes
    assert list(axes.get_lines()[0].get_xdata()) == [80, 160, 240]
