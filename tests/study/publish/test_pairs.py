"""Cyclic against static bits at the same top."""

import math

import pytest

from bitcycle.study.base import STUDIES
from bitcycle.study.publish.cycles import is_cyclic, is_plain
from bitcycle.study.publish.pairs import budget_pairs, top_pairs
from bitcycle.study.summary import summarize
from bitcycle.tasks import DataConfig, ModelConfig
from bitcycle.train.config import PrecisionConfig
from tests.study.made_up import method, study_result
from tests.study.publish.made import ALIKE, BETTER, STATIC, WORSE, made


def pair_of(*args, **changes):
    (pair,) = top_pairs(summarize(made(*args, **changes))[0])
    return pair


@pytest.mark.parametrize(
    ("cycled", "words", "is_better"),
    [
        (BETTER, "higher (better)", True),
        (WORSE, "lower (worse)", False),
        (ALIKE, "within noise", None),
        ({0: 95.0}, "cannot tell: one seed", None),
        ({0: 92.0, 1: 93.0, 2: 92.5}, "cannot tell: the same in every seed", None),
        ({0: 92.0, 1: math.inf, 2: 92.5}, "cannot tell: a value is not finite", None),
    ],
)
def test_the_verdict_follows_from_the_interval(cycled, words, is_better):
    pair = pair_of(cycled)
    assert pair.words() == words
    assert pair.is_better is is_better


def test_a_cost_that_is_not_lower_is_said():
    assert pair_of(ALIKE).is_cheaper
    assert pair_of(ALIKE).cost == 0.6
    assert not pair_of(ALIKE, cost=100.0).is_cheaper


def test_of_a_perplexity_lower_is_better():
    words = {
        "task": "language",
        "model": ModelConfig(name="lstm_lm"),
        "data": DataConfig(name="wikitext-2"),
    }
    entries = [
        (method("static", 8, changes=words), STATIC, 1.0),
        (method("cyclic", "CR:3-8:8", changes=words), WORSE, 1.0),
    ]
    (pair,) = top_pairs(summarize(study_result(entries))[0])
    assert pair.words() == "lower (better)"
    assert pair.loss_allowed() == 0.0


def test_each_cycle_meets_static_bits_at_its_own_top():
    entries = [
        (method(label, forward), STATIC, 1.0)
        for label, forward in (("8", 8), ("6", 6), ("3-6", "CR:3-6:8"), ("3-8", "CR:3-8:8"),
                               ("4-7", "CR:4-7:8"), ("ramp", "ramp:3-8@0.5"))
    ]  # fmt: skip
    pairs = top_pairs(summarize(study_result(entries))[0])
    assert [(p.cyclic.label, p.static.label) for p in pairs] == [("3-6", "6"), ("3-8", "8")]


def test_another_quantizer_or_length_is_no_partner():
    entries = [
        (method("8", 8, changes={"steps": 100}), STATIC, 1.0),
        (method("3-8", "CR:3-8:8"), STATIC, 1.0),
    ]
    assert top_pairs(summarize(study_result(entries))[0]) == ()


def test_the_loss_that_is_still_possible_is_the_wrong_end_of_the_interval():
    pair = pair_of(ALIKE)
    assert pair.loss_allowed() == -pair.difference.low
    assert pair_of({0: 91.0}).loss_allowed() is None


def test_the_harder_test_is_against_the_best_static_bits_that_cost_no_more():
    entries = [
        (method("8", 8), STATIC, 100.0),
        (method("6", 6), {0: 91.4, 1: 92.1, 2: 91.6}, 56.0),
        (method("4", 4), ALIKE, 30.0),
        (method("3-8", "CR:3-8:8"), WORSE, 63.0),
    ]
    (pair,) = budget_pairs(summarize(study_result(entries))[0])
    assert (pair.static.label, pair.cost) == ("6", 63 / 56)
    assert pair.words() == "lower (worse)"
    assert budget_pairs(summarize(study_result(entries[:1] + entries[3:]))[0]) == ()


def test_static_bits_of_the_same_cost_cost_no_more():
    cost = 0.1 + 0.2  # 0.30000000000000004
    entries = [(method("6", 6), STATIC, cost), (method("3-8", "CR:3-8:8"), WORSE, 0.3)]
    (pair,) = budget_pairs(summarize(study_result(entries))[0])
    assert pair.static.label == "6"


def test_of_static_bits_with_equal_means_the_cheapest_is_met():
    again = {seed: value + 1e-11 for seed, value in STATIC.items()}
    entries = [
        (method("6", 6), again, 56.0),
        (method("5", 5), STATIC, 40.0),
        (method("3-8", "CR:3-8:8"), WORSE, 63.0),
    ]
    (pair,) = budget_pairs(summarize(study_result(entries))[0])
    assert pair.static.label == "5"


@pytest.mark.parametrize(
    ("cycled", "side"),
    [(BETTER, 1), (WORSE, -1), ({seed: value + 1e-11 for seed, value in STATIC.items()}, 0)],
)
def test_a_difference_has_a_side_also_within_noise(cycled, side):
    assert pair_of(cycled).side == side


def test_a_cost_that_differs_by_rounding_is_the_same():
    pair = pair_of(ALIKE, cost=100 * (1 + 1e-12))
    assert not pair.is_cheaper
    assert not pair.is_dearer
    assert pair_of(ALIKE, cost=101.0).is_dearer


def test_cycles_up_to_float32_meet_the_model_that_is_not_converted():
    both = {"quantizer": "sbm", "skip": ("fc",), "kernel": "simulate"}
    cyclic = PrecisionConfig(forward="CR:8-32:8", **both)
    entries = [
        (method("float32", changes={"precision": PrecisionConfig()}), STATIC, 1.0),
        (method("8-32", changes={"precision": cyclic}), BETTER, 0.5),
    ]
    (pair,) = top_pairs(summarize(study_result(entries))[0])
    assert pair.static.label == "float32"


def test_roles_that_inherit_have_the_top_of_what_they_inherit():
    weights = PrecisionConfig(forward=8, backward=8, weight="CR:3-8:8")
    entries = [
        (method("8", 8), STATIC, 1.0),
        (method("weights", changes={"precision": weights}), BETTER, 0.5),
    ]
    (pair,) = top_pairs(summarize(study_result(entries))[0])
    assert pair.static.label == "8"
    assert not is_plain(pair.cyclic.method.method.config)


ALONE = {  # shipped studies with cycles whose top no static method of the study has
    "fig7": 12,
    "fig7-small": 6,
    "table6": 18,
    "table6-small": 6,
    "table7": 20,
    "table7-small": 10,
    "table8": 3,
    "table8-small": 3,
}


@pytest.mark.parametrize("name", STUDIES.names())
def test_every_cycle_of_a_shipped_study_has_its_partner_or_is_known_to_have_none(name):
    study = STUDIES[name]()
    values = dict.fromkeys(study.seeds, 1.0)
    entries = [(method, values, 1.0) for method in study.methods]
    groups = summarize(study_result(entries, seeds=study.seeds, baseline=study.baseline))
    met = [pair for group in groups for pair in top_pairs(group)]
    cyclic = [m for m in study.methods if is_cyclic(m.config)]
    assert len(cyclic) - len(met) == ALONE.get(name, 0)
    for pair in met:
        own, other = (row.method.method.config for row in (pair.cyclic, pair.static))
        assert (own.model, own.data, own.lr, own.steps) == (
            other.model, other.data, other.lr, other.steps
        )  # fmt: skip
