"""The relative criterion of the range test: its rules on known losses, and the rewind."""

import contextlib
import json
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.range_curves import PrecisionRun, RelativeCurve, curve_from_dict
from bitcycle.range_test import RangeTest, RelativeProgress
from tests.test_range_test import Loop
from tests.test_snapshot import assert_same, everything

START = 4.0  # the loss of the first window; L0


class Script:
    """A train_step whose losses are given: START for two steps, then `ends[bits]`.

    An end is a number, a pair of the losses of the last window, or a list of one of these for each
    repeat. Half of the drop at the most bits passes. `tested` lists (repeat, bits) in their order.
    """

    def __init__(self, ends, **settings):
        self.ends, self.tested, self.step, self.repeat = ends, [], 0, 0
        self.model = bc.quantize_model(nn.Linear(2, 2))
        self.settings = {
            "low": min(ends), "high": max(ends), "steps_per_precision": 4, "window": 2,
            "share": 0.5, **settings,
        }  # fmt: skip

    def rewind(self, repeat):
        self.repeat, self.step = repeat, 0

    def train_step(self):
        bits = bc.get_precision(self.model).weight
        if self.step == 0:
            self.tested.append((self.repeat, bits))
        end = self.ends[bits]
        end = end[self.repeat] if isinstance(end, list) else end
        last = end if isinstance(end, tuple) else (end, end)
        self.step += 1
        return (START, START, *last)[self.step - 1]

    def run(self):
        return bc.precision_range_test(
            self.model, self.train_step, rewind=self.rewind, **self.settings
        )


def test_the_bound_is_the_fewest_bits_with_half_the_drop_of_the_most_bits():
    """L0 is 4; at 8 bits the loss ends at 2: half of the drop of 2 is a loss of 3."""
    test = Script({8: 2.0, 7: 2.1, 6: 2.3, 5: 2.6, 4: 3.0, 3: 3.1, 2: 2.0}).run()
    assert test.low == 4  # a drop equal to the share passes
    assert test.high == 8
    assert test.criterion == "relative"
    assert test.threshold == 1.0
    drops = [test.curve.drop(bits) for bits in (8, 5, 4, 3)]
    assert drops == pytest.approx([2.0, 1.4, 1.0, 0.9])
    assert test.curve.relative_drop(5) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("share", "low"), [(None, 6), (0.5, 4), (0.75, 5), (0.9, 6), (1.0, 8), (0.1, 3)]
)
def test_the_share_decides(share, low):
    test = Script({8: 2.0, 7: 2.1, 6: 2.1, 5: 2.4, 4: 2.9, 3: 3.7}, share=share).run()
    assert test.low == low


def test_fewer_bits_that_pass_below_bits_that_fail_are_no_bound():
    """Unclear at 5 bits, so 4 is tested too: 4 passes, 5 does not, and the bound is 6."""
    test = Script({8: 2.0, 7: 2.0, 6: 2.0, 5: (2.0, 4.2), 4: 2.0}).run()
    assert 4 in test.curve.precisions
    assert test.curve.passes(4)
    assert not test.curve.passes(5)
    assert test.low == 6


def test_one_start_is_used_for_all_precisions():
    """Fewer bits that begin at a higher loss do not gain from that."""
    runs = (PrecisionRun(0, 8, (4.0, 4.0, 2.0, 2.0)), PrecisionRun(0, 2, (9.0, 9.0, 3.5, 3.5)))
    curve = RelativeCurve(runs=runs, window=2)
    assert curve.drop(2) == 0.5
    assert curve.lower_bound == 8


def test_it_goes_down_from_the_top_and_ends_at_the_first_bits_that_clearly_fail():
    script = Script({8: 2.0, 7: 2.0, 6: 2.0, 5: 3.9, 4: 2.0, 3: 2.0, 2: 2.0}, repeats=1)
    assert script.run().low == 6
    assert script.tested == [(0, 8), (0, 7), (0, 6), (0, 5)]


def test_a_second_repeat_tests_what_decides_and_a_third_is_not_needed():
    script = Script({8: 2.0, 7: 2.0, 6: 2.0, 5: 2.5, 4: 3.9, 3: 2.0, 2: 2.0})
    assert script.run().low == 5
    assert script.tested[5:] == [(1, 8), (1, 5), (1, 4)]


@pytest.mark.parametrize("top", [2.0, START])  # START: an error, no drop at the most bits
def test_the_data_are_rewound_at_the_end(top):
    script = Script({4: top, 3: 2.0, 2: 2.0})
    with contextlib.suppress(bc.RangeTestError):
        script.run()
    assert script.tested
    assert (script.repeat, script.step) == (0, 0)


def test_at_the_lowest_bits_a_repeat_tests_the_two_ends():
    script = Script({4: 2.0, 3: 2.0, 2: 2.0})
    assert script.run().low == 2
    assert script.tested == [(0, 4), (0, 3), (0, 2), (1, 4), (1, 2)]


def test_repeats_go_on_while_a_decision_is_within_noise():
    """At 3 bits the drops are 1.2, 0.7, 1.2 of a needed 1: the mean passes within noise."""
    script = Script({4: 2.0, 3: [2.8, 3.3, 2.8], 2: 3.9}, repeats=3)
    test = script.run()
    assert [repeat for repeat, bits in script.tested if bits == 3] == [0, 1, 2]
    assert test.curve.decision(3) == "open"
    assert test.low == 3
    # the standard deviation of 0.2, -0.3, 0.2, over the root of 3
    margin_error = test.curve._error(3, 0.5)
    assert margin_error == pytest.approx(math.sqrt((0.17 / 3 - (0.1 / 3) ** 2) * 3 / 2 / 3))
    assert "3 bits are within noise: more repeats would tell" in str(test)


def test_a_bound_that_moves_in_a_repeat_is_followed_to_fewer_bits():
    """3 bits fail at first and pass clearly on the mean of two: then 2 bits are tested."""
    script = Script({4: 2.0, 3: [3.05, 2.0, 2.0], 2: 2.0}, repeats=3)
    test = script.run()
    assert (0, 2) not in script.tested
    assert any(bits == 2 for _, bits in script.tested)
    assert test.low == 2


def test_the_error_of_one_repeat_is_that_of_the_windows():
    """Window losses 1 and 3 have variance 2: over two steps 1, and nothing from the first."""
    curve = RelativeCurve(runs=(PrecisionRun(0, 8, (9.0, 9.0, 1.0, 3.0)),), window=2)
    assert curve.drop(8) == 7.0
    assert curve.drop_error(8) == pytest.approx(1.0)


def test_noise_that_all_bits_share_does_not_blur_the_comparison():
    """The same hard batch raises both losses: differences step by step are constant."""
    runs = (PrecisionRun(0, 8, (8.0, 8.0, 1.0, 3.0)), PrecisionRun(0, 2, (8.0, 8.0, 1.5, 3.5)))
    curve = RelativeCurve(runs=runs, window=2, share=1.0)
    assert curve._error(2, 1.0) == 0
    assert curve.decision(2) == "fails"


@pytest.mark.parametrize("last", [(3.0, 4.8), (4.0, 4.0)])
def test_a_loss_that_falls_within_noise_at_the_most_bits_asks_for_more_steps(last):
    script = Script({8: last, 7: 2.0})
    with pytest.raises(bc.RangeTestError, match="within noise.*more steps per precision") as caught:
        script.run()
    assert script.tested == [(0, 8)]  # fewer bits are not trained for nothing
    assert caught.value.curve.precisions == (8,)


def test_an_accuracy_taken_for_a_loss_is_an_error_that_names_the_argument():
    with pytest.raises(bc.RangeTestError, match='the loss rose by 5.*pass metric="accuracy"'):
        Script({8: 9.0, 7: 9.0}).run()


def test_with_an_accuracy_the_rise_is_compared():
    """From 4 to 9 at 8 bits: 6.5 is half of the way."""
    test = Script({8: 9.0, 7: 6.5, 6: 6.0}, metric="accuracy").run()
    assert test.low == 7
    assert test.curve.drop(7) == 2.5
    assert str(test).splitlines()[0].split()[:5] == ["bits", "repeats", "end", "accuracy", "rise"]
    with pytest.raises(bc.RangeTestError, match='accuracy fell by 2.*pass metric="loss"'):
        Script({8: 2.0, 7: 2.0}, metric="accuracy").run()


def test_bits_that_diverge_fail_and_end_the_test():
    script = Script({8: 2.0, 7: 2.0, 6: (math.nan, 2.0), 5: 2.0})
    test = script.run()
    assert test.low == 7
    assert (0, 5) not in script.tested
    assert "no: NaN or infinity" in str(test)
    with pytest.raises(bc.RangeTestError, match="diverges at 8 bits"):
        Script({8: (math.inf, 2.0), 7: 2.0}).run()


def test_a_threshold_or_chance_selects_the_papers_criterion_and_settings_do_not_mix():
    assert Loop().test(high=3, threshold=0.0, chance=None).criterion == "paper"
    for changes, message in (
        ({"criterion": "relative", "chance": 0.1}, "chance is a setting of the paper criterion"),
        ({"criterion": "paper", "share": 0.4}, "share, rewind are settings of the relative"),
        ({"threshold": 0.2, "share": None}, "rewind is a setting of the relative criterion"),
        ({"criterion": "best"}, r"criterion \('best'\) must be 'relative' or 'paper'"),
        ({"metric": "-loss"}, r"metric \('-loss'\) must be 'loss'.*or 'accuracy'"),
        ({"share": 0.0}, r"share \(0\.0\) must be greater than 0 and at most 1"),
        ({"repeats": 0}, r"repeats \(0\) must be at least 1"),
        ({"window": 1}, r"window \(1\) must be at least 2 steps"),
        ({"window": 3}, r"steps_per_precision \(4\) must be at least 2 x window \(3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            Script({8: 2.0}, **changes).run()


def test_the_papers_criterion_takes_a_loss_when_told_so():
    model = bc.quantize_model(nn.Linear(2, 2))
    losses = {2: iter((4.0, 4.0)), 3: iter((4.0, 3.0))}
    test = bc.precision_range_test(
        model, lambda: next(losses[bc.get_precision(model).weight]), low=2, high=3,
        steps_per_precision=2, window=1, threshold=0.5, metric="loss",
    )  # fmt: skip
    assert (test.low, test.curve.name, test.curve.gain(3)) == (3, "-loss", 1.0)


def test_every_precision_starts_from_the_same_state_and_repeats_draw_other_numbers():
    loop, starts = Loop(), {}

    def train_step():
        bits = bc.get_precision(loop.model).weight
        layer = loop.model[1]
        key = (int(layer.shared.step), bits)
        drawn = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
        starts[key] = (layer.weight.clone(), *drawn)
        return loop.step()

    before, state = everything(loop.model), torch.get_rng_state()
    bc.precision_range_test(
        loop.model, train_step, restore=[loop.optimizer, loop.lr], low=6, high=8, repeats=2,
        steps_per_precision=8, window=4, metric="accuracy",
    )  # fmt: skip
    assert_same(everything(loop.model), before)
    assert torch.equal(torch.get_rng_state(), state)
    for step, repeat in ((0, 0), (8, 1)):  # the noise of repeat 1 is that of the next 8 steps
        tested = [bits for number, bits in starts if number == step]
        for bits in tested:
            weight, drawn, python, numpy = starts[step, bits]
            assert torch.equal(weight, starts[0, 8][0])
            assert torch.equal(drawn, starts[step, 8][1])
            assert (python, numpy) == starts[step, 8][2:]
        assert len(tested) >= 2 - repeat
    assert not torch.equal(starts[0, 8][1], starts[8, 8][1])
    assert starts[0, 8][2] != starts[8, 8][2]


def test_the_printed_result_says_what_was_rewound():
    """A user's own data is rewound by `restore` or `rewind` only."""
    note = "only what `restore` covers was rewound before each precision"
    assert note not in str(Script({8: 2.0, 7: 2.0}).run())
    test = Loop().test(
        low=7, chance=None, metric="accuracy", steps_per_precision=16, window=4, repeats=1
    )
    assert note in str(test)
    assert test.reset


def test_precisions_above_the_bound_are_not_needed():
    test = Script({8: 2.0, 7: 2.1, 6: 2.5, 5: 3.9}, repeats=1).run()
    assert str(test).splitlines() == [
        "bits  repeats  end loss         drop  share of 8 bits'  share >= 0.5",
        "----  -------  --------  -----------  ----------------  ----------------",
        "   5        1      3.90  0.10 ± 0.00       0.05 ± 0.00  no",
        "   6        1      2.50  1.50 ± 0.00       0.75 ± 0.00  yes: lower bound",
        "   7        1      2.10  1.90 ± 0.00       0.95 ± 0.00  not needed",
        "   8        1      2.00  2.00 ± 0.00              1.00  not needed",
        "",
        "lower bound 6, upper bound 8",
    ]


def test_a_result_survives_strict_json_and_an_old_one_is_the_papers():
    test = Script({8: 2.0, 7: 2.1, 6: (math.nan, 1.0)}).run()
    text = json.dumps(test.to_dict(), allow_nan=False)
    again = RangeTest.from_dict(json.loads(text))
    assert again.to_dict() == test.to_dict()
    assert (again.low, again.criterion, again.rewinds_data) == (7, "relative", True)
    old = {"name": "accuracy", "window": 1, "threshold": 0.2, "bits": [2, 2], "metric": [0.1, 0.9]}
    assert curve_from_dict(old).criterion == "paper"


def test_progress_is_a_line_per_precision():
    lines = []
    Script({8: 2.0, 7: 2.1}, repeats=1, progress=lines.append).run()
    assert [(line.run.bits, line.run.repeat) for line in lines] == [(8, 0), (7, 0)]
    line = str(RelativeProgress(PrecisionRun(1, 3, (4.0, 4.0, 2.0, 2.5)), 2, "loss", 1.23))
    assert line == "range test  repeat 2  3 bits  loss 4 -> 2.25  4 steps in 1.2 s"


def test_the_window_is_a_quarter_of_the_steps_unless_given():
    script = Script({8: 2.0}, window=None, steps_per_precision=4, repeats=1)
    assert script.run().curve.window == 2  # at least two


def test_a_loss_with_a_gradient_is_taken_without_a_warning(recwarn):
    script = Script({8: 2.0, 7: 2.0}, repeats=1)
    step = script.train_step
    script.train_step = lambda: torch.tensor(step(), requires_grad=True)
    assert script.run().low == 7
    assert not recwarn.list
