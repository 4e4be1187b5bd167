"""PrecisionScheduler with functions, lists and own classes as schedules, and its metrics."""

import json

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.schedules import Schedule
from tests.bitcycle.toys import linears, randn

STEPS = 8


class Alternate(Schedule):
    """4 bits and 8 bits in turn."""

    def bits_at(self, step, total_steps):
        return 8 if step % 2 else 4


def rise(step, total):
    return 4 + 5 * step // total


WAYS = {"function": rise, "list": [4, 5, 6, 8], "class": Alternate()}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def make(total_steps=STEPS, **roles):
    model = bc.quantize_model(linears(4, 4, 2))
    return model, bc.PrecisionScheduler(model, total_steps=total_steps, **roles)


@every_way
def test_it_drives_a_model_like_any_schedule(way):
    expected = bc.parse_schedule(way).values(STEPS)
    model, bits = make(forward=way, error=lambda step, total: 8)
    meter, seen = bc.CostMeter(model, randn(2, 4)), []
    for _ in range(STEPS):
        assert bc.audit(model)["0"].precision == str(bits.precision)
        seen.append(model[0].precision.weight)
        model(randn(2, 4)).sum().backward()
        meter.step()
        bits.step()
    assert seen == expected
    assert [bits.precision_at(step).act for step in range(STEPS)] == expected
    assert [start for start, _ in bits.history()][0] == 0
    assert bits.history()[-1][1].weight == expected[-1]
    assert str(bits.top) == str(bits.highest) == "w8a8e8"
    [preview, _] = bits.preview().values()
    assert preview.shares == bc.parse_schedule(way).preview(STEPS).shares
    cost = bc.training_cost(
        model, randn(2, 4), forward=way, error=lambda step, total: 8, total_steps=STEPS
    )
    assert meter.bitops == cost.bitops
    assert meter.cost(bits.top).relative == cost.relative < 1
    assert repr(bits)


@every_way
def test_bits_above_the_limit_of_a_layer_and_defaults_are_found_before_the_first_step(way):
    model = bc.quantize_model(linears(4, 4), max_bits=7)
    with pytest.raises(ValueError, match="max_bits=7"):
        bc.PrecisionScheduler(model, forward=way, backward=7, total_steps=STEPS)
    assert str(model[0].precision) == "fp32"
    assert str(make(forward=way)[1].precision) == "w4a4e8"  # 8 by default
    with pytest.raises(ValueError, match="backward"):
        make(forward=lambda step, total: rise(step, total) + 1)  # up to 9


@every_way
def test_a_saved_scheduler_resumes_with_the_same_bits(way):
    _, whole = make(forward=way)
    _, first = make(forward=way)
    for _ in range(STEPS):
        whole.step()
    for _ in range(3):
        first.step()
    _, second = make(forward=way)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for _ in range(STEPS - 3):
        second.step()
    assert second.history() == whole.history()
    assert second.state_dict() == whole.state_dict()


def test_another_function_is_noticed_and_named_with_the_way_out():
    _, saved = make(forward=rise)
    saved.step()
    _, other = make(forward=lambda step, total: 8 if step == 7 else 4)
    with pytest.raises(ValueError, match="weight and act.*'step_count': 1"):
        other.load_state_dict(saved.state_dict())
    assert other.step_count == 0
    other.load_state_dict({"step_count": 1})
    assert str(other.precision) == "w4a4e8"


def test_one_role_or_one_pattern_that_differs_is_noticed():
    def state(**roles):
        return make(**{"forward": rise, "backward": 8, **roles})[1].state_dict()

    for roles, named in (
        ({"act": lambda step, total: 5}, "act"),
        ({"backward": lambda step, total: 6 if step else 8}, "error"),
        ({"forward": {"*": rise, "1": lambda step, total: 8}}, "weight and act"),
    ):
        _, bits = make(forward=rise, backward=8)
        with pytest.raises(ValueError, match=f"{named}(?! and)"):
            bits.load_state_dict(state(**roles))


def test_the_same_bits_are_the_same_schedule_wherever_the_function_is_written():
    _, saved = make(forward=rise)
    for forward in (lambda step, total: rise(step, total), [4, 5, 6, 8]):
        _, bits = make(forward=forward, total_steps=STEPS)
        if isinstance(forward, list):
            with pytest.raises(ValueError, match="stages:4"):
                bits.load_state_dict(saved.state_dict())
        else:
            bits.load_state_dict(saved.state_dict())
    _, text = make(forward="stages:4@0.5,8")
    _, function = make(forward=lambda step, total: 4 if step < total / 2 else 8)
    text.load_state_dict(function.state_dict())


def test_another_number_of_steps_is_a_warning_for_functions_too():
    _, saved = make(forward=rise)
    with pytest.warns(bc.BitcycleWarning, match="total_steps 8"):
        make(forward=rise, total_steps=16)[1].load_state_dict(saved.state_dict())


def test_functions_beside_a_schedule_that_follows_the_loss_resume():
    def build():
        return make(forward="plateau:3-5:window=1:patience=0", error=lambda step, total: 8)[1]

    first, second = build(), build()
    for _ in range(4):
        first.step(1.0)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.precision == first.precision != second.precision_at(0)


def test_two_functions_of_one_line_have_a_preview_each():
    _, bits = make(forward={"*": lambda step, total: 4, "1": lambda step, total: 6}, backward=8)
    shares = [preview.shares for preview in bits.preview().values()]
    assert shares == [{4: 1.0}, {8: 1.0}, {6: 1.0}]


def test_the_state_is_computed_once_and_only_when_it_is_asked_for(monkeypatch):
    calls = []
    digest = Schedule.digest
    monkeypatch.setattr(Schedule, "digest", lambda *args: calls.append(0) or digest(*args))
    _, bits = make(forward="CR:3-8:1", backward=8)
    assert calls == []
    assert bits.state_dict() == bits.state_dict()
    assert len(calls) == 2  # the two schedules


# -- metrics --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ({"forward": 4}, {"bits/forward": 4, "bits/backward": 8}),
        ({"forward": "fp32"}, {"bits/forward": 32, "bits/backward": 32}),
        (
            {"weight": 4, "act": 6},
            {"bits/forward": 5, "bits/backward": 8, "bits/weight": 4, "bits/act": 6},
        ),
        (
            {"forward": {"*": 4, "1": "bf16"}, "backward": 8},
            {"bits/forward": 10, "bits/backward": 8, "bits/forward/*": 4, "bits/forward/1": 16},
        ),
        (
            {"forward": {nn.Linear: 4}, "weight": {"0": 8}, "backward": 6},
            {
                "bits/forward": (8 + 4 + 4 + 4) / 4,
                "bits/backward": 6,
                "bits/weight/0": 8,
                "bits/forward/Linear": 4,
            },
        ),
    ],
)
def test_metrics_are_numbers_by_pass_keyword_and_pattern(roles, expected):
    _, bits = make(**roles)
    assert bits.metrics() == expected
    assert all(type(value) is float for value in bits.metrics().values())


def test_the_keys_stay_when_bits_meet_and_another_step_can_be_asked_for():
    _, bits = make(forward={"*": "stages:4@0.5,8", "1": 8})
    seen = []
    for _ in range(STEPS):
        seen.append(bits.metrics())
        bits.step()
    assert len({tuple(row) for row in seen}) == 1
    assert [row["bits/forward/*"] for row in seen] == [4] * 4 + [8] * 4
    assert bits.metrics(step=0) == seen[0]
    assert bits.metrics() == seen[-1]  # after the last step its bits stay


def test_a_meter_adds_what_the_bits_saved():
    model, bits = make(forward="stages:4@0.5,8", backward=8)
    meter = bc.CostMeter(model, randn(2, 4))
    assert bits.metrics(meter)["cost/saved"] == 0  # nothing was done
    for _ in range(STEPS):
        meter.step()
        bits.step()
    cost = bc.training_cost(model, randn(2, 4), forward="stages:4@0.5,8", total_steps=STEPS)
    metrics = bits.metrics(meter)
    assert metrics["cost/bitops"] == cost.bitops
    assert metrics["cost/saved"] == pytest.approx(cost.saving)
    assert 0.2 < metrics["cost/saved"] < 0.5


def test_what_is_saved_is_what_training_cost_says_where_layers_differ():
    forward = {"*": "stages:4@0.5,8", "1": None}
    model, bits = make(forward=forward, backward=8)
    meter = bc.CostMeter(model, randn(2, 4))
    for _ in range(STEPS):
        meter.step()
        bits.step()
    cost = bc.training_cost(model, randn(2, 4), forward=forward, backward=8, total_steps=STEPS)
    assert bits.metrics(meter)["cost/saved"] == pytest.approx(cost.saving)


@pytest.mark.parametrize("forward", [4, {"*": 4, "0": 8}])
def test_layers_of_no_scheduler_count_at_their_own_bits(forward):
    body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model = bc.quantize_model(nn.ModuleDict({"body": body, "head": nn.Linear(4, 2)}))
    bits = bc.PrecisionScheduler(model["body"], forward=forward, backward=8, total_steps=STEPS)
    model.forward = lambda x: model["head"](model["body"](x))
    meter = bc.CostMeter(model, randn(2, 4))
    meter.step()
    bits.step()
    assert bits.metrics(meter)["cost/saved"] == 0  # the bits of the body never change


def test_metrics_of_a_role_that_nothing_rounds_do_not_count():
    model = bc.quantize_model(nn.Linear(2, 2), bc.quantizers.WAGEUBN(first_last="quantized"))
    bits = bc.PrecisionScheduler(model, forward=4, error=8, grad=16, total_steps=2)
    assert bits.metrics()["bits/backward"] == 12  # sbm above: errors alone
    torch.testing.assert_close(bits.metrics()["bits/grad"], 16.0)
