"""Walks over levels: a range rounds numbers of bits, a list of formats rounds indices."""

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitcycle.formats.catalogue import FORMATS
from bitcycle.schedules import Plateau, Ramp, parse_schedule, schedule, schedule_from_dict
from bitcycle.schedules.adaptive import AdaptiveStates

from .strategies import listed

NAMES = ["LR", "CR", "ER", "RR", "LT", "CT", "ET-H", "ET-V", "RT-H", "RT-V"]


def names(text, total_steps):
    """The values of a schedule as text."""
    return " ".join(str(bits) for bits in parse_schedule(text).values(total_steps))


def test_a_walk_over_formats_is_this_list():
    four, eight, sixteen = "mxfp4 ", "mxfp8 ", "bf16 "
    for text, total, expected in (
        # 2 (1 - cos(pi k/12)) / 2: 0 .03 .13 .29 .5 .74 1 1.26 1.5 1.71 1.87 1.97; ties to even
        ("CR:mxfp4,mxfp8,bf16:1", 12, four * 5 + eight * 3 + sixteen * 4),
        ("LR:mxfp4,mxfp8,bf16:1", 4, four * 2 + eight + sixteen),  # 0 .5 1 1.5
        ("LT:mxfp4,mxfp8,bf16:2", 8, sixteen * 2 + eight + four * 3 + eight + sixteen),
        ("anneal:mxfp4,bf16:2", 8, (sixteen * 2 + four * 2) * 2),  # 1 .85 .5 .15
        ("triangle:mxfp4,mxfp8,bf16:1", 8, four * 2 + eight + sixteen * 3 + eight + four),
        ("ramp:mxfp4,mxfp8,bf16@0.5", 12, four * 2 + eight * 2 + sixteen * 8),
        ("ramp:mxfp4,mxfp8,bf16@1.0", 6, four * 2 + eight * 2 + sixteen * 2),
        ("delay@0.5(CR:mxfp4,bf16:1)", 8, four * 7 + sixteen),
        ("CR:4,mxfp8,fp32:1", 6, "4 4 4 mxfp8 None None "),
    ):
        assert names(text, total) == expected.strip(), text


@pytest.mark.parametrize("name", NAMES)
@given(num_levels=st.integers(2, 30), cycles=st.integers(1, 9), total=st.integers(9, 200))
@settings(max_examples=15)
def test_every_named_cycle_rounds_the_index_of_the_level(name, num_levels, cycles, total):
    ladder = list(range(1, num_levels)) + ["fp32"]
    values = schedule(name, ladder=ladder, cycles=cycles).values(total)
    one = schedule(name, low=1, high=2, cycles=cycles)
    for step in range(total):
        k, rest = divmod(step * cycles, total)
        index = round(round((num_levels - 1) * one.unit(k, rest / total), 9))
        assert values[step] == [*range(1, num_levels), None][index]


def test_a_range_rounds_the_number_of_bits_and_a_list_the_index():
    # low + 2 g = 3 3.5 4 4.5; half to even differs from half to even of 0 .5 1 1.5
    assert parse_schedule("LR:3-5:1").values(4) == [3, 4, 4, 4]
    assert parse_schedule("LR:3,4,5:1").values(4) == [3, 3, 4, 5]
    assert parse_schedule("LR:3-5:1") != parse_schedule("LR:3,4,5:1")


@given(schedule=listed)
def test_text_and_json_give_it_back(schedule):
    back = parse_schedule(str(schedule).upper())
    loaded = schedule_from_dict(json.loads(json.dumps(schedule.to_dict())))
    assert back == loaded == schedule
    assert str(back) == str(loaded) == str(schedule)


def test_json_has_low_and_high_or_the_levels():
    assert parse_schedule("ramp:3-8@0.5").to_dict() == {
        "type": "ramp", "low": 3, "high": 8, "until": 0.5,
    }  # fmt: skip
    assert parse_schedule("ramp:nvfp4,8,fp32@0.5").to_dict() == {
        "type": "ramp", "levels": ["nvfp4", 8, None], "until": 0.5,
    }  # fmt: skip


def test_a_named_schedule_takes_a_range_or_a_list():
    cycle = schedule("cr", ladder=["mxfp4", "mxfp8", "bf16"], cycles=8)
    assert cycle == parse_schedule("CR:mxfp4,mxfp8,bf16:8")
    assert (cycle.low, cycle.high) == (FORMATS["mxfp4"], FORMATS["bf16"])
    assert repr(cycle).startswith("Cycle(levels=(mxfp4, mxfp8, bf16), cycles=8, profile='cosine'")
    assert schedule("CR", ladder=(4, FORMATS["bf16"])).cycles == 32
    for options in ({}, {"low": 3}, {"low": 3, "high": 8, "ladder": [4, 8]}, {"high": 8}):
        with pytest.raises(ValueError, match="low|high"):
            schedule("CR", **options)


def test_bad_levels_are_an_error():
    for levels, message in (
        (["bf16"], "at least two"),
        ("mxfp4", "mxfp4"),
        (8, "8"),
        (["bf16", "mxfp4"], "bf16,mxfp4"),
        ([None, "bf16"], "fp32,bf16"),
        (["mxfp4", "nvfp4", "mxfp4"], "mxfp4,nvfp4,mxfp4"),
        (["mxfp4", "bf17"], "level 2: .*bf17"),
    ):
        with pytest.raises(ValueError, match=message):
            Ramp(levels=levels)


def test_formats_of_equal_bits_keep_the_order_given():
    for rungs in (["mxfp4", "nvfp4", "bf16"], ["nvfp4", "mxfp4", "bf16"]):
        ladder = schedule("CT", ladder=rungs, cycles=2)
        assert [str(bits) for bits, _ in ladder.preview(90).steps_at] == rungs


def test_notes_name_the_level_that_a_run_misses():
    for text, total, words in (
        ("RR:mxfp4,mxfp8,bf16:8", 64, "never reaches bf16 in 64 steps: .* needs 31 steps"),
        ("CT:mxfp4,mxfp8,bf16:3", 300, "ends at mxfp4: an odd number"),
        ("ramp:mxfp4,mxfp8,bf16@2", 10, "skips some of its 3 levels: it has 2 steps"),
        ("ER:" + ",".join(map(str, range(1, 30))) + ",fp32:1", 1000, "never reaches fp32"),
    ):
        [note] = parse_schedule(text).notes(total)
        assert re.search(words, note)
    assert parse_schedule("CR:mxfp4,mxfp8,bf16:8").notes(800) == []


def test_a_level_that_is_listed_twice_is_reached_at_its_first_place():
    assert parse_schedule("RR:mxfp4,bf16,bf16:8").notes(8 * 12) == []  # the third is out of reach
    assert parse_schedule("RR:mxfp4,bf16,fp16:8").notes(8 * 12) != []


def test_descriptions_name_the_levels():
    for text in ("CR:mxfp4,bf16:8", "anneal:mxfp4,bf16:8", "ramp:mxfp4,bf16", "plateau:mxfp4,bf16",
                 "noise:mxfp4,bf16"):  # fmt: skip
        assert "through mxfp4, bf16" in parse_schedule(text).describe()
    assert parse_schedule("CR:3-8:8").describe() == "8 repeated cosine cycles from 3 to 8 bits"


def test_the_cost_counts_the_bits_of_elements():
    preview = parse_schedule("ramp:nvfp4,mxfp8,bf16@0.5").preview(12, backward="bf16")
    assert [(str(bits), count) for bits, count in preview.steps_at] == [
        ("nvfp4", 2), ("mxfp8", 2), ("bf16", 8),
    ]  # fmt: skip
    assert preview.mean_bits == pytest.approx((2 * 4 + 2 * 8 + 8 * 16) / 12)
    costs = {q: q * q + 2 * q * 16 for q in (4, 8, 16)}
    expected = (2 * costs[4] + 2 * costs[8] + 8 * costs[16]) / (12 * costs[16])
    assert preview.relative_cost == pytest.approx(expected)
    assert preview.num_switches == 2
    data = json.loads(json.dumps(preview.to_dict()))
    assert (data["low"], data["high"], data["last"]) == ("nvfp4", "bf16", "bf16")
    assert data["backward"] == "bf16"
    assert data["steps_at"] == {"nvfp4": 2, "mxfp8": 2, "bf16": 8}
    scheduled = parse_schedule("stages:nvfp4@0.5,bf16").preview(10, forward="nvfp4")
    assert json.dumps(scheduled.to_dict())
    assert scheduled.relative_cost == pytest.approx((16 + 16 * 2 / 2 + 16 * 8 / 2) / (16 + 128))


def test_without_a_default_backward_the_cost_is_not_counted():
    text = str(parse_schedule("CR:mxfp4,mxfp8,bf16:8").preview(800))
    assert "cost  not counted: backward has no default" in text


# -- adaptive rules -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "plateau:mxfp4,mxfp8,bf16:window=1:patience=0",
        "pfq:mxfp4,mxfp8,bf16:window=1",
        "noise:mxfp4,mxfp8,bf16:every=1",
    ],
)
def test_a_rule_rises_over_formats_and_resumes_from_json(text):
    rule = parse_schedule(text)
    losses = dict.fromkeys(rule.reads, 1.0)
    whole, half = (AdaptiveStates([rule], 40) for _ in range(2))
    for step in range(40):
        whole.update(step, losses)
    for step in range(4):
        half.update(step, losses)
    saved = json.loads(json.dumps(half.state_dict()))
    assert list(saved) == [str(rule)]
    resumed = AdaptiveStates([parse_schedule(str(rule))], 40)
    resumed.load_state_dict(saved, 4)
    for step in range(4, 40):
        resumed.update(step, losses)
    values = [str(whole.bits_at(rule, step)) for step in range(40)]
    assert [str(resumed.bits_at(rule, step)) for step in range(40)] == values
    assert list(dict.fromkeys(values)) == ["mxfp4", "mxfp8", "bf16"]
    assert rule.bit_widths(40) == set(rule.levels)
    assert schedule_from_dict(json.loads(json.dumps(rule.to_dict()))) == rule


def test_plateau_turns_at_the_same_steps_over_formats():
    plain, formats = Plateau(3, 5, window=2), parse_schedule("plateau:mxfp4,mxfp8,bf16:window=2")
    states = [plain.start(), formats.start()]
    for step in range(60):
        loss = {"loss": math.cos(step)}
        states = [
            rule.advance(state, step, loss, 100)
            for rule, state in zip((plain, formats), states, strict=True)
        ]
    assert states[0] == states[1]
    assert len(states[0]["turns"]) == 2
