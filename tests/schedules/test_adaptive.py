"""What all adaptive schedules share: bounds, rises that are never taken back, windows, errors."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitcycle.schedules import PFQ, Adaptive, NoiseSwitch, Plateau, parse_schedule
from bitcycle.schedules.adaptive import add_to_window, check_levels, window_steps
from bitcycle.schedules.checks import order

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


@settings(deadline=None)
@given(rule=rules, values=metrics)
def test_bits_stay_within_their_bounds_and_never_fall(rule, values):
    states = follow(rule, values)
    bits = [rule.bits_of(state, step) for step, state in enumerate(states)]
    assert all(order(rule.low) <= order(b) <= order(rule.high) for b in bits)
    assert [order(b) for b in bits] == sorted(order(b) for b in bits)
    # what a later state says of an earlier step is what that step had
    assert [rule.bits_of(states[-1], step) for step in range(len(bits))] == bits


@settings(deadline=None)
@given(rule=rules, values=metrics)
def test_a_rule_rises_by_one_level_at_a_time_and_its_states_pass_the_check(rule, values):
    states = follow(rule, values)
    counts = [rule.level_of(state) for state in states]
    assert all(b - a in (0, 1) for a, b in zip(counts, counts[1:], strict=False))
    for state in states:
        assert rule.check_state(copy.deepcopy(state)) == state


@settings(deadline=None)
@given(rule=rules)
def test_text_gives_an_equal_rule_back(rule):
    assert parse_schedule(str(rule)) == rule


@settings(deadline=None)
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
    with pytest.raises(ValueError, match=r"pfq:3,8:.* follows the training .*not known before"):
        rule(1, 100)
    assert rule.bit_widths(100) == {3, 8}


@pytest.mark.parametrize("outer", ["seq({}@0.5, 8)", "delay@0.5({})"])
@pytest.mark.parametrize("rule", ["pfq:3,8", "plateau:3-8", "noise:4,8"])
def test_a_rule_is_no_part_of_another_schedule(outer, rule):
    with pytest.raises(ValueError, match="follows the training and cannot be part of another"):
        parse_schedule(outer.format(rule))


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        ((8,), "at least two bits"),
        (8, "at least two bits"),
        ((8, 3), r"must not fall, got 8,3"),
        ((None, 8), r"must not fall, got fp32,8"),
        ((3, 33), "from 1 to 32, got 33"),
    ],
)
def test_levels_are_checked(bits, message):
    with pytest.raises(ValueError, match=message):
        check_levels(bits, "pfq")


@pytest.mark.parametrize(
    ("text", "at", "reason"),
    [
        ("pfq", 3, "expected ':'"),
        ("pfq:3", 0, "at least two bits"),
        ("pfq:3,8:windw=4", 8, "unknown setting 'windw'; known: alpha, eps, window; did you mean"),
        ("pfq:3,8:window", 14, "expected '='"),
        ("pfq:3,8:window=", 15, "expected the value of window"),
        ("pfq:3,8:window=4:window=5", 17, "window is given twice"),
        ("pfq:3,8:window=0", 0, "window must be at least one step"),
        ("pfq:3,8:window=1.5", 0, "window must be a step count"),
        ("pfq:3,8:eps=0", 0, "eps must be a number above 0"),
        ("pfq:3,8:alpha=2", 0, "alpha must be a number above 0 and at most 1"),
        ("plateau:3-8:on=test", 0, "unknown metric to follow 'test'; known: loss, validation"),
        ("plateau:3-8:patience=0.5", 0, "patience must be a whole number of at least 0"),
        ("plateau:3-8:threshold=1", 0, "threshold must be a number from 0 to below 1"),
        ("plateau:8-3", 0, "low (8) must be <= high (3)"),
        ("noise:4,8:every=0", 0, "every must be a whole number of at least 1"),
    ],
)
def test_an_error_in_a_text_points_at_the_character(text, at, reason):
    with pytest.raises(ValueError, match="cannot read a schedule") as caught:
        parse_schedule(text)
    first, _, caret, _ = str(caught.value).splitlines()
    assert reason in first
    assert caret.index("^") == 4 + at


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
    with pytest.raises(ValueError, match="window = 400 lies beyond the 200 steps"):
        PFQ((3, 8), window=400).notes(200)


def test_a_run_too_short_to_rise_to_the_top_is_noted():
    rule = PFQ((3, 6, 8), window=2)  # two rises of at least five windows
    [note] = rule.notes(20)
    assert "cannot get to its top in 20 steps, whatever the training does: step 20 is" in note
    assert rule.notes(21) == []
    plateau = Plateau(3, 5, window=2, patience=1)  # one window to compare with, twice two more
    assert follow(plateau, [1.0] * 10)[-1]["turns"] == [6, 10]
    assert [len(plateau.notes(total)) for total in (10, 11)] == [1, 0]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "is a dict with turns"),
        ({"turns": []}, "is a dict with turns, sum"),
        ({**PFQ((3, 8)).start(), "turns": [4, 9]}, "at most 1 growing steps"),
        ({**PFQ((3, 8)).start(), "turns": 4}, "at most 1 growing steps"),
    ],
)
def test_a_state_of_something_else_is_an_error(state, message):
    with pytest.raises(ValueError, match=message):
        PFQ((3, 8)).check_state(state)
