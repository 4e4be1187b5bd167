"""The text form of schedules."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bitcycle.formats.catalogue import FORMATS
from bitcycle.schedules import (
    Anneal,
    Cycle,
    Delay,
    Plateau,
    Ramp,
    Sequence,
    Stages,
    Static,
    Triangle,
    parse_schedule,
)
from bitcycle.schedules.text import auto_high, fill_auto

from .strategies import schedules

FORMATS3 = ("mxfp4", "mxfp8", "bf16")
FORMS = [
    ("8", Static(8), "8"),
    ("static:8", Static(8), "8"),
    ("fp32", Static(None), "fp32"),
    ("FP32", Static(None), "fp32"),
    ("static:fp32", Static(None), "fp32"),
    ("nvfp4", Static("nvfp4"), "nvfp4"),
    ("BF16", Static("bf16"), "bf16"),
    ("static:MXFP8", Static("mxfp8"), "mxfp8"),
    ("mxfp8_e5m2", Static("mxfp8_e5m2"), "mxfp8_e5m2"),
    ("e4m3", Static("fp8"), "fp8"),
    ("int8", Static(8), "8"),
    ("CR:int3-INT8:4", Cycle(3, 8, 4), "CR:3-8:4"),
    ("CR:mxfp4,mxfp8,bf16:8", Cycle(levels=FORMATS3, cycles=8), "CR:mxfp4,mxfp8,bf16:8"),
    (" cr : MXFP4 , mxfp8_e4m3,bf16", Cycle(levels=FORMATS3), "CR:mxfp4,mxfp8,bf16:32"),
    ("CR:int4,mxfp8,fp32:8", Cycle(levels=(4, "mxfp8", None), cycles=8), "CR:4,mxfp8,fp32:8"),
    ("anneal:mxfp4,bf16:8", Anneal(levels=["mxfp4", "bf16"], cycles=8), "anneal:mxfp4,bf16:8"),
    ("triangle:4,bf16", Triangle(levels=(4, "bf16")), "triangle:4,bf16:32"),
    ("ramp:mxfp4,mxfp8,bf16@9", Ramp(levels=FORMATS3, until=9), "ramp:mxfp4,mxfp8,bf16@9"),
    (
        "plateau:mxfp4,mxfp8,bf16:window=40",
        Plateau(levels=FORMATS3, window=40),
        "plateau:mxfp4,mxfp8,bf16:window=40:patience=4:threshold=0.01",
    ),
    (
        "stages:nvfp4@0.82,bf16",
        Stages([("nvfp4", 0.82), ("bf16", 1.0)]),
        "stages:nvfp4@0.82,bf16",
    ),
    (
        "seq(CR:mxfp4,mxfp8,bf16:8@0.8, delay@0.25(nvfp4))",
        Sequence([(Cycle(levels=FORMATS3, cycles=8), 0.8), (Delay("nvfp4", 0.25), 1.0)]),
        "seq(CR:mxfp4,mxfp8,bf16:8@0.8, delay@0.25(nvfp4))",
    ),
    (
        "seq((ramp:mxfp4,mxfp8,bf16)@0.8, bf16)",
        Sequence([(Ramp(levels=FORMATS3), 0.8), ("bf16", 1.0)]),
        "seq((ramp:mxfp4,mxfp8,bf16@0.5)@0.8, bf16)",
    ),
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


@given(schedule=schedules)
def test_the_text_gives_an_equal_schedule_back(schedule):
    assert parse_schedule(str(schedule)) == schedule


def test_a_schedule_an_int_and_none_are_accepted():
    schedule = Cycle(3, 8)
    assert parse_schedule(schedule) is schedule
    assert parse_schedule(6) == Static(6)
    assert parse_schedule(None) == Static(None)
    assert parse_schedule(FORMATS["nvfp4"]) == Static("nvfp4")


def test_anything_else_is_a_value_error():
    for value in (0, 33, 3.5, True, [], {"type": "static"}, b"8"):
        with pytest.raises(ValueError, match=re.escape(repr(value))):
            parse_schedule(value)


def test_an_error_points_at_the_character_and_shows_a_form_of_that_schedule():
    for text, at, named in (
        ("", 0, "schedule"),
        ("CR:3-8:x", 7, "cycles"),
        ("CR:3", 4, "'-'"),
        ("CR 3-8", 3, "':'"),
        ("CR:0-8", 3, "0"),
        ("CR:3-fp32", 0, "fp32"),
        ("CR:nvfp4-bf16:8", 0, "nvfp4"),
        ("CR:nvfp4:8", 8, "commas"),
        ("CR:mxfp4,:8", 9, "bits"),
        ("CR:fp64,bf16", 3, "'fp64'"),
        ("CR:mxfp4,int20", 9, "int20"),
        ("CR:bf16,mxfp4:8", 0, "bf16,mxfp4"),
        ("CR:auto,bf16", 3, "range test"),
        ("CR:auto-bf16", 3, "range test"),
        ("nvpf4", 0, "did you mean 'nvfp4'"),
        ("seq(ramp:mxfp4,bf16@0.8, fp32)", 4, "parentheses"),
        ("CR:8-3", 0, "low (8)"),
        ("CR:3-8:0", 0, "cycles"),
        ("cosine:3-8", 0, "CR, CT"),
        ("Cosine", 0, "CR, CT"),
        ("cycle:3-8", 0, "CR"),
        ("FW8/BW8", 0, "forward=8, backward=8"),
        ("fwnvfp4/bwbf16", 0, "forward='nvfp4', backward='bf16'"),
        ("w4a6e8", 0, "weight=4, act=6, error=8"),
        ("w4a4", 0, "forward=4"),
        ("<lambda at train.py:3>", 0, "Python"),
        ("seq(<Mine(low=3)>@0.5, 8)", 4, "Python"),
        ("3 4", 2, "end"),
        ("seq(8@0.5 8)", 10, "')'"),
        ("seq(8@0.5, XX:3-8)", 11, "'XX'"),
        ("seq(8@x, 8)", 6, "fraction"),
        ("seq(8, 8)", 0, "after"),
        ("seq(stages:3@0.5,8@0.8, fp32)", 4, "parentheses"),
        ("seq(ramp:3-8@0.8, fp32)", 4, "parentheses"),
        ("stages:3@0.5,8@0.9", 0, "0.9"),
        ("delay(8)", 5, "'@'"),
        ("delay@0.5 8", 10, "'('"),
        ("delay@1.5(8)", 0, "1.5"),
        ("(8", 2, "')'"),
        ("8" * 30, 0, "bits"),
        ("(" * 1000, 64, "32 levels"),
    ):
        with pytest.raises(ValueError, match="cannot read a schedule") as caught:
            parse_schedule(text)
        first, shown, caret, forms = str(caught.value).splitlines()
        assert named in first
        offset = max(0, at - 36)  # a long text is shown from 36 characters before
        assert caret.index("^") == 4 + at - offset
        assert shown[4:] == text[offset : offset + 72]
        parse_schedule(forms.removeprefix("a valid form: ").partition(" (")[0])


PIECES = [
    "CR", "RT-V", "seq(", "delay@", "stages:", "ramp:", "fp32", "nvfp4", "BF16", "int8",
    "pfq:", "plateau:", "noise:", ":window=", ":eps=", ":every=", ":on=", "validation",
]  # fmt: skip
GRAMMAR = st.lists(st.sampled_from([*"0123456789:-@(),. eE+x\n", *PIECES]), max_size=30).map(
    "".join
)


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
