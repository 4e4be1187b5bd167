"""Comparisons over all studies, counted."""

import math
from dataclasses import replace

import pytest

from bitcycle.study.publish.answers import allowed, answer, budget_answer
from bitcycle.study.publish.comparisons import compared, distinct, hardest, main, plain
from bitcycle.study.publish.pairs import budget_pairs
from bitcycle.study.statistics import holm
from bitcycle.tasks import DataConfig, ModelConfig
from bitcycle.train.config import PrecisionConfig
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
        "run's. Cheaper and not worse beyond noise: 1 of 1. The difference is +1.00 points."
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
        "By chance alone about 0.08 of 3 would look better and as many worse; corrected for their "
        "number (Holm), 2 better and 0 worse remain."
    )


def test_the_answer_says_whom_the_differences_favour():
    same = {0: 92.0, 1: 91.0, 2: 91.5}  # +1, -1, 0
    published = [
        of("a", EIGHT, ("3-8", "CR:3-8:8", BETTER, 60.0), ("4-8", "CR:4-8:8", same, 60.0),
           ("5-8", "CR:5-8:8", WORSE, 60.0), ("6-8", "CR:6-8:8", ALIKE, 60.0))
    ]  # fmt: skip
    assert (
        "Of 4 differences 2 favour the cycle, 1 the static bits, 1 are 0; they go from -1.00 to "
        "+1.00 points."
    ) in answer(compared(published))


def test_of_a_perplexity_what_is_lower_favours_the_cycle():
    words = {"task": "language", "model": ModelConfig(name="lstm_lm"),
             "data": DataConfig(name="wikitext-2")}  # fmt: skip
    entries = [
        (method(label, forward, changes=words), values, cost)
        for label, forward, values, cost in (
            EIGHT, ("3-8", "CR:3-8:8", BETTER, 60.0), ("4-8", "CR:4-8:8", WORSE, 60.0),
            ("5-8", "CR:5-8:8", {0: 90.5, 1: 91.4, 2: 91.1}, 60.0),
        )
    ]  # fmt: skip
    language = evidence_of(study_result(entries, name="words", baseline="8"))
    text = answer(compared([language, study("a", BETTER)]))
    assert (
        "Of 3 differences in perplexity (lower is better) 2 favour the cycle, 1 the static bits, "
        "0 are 0; they go from -1.00 to +1.00. The difference in accuracy is +1.00 points."
    ) in text


def test_a_difference_that_is_not_finite_has_no_side():
    text = answer(compared([study("a", {0: 91.0, 1: math.inf, 2: 91.0})]))
    assert "difference" not in text


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
    assert budget_answer(compared(published, budget_pairs)).endswith(
        "has such (83 % of its cost): 0 better, 1 within noise, 0 worse, of 1."
    )


def test_of_equal_static_bits_of_two_studies_the_cheaper_is_the_harder_test():
    cyclic = ("3-8", "CR:3-8:8", ALIKE, 60.0)
    again = {seed: value + 1e-11 for seed, value in STATIC.items()}
    published = [
        of("a", EIGHT, ("6", 6, again, 50.0), cyclic),
        of("b", EIGHT, ("5", 5, STATIC, 40.0), cyclic),
    ]
    (entry,) = hardest(compared(published, budget_pairs))
    assert entry.pair.static.label == "5"


def test_the_headline_has_every_comparison_of_cpt_and_shared_ones_once():
    cyclic = ("3-8", "CR:3-8:8", ALIKE, 60.0)
    other = ("N = 2", "CR:3-8:2", ALIKE, 60.0)
    late = ("late", "delay@0.5(CR:3-8:8)", ALIKE, 60.0)
    exponential = ("ER", "ER:3-8:8", ALIKE, 60.0)
    published = [
        of("cycles", EIGHT, other, cyclic),
        of("shapes", EIGHT, exponential, late, cyclic),
        of("none", EIGHT, exponential, late),
    ]
    entries = compared(published)
    found = [(entry.study, entry.pair.cyclic.label) for entry in plain(entries)]
    assert found == [("cycles", "N = 2"), ("cycles", "3-8")]
    (entry,) = main(entries)
    assert (entry.study, entry.pair.cyclic.label) == ("cycles", "3-8")  # which both studies have


def test_the_headline_has_one_row_for_each_network_and_data_with_the_studys_baseline():
    def group(name, **changes):
        rows = ((6, "CR:3-6:8"), (8, "CR:3-8:8"))
        return [
            entry
            for top, schedule in rows
            for entry in (
                (method(f"{top}", top, group=name, changes=changes), STATIC, 100.0),
                (method(f"3-{top}", schedule, group=name, changes=changes), ALIKE, 60.0),
            )
        ]

    short, long = group("30 steps", steps=30), group("60 steps", steps=60)
    other = group("mnist", data=DataConfig(name="mnist"))
    published = evidence_of(study_result([*short, *long, *other], name="a", baseline="8"))
    found = [
        (entry.pair.group.group, entry.pair.cyclic.label) for entry in main(compared([published]))
    ]
    assert found == [("30 steps", "3-8"), ("mnist", "3-8")]


def test_of_several_quantizers_the_headline_has_the_default_one():
    def by(quantizer):
        static = PrecisionConfig(forward=8, backward=8, quantizer=quantizer)
        cyclic = replace(static, forward="CR:3-8:8")
        return [
            (method(quantizer, changes={"precision": static}), STATIC, 100.0),
            (method(f"{quantizer} CPT", changes={"precision": cyclic}), ALIKE, 60.0),
        ]

    both = evidence_of(study_result([*by("dorefa"), *by("sbm")], name="both"))
    other = evidence_of(study_result(by("absmax"), name="other"))
    found = [entry.pair.cyclic.label for entry in plain(compared([both, other]))]
    assert found == ["sbm CPT", "absmax CPT"]


def test_within_noise_says_what_is_still_possible():
    text = allowed(compared([study("a", ALIKE)]))
    assert text.endswith(
        "A loss of more than 0.5 points of accuracy is outside the interval in 0 of 1, of more "
        "than 1 in 0 of 1. The intervals of those within noise still allow a loss of up to 1.1 "
        "points (a, CPT 3-8/8 against static 8/8)."
    )
    assert allowed(compared([study("a", BETTER)])) == ""


def test_cheaper_static_bits_are_sought_in_all_studies():
    cyclic = ("3-8", "CR:3-8:8", ALIKE, 60.0)
    published = [of("a", EIGHT, cyclic), of("b", EIGHT, ("6", 6, STATIC, 50.0))]
    (entry,) = compared(published, budget_pairs)
    assert (entry.study, entry.pair.static.label, entry.partner) == ("a", "6", "b")
    assert entry.pair.difference.n == 3
    other = of("b", EIGHT, ("6", 6, STATIC, 50.0))
    long = method("3-8", "CR:3-8:8", changes={"steps": 480})
    longer = evidence_of(study_result([(long, ALIKE, 60.0)], name="long"))
    assert compared([longer, other], budget_pairs) == []


def test_static_bits_that_diverged_are_never_the_best():
    cyclic = ("3-8", "CR:3-8:8", ALIKE, 60.0)
    broken = ("6", 6, {0: math.nan, 1: 90.0, 2: 91.0}, 50.0)
    whole = ("5", 5, STATIC, 40.0)
    for order in ((broken, whole), (whole, broken)):
        (entry,) = compared([of("a", EIGHT, *order, cyclic)], budget_pairs)
        assert entry.pair.static.label == "5"
    both = [of("a", EIGHT, broken, cyclic), of("b", EIGHT, whole, cyclic)]
    for published in (both, both[::-1]):
        (entry,) = hardest(compared(published, budget_pairs))
        assert entry.pair.static.label == "5"


def test_few_seeds_can_hardly_pass_a_correction_for_many_comparisons():
    barely = {0: 91.3, 1: 92.4, 2: 92.0}  # p = 0.020
    cycles = [(f"{low}-8", f"CR:{low}-8:8", barely, 60.0) for low in (3, 4, 5)]
    assert answer(compared([of("a", EIGHT, *cycles)])).endswith(
        "0 better and 0 worse remain, which few seeds (from n = 3) could hardly show."
    )
