"""The page of range tests."""

import pytest

from bitcycle.range_test import RangeCurve
from bitcycle.report.evidence.range_tables import curve_of
from bitcycle.report.evidence.range_tests import (
    gather_range_tests,
    labels_of,
    render_range_tests,
)
from tests.report.evidence.made import MACHINE_LINE, range_file, without_made

pytest.importorskip("matplotlib")


def render(*files):
    return render_range_tests("range-tests", gather_range_tests(files))


def lstm_file(**changes):
    curve = RangeCurve(
        bits=(2, 2, 3, 3, 4, 4), metric=(-7.0, float("nan"), -7.0, -6.9, -6.9, -5.0), window=1,
        threshold=0.5, name="-loss",
    )  # fmt: skip
    plan = {"low": 2, "high": 4, "steps_per_precision": 2, "window": 1, "threshold": 0.5,
            "metric": "loss", "reset": True}  # fmt: skip
    settings = {"name": "lstm", "recipe": "/home/me/lstm.yaml", "model": "lstm_lm", "data": "ptb",
                "curve": curve.to_dict(), "plan": plan, "low": 4, "high": 4, "forward": "4",
                "find_upper": True, "threads": 2}  # fmt: skip
    return {**range_file(), **settings, **changes}


def test_one_table_has_the_bound_and_the_metric_by_bits_of_every_network():
    text = render(lstm_file(), range_file()).files["range-tests.md"]
    assert (
        "| network | seed | metric | threshold | lower bound | published | "
        "at a threshold below | upper bound | 2 bits | 3 bits | 4 bits |" in text
    )
    assert (
        "| digits\\_resnet on digits | 0 | accuracy | 20 | 3 | - | 2.0: 2, 48.0: 3 | - | "
        "12.0 (+2.0) | 60.0 (+48.0) | - |" in text
    )
    assert (
        "| lstm\\_lm on ptb | 0 | -loss | 0.5 | 4 | 5 | 0.100: 3, 1.900: 4 | 4 | not finite | "
        "-6.900 (+0.100) | -5.000 (+1.900) |" in text
    )
    assert "One seed each, so no spread." in text
    assert "-loss: of training batches, in nats" in text


def test_published_bounds_stand_beside_ours_where_the_paper_has_one():
    text = render(lstm_file()).files["range-tests.md"]
    assert "its threshold, window and number of steps are not published" in text
    text = render(range_file()).files["range-tests.md"]
    assert "published |" not in text
    assert "Published:" not in text


def test_one_picture_has_a_panel_for_every_network():
    page = render(lstm_file(), range_file(0), range_file(1))
    assert set(page.files) == {"range-tests.md", "range-tests.svg"}
    assert page.files["range-tests.svg"].count('id="axes_') == 2
    assert "Of several seeds the first is drawn." in page.files["range-tests.md"]


def test_the_commands_say_all_that_was_chosen_and_nothing_of_the_machine():
    given = ["--optimizer.lr", "0.02", "--seed", "0", "--data.root", "/home/me", "--output=x"]
    text = render(lstm_file(overrides=given, stop_early=True), range_file()).files["range-tests.md"]
    assert (
        "bitcycle range-test digits-cpt-3-8-8 --seed 0 --low 2 --high 3 --steps-per-precision 4 "
        "--window 1 --threshold 20 --threads 1 --output RUNS\n" in text
    )
    assert (
        "bitcycle range-test lstm.yaml --seed 0 --low 2 --high 4 --steps-per-precision 2 "
        "--window 1 --threshold 0.5 --reset --upper --stop-early --optimizer.lr 0.02 "
        "--data.root DATA --threads 2 --output RUNS\n" in text
    )
    assert "/home" not in text
    assert "DATA and RUNS stand for folders." in text


def test_data_that_a_recipe_needs_are_in_its_command():
    text = render(range_file(name="cora-gcn-static-8-8", recipe="cora-gcn-static-8-8")).files
    assert "--data.root DATA --threads 1 --output RUNS" in text["range-tests.md"]


def test_machine_and_wall_clock_are_told_or_said_to_be_unknown():
    text = render(range_file(0), range_file(1)).files["range-tests.md"]
    assert f"{MACHINE_LINE} a test.\n" in text
    assert "Wall-clock: 2 range tests, 2 min 30 s one after another, 1 min 15 s each.\n" in text
    old = render(without_made(range_file())).files["range-tests.md"]
    assert "Machine: not recorded.\n\nWall-clock: not recorded.\n" in old
    assert (
        "| digits-cpt-3-8-8 | 0 | accuracy | 20 | 3 | 2.0: 2, 48.0: 3 | 12.0 (+2.0) | "
        "60.0 (+48.0) |" in old
    )
    assert "--threshold 20 --output RUNS" in old


def test_a_test_that_nothing_passed_is_shown_too():
    assert render(range_file(passes=False)).sentence == "digits_resnet on digits: no bits pass."


def test_seeds_that_disagree_are_counted():
    page = render(range_file(0), range_file(1), range_file(2, passes=False))
    assert page.sentence == (
        "digits_resnet on digits: learns from 3 bits on (2 of 3 seeds), no bits pass "
        "(1 of 3 seeds)."
    )
    assert "A row per seed." in page.files["range-tests.md"]


def test_recipes_of_one_network_are_told_apart_by_their_names():
    tests = gather_range_tests([range_file(), range_file(name="digits-absmax-8-8")])["tests"]
    assert labels_of(tests) == ["digits-absmax-8-8", "digits-cpt-3-8-8"]


def test_a_network_tested_in_both_ways_is_told_apart_and_counted_by_itself():
    restarted = {**range_file()["plan"], "reset": True}
    page = render(range_file(0, plan=restarted), range_file(0, passes=False))
    assert page.sentence == (
        "digits_resnet on digits: no bits pass; digits_resnet on digits, restarted: learns from "
        "3 bits on."
    )
    text = page.files["range-tests.md"]
    row = "| digits\\_resnet on digits, restarted | 0 | digits-cpt-3-8-8 | 2-3 | 8 | 4 | 1 | at"
    assert row in text
    assert "One seed each" in text
    assert "Restart: every number of bits begins with the same weights" in text


def test_the_curve_comes_back():
    (test,) = gather_range_tests([range_file()])["tests"]
    assert curve_of(test).first_passing == 3
    assert curve_of(test).bits == (2, 2, 2, 2, 3, 3, 3, 3)


def test_seeds_are_in_order():
    tests = gather_range_tests([range_file(1), range_file(0)])["tests"]
    assert [test["seed"] for test in tests] == [0, 1]


def test_a_test_given_twice_is_no_second_seed():
    with pytest.raises(
        ValueError, match="2 range tests of digits-cpt-3-8-8, seed 0: give one of them"
    ):
        render(range_file(), range_file())
