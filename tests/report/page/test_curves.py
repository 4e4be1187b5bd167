"""Learning curves."""

from bitcycle.report.page.curves import curves_card
from bitcycle.report.page.recorded import record

from .made_up import STEPS, Elements


def traces(made, number):
    figures = Elements(curves_card(record(made), "accuracy", 400)).data
    return figures[number]["data"]


def test_every_run_has_a_curve_and_every_method_their_mean(made):
    accuracy = traces(made, 0)
    steps = list(range(4, STEPS + 1, 4))
    own = [t for t in accuracy if t["meta"] == "static 8/8" and "yaxis" not in t]
    assert [t["x"] for t in own] == [steps] * 3
    assert own[0]["y"] == [50.0 + step for step in steps]
    assert own[1]["y"] == [51.0 + step for step in steps]
    assert own[2]["y"] == [50.5 + step for step in steps]


def test_the_bits_are_a_band_on_an_axis_of_their_own(made):
    bands = [t for t in traces(made, 0) if t.get("yaxis") == "y2"]
    assert {t["meta"] for t in bands} == {method.method.key for method in made.methods}
    assert bands[0]["y"] == [8, 8]
    assert max(bands[1]["x"]) == STEPS


def test_the_losses_can_be_chosen(made):
    seen = Elements(curves_card(record(made), "accuracy", 400))
    assert len(seen.data) == 2
    assert "test accuracy" in seen.text
    assert "training loss" in seen.text


def test_long_logs_are_thinned(made):
    figures = Elements(curves_card(record(made), "accuracy", 3)).data
    assert {len(t["x"]) for t in figures[0]["data"] if "yaxis" not in t} == {3}


def test_a_value_that_is_not_finite_is_a_gap(made):
    log = made.methods[0].runs[0].directory / "metrics.jsonl"
    log.write_text('{"step": 4, "kind": "eval", "split": "test", "accuracy": NaN}\n')
    assert traces(made, 0)[0]["y"] == [None]


def test_without_a_log_there_is_no_card(made):
    assert curves_card([record(made)[3]], "accuracy", 400) is None
