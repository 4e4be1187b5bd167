"""The precision range test in a loop of one's own: the trainings it does, and what it restores."""

import contextlib
import json
import math
import pickle
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

import bitcycle as bc
from bitcycle.range_criteria import RangeTest
from tests.bitcycle.test_snapshot import assert_same, everything
from tests.bitcycle.toys import net, randn


class Loop:
    """Digits, a small net with dropout and BatchNorm, SGD with a decaying rate."""

    def __init__(self, *, seed=0, shuffled=False, lr=0.1):
        torch.manual_seed(seed)
        digits = load_digits()
        self.images = torch.tensor(digits.data, dtype=torch.float32) / 16
        self.labels = torch.tensor(digits.target)
        if shuffled:
            self.labels = self.labels[torch.randperm(len(self.labels))]
        self.model = bc.quantize_model(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(),
                          nn.Dropout(0.1), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)),
            skip=["7"], seed=seed,
        )  # fmt: skip
        self.optimizer = SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.lr = LambdaLR(self.optimizer, lambda step: 0.99**step)
        self.bits_seen = []

    def step(self):
        picked = torch.randint(len(self.labels), (64,))
        logits = self.model(self.images[picked])
        F.cross_entropy(logits, self.labels[picked]).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.lr.step()
        self.bits_seen.append(bc.get_precision(self.model))
        return (logits.argmax(1) == self.labels[picked]).float().mean()

    def test(self, train_step=None, **changes):
        settings = {"steps_per_precision": 12, "window": 4, "metric": "accuracy", **changes}
        return bc.precision_range_test(
            self.model, train_step or self.step, restore=[self.optimizer, self.lr], **settings
        )


def scripted(values, **changes):
    """A test by the paper's criterion whose metrics are given, by bits."""
    model = bc.quantize_model(nn.Linear(2, 2))
    metrics = {bits: iter(row) for bits, row in values.items()}

    def train_step():
        value = next(metrics[bc.get_precision(model).weight])
        if isinstance(value, Exception):
            raise value
        return value

    settings = {"steps_per_precision": 4, "window": 1, "threshold": 0.2, **changes}
    return bc.precision_range_test(model, train_step, low=min(values), high=max(values), **settings)


class Script:
    """A test by the relative criterion whose losses are given: 4 for two steps, then `ends[bits]`.

    An end is a number, a pair of the losses of the last window, or a list of one of these for each
    repeat. Half of the gain at the most bits passes. `tested` lists (repeat, bits) in their order.
    """

    def __init__(self, ends, **settings):
        self.ends, self.tested, self.step, self.repeat = ends, [], 0, 0
        self.model = bc.quantize_model(nn.Linear(2, 2))
        self.settings = {
            "low": min(ends), "high": max(ends), "steps_per_precision": 4, "window": 2,
            "share": 0.5, "careful_below": 2, **settings,
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
        return torch.tensor((4.0, 4.0, *last)[self.step - 1], requires_grad=True)

    def run(self):
        return bc.precision_range_test(
            self.model, self.train_step, rewind=self.rewind, **self.settings
        )


# -- which bits are trained -----------------------------------------------------------------------


ORDERS = {  # the ends, the most repeats, the lower bound, and the bits tested in each repeat
    "down from the top, up to the first that clearly fail": (
        {8: 2.0, 7: 2.0, 6: 2.0, 5: 3.9, 4: 2.0}, 1, 6, [[8, 7, 6, 5]]
    ),
    "divergence ends a repeat": (
        {8: 2.0, 7: 2.0, 6: (math.nan, 2.0), 5: 2.0}, 1, 7, [[8, 7, 6]]
    ),
    "a decision within noise does not; 4 passes, 5 does not": (
        {8: 2.0, 7: 2.0, 6: 2.0, 5: (2.0, 4.2), 4: 2.0}, 1, 6, [[8, 7, 6, 5, 4]]
    ),
    "a second repeat tests what decides, and no third is needed": (
        {8: 2.0, 7: 2.0, 6: 2.0, 5: 2.5, 4: 3.9, 3: 2.0}, 3, 5, [[8, 7, 6, 5, 4], [8, 5, 4]]
    ),
    "a bound at the lowest bits": ({4: 2.0, 3: 2.0, 2: 2.0}, 3, 2, [[4, 3, 2], [4, 2]]),
    "gains of 1.2, 0.7, 1.2 of a needed 1: 3 bits are within noise and do not pass": (
        {4: 2.0, 3: [2.8, 3.3, 2.8], 2: 3.9}, 3, 4, [[4, 3, 2], [4, 3, 2], [4, 3]]
    ),
    "3 bits fail at first, then are within noise, and pass in the end: 2 bits are tested": (
        {4: 2.0, 3: [3.05, 2.0, 2.0, 2.0], 2: 2.0}, 4, 2, [[4, 3], [4, 3, 2], [4, 3], [4, 3]]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDERS)
def test_the_order_of_the_relative_criterion(case):
    ends, repeats, low, expected = ORDERS[case]
    script = Script(ends, repeats=repeats)
    assert script.run().low == low
    assert script.tested == [(repeat, bits) for repeat, row in enumerate(expected) for bits in row]


def test_few_bits_as_good_as_many_need_trainings_of_a_tenth_of_the_run():
    """2 and 3 bits learn as well as 4 in 4 steps, as models do that learn little in so few."""
    for total_steps, low, tested in (
        (None, 4, [5, 4, 3]),
        (41, 4, [5, 4, 3]),
        (40, 2, [5, 4, 3, 2]),
    ):
        script = Script(
            dict.fromkeys((5, 4, 3, 2), 2.0), repeats=1, careful_below=4, total_steps=total_steps
        )
        assert script.run().low == low
        assert [bits for _, bits in script.tested] == tested


def test_by_the_papers_criterion_bits_rise_to_the_first_that_pass():
    rising, flat = (0.1, 0.2, 0.3, 0.5), (0.1,) * 4
    test = scripted({2: flat, 3: rising, 4: rising})
    assert [run.bits for run in test.runs] == [2, 3]
    assert (test.low, test.high) == (3, 4)
    falling = {2: (4.0, 4.0), 3: (4.0, 3.0)}
    assert scripted(falling, steps_per_precision=2, metric="loss").low == 3
    assert scripted({2: flat, 3: rising}, criterion="paper").low == 3


def test_weights_and_activations_have_the_bits_errors_those_of_backward():
    loop = Loop()
    with contextlib.suppress(bc.RangeTestError):
        loop.test(low=3, high=4, backward=6, threshold=0.99)
    expected = [bc.Precision(weight=b, act=b, error=6) for b in (3, 4) for _ in range(12)]
    assert loop.bits_seen == expected


# -- what training starts from --------------------------------------------------------------------


def test_it_is_the_same_for_the_same_seed_and_another_for_another():
    one, same, other = (Loop(seed=seed).test(low=7, repeats=1) for seed in (1, 1, 2))
    assert one == same
    assert one != other


@pytest.mark.parametrize("changes", [{"threshold": 0.0}, {"repeats": 1, "share": 0.1}])
def test_the_first_precision_trains_like_a_static_run(changes):
    """The test's noise is that of an ordinary run: its scheduler's clock."""
    tested = Loop().test(low=4, high=4, **changes).runs[0].metric
    loop = Loop()
    bits = bc.PrecisionScheduler(loop.model, forward=4, backward=8, total_steps=12)
    metrics = []
    for _ in range(12):
        metrics.append(float(loop.step()))
        bits.step()
    assert list(tested) == metrics


def test_every_precision_starts_from_the_same_state_and_repeats_draw_other_numbers():
    loop, starts = Loop(), {}

    def train_step():
        layer = loop.model[1]
        key = (int(layer.shared.step), bc.get_precision(loop.model).weight)
        drawn = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
        starts[key] = (layer.weight.clone(), *drawn)
        return loop.step()

    loop.test(train_step, low=6, repeats=2, steps_per_precision=8)
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


def test_by_the_papers_criterion_a_precision_goes_on_where_the_last_one_ended():
    with pytest.raises(bc.RangeTestError) as caught:
        Loop().test(threshold=0.99)
    verdicts = caught.value.test.verdicts
    assert list(verdicts) == list(range(2, 9))
    assert verdicts[8].start > 0.6


@pytest.mark.parametrize("top", [2.0, 4.0])  # 4: an error, no gain at the most bits
def test_the_data_are_rewound_at_the_end(top):
    script = Script({4: top, 3: 2.0, 2: 2.0})
    with contextlib.suppress(bc.RangeTestError):
        script.run()
    assert script.tested
    assert (script.repeat, script.step) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"threshold": 0.0}, None),
        ({"repeats": 2, "low": 6}, None),
        ({"threshold": 0.99}, RuntimeError),
        ({"threshold": 0.99}, KeyboardInterrupt),
    ],
)
def test_afterwards_also_after_an_error_everything_is_as_it_was(changes, error):
    loop, steps = Loop(), iter(range(10_000))
    for _ in range(3):
        loop.step()  # so that there are momentum, ranges and an odd rate

    def train_step():
        if error is not None and next(steps) == 15:
            raise error
        return loop.step()

    before, generators = everything(loop.model), (torch.get_rng_state(), random.getstate())
    momentum = [s["momentum_buffer"].clone() for s in loop.optimizer.state.values()]
    rate, position = loop.optimizer.param_groups[0]["lr"], loop.lr.last_epoch
    with contextlib.nullcontext() if error is None else pytest.raises(error):
        loop.test(train_step, **changes)
    assert_same(everything(loop.model), before)
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    after = [s["momentum_buffer"] for s in loop.optimizer.state.values()]
    assert all(torch.equal(a, b) for a, b in zip(after, momentum, strict=True))
    assert (loop.optimizer.param_groups[0]["lr"], loop.lr.last_epoch) == (rate, position)


# -- training that fails --------------------------------------------------------------------------


def test_what_is_not_finite_counts_as_not_learning_and_ends_the_precision():
    for bad in (math.nan, math.inf, -math.inf, bc.NonFiniteError("loss is nan")):
        test = scripted({2: (0.1, bad, 0.9, 0.9), 3: (0.1, 0.2, 0.3, 0.5)})
        assert test.low == 3
        assert [len(run.metric) for run in test.runs] == [2, 4]
        assert math.isnan(test.runs[0].metric[1])


def test_weights_that_turned_nan_are_not_carried_to_more_bits():
    """The accuracy of a ruined model is finite: only its weights tell."""
    loop, starts = Loop(), {}

    def train_step():
        bits = bc.get_precision(loop.model).weight
        starts.setdefault(bits, loop.model[1].weight.clone())
        metric = loop.step()
        if bits == 2:
            with torch.no_grad():
                loop.model[1].weight.fill_(math.nan)
        return metric

    test = loop.test(train_step, high=4, chance=0.1)
    assert math.isnan(test.verdicts[2].gain)
    assert torch.equal(starts[3], starts[2])
    assert test.low == 3


def test_a_skipped_step_whose_errors_overflowed_is_not_a_failure():
    """As a GradScaler does: infinities in backward, weights untouched."""
    model = bc.quantize_model(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    metrics = iter((0.1, 0.2, 0.3, 0.5))

    def train_step():
        (model(randn(4, 2)).sum() * math.inf).backward()
        model.zero_grad()
        return next(metrics)

    settings = {"steps_per_precision": 4, "window": 1, "threshold": 0.2}
    assert bc.precision_range_test(model, train_step, low=4, high=4, **settings).low == 4


def test_training_that_diverges_for_real_does_not_kill_the_test():
    loop = Loop(lr=1e18)
    with pytest.raises(bc.RangeTestError) as caught:
        loop.test(high=4, chance=0.1)
    assert all(math.isnan(caught.value.test.verdicts[b].gain) for b in (2, 3, 4))
    assert all(bool(torch.isfinite(p).all()) for p in loop.model.parameters())


@pytest.mark.parametrize(
    ("top", "match"),
    [
        ((3.0, 4.8), "noise"),
        ((4.0, 4.0), "more steps"),
        (9.0, "4 -> 9"),
        ((math.inf, 2.0), "diverges at 8"),
    ],
)
def test_a_loss_that_does_not_fall_at_the_most_bits_is_an_error(top, match):
    script = Script({8: top, 7: 2.0})
    with pytest.raises(bc.RangeTestError, match=match) as caught:
        script.run()
    assert script.tested == [(0, 8)]  # fewer bits are not trained for nothing
    assert list(caught.value.test.verdicts) == [8]


def test_labels_that_cannot_be_learned_are_an_error_that_carries_the_test():
    with pytest.raises(bc.RangeTestError) as caught:
        Loop(shuffled=True).test(high=4, threshold=0.5)
    error = caught.value
    assert (error.test.num_steps, error.test.low) == (3 * 12, None)
    assert str(error.test) in str(error)
    with pytest.raises(ValueError, match="no precision"):
        error.test.schedule()
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.test) == (str(error), error.test)


# -- wrong calls ----------------------------------------------------------------------------------


def test_a_step_that_schedules_bits_itself_is_told_to_leave_that_out():
    loop = Loop()
    bits = bc.PrecisionScheduler(loop.model, forward="CR:3-8:2", backward=8, total_steps=100)

    def train_step():
        metric = loop.step()
        bits.step()
        return metric

    with pytest.raises(ValueError, match="PrecisionScheduler"):
        loop.test(train_step)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"chance": 0.1}, r"chance \(0\.1\).*threshold \(0\.2\)"),
        ({"threshold": None, "chance": 0.0}, r"chance \(0\.0\)"),
        ({"backward": "CR:3-8:2"}, r"backward \(CR:3-8:2\)"),
        ({"metric": "-loss"}, "-loss"),
        ({"total_steps": 0}, r"total_steps \(0\)"),
        ({"rewind": print}, "rewind"),
        ({"threshold": None, "criterion": "paper"}, "threshold"),
        ({"criterion": "relative"}, r"threshold \(0\.2\)"),
        ({"share": 0.4}, r"share \(0\.4\)"),
    ],
)
def test_settings_that_make_no_test_are_errors(wrong, match):
    with pytest.raises(ValueError, match=match):
        scripted({2: (0.1, 0.2, 0.3, 0.5)}, **wrong)


def test_bits_beyond_what_the_model_was_converted_for_are_an_error_before_training():
    model = bc.quantize_model(nn.Linear(2, 2), max_bits=4)
    steps = []
    with pytest.raises(ValueError, match="max_bits=4"):
        bc.precision_range_test(model, lambda: steps.append(1), steps_per_precision=4, backward=4)
    assert not steps
    assert bc.get_precision(model) == bc.Precision()


def test_a_step_that_returns_nothing_and_a_float_model_are_errors():
    with pytest.raises(TypeError, match="got None"):
        scripted({2: (None,) * 4})
    with pytest.raises(ValueError, match="convert it first"):
        bc.precision_range_test(net(), lambda: 0.0, steps_per_precision=4)


# -- results --------------------------------------------------------------------------------------


def test_progress_is_a_line_per_precision_without_a_warning(recwarn):
    lines = []
    Script({8: 2.0, 7: 2.1}, repeats=1, progress=lines.append).run()
    assert lines == [
        "range test  repeat 1  8 bits  loss 4 -> 2",
        "range test  repeat 1  7 bits  loss 4 -> 2.1",
    ]
    assert not recwarn.list  # the loss has a gradient


def test_a_result_survives_json_and_names_its_schedule():
    test = Script({8: 2.0, 7: 2.1, 6: 3.9}).run()
    assert RangeTest.from_dict(json.loads(json.dumps(test.to_dict(), allow_nan=False))) == test
    assert str(test.schedule(cycles=8)) == "CR:7-8:8"
