"""Comparisons over all studies, counted."""

import pytest

from bitcycle.study.publish.answers import (
    allowed,
    answer,
    budget_answer,
    compared,
    distinct,
    hardest,
    holm,
    plain,
)
from bitcycle.study.publish.pairs import budget_pairs
from tests.study.made_up import method, study_result
from tests.study.publish.made import ALIKE, BETTER, STATIC, WORSE, evidence_of, made


def study(name, cycled, **changes):
    return evidence_of(made(cycled, name=name, **changes))


def of(name, *entries, baseline="8"):
    """Methods by (label, forward, values, cost)."""
    made_up = [(method(label, forward), values, cost) for label, forward, values, cost in entries]
    return evidence_of(study_result(made_up, name=name, baseline=baseline))


EIGHT = ("8", 8, STATIC, 100.0)


def test_comparisons_are_counted_by_rule():
    published = [study("a", BETTER)]
    assert answer(compared(published)) == (
        "Of 1 comparison of a cyclic schedule with static bits at its top: 1 better, 0 within "
        "noise, 0 worse. In 1 of 1 the cyclic schedule took fewer BitOPs, 60 % of the static "
        "run's. Cheaper and not worse beyond noise: 1 of 1."
    )


def test_many_comparisons_are_corrected_for_their_number():
    close = {0: 91.2, 1: 92.4, 2: 92.0}  # +0.2, +0.4, +0.5: p = 0.055
    barely = {0: 91.3, 1: 92.4, 2: 92.0}  # +0.3, +0.4, +0.5: p = 0.020
    published = [
        of("a", EIGHT, ("3-8", "CR:3-8:8", BETTER, 60.0), ("4-8", "CR:4-8:8", close, 60.0),
           ("5-8", "CR:5-8:8", barely, 60.0))
    ]  # fmt: skip
    text = answer(compared(published))
    assert "2 better, 1 within noise, 0 worse" in text
    assert text.endswith(
        "If cycling changed nothing, fewer than one of 3 would still look better and as many "
        "worse; corrected for their number (Holm), 2 better and 0 worse remain."
    )


@pytest.mark.parametrize(
    ("p_values", "stays"),
    [
        ([], []),
        ([0.05], [True]),
        ([0.02, 0.04], [True, True]),  # 0.05 / 2, then 0.05
        ([0.04, 0.03], [False, False]),  # the smallest fails, so all do
        ([0.03, 0.001, 0.026], [False, True, False]),  # 0.05 / 3, then 0.05 / 2
    ],
)
def test_holm_compares_the_smallest_with_the_smallest_share(p_values, stays):
    assert holm(p_values) == stays


def test_studies_that_share_runs_count_them_once():
    entries = compared([study("a", {0: 91.0}), study("b", WORSE)])
    assert len(entries) == 2
    assert [entry.study for entry in distinct(entries)] == ["b"]  # three pairs, not one


def test_a_schedule_meets_the_best_cheaper_static_bits_of_all_its_studies_once():
    cyclic = ("3-8", "CR:3-8:8", ALIKE, 60.0)
    published = [
        of("a", EIGHT, ("3", 3, WORSE, 30.0), cyclic),
        of("b", EIGHT, ("6", 6, STATIC, 50.0), cyclic),
    ]
    (entry,) = hardest(compared(published, budget_pairs))
    assert (entry.study, entry.pair.static.label) == ("b", "6")
    assert budget_answer(compared(published, budget_pairs)).endswith("0 worse, of 1.")


def test_the_headline_has_published_cpt_once_for_a_group():
    cyclic = ("3-8", "CR:3-8:8", ALIKE, 60.0)
    other = ("N = 2", "CR:3-8:2", ALIKE, 60.0)
    late = ("late", "delay@0.5(CR:3-8:8)", ALIKE, 60.0)
    exponential = ("ER", "ER:3-8:8", ALIKE, 60.0)
    published = [
        of("cycles", EIGHT, other, cyclic),
        of("shapes", EIGHT, exponential, late, cyclic),
        of("none", EIGHT, exponential, late),
    ]
    (entry,) = plain(compared(published))
    assert (entry.study, entry.pair.cyclic.label) == ("cycles", "3-8")  # which both studies have


def test_within_noise_says_what_is_still_possible():
    text = allowed(compared([study("a", ALIKE)]))
    assert "still allow a loss of up to 1.1 points (a, CPT 3-8/8 against static 8/8)." in text
    assert text.endswith(
        "A loss of more than 1 point of accuracy is outside the interval in 0 of 1."
    )
    assert allowed(compared([study("a", BETTER)])) == ""
