"""The papers' notation: settings and names, by hand, and what it refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.schedules import list_schedules, parse_schedule
from bitcycle_lab.recipes.notation import CYCLES, QUANTIZERS, Notation


@pytest.mark.parametrize(
    ("text", "name", "forward", "backward", "quantizer"),
    [
        ("static 8/8", "static-8-8", 8, 8, "sbm"),
        ("CPT 3-8/8", "cpt-3-8-8", "CR:3-8:4", 8, "sbm"),
        ("RT-V 3-6/6", "rt-v-3-6-6", "RT-V:3-6:4", 6, "sbm"),
        ("anneal 4-6/6", "anneal-4-6-6", "anneal:4-6:4", 6, "sbm"),
        ("progressive 3-8/8", "progressive-3-8-8", "ramp:3-8@0.5", 8, "sbm"),
        ("gradients cycled 6/6-10", "gradcycle-6-6-10", 6, "CR:6-10:4", "sbm"),
        ("CPT 8-32/32", "cpt-8-32", "CR:8-32:4", "fp32", "sbm"),
        ("DoReFa 6/6", "dorefa-6-6", 6, 6, "dorefa"),
        ("SBM full CPT 3-8/8", "sbm-full-cpt-3-8-8", "CR:3-8:4", 8, "sbm_full"),
        ("power of two 8/8", "pow2-8-8", 8, 8, "pow2"),
    ],
)
def test_a_text_is_a_name_and_settings(text, name, forward, backward, quantizer):
    notation = Notation.parse(text)
    precision = notation.change({"steps": 100}, cycles=4)["precision"]
    assert notation.name == name
    assert (precision["forward"], precision["backward"]) == (forward, backward)
    assert precision.get("quantizer", "sbm") == quantizer


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("CTP 3-8/8", "'CTP'"),
        ("CPT 8/8", "forward bits of 'CPT' must be a range"),
        ("static 3-8/8", "forward bits of 'static' must be one number"),
        ("CPT 3-8/6-8", "backward bits of 'CPT' must be one number"),
        ("gradients cycled 6/8", "backward bits of 'gradients cycled' must be a range"),
        ("8/8", "'static 8/8'"),
        ("CPT", "'CPT' is no method with bits"),
    ],
)
def test_what_is_no_notation_is_an_error_that_names_it(text, named):
    with pytest.raises(ValueError, match=named):
        Notation.parse(text)


def test_every_schedule_of_cycles_can_be_written():
    cyclic = {info.name for info in list_schedules() if info.tier} | {"triangle", "anneal"}
    assert set(CYCLES) == cyclic


@given(
    st.sampled_from(["", *QUANTIZERS]),
    st.sampled_from(CYCLES),
    st.integers(2, 8),
    st.integers(1, 8),
    st.integers(2, 16),
)
def test_the_schedule_has_the_bits_that_are_written(quantizer, method, low, more, backward):
    text = f"{quantizer} {method} {low}-{low + more}/{backward}".strip()
    precision = Notation.parse(text).change({"steps": 100}, cycles=2)["precision"]
    schedule = parse_schedule(precision["forward"])
    assert (schedule.low, schedule.high) == (low, low + more)
    assert precision["backward"] == backward


def test_a_quantizer_that_keeps_the_ends_float_names_them_where_they_are():
    for skip, expected in (
        (["fc"], ["conv1", "fc"]),
        (["conv1", "*.downsample.*", "fc"], ["conv1", "*.downsample.*", "fc"]),
        ([], []),
    ):
        changed = Notation.parse("DoReFa 8/8").change({"precision": {"skip": skip}}, cycles=None)
        assert changed["precision"].get("skip", []) == expected


def test_a_rule_that_follows_the_length_of_the_run_needs_it():
    wageubn = Notation.parse("WAGEUBN 8/8")
    options = wageubn.change({"steps": 60}, cycles=None)["precision"]["quantizer_options"]
    assert options == {"total_steps": 60}
    with pytest.raises(ValueError, match="steps"):
        wageubn.change({"epochs": 2}, cycles=None)
