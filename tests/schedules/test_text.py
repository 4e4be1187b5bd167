"""The text form of schedules."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bitcycle.schedules import (
    Anneal,
    Cycle,
    Delay,
    Ramp,
    Sequence,
    Stages,
    Static,
    Triangle,
    parse_schedule,
)
from bitcycle.schedules.text import auto_high, fill_auto

from .strategies import schedules

FORMS = [
    ("8", Static(8), "8"),
    ("static:8", Static(8), "8"),
    ("fp32", Static(None), "fp32"),
    ("FP32", Static(None), "fp32"),
    ("static:fp32", Static(None), "fp32"),
    ("CR:3-8:32", Cycle(3, 8), "CR:3-8:32"),
    ("CR:3-8", Cycle(3, 8), "CR:3-8:32"),
    (" cr : 3 - 8 : 8 ", Cycle(3, 8, 8), "CR:3-8:8"),
    ("et-v:3-8:2", Cycle(3, 8, 2, "exponential", "triangular", "vertical"), "ET-V:3-8:2"),
    ("anneal:3-8:8", Anneal(3, 8, 8), "anneal:3-8:8"),
    ("Triangle:3-8", Triangle(3, 8), "triangle:3-8:32"),
    ("ramp:3-8", Ramp(3, 8), "ramp:3-8@0.5"),
    ("ramp:3-8@100", Ramp(3, 8, until=100), "ramp:3-8@100"),
    ("ramp:3-8@1.", Ramp(3, 8, until=1.0), "ramp:3-8@1.0"),
    ("ramp:3-8@1e-05", Ramp(3, 8, until=1e-05), "ramp:3-8@1e-05"),
    ("stages:3@0.5,8", Stages([(3, 0.5), (8, 1.0)]), "stages:3@0.5,8"),
    ("stages:3@100, fp32@1.0", Stages([(3, 100), (None, 1.0)]), "stages:3@100,fp32"),
    ("delay@0.25(CR:3-8:32)", Delay("CR:3-8:32", 0.25), "delay@0.25(CR:3-8:32)"),
    (
        "seq(CR:3-8:8@0.8, fp32)",
        Sequence([(Cycle(3, 8, 8), 0.8), (Static(None), 1.0)]),
        "seq(CR:3-8:8@0.8, fp32)",
    ),
    ("seq(8)", Sequence([(8, 1.0)]), "seq(8)"),
    ("(8)", Static(8), "8"),
    (
        "seq((ramp:3-8)@0.5,(stages:3@0.5,8)@0.8,delay@5(seq(4@9,8)))",
        Sequence(
            [
                (Ramp(3, 8), 0.5),
                (Stages([(3, 0.5), (8, 1.0)]), 0.8),
                (Delay(Sequence([(4, 9), (8, 1.0)]), 5), 1.0),
            ]
        ),
        "seq((ramp:3-8@0.5)@0.5, (stages:3@0.5,8)@0.8, delay@5(seq(4@9, 8)))",
    ),
]


def test_a_text_stands_for_this_schedule():
    for text, schedule, written in FORMS:
        assert parse_schedule(text) == schedule
        assert str(schedule) == written


@settings(deadline=None)
@given(schedule=schedules)
def test_the_text_gives_an_equal_schedule_back(schedule):
    assert parse_schedule(str(schedule)) == schedule


def test_a_schedule_an_int_and_none_are_accepted():
    schedule = Cycle(3, 8)
    assert parse_schedule(schedule) is schedule
    assert parse_schedule(6) == Static(6)
    assert parse_schedule(None) == Static(None)


def test_anything_else_is_a_value_error_with_an_example():
    for value in (0, 33, 3.5, True, [], {"type": "static"}, b"8"):
        with pytest.raises(
            ValueError, match=r"fp32 or a whole number from 1 to 32, got .*CR:3-8:32"
        ):
            parse_schedule(value)


def test_an_error_points_at_the_character_and_shows_a_form_of_that_schedule():
    for text, at, reason in (
        ("", 0, "expected a schedule"),
        ("CR:3-8:x", 7, "expected the number of cycles"),
        ("CR:3", 4, "expected '-'"),
        ("CR 3-8", 3, "expected ':'"),
        ("CR:0-8", 3, "bits must be"),
        ("CR:3-fp32", 5, "expected a number of bits"),
        ("CR:8-3", 0, "low (8) must be <= high (3)"),
        ("CR:3-8:0", 0, "cycles must be"),
        ("cosine:3-8", 0, "unknown schedule 'cosine'"),
        ("3 4", 2, "expected the end"),
        ("seq(8@0.5 8)", 10, "expected ')'"),
        ("seq(8@0.5, XX:3-8)", 11, "unknown schedule 'XX'"),
        ("seq(8@x, 8)", 6, "a step count or a fraction"),
        ("seq(8, 8)", 0, "must grow"),
        ("seq(stages:3@0.5,8@0.8, fp32)", 4, "inside seq, write it in parentheses"),
        ("seq(ramp:3-8@0.8, fp32)", 4, "inside seq, write it in parentheses"),
        ("stages:3@0.5,8@0.9", 0, "must be 1.0"),
        ("delay(8)", 5, "expected '@'"),
        ("delay@0.5 8", 10, "expected '('"),
        ("delay@1.5(8)", 0, "start must be"),
        ("(8", 2, "expected ')'"),
        ("8" * 30, 0, "expected bits"),
        ("(" * 1000, 64, "nested deeper than 32 levels"),
    ):
        with pytest.raises(ValueError, match="cannot read a schedule") as caught:
            parse_schedule(text)
        first, shown, caret, forms = str(caught.value).splitlines()
        assert reason in first
        assert caret.strip() == "^"
        offset = max(0, at - 36)  # a long text is shown from 36 characters before
        assert caret.index("^") == 4 + at - offset
        assert shown[4:] == text[offset : offset + 72]
        assert forms.startswith("a valid form: ")
        parse_schedule(forms.removeprefix("a valid form: ").partition(" (")[0])
        assert "bitcycle ls schedules" in first + forms
        assert len(forms) < 100
        assert "None" not in first


def test_the_form_in_an_error_is_of_the_innermost_schedule():
    for text, form in (
        ("CR:3-8:x", "CR:3-8:32"),
        ("RT-V:3", "RT-V:3-8:32"),
        ("ramp:3-8@x", "ramp:3-8@0.5"),
        ("seq(CR:3-8:x, fp32)", "CR:3-8:32"),
        ("seq(CR:3-8:8@x, fp32)", "seq(CR:3-8:8@0.8, fp32)"),
        ("40", "8"),
    ):
        with pytest.raises(ValueError, match="cannot read a schedule") as caught:
            parse_schedule(text)
        assert f"a valid form: {form} (" in str(caught.value)


PIECES = [
    "CR", "RT-V", "seq(", "delay@", "stages:", "ramp:", "fp32", "pfq:", "plateau:", "noise:",
    ":window=", ":eps=", ":every=", ":on=", "validation",
]  # fmt: skip
GRAMMAR = st.lists(st.sampled_from([*"0123456789:-@(),. eE+x\n", *PIECES]), max_size=30).map(
    "".join
)


@settings(deadline=None)
@given(text=GRAMMAR | st.text(max_size=30))
@example("\u0663")  # a digit, but not of ours
@example("CR:3-8:" + "9" * 5000)
@example("delay@1" + "0" * 400 + ".0(8)")
@example("ramp:3-8@1e999")
@example("seq(" * 400)
@example("\x00")
def test_the_parser_raises_nothing_but_value_errors(text):
    try:
        schedule = parse_schedule(text)
    except ValueError:
        return
    assert parse_schedule(str(schedule)) == schedule


def test_auto_stands_for_the_lower_end_of_a_range():
    for text, high, filled in (
        ("CR:auto-8:32", 8, "CR:4-8:32"),
        (" cr : AUTO - 8", 8, " cr : 4 - 8"),
        ("seq(CR:auto-8:8@0.8, ramp:auto-3@1.0)", 8, "seq(CR:4-8:8@0.8, ramp:3-3@1.0)"),
        ("CR:3-8:32", None, "CR:3-8:32"),
        ("CR:auto", None, "CR:auto"),
        ("anneal:3-8", None, "anneal:3-8"),
    ):
        assert auto_high(text) == high
        assert fill_auto(text, 4) == filled


def test_a_text_with_auto_is_no_schedule_yet():
    for text in ("CR:auto-8:32", "auto", "stages:auto@0.5,8"):
        with pytest.raises(ValueError, match=r"auto"):
            parse_schedule(text)


def test_the_error_for_auto_says_where_it_may_stand():
    with pytest.raises(ValueError, match="lower end of a run's forward schedule.*range test"):
        parse_schedule("CR:auto-8:32")
