"""The metric against cost."""

import pytest

from bitcycle.report.page.pareto import _cost_axis, pareto_card
from bitcycle.study.summary import summarize

from .made_up import BREAKOUT, Elements


@pytest.fixture
def drawn(made):
    [figure] = Elements(pareto_card(summarize(made)[0])).data
    return figure


def test_the_front_goes_from_the_cheapest_over_the_best_to_the_dearest(drawn):
    front = drawn["data"][0]
    # low: 300 BitOPs, 80; CPT: 600, 93; static: 1000, 91 is not on it; in kBitOPs
    assert (front["x"], front["y"]) == ([0.3, 0.6, 1], [80, 93, 93])
    assert drawn["layout"]["xaxis"]["title"]["text"] == "training cost, kBitOPs"


def test_every_run_and_the_mean_with_its_interval_are_points(drawn, made):
    runs, mean = [t for t in drawn["data"] if t.get("meta") == "static 8/8"]
    assert runs["y"] == [90, 92]
    assert (mean["x"], mean["y"]) == ([1], [91])
    # n = 2: 12.706 standard errors of 1
    assert mean["error_y"]["array"] == [pytest.approx(12.706, rel=1e-4)]
    assert mean["error_y"]["arrayminus"] == [pytest.approx(12.706, rel=1e-4)]


def test_a_single_run_has_no_interval(drawn):
    [mean] = [t for t in drawn["data"] if BREAKOUT in t.get("meta", "")]
    assert mean["y"] == [80]
    assert mean["error_y"] == {"visible": False}


def test_names_are_not_markup_in_the_chart(drawn):
    for trace in drawn["data"]:
        assert "<img" not in trace.get("name", "")
        assert "%{" not in trace.get("name", "")


def test_costs_far_apart_get_a_logarithmic_axis_with_readable_ticks():
    axis = _cost_axis([0.18, 8.8], "TBitOPs")
    assert axis["type"] == "log"
    shown = [
        text
        for value, text in zip(axis["tickvals"], axis["ticktext"], strict=True)
        if 0.18 <= value <= 8.8
    ]
    assert shown == ["0.2", "0.5", "1", "2", "5"]
    assert "type" not in _cost_axis([1.0, 1.5], "TBitOPs")


def test_nothing_done_is_no_card(made):
    from dataclasses import replace

    later = replace(made, methods=made.methods[3:])
    later = replace(later, study=replace(made.study, methods=made.study.methods[3:], baseline=None))
    assert pareto_card(summarize(later)[0]) is None
