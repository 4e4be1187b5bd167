"""The precision range test in a loop of one's own by the paper's criterion, and its curve."""

import functools
import json
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

import bitcycle as bc
from bitcycle.data import load_images
from bitcycle.range_curves import RangeCurve
from bitcycle.range_test import RangeProgress, RangeTest
from tests.test_snapshot import assert_same, everything
from tests.toys import net, randn


class Loop:
    """Digits, a small net with dropout and BatchNorm, SGD with a decaying rate."""

    def __init__(self, *, seed=0, shuffled=False, lr=0.1):
        torch.manual_seed(seed)
        data = load_images("digits").train
        self.images, self.labels = data.fetch(range(len(data)), None)
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

    def test(self, **changes):
        settings = {"steps_per_precision": 12, "window": 4, "chance": 0.1, **changes}
        return bc.precision_range_test(
            self.model, self.step, restore=[self.optimizer, self.lr], **settings
        )


@functools.cache
def on_digits():
    """The whole test, once."""
    return Loop().test()


def test_on_digits_the_lower_bound_is_what_the_curve_says():
    test = on_digits()
    curve = test.curve
    assert curve.bits == tuple(bits for bits in range(2, 9) for _ in range(12))
    gains = {b: curve.gain(b) for b in curve.precisions}
    assert test.low == next(b for b in gains if gains[b] > 0.2)
    assert all(gains[b] <= 0.2 for b in gains if b < test.low)
    assert test.threshold == 0.2
    assert test.high == 8
    assert max(curve.metric) > 0.8  # it did learn


def test_weights_and_activations_have_the_bits_errors_those_of_backward():
    loop = Loop()
    loop.test(low=3, high=4, backward=6, threshold=0.0, chance=None)
    expected = [bc.Precision(weight=b, act=b, error=6) for b in (3, 4) for _ in range(12)]
    assert loop.bits_seen == expected


def test_it_is_the_same_for_the_same_seed_and_another_for_another():
    settings = {"high": 3, "threshold": 0.0, "chance": None}
    one, same, other = (Loop(seed=seed).test(**settings) for seed in (1, 1, 2))
    assert one == same
    assert one.curve != other.curve


def test_the_first_precision_trains_like_a_static_run():
    """The test's noise is that of an ordinary run: its scheduler's clock."""
    tested = Loop().test(low=4, high=4, threshold=0.0, chance=None).curve.metric
    loop = Loop()
    bits = bc.PrecisionScheduler(loop.model, forward=4, backward=8, total_steps=12)
    metrics = []
    for _ in range(12):
        metrics.append(float(loop.step()))
        bits.step()
    assert list(tested) == metrics


@pytest.mark.parametrize("reset", [False, True])
def test_afterwards_everything_is_as_it_was(reset):
    loop = Loop()
    for _ in range(3):
        loop.step()  # so that there are momentum, ranges and an odd rate
    before, random = everything(loop.model), torch.get_rng_state()
    momentum = [s["momentum_buffer"].clone() for s in loop.optimizer.state.values()]
    rate, position = loop.optimizer.param_groups[0]["lr"], loop.lr.last_epoch
    loop.test(reset=reset, high=4, threshold=0.0, chance=None)
    assert_same(everything(loop.model), before)
    assert torch.equal(torch.get_rng_state(), random)
    after = [s["momentum_buffer"] for s in loop.optimizer.state.values()]
    assert all(torch.equal(a, b) for a, b in zip(after, momentum, strict=True))
    assert (loop.optimizer.param_groups[0]["lr"], loop.lr.last_epoch) == (rate, position)


@pytest.mark.parametrize("error", [RuntimeError("the disk is gone"), KeyboardInterrupt()])
def test_also_after_an_error_everything_is_as_it_was(error):
    loop = Loop()
    before, random = everything(loop.model), torch.get_rng_state()
    steps = iter(range(20))

    def train_step():
        metric = loop.step()
        if next(steps) == 15:
            raise error
        return metric

    with pytest.raises(type(error)):
        bc.precision_range_test(
            loop.model, train_step, restore=[loop.optimizer, loop.lr],
            steps_per_precision=12, window=4, chance=0.1,
        )  # fmt: skip
    assert_same(everything(loop.model), before)
    assert torch.equal(torch.get_rng_state(), random)
    assert not loop.optimizer.state
    assert loop.lr.last_epoch == 0


def test_labels_that_cannot_be_learned_are_an_error_that_carries_the_curve():
    loop = Loop(shuffled=True)
    before = everything(loop.model)
    with pytest.raises(bc.RangeTestError, match="does not learn at 2 to 8 bits") as caught:
        loop.test(chance=None, threshold=0.5)
    curve = caught.value.curve
    assert len(curve.metric) == 7 * 12
    assert curve.first_passing is None
    assert str(curve) in str(caught.value)
    assert_same(everything(loop.model), before)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.curve) == (str(caught.value), curve)


def test_learning_that_is_spread_over_the_precisions_is_told_from_none():
    rising = {bits: (0.1 * bits, 0.1 * bits + 0.05) for bits in (2, 3, 4, 5)}
    settings = {"steps_per_precision": 2, "threshold": 0.2}
    with pytest.raises(bc.RangeTestError, match=r"all precisions the gain is 0\.35"):
        scripted(rising, **settings)
    with pytest.raises(bc.RangeTestError, match="check the learning rate and the data"):
        scripted(rising, **settings, reset=True)  # each began anew: nothing adds up
    with pytest.raises(bc.RangeTestError, match="check the learning rate and the data"):
        scripted({2: (0.1, 0.1), 3: (0.1, 0.1)}, **settings)


def test_learning_within_the_first_window_is_told_from_none():
    quick = {2: (0.1, 0.9, 0.9, 0.9), 3: (0.9,) * 4}
    with pytest.raises(bc.RangeTestError, match="first window of 2 steps.*shorter window"):
        scripted(quick, steps_per_precision=4, window=2, threshold=0.42)


def test_with_reset_every_precision_begins_at_the_same_state_and_draws():
    """Only the bits differ then: from 12 bits on the first metric is the float model's."""
    loop = Loop()
    starts = []

    def train_step():
        starts.append((loop.model[1].weight.clone(), torch.get_rng_state()))
        return loop.step()

    bc.precision_range_test(
        loop.model, train_step, restore=[loop.optimizer, loop.lr], low=2, high=4,
        steps_per_precision=4, window=2, threshold=0.0, reset=True,
    )  # fmt: skip
    for other in (starts[4], starts[8]):
        assert torch.equal(other[0], starts[0][0])
        assert torch.equal(other[1], starts[0][1])
    assert not torch.equal(starts[1][0], starts[0][0])


def test_without_reset_a_precision_goes_on_where_the_last_one_ended():
    curve = on_digits().curve
    ends = [curve.end(b) for b in curve.precisions]
    assert curve.start(8) > 0.6
    assert ends[-1] > ends[0]


def test_it_stops_at_the_lower_bound_when_asked_to():
    whole, short = on_digits(), Loop().test(stop_early=True)
    assert short.curve.precisions[-1] == short.low == whole.low
    assert short.curve.metric == whole.curve.metric[: len(short.curve.metric)]
    assert short.high == 8


def test_the_upper_bound_is_found_when_asked_for():
    test = Loop().test(find_upper=True)
    assert test.high == test.curve.upper_bound < 8


def scripted(values, **changes):
    """A test whose metrics are given, by bits."""
    model = bc.quantize_model(nn.Linear(2, 2))
    metrics = {bits: iter(row) for bits, row in values.items()}
    settings = {"steps_per_precision": 4, "window": 1, "threshold": 0.2, **changes}

    def train_step():
        value = next(metrics[bc.get_precision(model).weight])
        if isinstance(value, Exception):
            raise value
        return value

    low, high = min(values), max(values)
    return bc.precision_range_test(model, train_step, low=low, high=high, **settings)


def test_what_is_not_finite_counts_as_not_learning_and_ends_the_precision():
    for bad in (math.nan, math.inf, -math.inf, bc.NonFiniteError("loss is nan")):
        test = scripted({2: (0.1, bad, 0.9, 0.9), 3: (0.1, 0.2, 0.3, 0.5)})
        assert test.low == 3
        assert test.curve.bits == (2, 2, 3, 3, 3, 3)
        assert math.isnan(test.curve.metric[1])


def test_weights_that_turned_nan_are_not_carried_to_more_bits():
    """The accuracy of a ruined model is finite: only its layers tell."""
    loop = Loop()
    starts = {}

    def train_step():
        bits = bc.get_precision(loop.model).weight
        starts.setdefault(bits, loop.model[1].weight.clone())
        metric = loop.step()
        if bits == 2:
            with torch.no_grad():
                loop.model[1].weight.fill_(math.nan)
            loop.model(loop.images[:8])  # here it reaches a quantized layer
        return metric

    test = bc.precision_range_test(
        loop.model, train_step, restore=[loop.optimizer, loop.lr], low=2, high=4,
        steps_per_precision=12, window=4, chance=0.1,
    )  # fmt: skip
    assert math.isnan(test.curve.gain(2))
    assert torch.equal(starts[3], starts[2])
    assert test.low == 3


def test_weights_that_turn_nan_in_the_last_step_count_against_those_bits():
    model = bc.quantize_model(nn.Linear(2, 2))
    metrics = {2: iter((0.1, 0.9)), 3: iter((0.1, 0.9))}

    def train_step():
        bits = bc.get_precision(model).weight
        metric = next(metrics[bits])
        if bits == 2 and metric == 0.9:
            with torch.no_grad():
                model.weight.fill_(math.nan)
        return metric

    test = bc.precision_range_test(
        model, train_step, low=2, high=3, steps_per_precision=2, window=1, threshold=0.2
    )
    assert test.low == 3


def test_a_skipped_step_whose_errors_overflowed_is_not_a_failure():
    """As a GradScaler does: infinities in backward, weights untouched."""
    model = bc.quantize_model(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    metrics = iter((0.1, 0.2, 0.3, 0.5))

    def train_step():
        (model(randn(4, 2)).sum() * math.inf).backward()
        model.zero_grad()
        return next(metrics)

    test = bc.precision_range_test(
        model, train_step, low=4, high=4, steps_per_precision=4, window=1, threshold=0.2
    )
    assert test.low == 4


def test_training_that_diverges_for_real_does_not_kill_the_test():
    loop = Loop(lr=1e18)
    with pytest.raises(bc.RangeTestError) as caught:
        loop.test(high=4)
    assert all(math.isnan(caught.value.curve.gain(b)) for b in (2, 3, 4))
    assert all(bool(torch.isfinite(p).all()) for p in loop.model.parameters())


def test_a_step_that_schedules_bits_itself_is_told_to_leave_that_out():
    loop = Loop()
    bits = bc.PrecisionScheduler(loop.model, forward="CR:3-8:2", backward=8, total_steps=100)

    def train_step():
        metric = loop.step()
        bits.step()
        return metric

    with pytest.raises(ValueError, match="train_step changed the bits.*PrecisionScheduler"):
        bc.precision_range_test(
            loop.model, train_step, steps_per_precision=4, window=2, threshold=0.1
        )


def test_settings_that_make_no_test_are_errors():
    for changes, message in (
        ({"chance": 0.1}, r"exactly one of chance \(0\.1\).*threshold \(0\.2\)"),
        ({"threshold": None, "criterion": "paper"}, r"exactly one of chance \(None\)"),
        ({"threshold": -1.0}, r"threshold \(-1\.0\) must be a number of at least 0"),
        ({"threshold": math.nan}, r"threshold \(nan\)"),
        ({"threshold": None, "chance": 0.0}, r"chance \(0\.0\) must be greater than 0"),
        ({"window": 0}, r"window \(0\) must be at least 1"),
        ({"window": 3}, r"steps_per_precision \(4\) must be at least 2 x window \(3\)"),
        ({"backward": "CR:3-8:2"}, r"backward \(CR:3-8:2\) must be a number of bits"),
        ({"find_upper": True, "stop_early": True}, "drop stop_early"),
    ):
        with pytest.raises(ValueError, match=message):
            scripted({2: (0.1, 0.2, 0.3, 0.5)}, **changes)


def test_bits_in_the_wrong_order_are_an_error():
    model = bc.quantize_model(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"low \(8\) must be <= high \(2\)"):
        bc.precision_range_test(
            model, lambda: 0.0, low=8, high=2, steps_per_precision=4, window=1, threshold=0.1
        )


def test_bits_beyond_what_the_model_was_converted_for_are_an_error_before_training():
    model = bc.quantize_model(nn.Linear(2, 2), max_bits=4)
    steps = []
    with pytest.raises(ValueError, match="max_bits=4"):
        bc.precision_range_test(
            model, lambda: steps.append(1), steps_per_precision=4, window=1, threshold=0.1,
            backward=4,
        )  # fmt: skip
    assert not steps
    assert bc.get_precision(model) == bc.Precision()


def test_a_step_that_returns_nothing_is_told_what_to_return():
    with pytest.raises(TypeError, match="train_step must return the metric as a number, got None"):
        scripted({2: (None,) * 4})


def test_a_float_model_is_told_to_convert_first():
    with pytest.raises(ValueError, match="convert it first"):
        bc.precision_range_test(net(), lambda: 0.0, steps_per_precision=4, window=1, threshold=0.1)


def test_progress_comes_a_few_times_per_precision_and_reads_as_a_line():
    moments = []
    scripted({2: (0.1,) * 20, 3: (0.1, *(0.9,) * 19)}, steps_per_precision=20, window=2,
             progress=moments.append)  # fmt: skip
    assert [m.step for m in moments] == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    assert [m.bits for m in moments] == [2] * 5 + [3] * 5
    assert moments[-1].seconds_left == 0
    line = str(RangeProgress(3, 24, 40, "accuracy", 0.5, 12.4))
    assert line == "range test  3 bits  step 24/40  accuracy 0.5  at most 12 s left"


def test_a_result_survives_json_and_names_its_schedule():
    test = scripted({2: (0.1,) * 4, 3: (0.1, 0.2, 0.3, 0.5), 4: (0.5,) * 4})
    assert RangeTest.from_dict(json.loads(json.dumps(test.to_dict(), allow_nan=False))) == test
    assert str(test.schedule(cycles=8)) == "CR:3-4:8"
    assert str(test).endswith("lower bound 3, upper bound 4")


NAN = math.nan
CURVE = RangeCurve(
    bits=(2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5),
    metric=(10, 12, 12, 10, 10, 14, 50, 54, 60, 64, 78, 82, 80, 80, 84, 84),
    window=2,
    threshold=20,
    name="accuracy",
)


def test_the_gain_is_the_last_window_minus_the_first():
    assert [CURVE.gain(bits) for bits in (2, 3, 4, 5)] == [0, 40, 18, 4]  # (50+54)/2 - (10+14)/2


def test_the_lower_bound_is_the_first_precision_whose_gain_exceeds_the_threshold():
    assert CURVE.first_passing == 3
    assert not CURVE.passes(2)


def test_a_gain_equal_to_the_threshold_does_not_pass():
    curve = RangeCurve(bits=(2, 2), metric=(0.0, 20.0), window=1, threshold=20)
    assert curve.first_passing is None
    assert curve.upper_bound is None


def test_the_upper_bound_is_where_more_bits_add_less_than_the_threshold():
    """Ends: 52 at 3 bits, 80 at 4 (+28), 84 at 5 (+4)."""
    assert CURVE.upper_bound == 4


def test_without_an_end_of_the_rise_the_upper_bound_is_the_last_precision():
    curve = RangeCurve(bits=(2, 2, 3, 3), metric=(0, 30, 40, 60), window=1, threshold=20)
    assert curve.upper_bound == 3


def test_nan_anywhere_at_a_precision_means_that_it_does_not_pass():
    curve = RangeCurve(
        bits=(2, 2, 2, 3, 3, 3), metric=(0, NAN, 90, 0, 10, 50), window=1, threshold=20
    )
    assert math.isnan(curve.gain(2))
    assert not curve.passes(2)
    assert curve.first_passing == 3


def test_more_bits_that_diverge_add_nothing():
    curve = RangeCurve(bits=(2, 2, 3), metric=(0, 50, NAN), window=1, threshold=20)
    assert curve.upper_bound == 2


def test_window_means_do_not_reach_into_the_precision_before():
    assert CURVE.window_means()[:6] == (10, 11, 12, 11, 10, 12)


def test_a_curve_survives_strict_json():
    curve = RangeCurve(
        bits=(2, 2, 3), metric=(0.1, NAN, 0.5), window=1, threshold=0.2, name="accuracy"
    )
    text = json.dumps(curve.to_dict(), allow_nan=False)
    assert RangeCurve.from_dict(json.loads(text)) == curve
    assert json.loads(text)["gains"] == {"2": None, "3": 0.0}
    assert json.loads(text)["steps"] == [0, 1, 2]


def test_the_table_shows_every_precision_and_marks_the_lower_bound():
    assert str(CURVE).splitlines() == [
        "bits  steps  start    end    gain  gain > 20",
        "----  -----  -----  -----  ------  ----------------",
        "   2      4  11.00  11.00   +0.00  no",
        "   3      4  12.00  52.00  +40.00  yes: lower bound",
        "   4      4  62.00  80.00  +18.00  not needed",
        "   5      4  80.00  84.00   +4.00  not needed",
    ]


def test_the_table_says_where_it_diverged():
    curve = RangeCurve(bits=(2, 2), metric=(0.1, NAN), window=1, threshold=0.2)
    assert str(curve).splitlines()[-1].split() == ["2", "2", "-", "-", "-", "no:", "NaN", "or",
                                                   "infinity"]  # fmt: skip


def test_what_is_no_curve_is_an_error():
    for changes, message in (
        ({"metric": (1.0,)}, r"as many bits \(16\) as metrics \(1\)"),
        ({"bits": tuple(reversed(CURVE.bits))}, "must not fall"),
        ({"window": 0}, r"window \(0\) must be at least 1"),
    ):
        data = {"bits": CURVE.bits, "metric": CURVE.metric, "window": 2, "threshold": 20, **changes}
        with pytest.raises(ValueError, match=message):
            RangeCurve(**data)
