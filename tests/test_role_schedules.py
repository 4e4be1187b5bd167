"""What each role of each layer is given, and what is refused."""

import pytest
from torch import nn

import bitcycle as bc
from tests.test_scheduler import bits_of, scheduler
from tests.toys import linears


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ({"forward": 4}, "w4a4"),
        ({"backward": 8}, "e8g8"),
        ({"forward": 4, "backward": 8}, "w4a4e8g8"),
        ({"forward": 4, "act": 6}, "w4a6"),
        ({"forward": 4, "act": None}, "w4"),
        ({"forward": 4, "act": "fp32", "error": "8"}, "w4e8"),
        ({"weight": bc.Static(5), "backward": 7, "error": 6}, "w5e6g7"),
        ({"forward": "fp32"}, "fp32"),
    ],
)
def test_roles_inherit_forward_and_backward(roles, expected):
    assert str(scheduler(**roles).precision) == expected


def test_no_role_at_all_is_an_error():
    with pytest.raises(ValueError, match="no role was given a schedule"):
        scheduler()


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"forward": 4, "weight": 8, "act": 8}, "forward= has no effect: weight= and act= cover"),
        ({"backward": 4, "error": 8, "grad": None}, "backward= has no effect: error= and grad="),
    ],
)
def test_a_schedule_that_no_role_is_left_to_is_an_error(roles, message):
    with pytest.raises(ValueError, match=message):
        scheduler(**roles)


def test_a_dict_gives_layers_schedules_of_their_own_and_later_patterns_win():
    bits = scheduler(forward={"*": "stages:3@0.5,8", "1": 8}, backward=8)
    assert {n: str(p) for n, p in bits.precision.items()} == {"0": "w3a3e8g8", "1": "w8a8e8g8"}
    for _ in range(3):
        bits.step()
    assert str(bits.precision) == "w8a8e8g8"


def test_layers_that_a_role_does_not_match_inherit():
    bits = scheduler(forward=4, weight={"0": 8}, act={nn.Linear: 6})
    assert {n: str(p) for n, p in bits.precision.items()} == {"0": "w8a6", "1": "w4a6"}
    bits = scheduler(weight={"0": 8})
    assert {n: str(p) for n, p in bits.precision.items()} == {"0": "w8", "1": "fp32"}


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"forward": {"fc": 4}}, "forward: pattern 'fc' matches no layer; layers: 0, 1"),
        ({"act": {"0": 4, "*": 8}}, "act: pattern '0' has no effect"),
        ({"act": "CR:8-3:32"}, "low .8. must be <= high .3."),
        ({"act": 0}, "from 1 to 32, got 0"),
        ({"act": {"0": "rump:3-8"}}, "unknown schedule 'rump'.*did you mean 'ramp'"),
        ({"forward": "CR:3-8:8"}, "cycles .8. must be <= total_steps .6."),
    ],
)
def test_a_mistake_in_a_schedule_is_an_error_before_bits_are_set(roles, message):
    model = bc.quantize_model(linears(4, 4, 4))
    with pytest.raises(ValueError, match=message):
        scheduler(model, **roles)
    assert bits_of(model) == ["fp32"] * 2


def test_bits_for_a_role_without_a_rule_raise_only_when_it_is_named():
    with pytest.raises(ValueError, match=r"grad=8 has no effect: SBM \(layer '0'\) has no rule"):
        scheduler(grad=8)
    with pytest.raises(ValueError, match="has no rule for grad, only for weight, act, error"):
        scheduler(backward=8, grad={"1": 8})
    assert str(scheduler(backward=8).precision) == "e8g8"
    assert str(scheduler(backward=8, grad="fp32").precision) == "e8"


@pytest.mark.parametrize("forward", [9, "CR:3-9:1", "seq(4@0.5, 12@0.9, fp32)", {"0": 4, "1": 9}])
def test_a_schedule_that_will_exceed_max_bits_is_an_error_now(forward):
    model = bc.quantize_model(linears(4, 4, 4), max_bits=8)
    with pytest.raises(ValueError, match="max_bits=8"):
        scheduler(model, total_steps=12, forward=forward)
    assert bits_of(model) == ["fp32"] * 2


def test_float32_is_not_above_max_bits():
    model = bc.quantize_model(linears(4, 4), max_bits=8)
    bits = scheduler(model, total_steps=4, forward="seq(8@0.5, fp32)", error=8, backward=16)
    for _ in range(4):
        bits.step()
    assert str(bits.precision) == "e8g16"
