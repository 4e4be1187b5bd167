"""Adaptive schedules: bounds, rises that are never taken back, windows, states, errors."""

import copy
import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.bits import order
from bitcycle.schedules import PFQ, Adaptive, NoiseSwitch, Plateau, parse_schedule
from bitcycle.schedules.adaptive import AdaptiveStates, add_to_window, window_steps
from bitcycle.schedules.base import check_levels

levels = st.lists(st.none() | st.integers(1, 32), min_size=2, max_size=6).map(
    lambda bits: tuple(sorted(bits, key=order))
)
windows = st.integers(1, 5) | st.floats(0.001, 1.0)
numbers = st.floats(1e-6, 1.0)
rules = st.one_of(
    st.builds(PFQ, levels, window=windows, eps=numbers, alpha=numbers),
    st.builds(
        lambda ends, **rest: Plateau(*sorted(ends), **rest),
        st.tuples(st.integers(1, 32), st.integers(1, 32)),
        window=windows,
        patience=st.integers(0, 3),
        threshold=st.floats(0.0, 0.9),
        on=st.sampled_from(["loss", "validation"]),
    ),
    st.builds(NoiseSwitch, levels, every=st.integers(1, 5), factor=st.floats(0.1, 10.0)),
)
metrics = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=60)


def follow(rule, values, total_steps=100):
    """The states after each value, the first before any."""
    states = [rule.start()]
    for step, value in enumerate(values):
        told = dict.fromkeys(rule.reads, value)
        if "noise_norm" in told:
            told["noise_norm"] = 1.0
        states.append(rule.advance(copy.deepcopy(states[-1]), step, told, total_steps))
    return states


@given(rule=rules, values=metrics)
def test_bits_stay_within_their_bounds_and_never_fall(rule, values):
    states = follow(rule, values)
    bits = [rule.bits_of(state, step) for step, state in enumerate(states)]
    assert all(order(rule.low) <= order(b) <= order(rule.high) for b in bits)
    assert [order(b) for b in bits] == sorted(order(b) for b in bits)
    # what a later state says of an earlier step is what that step had
    assert [rule.bits_of(states[-1], step) for step in range(len(bits))] == bits


@given(rule=rules, values=metrics)
def test_a_rule_rises_by_one_level_at_a_time_and_its_states_pass_the_check(rule, values):
    states = follow(rule, values)
    counts = [rule.level_of(state) for state in states]
    assert all(b - a in (0, 1) for a, b in zip(counts, counts[1:], strict=False))
    for state in states:
        assert rule.check_state(copy.deepcopy(state)) == state


@given(rule=rules)
def test_text_gives_an_equal_rule_back(rule):
    assert parse_schedule(str(rule)) == rule


@given(rule=rules, values=metrics)
def test_advancing_leaves_the_state_it_was_given_alone(rule, values):
    state = rule.start()
    for step, value in enumerate(values):
        before = copy.deepcopy(state)
        after = rule.advance(state, step, {**dict.fromkeys(rule.reads, value)}, 100)
        assert state == before
        state = after


def test_only_step_0_is_known_ahead():
    rule = PFQ((3, 8))
    assert isinstance(rule, Adaptive)
    assert rule(0, 100) == 3
    with pytest.raises(ValueError, match="pfq:3,8"):
        rule(1, 100)
    assert rule.bit_widths(100) == {3, 8}


def test_a_rule_is_no_part_of_another_schedule():
    for outer in ("seq({}@0.5, 8)", "delay@0.5({})"):
        for rule in ("pfq:3,8", "plateau:3-8", "noise:4,8"):
            with pytest.raises(ValueError, match=rule):
                parse_schedule(outer.format(rule))


def test_levels_are_checked():
    for bits, value in (
        ((8,), "8"),
        (8, "8"),
        ((8, 3), "8,3"),
        ((None, 8), "fp32,8"),
        ((3, 33), "33"),
    ):
        with pytest.raises(ValueError, match=value):
            check_levels(bits)


def test_an_error_in_a_text_points_at_the_character():
    for text, at, named in (
        ("pfq", 3, "':'"),
        ("pfq:3", 0, "pfq"),
        ("pfq:3,8:windw=4", 8, "did you mean 'window'"),
        ("pfq:3,8:window", 14, "'='"),
        ("pfq:3,8:window=", 15, "window"),
        ("pfq:3,8:window=4:window=5", 17, "window"),
        ("pfq:3,8:window=0", 0, "window"),
        ("pfq:3,8:window=1.5", 0, "1.5"),
        ("pfq:3,8:eps=0", 0, "eps"),
        ("pfq:3,8:alpha=2", 0, "alpha"),
        ("plateau:3-8:on=test", 0, "'test'"),
        ("plateau:3-8:patience=0.5", 0, "patience"),
        ("plateau:3-8:threshold=1", 0, "threshold"),
        ("plateau:8-3", 0, "low (8)"),
        ("noise:4,8:every=0", 0, "every"),
    ):
        with pytest.raises(ValueError, match=re.escape(named)) as caught:
            parse_schedule(text)
        assert str(caught.value).splitlines()[2].index("^") == 4 + at


def test_a_window_holds_the_mean_of_its_steps():
    state = {"sum": 0.0, "count": 0}
    means = []
    for value in (1.0, 3.0, 5.0, 7.0):
        state, mean = add_to_window(state, value, 2)
        means.append(mean)
    assert means == [None, 2.0, None, 6.0]
    assert state == {"sum": 0.0, "count": 0}


def test_a_window_is_a_number_of_steps_or_a_share_of_the_run():
    assert [window_steps(w, 200) for w in (7, 0.05, 1e-9)] == [7, 10, 1]
    with pytest.raises(ValueError, match="400"):
        PFQ((3, 8), window=400).notes(200)


def test_a_run_too_short_to_rise_to_the_top_is_noted():
    rule = PFQ((3, 6, 8), window=2)  # two rises of at least five windows
    assert [len(rule.notes(total)) for total in (20, 21)] == [1, 0]
    plateau = Plateau(3, 5, window=2, patience=1)  # one window to compare with, twice two more
    assert follow(plateau, [1.0] * 10)[-1]["turns"] == [6, 10]
    assert [len(plateau.notes(total)) for total in (10, 11)] == [1, 0]


def test_a_state_of_something_else_is_an_error():
    start = PFQ((3, 8)).start()
    for state in (None, {"turns": []}, {**start, "turns": [4, 9]}, {**start, "turns": 4}):
        with pytest.raises(ValueError, match="turns"):
            PFQ((3, 8)).check_state(state)


PLATEAU = parse_schedule("plateau:3-8:window=1:patience=0")
VALIDATION = parse_schedule("plateau:3-8:patience=0:on=validation")
NOISE = parse_schedule("noise:4,8:every=2")


def states_of(*rules, total_steps=10):
    return AdaptiveStates(rules, total_steps)


def test_rules_that_read_one_thing_take_a_plain_number():
    states = states_of(PLATEAU, parse_schedule(8))
    for step in range(3):
        states.update(step, 1.0)
    assert [states.bits_at(PLATEAU, step) for step in range(4)] == [3, 3, 4, 5]


def test_all_kinds_of_one_number_are_one():
    for value in (1, 1.0, np.float32(1), np.array(1.0), torch.tensor(1.0), torch.ones(1)):
        states = states_of(PLATEAU)
        states.update(0, value)
        states.update(1, {"loss": value})
        assert states.bits_at(PLATEAU, 2) == 4


def test_what_cannot_be_followed_is_an_error_that_changes_nothing():
    infinite = torch.tensor(float("inf"))
    for metric in (
        None, {}, {"loss": None}, {"accuracy": 1.0}, float("nan"), infinite, "1.0", True, [1.0],
        torch.ones(2),
    ):  # fmt: skip
        states = states_of(PLATEAU)
        before = states.state_dict()
        with pytest.raises(ValueError, match="loss of step 0"):
            states.update(0, metric)
        assert states.state_dict() == before
        assert states.num_steps == 0


def test_rules_that_read_several_things_want_them_by_name():
    states = states_of(PLATEAU, NOISE)
    assert states.needs(0) == {"loss", "gradient_norm", "noise_norm"}
    assert states.needs(1) == {"loss"}
    with pytest.raises(ValueError, match="gradient_norm and loss and noise_norm"):
        states.update(0, 1.0)
    with pytest.raises(ValueError, match="gradient_norm and noise_norm of step 0"):
        states.update(0, {"loss": 1.0})
    states.update(0, {"loss": 1.0, "gradient_norm": 1.0, "noise_norm": 1.0})
    states.update(1, {"loss": 1.0})
    assert (states.bits_at(NOISE, 1), states.bits_at(PLATEAU, 2)) == (8, 4)


def test_what_is_measured_now_and_then_may_be_left_out():
    states = states_of(VALIDATION)
    assert states.needs(0) == frozenset()
    assert states.reads == {"validation"}
    for step, metric in enumerate([None, {"validation": 1.0}, None, {"validation": 1.0}, None]):
        states.update(step, metric)
    assert [states.bits_at(VALIDATION, step) for step in range(6)] == [3, 3, 3, 3, 4, 4]
    with pytest.raises(ValueError, match="validation of step 5"):
        states.update(5, {"validation": float("nan")})


def test_names_that_nobody_reads_are_not_looked_at():
    states = states_of(PLATEAU)
    states.update(0, {"loss": 1.0, "accuracy": "high"})
    assert states.num_steps == 1


def test_after_the_last_step_the_bits_are_held():
    states = states_of(PLATEAU, total_steps=2)
    states.update(0, 1.0)
    states.update(1, 1.0)
    assert [states.bits_at(PLATEAU, step) for step in range(2)] == [3, 3]
    with pytest.raises(ValueError, match="loss"):
        states_of(PLATEAU, total_steps=1).update(0, None)


def test_steps_to_come_have_no_bits_yet():
    with pytest.raises(ValueError, match="step 1"):
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
        with pytest.raises(ValueError, match="plateau:3-8"):
            states.load_state_dict(saved, 4)
    states.load_state_dict(None, 0)  # at the beginning there is nothing to know
    assert states.bits_at(PLATEAU, 0) == 3


def test_without_an_adaptive_schedule_there_is_nothing_to_keep():
    states = states_of(parse_schedule("CR:3-8:2"))
    assert not states
    states.load_state_dict(None, 5)
    assert (states.state_dict(), states.reads) == ({}, frozenset())
