"""PFQ: hand-made losses and the steps at which they must turn."""

import pytest

from bitcycle.schedules import PFQ
from tests.schedules.test_adaptive import follow


def turns(rule, losses, total_steps=1000):
    return follow(rule, losses, total_steps)[-1]["turns"]


def test_five_equal_windows_make_a_turn():
    assert turns(PFQ((3, 8), window=1), [1.0] * 5) == [5]
    assert turns(PFQ((3, 8), window=1), [1.0] * 4) == []


def test_each_turn_needs_five_windows_of_its_own_and_the_top_stays():
    assert turns(PFQ((3, 4, 6, 8), window=1), [1.0] * 40) == [5, 10, 15]


def test_the_loss_is_averaged_over_a_window_of_steps():
    # windows of 4: means 2, then 1 five times; single steps differ by far more than eps
    losses = [2.0] * 4 + [0.2, 1.8, 0.5, 1.5] * 5
    assert turns(PFQ((3, 8), window=4), losses) == [24]


def test_a_window_may_be_a_share_of_the_run():
    assert turns(PFQ((3, 8), window=0.02), [1.0] * 60, total_steps=100) == [10]
    assert turns(PFQ((3, 8)), [1.0] * 3000, total_steps=64_000) == [2000]  # 5 x 400


def test_differences_are_measured_against_the_mean_of_the_first_ten_windows():
    # scale: mean of 4, 1, 1, 1, 1 = 1.6 at the fifth; then + 1 = 1.5 at the sixth
    # at the sixth the last five are 1, 1, 1, 1, x: turn if |1 - x| <= eps * scale
    for x, expected in ((1.07, [6]), (1.08, [])):
        scale = (4 + 4 * 1 + x) / 6  # 1.511, 1.513
        assert (abs(x - 1) <= 0.05 * scale) == bool(expected)  # 0.0756
        assert turns(PFQ((3, 8), window=1), [4.0, 1, 1, 1, 1, x]) == expected


def test_after_ten_windows_the_scale_is_frozen():
    # ten windows 10, 9, ..., 1: scale 5.5, eps * scale .275; later losses do not lower it
    falling = [float(10 - i) for i in range(10)]
    slow = [0.9, 0.83, 0.76, 0.69, 0.62]  # 0.28 from first to last: too much
    assert turns(PFQ((3, 8), window=1), falling + slow) == []
    slow[0] = 0.89  # 0.27
    assert turns(PFQ((3, 8), window=1), falling + slow) == [15]


def test_the_first_two_turns_make_eps_smaller_and_the_third_does_not():
    # scale stays 1 where the first ten windows average 1; eps .5, .05, .005, .005
    rule = PFQ((2, 3, 4, 5, 6), window=1, eps=0.5, alpha=0.1)
    wide, narrow, fine = [0.8, 1.2, 1.0, 1.0, 1.0], [1.02, 0.98, 1, 1, 1], [1.003, 0.997, 1, 1, 1]
    assert turns(rule, wide) == [5]
    assert turns(rule, wide + wide) == [5]  # .2 > .05
    assert turns(rule, wide + narrow) == [5, 10]
    assert turns(rule, wide + narrow + narrow) == [5, 10]  # .02 > .005
    assert turns(rule, wide + narrow + fine) == [5, 10, 15]
    assert turns(rule, wide + narrow + fine + fine) == [5, 10, 15, 20]


def test_the_defaults_are_the_published_ones():
    rule = PFQ((3, 4, 6, 8))
    assert (rule.window, rule.eps, rule.alpha) == (0.00625, 0.05, 0.3)
    assert str(rule) == "pfq:3,4,6,8:window=0.00625:eps=0.05:alpha=0.3"


def test_lists_of_equal_length_turn_together():
    losses = [3.0, 2.0, 1.5, 1.4, 1.4, 1.4, 1.38, 1.39, 1.38, 1.38, 1.38, 1.38, 1.38, 1.38, 1.38]
    forward, backward = PFQ((3, 4, 6, 8), window=1), PFQ((6, 6, 8, 8), window=1)
    assert turns(forward, losses) == turns(backward, losses) != []
    assert (backward.low, backward.high) == (6, 8)


def test_a_loss_of_zero_everywhere_is_settled():
    assert turns(PFQ((3, 8), window=1), [0.0] * 5) == [5]


@pytest.mark.parametrize("bits", [[3, 8], (3, 8)])
def test_a_list_and_a_tuple_are_the_same_bits(bits):
    assert PFQ(bits) == PFQ((3, 8))
