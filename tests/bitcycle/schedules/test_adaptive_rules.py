"""PFQ, plateau and the noise switch: hand-made metrics and the steps at which bits must rise."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from bitcycle.schedules import PFQ, NoiseSwitch, Plateau
from tests.bitcycle.schedules.test_adaptive import follow


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


def test_a_list_and_a_tuple_are_the_same_bits():
    for bits in ([3, 8], (3, 8)):
        assert PFQ(bits) == PFQ((3, 8))


def test_one_bit_more_after_more_than_patience_values_without_improvement():
    rule = Plateau(3, 8, window=1, patience=2)
    assert turns(rule, [1.0, 1.0, 1.0]) == []
    assert turns(rule, [1.0, 1.0, 1.0, 1.0]) == [4]
    assert turns(rule, [1.0, 1.0, 1.0, 0.5, 0.5, 0.5]) == []  # an improvement starts the count anew
    assert turns(rule, [1.0] * 12) == [4, 7, 10]


def test_without_patience_every_value_that_is_no_improvement_adds_a_bit():
    assert turns(Plateau(3, 5, window=1, patience=0), [3.0, 2.0, 2.0, 1.0, 1.5, 1.5]) == [3, 5]


def test_an_improvement_is_relative_to_the_best():
    rule = Plateau(3, 8, window=1, patience=0, threshold=0.1)
    assert turns(rule, [10.0, 9.01]) == [2]  # not below 9
    assert turns(rule, [10.0, 8.99]) == []
    assert turns(rule, [-10.0, -10.9]) == [2]  # a negative metric falls further to improve
    assert turns(rule, [-10.0, -11.1]) == []


def test_the_best_is_kept_over_a_rise():
    assert turns(Plateau(3, 8, window=1, patience=0), [1.0, 5.0, 2.0, 1.5]) == [2, 3, 4]


def test_plateau_averages_the_loss_over_a_window():
    values = [2.0, 0.0, 0.5, 1.5, 1.9, 0.3]  # means 1, 1, 1.1
    assert turns(Plateau(3, 8, window=2, patience=0), values) == [4, 6]
    assert turns(Plateau(3, 8, window=0.02, patience=0), values, total_steps=100) == [4, 6]


def test_a_validation_metric_counts_as_it_comes_whatever_the_window():
    rule = Plateau(3, 8, window=500, patience=0, on="validation")
    assert turns(rule, [1.0, 1.0]) == [2]
    assert rule.reads == ("validation",)
    assert not rule.is_due(rule.start(), 0)
    assert Plateau(3, 8).is_due(rule.start(), 0)


@pytest.mark.parametrize("patience", [0, 1, 3])
def test_it_acts_when_torch_lowers_a_learning_rate(patience):
    generator = torch.Generator().manual_seed(patience)
    values = (torch.rand(60, generator=generator) + torch.linspace(2, 1, 60)).tolist()
    parameter = torch.nn.Parameter(torch.zeros(()))
    lr = ReduceLROnPlateau(
        torch.optim.SGD([parameter], lr=1.0), factor=0.5, patience=patience, threshold=0.05, eps=0
    )
    lowered = []
    for step, value in enumerate(values):
        before = lr.get_last_lr()[0]
        lr.step(value)
        if lr.get_last_lr()[0] < before:
            lowered.append(step + 1)
    rule = Plateau(1, 32, window=1, patience=patience, threshold=0.05)
    assert turns(rule, values) == lowered[:31]
    assert lowered


def test_it_starts_at_low_and_stops_at_high():
    rule = Plateau(3, 5, window=1, patience=0)
    assert list(rule.levels) == [3, 4, 5]
    assert turns(rule, [1.0] * 10) == [2, 3]
    assert Plateau(4, 4, window=1).notes(3) == []


def noise_turns(rule, measured, total_steps=1000):
    """measured: step -> (gradient norm, noise norm)."""
    state = rule.start()
    for step, (gradient, noise) in measured.items():
        told = {"gradient_norm": gradient, "noise_norm": noise}
        state = rule.advance(state, step, told, total_steps)
    return state["turns"]


def test_it_switches_below_the_square_root_of_three():
    assert noise_turns(NoiseSwitch((4, 8)), {0: (1.74, 1.0)}) == []
    assert noise_turns(NoiseSwitch((4, 8)), {0: (1.73, 1.0)}) == [1]
    assert NoiseSwitch((4, 8)).factor == math.sqrt(3)


def test_running_means_decide_and_not_a_single_measurement():
    rule = NoiseSwitch((4, 8), every=1)
    # 2; .9 * 2 + .1 * 0 = 1.8; 1.62: below 1.732
    assert noise_turns(rule, {0: (2.0, 1.0), 1: (0.0, 1.0)}) == []
    assert noise_turns(rule, {0: (2.0, 1.0), 1: (0.0, 1.0), 2: (0.0, 1.0)}) == [3]
    # the noise is a running mean too: 1, 1.1, so sqrt(3) x 1.1 = 1.905
    assert noise_turns(rule, {0: (2.0, 1.0), 1: (1.0, 2.0)}) == [2]


def test_the_means_begin_anew_with_the_new_bits():
    rule = NoiseSwitch((4, 6, 8), every=1)
    assert noise_turns(rule, {0: (1.0, 1.0), 1: (2.0, 1.0), 2: (2.0, 1.0)}) == [1]
    assert noise_turns(rule, {0: (1.0, 1.0), 1: (1.0, 1.0)}) == [1, 2]


def test_it_looks_only_every_few_steps_and_no_more_at_the_top():
    rule = NoiseSwitch((4, 8), every=10)
    start = rule.start()
    assert [step for step in range(25) if rule.is_due(start, step)] == [0, 10, 20]
    assert noise_turns(rule, {1: (0.0, 1.0), 9: (0.0, 1.0)}) == []
    assert not rule.is_due({**start, "turns": [1]}, 10)
    assert noise_turns(rule, {0: (0.0, 1.0), 10: (0.0, 1.0)}) == [1]


def test_no_noise_is_no_reason():
    assert noise_turns(NoiseSwitch((4, 8)), {0: (0.0, 0.0)}) == []


def test_the_last_level_may_be_float32():
    rule = NoiseSwitch((4, None))
    assert (rule.low, rule.high, rule.bit_widths(10)) == (4, None, {4, None})
    assert str(rule) == "noise:4,fp32:every=50"


def test_a_run_in_which_it_cannot_switch_often_enough_is_noted():
    for total, num_notes in ((50, 1), (51, 1), (52, 0)):
        # looks after steps 0 and 50: two rises need a step 51 to show in
        assert len(NoiseSwitch((4, 6, 8), every=50).notes(total)) == num_notes
