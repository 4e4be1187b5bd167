"""The states of the adaptive schedules of a run: what they are told, what is refused, resuming."""

import json

import numpy as np
import pytest
import torch

from bitcycle.schedules import parse_schedule
from bitcycle.schedules.adaptive_states import AdaptiveStates

PLATEAU = parse_schedule("plateau:3-8:window=1:patience=0")
VALIDATION = parse_schedule("plateau:3-8:patience=0:on=validation")
NOISE = parse_schedule("noise:4,8:every=2")


def states_of(*rules, total_steps=10):
    return AdaptiveStates(rules, total_steps)


def test_rules_that_read_one_thing_take_a_plain_number():
    states = states_of(PLATEAU, parse_schedule(8))
    for step in range(3):
        states.tell(step, 1.0)
    assert [states.bits_at(PLATEAU, step) for step in range(4)] == [3, 3, 4, 5]


@pytest.mark.parametrize(
    "value", [1, 1.0, np.float32(1), np.array(1.0), torch.tensor(1.0), torch.ones(1)]
)
def test_all_kinds_of_one_number_are_one(value):
    states = states_of(PLATEAU)
    states.tell(0, value)
    states.tell(1, {"loss": value})
    assert states.bits_at(PLATEAU, 2) == 4


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (None, r"was not told the loss of step 0; pass it as a number: .*metric=loss.item\(\)"),
        ({}, "was not told the loss of step 0"),
        ({"loss": None}, "was not told the loss of step 0"),
        ({"accuracy": 1.0}, "was not told the loss of step 0"),
        (float("nan"), "the loss of step 0 is nan: an adaptive schedule cannot follow it"),
        (torch.tensor(float("inf")), "the loss of step 0 is inf"),
        ("1.0", r"the loss of step 0 must be a number, got '1.0' \(str\)"),
        (True, r"must be a number, got True \(bool\)"),
        ([1.0], r"must be a number, got \[1.0\] \(list\)"),
        (torch.ones(2), r"must be a number, got tensor\(\[1., 1.\]\) \(Tensor\)"),
    ],
)
def test_what_cannot_be_followed_is_an_error_that_changes_nothing(metric, message):
    states = states_of(PLATEAU)
    before = states.state_dict()
    with pytest.raises(ValueError, match=message):
        states.tell(0, metric)
    assert states.state_dict() == before
    assert states.num_told == 0


def test_rules_that_read_several_things_want_them_by_name():
    states = states_of(PLATEAU, NOISE)
    assert states.needs(0) == {"loss", "gradient_norm", "noise_norm"}
    assert states.needs(1) == {"loss"}
    with pytest.raises(ValueError, match="read gradient_norm and loss and noise_norm; pass a dict"):
        states.tell(0, 1.0)
    with pytest.raises(ValueError, match="noise:4,8.* the gradient_norm and noise_norm of step 0"):
        states.tell(0, {"loss": 1.0})
    states.tell(0, {"loss": 1.0, "gradient_norm": 1.0, "noise_norm": 1.0})
    states.tell(1, {"loss": 1.0})
    assert (states.bits_at(NOISE, 1), states.bits_at(PLATEAU, 2)) == (8, 4)


def test_what_is_measured_now_and_then_may_be_left_out():
    states = states_of(VALIDATION)
    assert states.needs(0) == frozenset()
    assert states.reads == {"validation"}
    for step, metric in enumerate([None, {"validation": 1.0}, None, {"validation": 1.0}, None]):
        states.tell(step, metric)
    assert [states.bits_at(VALIDATION, step) for step in range(6)] == [3, 3, 3, 3, 4, 4]
    with pytest.raises(ValueError, match="the validation of step 5 is nan"):
        states.tell(5, {"validation": float("nan")})


def test_names_that_nobody_reads_are_not_looked_at():
    states = states_of(PLATEAU)
    states.tell(0, {"loss": 1.0, "accuracy": "high"})
    assert states.num_told == 1


def test_after_the_last_step_the_bits_are_held():
    states = states_of(PLATEAU, total_steps=2)
    states.tell(0, 1.0)
    states.tell(1, 1.0)
    assert [states.bits_at(PLATEAU, step) for step in range(2)] == [3, 3]
    with pytest.raises(ValueError, match="not told the loss"):
        states_of(PLATEAU, total_steps=1).tell(0, None)


def test_steps_to_come_have_no_bits_yet():
    with pytest.raises(ValueError, match="bits of step 1 are not known at step 0: plateau"):
        states_of(PLATEAU).bits_at(PLATEAU, 1)


def test_a_state_is_plain_data_of_its_own():
    states = states_of(PLATEAU, NOISE)
    saved = states.state_dict()
    assert json.loads(json.dumps(saved)) == saved
    saved[str(PLATEAU)]["turns"].append(1)
    assert states.state_dict()[str(PLATEAU)]["turns"] == []
    other = states_of(PLATEAU, NOISE)
    other.load_state_dict(saved, 2)
    saved[str(PLATEAU)]["turns"].append(2)
    assert other.bits_at(PLATEAU, 2) == 4


def test_a_saved_run_without_the_state_of_a_rule_is_an_error():
    states = states_of(PLATEAU)
    for saved in (None, {}, {"pfq:3,8": {}}):
        with pytest.raises(ValueError, match="no state of plateau:3-8.* at step 4 follow"):
            states.load_state_dict(saved, 4)
    states.load_state_dict(None, 0)  # at the beginning there is nothing to know
    assert states.bits_at(PLATEAU, 0) == 3


def test_without_an_adaptive_schedule_there_is_nothing_to_keep():
    states = states_of(parse_schedule("CR:3-8:2"))
    assert not states
    states.load_state_dict(None, 5)
    assert (states.state_dict(), states.reads) == ({}, frozenset())
