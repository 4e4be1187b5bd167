"""Statistics against hand-computed examples and scipy's own tests."""

import math
import random

import pytest

from bitcycle_lab.study.statistics import (
    Difference,
    num_seeds_for,
    num_seeds_to_decide,
    paired_difference,
    pareto_front,
    rank_correlation,
    round_digits,
    summarize_values,
)

stats = pytest.importorskip("scipy.stats")


def by_seed(values):
    return dict(enumerate(values))


def normal(seed, mean, deviation, n):
    source = random.Random(seed)
    return [source.gauss(mean, deviation) for _ in range(n)]


# -- mean and interval ------------------------------------------------------------------------


def test_the_interval_is_the_hand_computed_one():
    # mean 93, deviations -3 -1 0 1 3: s^2 = 20 / 4, s = 2.236; s / sqrt(5) = 1;
    # t(0.975, 4) = 2.776 (any table)
    summary = summarize_values([90.0, 92.0, 93.0, 94.0, 96.0])
    assert (summary.mean, summary.n) == (93.0, 5)
    assert summary.std == pytest.approx(math.sqrt(5))
    assert (summary.low, summary.high) == pytest.approx((90.224, 95.776), abs=1e-3)


def test_equal_values_have_a_deviation_of_zero_and_no_interval():
    summary = summarize_values([0.1 + 0.2, 0.3, 0.3])  # equal but for rounding
    assert summary.std == 0
    assert summary.low is summary.high is None


def test_a_value_that_is_not_finite_leaves_no_interval():
    summary = summarize_values([30.0, math.inf, 31.0])
    assert summary.mean == math.inf
    assert summary.std is summary.low is None


# -- paired differences -----------------------------------------------------------------------


def test_the_paired_difference_is_the_hand_computed_one():
    # differences 1 2 3: mean 2, s = 1, standard error 0.57735, t(0.975, 2) = 4.3027: +- 2.4841
    # t = 2 / 0.57735 = 3.4641 with 2 degrees: p = 0.0742
    found = paired_difference(by_seed([11.0, 22.0, 33.0]), by_seed([10.0, 20.0, 30.0]))
    assert (found.mean, found.n) == (2.0, 3)
    assert (found.low, found.high) == pytest.approx((-0.4841, 4.4841), abs=1e-4)
    assert found.p == pytest.approx(0.0742, abs=1e-4)
    assert found.is_beyond_noise is False
    assert paired_difference(by_seed([5.0, 5.1, 5.2]), by_seed([1.0, 1.0, 1.1])).is_beyond_noise


def test_the_deviation_of_the_differences_is_read_from_their_interval():
    found = paired_difference(by_seed([11.0, 22.0, 33.0]), by_seed([10.0, 20.0, 30.0]))
    assert found.std == pytest.approx(1.0)
    assert found.is_within(4.5)
    assert not found.is_within(4.4)
    alone = paired_difference({0: 1.0}, {0: 0.5})
    assert alone.std is None
    assert not alone.is_within(100.0)


def test_the_number_of_seeds_is_the_first_whose_interval_is_short_enough():
    for std, width in ((1.0, 1.0), (0.3, 1.0), (1.0, 100.0), (1.0, 0.2), (2.0, 0.51)):
        expected = next(
            n for n in range(2, 999) if stats.t.ppf(0.975, n - 1) * std / n**0.5 <= width
        )
        assert num_seeds_for(std, width) == expected
    assert (
        num_seeds_for(1.0, 1.0) == 7
    )  # t(0.975, 5) / sqrt(6) = 1.05, t(0.975, 6) / sqrt(7) = 0.92
    assert num_seeds_for(1e6, 1.0) == 10_000


def test_an_undecided_interval_always_needs_more_seeds_than_it_has():
    for seed in range(200):
        n = 2 + seed % 5
        found = paired_difference(by_seed(normal(seed, 0.5, 1, n)), by_seed([0.0] * n))
        if not found.is_beyond_noise and not found.is_within(1.0):
            assert num_seeds_to_decide(found, 1.0) > n


@pytest.mark.parametrize(
    ("mean", "half", "n", "margin", "expected"),
    [
        # deviation 5.45 sqrt(5) / t(0.975, 4) = 4.389; t(0.975, 5) 4.389 / sqrt(6) = 4.606 > 4.6
        (4.6, 5.45, 5, 1.0, 7),
        (5.0, 6.0, 5, 1.0, 7),  # deviation 4.832: 5.07 with 6 seeds, 4.47 with 7
        (-5.0, 6.0, 5, 1.0, 7),
        (0.1, 1.5, 3, 1.0, 5),  # deviation 0.604, 0.9 to the margin: 0.961 with 4, 0.750 with 5
    ],
)
def test_the_seeds_to_decide_exclude_0_or_the_margin(mean, half, n, margin, expected):
    found = Difference(mean=mean, low=mean - half, high=mean + half, p=0.1, n=n)
    assert num_seeds_to_decide(found, margin) == expected


def test_p_and_interval_are_those_of_scipys_paired_t_test():
    one = normal(1, 70, 1, 6)
    other = normal(2, 69, 1, 6)
    expected = stats.ttest_rel(one, other)
    found = paired_difference(by_seed(one), by_seed(other))
    assert found.p == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_unequal_seeds_are_compared_as_pairs_of_common_seeds():
    assert paired_difference({0: 1.0}, {1: 2.0}) is None
    one = {0: 5.0, 1: 7.0, 2: 100.0, 5: 9.0}
    base = {5: 6.0, 1: 5.0, 0: 4.0, 9: -100.0}
    found = paired_difference(one, base)
    assert found == paired_difference(by_seed([5.0, 7.0, 9.0]), by_seed([4.0, 5.0, 6.0]))
    assert (found.mean, found.n) == (2.0, 3)


def test_the_same_difference_in_every_seed_has_no_p_of_zero():
    """One image of 360 in each of three seeds: not a proof."""
    base = {0: 98.055555, 1: 97.777777, 2: 98.888888}
    found = paired_difference({seed: value + 100 / 360 for seed, value in base.items()}, base)
    assert found.mean == pytest.approx(100 / 360)
    assert found.low is found.p is found.is_beyond_noise is None


# -- rank correlation -------------------------------------------------------------------------


def test_the_correlation_and_its_interval_are_the_hand_computed_ones():
    # ranks differ by 1 -1 1 -1 0: rho = 1 - 6 * 4 / (5 * 24) = 0.8
    # z = 1.0986; sqrt((1 + 0.32) / 2) = 0.8124, * 1.95996 = 1.5923; tanh(-0.4937), tanh(2.6909)
    found = rank_correlation([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, 4.0, 3.0, 5.0])
    assert found.rho == pytest.approx(0.8)
    assert (found.low, found.high) == pytest.approx((-0.4571, 0.9909), abs=1e-4)
    assert found.n == 5


def test_ties_share_their_ranks_as_in_scipy():
    x, y = [1.0, 1.0, 2.0, 3.0, 3.0], [5.0, 4.0, 4.0, 8.0, 7.0]
    assert rank_correlation(x, y).rho == pytest.approx(stats.spearmanr(x, y).statistic)


def test_a_perfect_order_has_no_interval():
    found = rank_correlation([1.0, 2.0, 3.0, 4.0, 9.0], [1.0, 8.0, 9.0, 10.0, 30.0])
    assert found.rho == 1
    assert found.low is found.high is None


@pytest.mark.parametrize(("x", "rho"), [([1.0, 2.0, 3.0], -0.5), ([4.0, 4.0, 4.0], None)])
def test_few_points_have_no_interval_and_a_constant_no_correlation(x, rho):
    found = rank_correlation(x, [3.0, 1.0, 2.0])
    assert found.rho == (None if rho is None else pytest.approx(rho))
    assert found.low is None


# -- Pareto front -----------------------------------------------------------------------------


def test_the_front_is_what_nothing_beats():
    costs, values = [1.0, 2.0, 3.0, 3.0, 4.0], [5.0, 4.0, 6.0, 7.0, 7.0]
    assert pareto_front(costs, values) == [True, False, False, True, False]
    negative = [-value for value in values]
    assert pareto_front(costs, negative, higher_is_better=False) == [
        True, False, False, True, False,
    ]  # fmt: skip


def test_of_values_that_differ_by_rounding_the_cheapest_is_on_the_front():
    # 1783 of 1800 right, twice: five accuracies with twelve digits each
    power = [99.1666666667, 98.6111111111, 98.8888888889, 98.8888888889, 99.7222222222]
    cycled = [98.8888888889, 98.6111111111, 99.7222222222, 99.4444444444, 98.6111111111]
    means = [summarize_values(values).mean for values in (power, cycled)]
    assert means[0] > means[1]
    assert pareto_front([567.0, 359.0], means) == [False, True]
    assert round_digits(means[0]) == round_digits(means[1]) == 99.0555556


def test_infinities_of_both_signs_have_no_mean():
    inf = math.inf
    difference = paired_difference({0: inf, 1: 1.0}, {0: 1.0, 1: inf})
    assert math.isnan(difference.mean)
    assert (difference.low, difference.p, difference.n) == (None, None, 2)
    assert summarize_values([inf, 1.0]).mean == inf


def test_nothing_has_no_mean_and_a_correlation_needs_pairs():
    with pytest.raises(ValueError, match="at least one value"):
        summarize_values([])
    with pytest.raises(ValueError, match="3 numbers against 2"):
        rank_correlation([1.0, 2.0, 3.0], [1.0, 2.0])
