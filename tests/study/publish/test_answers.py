"""Comparisons over all studies, counted."""

from bitcycle.study.publish.answers import allowed, answer, compared, distinct
from tests.study.publish.made import ALIKE, BETTER, WORSE, evidence_of, made


def study(name, cycled, **changes):
    return evidence_of(made(cycled, name=name, **changes))


def test_comparisons_are_counted_by_rule():
    published = [study("a", BETTER)]
    assert answer(compared(published)) == (
        "Of 1 comparisons of a cyclic schedule with static bits at its top: 1 better, 0 within "
        "noise, 0 worse. In 1 of 1 the cyclic schedule took fewer BitOPs, 60 % of the static "
        "run's. Cheaper and not worse beyond noise: 1 of 1. By chance alone about 0.02 of 1 would "
        "look better and as many worse."
    )


def test_studies_that_share_runs_count_them_once():
    entries = compared([study("a", {0: 91.0}), study("b", WORSE)])
    assert len(entries) == 2
    assert [entry.study for entry in distinct(entries)] == ["b"]  # three pairs, not one


def test_within_noise_says_what_is_still_possible():
    assert "still allows a loss of 1.1 points (a, CPT 3-8/8 against static 8/8)" in allowed(
        compared([study("a", ALIKE)])
    )
    assert allowed(compared([study("a", BETTER)])) == ""
