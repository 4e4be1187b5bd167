"""A PrecisionScheduler with schedules that follow the training."""

import copy
import json

import pytest
import torch

import bitcycle as bc
from tests.bitcycle.toys import linears, randn

RULE = "plateau:3-5:window=1:patience=0"
LOSSES = [3.0, 2.0, 2.0, 1.0, 1.0, 0.5]  # no improvement at steps 2 and 4


def scheduler(total_steps=6, model=None, **roles):
    model = bc.quantize_model(linears(4, 4, 4)) if model is None else model
    return bc.PrecisionScheduler(model, total_steps=total_steps, **roles)


def weights(bits):
    return [(step, precision.weight) for step, precision in bits.history()]


def test_bits_rise_when_the_metric_says_so():
    model = bc.quantize_model(linears(4, 4))
    bits = scheduler(model=model, forward=RULE, backward=8)
    seen = []
    for loss in LOSSES:
        seen.append(model[0].precision.act)
        bits.step(loss)
    assert seen == [3, 3, 3, 4, 4, 5]
    assert str(bits.precision) == "w5a5e8"
    assert weights(bits) == [(0, 3), (3, 4), (5, 5)]
    assert str(bits.precision_at(3)) == "w4a4e8"
    assert bits.finished


HAND_MADE = {
    # five close windows turn: within .5 of a scale of 1, then (eps x alpha) within .05
    "pfq:3,4,6:window=1:eps=0.5:alpha=0.1": (
        [{"loss": x} for x in (0.8, 1.2, 1, 1, 1, 1.02, 0.98, 1, 1, 1, 1)],
        [(0, 3), (5, 4), (10, 6)],
    ),
    # no improvement on the best at steps 2 and 4
    RULE: ([{"loss": x} for x in LOSSES], [(0, 3), (3, 4), (5, 5)]),
    # evaluated after steps 1, 3 and 5: 1, then no better twice
    "plateau:3-5:patience=0:on=validation": (
        [{"validation": 1.0} if step % 2 else None for step in range(8)],
        [(0, 3), (4, 4), (6, 5)],
    ),
    # running means of the gradient at steps 0, 2, 4: 2, 1.8, 1.62 < sqrt(3); then anew, 1
    "noise:4,6,8:every=2": (
        [
            {"gradient_norm": g, "noise_norm": 1.0} if step % 2 == 0 else None
            for step, g in enumerate((2.0, 0, 0.0, 0, 0.0, 0, 1.0, 0))
        ],
        [(0, 4), (5, 6), (7, 8)],
    ),
}


@pytest.mark.parametrize("rule", HAND_MADE)
def test_every_rule_switches_where_it_must_wherever_it_is_resumed(rule):
    metrics, expected = HAND_MADE[rule]
    for middle in range(len(metrics)):
        bits = scheduler(len(metrics), forward=rule)
        for metric in metrics[:middle]:
            bits.step(metric)
        state = json.loads(json.dumps(bits.state_dict()))
        bits = scheduler(len(metrics), forward=rule)
        bits.load_state_dict(state)
        for metric in metrics[middle:]:
            bits.step(metric)
        assert weights(bits) == expected, middle


def test_a_state_without_the_rule_s_own_is_refused_and_nothing_changes():
    bits = scheduler(forward=RULE)
    bits.step(1.0)
    with pytest.raises(ValueError, match="plateau:3-5"):
        bits.load_state_dict({"step_count": 3})
    assert (bits.step_count, str(bits.precision)) == (1, "w3a3e8")


def test_a_missing_metric_stops_the_step():
    bits = scheduler(forward=RULE)
    with pytest.raises(ValueError, match="loss of step 0"):
        bits.step()
    assert bits.step_count == 0
    bits.step(metric=1.0)


def test_a_metric_that_no_schedule_reads_is_allowed():
    bits = scheduler(forward="CR:3-8:1")
    assert bits.needs == bits.reads == frozenset()
    for metric in (None, 1.0, float("nan"), {"loss": 2.0}, "good"):
        bits.step(metric)
    assert "adaptive" not in bits.state_dict()


def test_what_the_next_step_must_be_told_can_be_asked_for():
    bits = scheduler(forward=RULE, error="noise:4,8:every=2")
    assert bits.reads == {"loss", "gradient_norm", "noise_norm"}
    seen = []
    while not bits.finished:
        seen.append(len(bits.needs))
        bits.step({name: 4.0 if name == "gradient_norm" else 1.0 for name in bits.needs})
    assert seen == [3, 1, 3, 1, 3, 1]
    assert bits.needs == frozenset()


def test_layers_and_roles_may_follow_or_not():
    bits = scheduler(7, forward={"0": RULE, "1": 8}, backward="plateau:6-8:window=2:patience=0")
    for loss in LOSSES[:5]:
        bits.step(loss)
    assert {n: str(p) for n, p in bits.precision.items()} == {"0": "w5a5e6", "1": "w8a8e6"}


def test_the_layers_are_told_the_most_bits_before_the_first_step():
    model = bc.quantize_model(linears(4, 4))
    scheduler(model=model, forward="noise:4,7,fp32:every=1", backward=RULE)
    assert model[0].tops["weight"] == 7
    assert model[0].tops["error"] == 5


def test_a_rule_that_may_exceed_max_bits_is_an_error_now():
    model = bc.quantize_model(linears(4, 4), max_bits=4)
    with pytest.raises(ValueError, match="max_bits=4"):
        scheduler(model=model, forward=RULE)


def test_the_top_is_known_and_a_preview_and_a_cost_are_not():
    model = bc.quantize_model(linears(4, 4))
    bits = scheduler(model=model, forward="pfq:3,8:window=1", backward=8)
    assert str(bits.top) == "w8a8e8"
    with pytest.raises(ValueError, match="pfq:3,8"):
        bits.preview()
    with pytest.raises(ValueError, match="pfq:3,8"):
        bc.training_cost(model, randn(2, 4), forward="pfq:3,8", backward=8, total_steps=6)


def test_a_cost_meter_counts_what_was_not_known_before():
    model = bc.quantize_model(linears(4, 4))
    meter = bc.CostMeter(model, randn(2, 4))
    bits = scheduler(model=model, forward=RULE, backward=8)
    for loss in LOSSES:
        meter.step()
        bits.step(loss)
    # 2 samples x 16 MACs x (3 steps at 3 bits, 2 at 4, 1 at 5)
    assert meter.by_matmul()["output"] == 32 * (3 * 9 + 2 * 16 + 25)


def test_the_noise_switch_is_fed_from_collect():
    model = bc.quantize_model(linears(8, 8, 8))
    bits = bc.PrecisionScheduler(model, forward=8, backward="noise:1,8:every=2", total_steps=4)
    seen = []
    for step in range(4):
        must_measure = "noise_norm" in bits.needs
        with bc.collect(model) as statistics:
            model(randn(16, 8, seed=step)).square().sum().backward()
        norms = statistics.gradient_noise()
        rows = [statistics["0", "error"], statistics["1", "error"]]
        for name, key in (("gradient_norm", "signal_norm"), ("noise_norm", "noise_norm")):
            total = sum(getattr(row, key) ** 2 for row in rows) ** 0.5
            assert norms[name] == pytest.approx(total)
        seen.append((must_measure, model[0].precision.error))
        bits.step(norms if must_measure else None)
    assert norms["noise_norm"] < norms["gradient_norm"]  # at 8 bits
    assert seen == [(True, 1), (False, 8), (False, 8), (False, 8)]  # drowned at 1 bit, at once


def test_a_nan_is_told_with_its_layer_before_the_metric_is_looked_at():
    model = bc.quantize_model(linears(4, 4))
    bits = scheduler(model=model, forward=RULE)
    loss = model(torch.full((1, 4), float("nan"))).sum()
    with pytest.raises(bc.NonFiniteError, match="0"):
        bits.step(loss.item())


def test_a_copy_of_a_scheduler_s_state_is_not_changed_by_going_on():
    bits = scheduler(forward=RULE)
    bits.step(1.0)
    state = bits.state_dict()
    kept = copy.deepcopy(state)
    bits.step(1.0)
    assert state == kept != bits.state_dict()
