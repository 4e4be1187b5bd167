"""The page of range tests."""

import pytest

from bitcycle.report.evidence.range_tests import curve_of, gather_range_tests, render_range_tests
from tests.report.evidence.made import range_file

pytest.importorskip("matplotlib")


def test_every_test_has_its_gains_its_picture_and_its_command():
    page = render_range_tests("range-tests", gather_range_tests([range_file()]))
    text = page.files["range-tests.md"]
    assert "| digits-cpt-3-8-8 | 0 | 2-3 | 4 | 20 | 3 | 3 | 1.20 kBitOPs |" in text
    assert "| 3 | 12.00 | 60.00 | +48.00 | yes |" in text
    assert "(range-tests-digits-cpt-3-8-8-seed0.svg)" in text
    assert page.files["range-tests-digits-cpt-3-8-8-seed0.svg"].startswith("<?xml")
    assert (
        "bitcycle range-test digits-cpt-3-8-8 --seed 0 --low 2 --high 3 --steps-per-precision 4 "
        "--window 1 --threshold 20 --output RUNS" in text
    )
    assert "One seed each, so no spread: digits-cpt-3-8-8." in text


def test_a_test_that_nothing_passed_is_shown_too():
    page = render_range_tests("range-tests", gather_range_tests([range_file(passes=False)]))
    assert page.sentence == "digits-cpt-3-8-8: no bits pass."


def test_the_curve_comes_back():
    (test,) = gather_range_tests([range_file()])["tests"]
    assert curve_of(test).first_passing == 3
    assert curve_of(test).bits == (2, 2, 2, 2, 3, 3, 3, 3)


def test_seeds_are_in_order():
    tests = gather_range_tests([range_file(1), range_file(0)])["tests"]
    assert [test["seed"] for test in tests] == [0, 1]
