"""Ladders: schedules over formats, as literal lists and as integer schedules over indices."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitcycle.formats.catalogue import FORMATS
from bitcycle.schedules import (
    PROFILES,
    AdaptiveLadder,
    Anneal,
    Cycle,
    Ladder,
    Plateau,
    Ramp,
    Static,
    parse_schedule,
    schedule,
    schedule_from_dict,
)
from bitcycle.schedules.adaptive import AdaptiveStates

from .strategies import ladders

NAMES = ["LR", "CR", "ER", "RR", "LT", "CT", "ET-H", "ET-V", "RT-H", "RT-V"]


def names(text, total_steps):
    """The values of a schedule as text."""
    return " ".join(str(bits) for bits in parse_schedule(text).values(total_steps))


def test_a_ladder_is_this_list():
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
@given(num_rungs=st.integers(2, 30), cycles=st.integers(1, 9), total=st.integers(9, 200))
@settings(deadline=None, max_examples=15)
def test_every_named_cycle_rounds_the_index_of_the_rung(name, num_rungs, cycles, total):
    ladder = list(range(1, num_rungs)) + ["fp32"]
    values = schedule(name, ladder=ladder, cycles=cycles).values(total)
    one = schedule(name, low=1, high=2, cycles=cycles)
    for step in range(total):
        k, rest = divmod(step * cycles, total)
        # independent of the numbers that the path has: rint(0 + (n - 1) g)
        index = round(round((num_rungs - 1) * one.unit(k, rest / total), 9))
        assert values[step] == [*range(1, num_rungs), None][index]


@settings(deadline=None)
@given(ladder=ladders, total=st.integers(64, 300))
def test_a_ladder_is_its_path_with_rungs_for_numbers(ladder, total):
    plain = schedule_from_dict(ladder.path.to_dict())
    try:
        numbers = plain.values(total)
    except ValueError:
        return
    assert ladder.values(total) == [ladder.rungs[number - 2] for number in numbers]
    assert ladder.count_cycles(total) == plain.count_cycles(total)
    assert set(ladder.values(total)) == ladder.bit_widths(total)


@settings(deadline=None)
@given(ladder=ladders)
def test_text_and_json_give_the_ladder_back(ladder):
    back = parse_schedule(str(ladder).upper())
    assert back == ladder
    assert str(back) == str(ladder)
    loaded = schedule_from_dict(json.loads(json.dumps(ladder.to_dict())))
    assert loaded == ladder
    assert str(loaded) == str(ladder)
    assert loaded.describe() == ladder.describe()


def test_the_dict_has_names_and_the_path():
    assert parse_schedule("ramp:nvfp4,8,fp32@0.5").to_dict() == {
        "type": "ladder",
        "rungs": ["nvfp4", 8, None],
        "path": {"type": "ramp", "low": 2, "high": 4, "until": 0.5},
    }


def test_a_path_of_as_many_numbers_is_moved_to_2():
    assert Ladder(["mxfp4", "bf16"], Ramp(7, 8)) == Ladder(("mxfp4", "bf16"), Ramp(2, 3))


def test_the_path_outside_of_the_ladder_keeps_its_numbers():
    path = Cycle(2, 4, 8)
    assert str(Ladder(["mxfp4", "mxfp8", "bf16"], path)) == "CR:mxfp4,mxfp8,bf16:8"
    assert str(path) == "CR:2-4:8"


def test_a_named_schedule_takes_a_range_or_a_ladder():
    assert schedule("cr", ladder=["mxfp4", "mxfp8", "bf16"], cycles=8) == parse_schedule(
        "CR:mxfp4,mxfp8,bf16:8"
    )
    assert schedule("CR", ladder=(4, FORMATS["bf16"])).path.cycles == 32
    for options in ({}, {"low": 3}, {"low": 3, "high": 8, "ladder": [4, 8]}, {"high": 8}):
        with pytest.raises(ValueError, match="ladder"):
            schedule("CR", **options)


def test_a_bad_ladder_is_an_error():
    for rungs, path, named in (
        (["bf16"], Ramp(2, 2), "'bf16'"),
        ("mxfp4", Ramp(2, 3), "'mxfp4'"),
        (8, Ramp(2, 3), "8"),
        (["bf16", "mxfp4"], Ramp(2, 3), "bf16,mxfp4"),
        ([None, "bf16"], Ramp(2, 3), "fp32,bf16"),
        ([8, 8], Ramp(2, 3), "8"),
        (["mxfp4", "bf17"], Ramp(2, 3), "rung 2: .*'bf17'"),
        (["mxfp4", "bf16"], Ramp(2, 4), "3 numbers"),
        (["mxfp4", "bf16"], Static(8), "8"),
        (["mxfp4", "bf16"], Plateau(2, 3), "AdaptiveLadder"),
    ):
        with pytest.raises(ValueError, match=named):
            Ladder(rungs, path)
    with pytest.raises(ValueError, match="AdaptiveLadder"):
        AdaptiveLadder(["mxfp4", "bf16"], Ramp(2, 3))


def test_formats_of_equal_bits_keep_the_order_given():
    for rungs in (["mxfp4", "nvfp4", "bf16"], ["nvfp4", "mxfp4", "bf16"]):
        ladder = schedule("CT", ladder=rungs, cycles=2)
        assert [str(bits) for bits, _ in ladder.preview(90).steps_at] == rungs


def test_notes_name_rungs():
    for text, total, named in (
        ("RR:mxfp4,mxfp8,bf16:8", 64, "never reaches bf16 in 64 steps"),
        ("CT:mxfp4,mxfp8,bf16:3", 300, "ends at mxfp4"),
        ("ramp:mxfp4,mxfp8,bf16@2", 10, "skips rungs"),
        # 0 and 1 - exp(-2) = .86: the first rung and the last
        ("ER:mxfp4,mxfp8,bf16:4", 8, "skips mxfp8 in 8 steps"),
    ):
        [note] = parse_schedule(text).notes(total)
        assert note.startswith(text)
        assert named in note
    assert parse_schedule("CR:mxfp4,mxfp8,bf16:8").notes(800) == []
    assert len(schedule("ER", ladder=[*range(1, 30), "fp32"], cycles=1).notes(1000)) == 1


def test_a_rung_that_is_listed_twice_is_reached_at_its_first_place():
    ladder = parse_schedule("RR:mxfp4,bf16,bf16:8")
    assert ladder.notes(8 * 12) == []  # the number of the last rung is out of reach
    assert parse_schedule("RR:mxfp4,bf16,fp16:8").notes(8 * 12) != []


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
    assert "cost  not counted" in str(parse_schedule("CR:mxfp4,mxfp8,bf16:8").preview(800))


# -- adaptive rules -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "plateau:mxfp4,mxfp8,bf16:window=1:patience=0",
        "pfq:mxfp4,mxfp8,bf16:window=1",
        "noise:mxfp4,mxfp8,bf16:every=1",
    ],
)
def test_a_rule_rises_along_a_ladder_and_resumes_from_json(text):
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


def test_plateau_turns_at_the_same_steps_on_a_ladder():
    plain, ladder = Plateau(3, 5, window=2), parse_schedule("plateau:mxfp4,mxfp8,bf16:window=2")
    states = [plain.start(), ladder.start()]
    for step in range(60):
        loss = {"loss": math.cos(step)}
        states = [
            rule.advance(state, step, loss, 100)
            for rule, state in zip((plain, ladder), states, strict=True)
        ]
    assert states[0] == states[1]
    assert len(states[0]["turns"]) == 2


def test_an_adaptive_ladder_names_itself_in_errors():
    rule = parse_schedule("plateau:mxfp4,mxfp8,bf16:window=4")
    with pytest.raises(ValueError, match="plateau:mxfp4,mxfp8,bf16:window=4"):
        rule.values(10)
    with pytest.raises(ValueError, match="plateau:mxfp4,mxfp8,bf16"):
        rule.check_state({**rule.start(), "turns": [1, 2, 3]})
    [note] = rule.notes(40)
    assert note.startswith("plateau:mxfp4,mxfp8,bf16:window=4:")
    with pytest.raises(ValueError, match="plateau:mxfp4,bf16"):
        parse_schedule("delay@0.5(plateau:mxfp4,bf16)")


def test_every_profile_runs_over_a_ladder():
    for profile in PROFILES:
        path = replace(Cycle(2, 4, 2), profile=profile)
        assert Ladder(["mxfp4", "mxfp8", "bf16"], path).low == FORMATS["mxfp4"]
    assert Ladder(["mxfp4", "bf16"], Anneal(2, 3)).high == FORMATS["bf16"]
