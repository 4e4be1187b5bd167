"""Previews: shares, switches, mean bits and cost."""

import json
from collections import Counter

import pytest

from bitcycle.schedules import Anneal, Cycle, Delay, Sequence, Static, parse_schedule, schedule

# Cost against static high, mean of (q^2 + 2qb) / (high^2 + 2 high b), for N = 8 and 64,000 steps:
# computed from the closed forms (test_cycle.py), not quoted from a paper. Last: mean bits of 3-8.
COLUMNS = [(3, 8, 8), (3, 6, 6), (4, 8, 8), (4, 6, 6), (5, 8, 8), (5, 6, 6)]
COSTS = {
    ("ER", "ET-H"): ([0.822, 0.863, 0.858, 0.912, 0.895, 0.963], 6.83),
    ("LR", "LT"): ([0.628, 0.696, 0.695, 0.792, 0.766, 0.894], 5.50),
    ("CR", "CT"): ([0.633, 0.700, 0.699, 0.793, 0.769, 0.894], 5.50),
    ("ET-V",): ([0.635, 0.701, 0.700, 0.794, 0.769, 0.894], 5.50),
    ("RT-V",): ([0.637, 0.703, 0.702, 0.794, 0.770, 0.894], 5.50),
    ("RR", "RT-H"): ([0.399, 0.497, 0.501, 0.644, 0.611, 0.806], 3.81),
}


@pytest.mark.parametrize("names", COSTS)
def test_the_cost_and_mean_bits_of_the_ten_schedules(names):
    costs, mean = COSTS[names]
    for i, name in enumerate(names):
        for (low, high, backward), cost in zip(COLUMNS, costs, strict=True):
            if i == 0 or (low, high) == (3, 8):  # the others are the same closed forms
                one = schedule(name, low=low, high=high, cycles=8)
                preview = one.preview(64_000, backward=backward)
                assert round(preview.relative_cost, 3) == cost
                assert (low, high) != (3, 8) or round(preview.mean_bits, 2) == mean


def test_the_numbers_of_cpt():
    preview = Cycle(3, 8, cycles=32).preview(64_000)
    # 32 times 410/329/261/262/329/409 steps, 5 switches in each and 31 between cycles
    assert dict(preview.steps_at) == {3: 13120, 4: 10528, 5: 8352, 6: 8384, 7: 10528, 8: 13088}
    assert preview.num_switches == 32 * 5 + 31
    assert preview.num_cycles == 32
    assert preview.shares[3] == pytest.approx(0.205)
    assert preview.reaches_top
    assert preview.ends_at_top
    assert preview.notes == ()


def test_float32_counts_as_32_bits():
    half = Sequence([(8, 0.5), (None, 1.0)]).preview(100, backward=None)
    assert half.mean_bits == 20.0  # (8 + 32) / 2
    # (8^2 + 2*8*32 + 32^2 + 2*32*32) / 2 / (32^2 + 2*32*32)
    assert half.relative_cost == pytest.approx((64 + 512 + 1024 + 2048) / 2 / 3072)
    assert Static(24).preview(10).mean_bits == 32.0


def test_a_static_schedule_costs_what_it_costs():
    for static in (Static(8), Static(None)):
        preview = static.preview(10)
        assert preview.relative_cost == 1.0
        assert preview.num_switches == 0


def test_the_text_says_when_the_top_is_not_the_end():
    assert "at 8, its top" in str(Cycle(3, 8, 8).preview(64_000))
    assert "does not end at its top of 8" in str(Anneal(3, 8, 8).preview(64_000))
    assert "never reaches its top of 8 (at most 3)" in str(Delay("CR:3-8:8", 1.0).preview(100))


def test_the_text_fits_the_width():
    for width in (40, 60, 88):
        text = parse_schedule("CR:8-32:2").preview(500).text(width)
        assert max(map(len, text.splitlines())) <= width


def test_the_dict_is_json():
    preview = parse_schedule("seq(CR:3-8:8@0.8, fp32)").preview(1000)
    data = json.loads(json.dumps(preview.to_dict(), allow_nan=False))
    assert data["schedule"] == "seq(CR:3-8:8@0.8, fp32)"
    assert data["high"] is None
    assert data["steps_at"]["fp32"] == 200
    assert sum(data["steps_at"].values()) == 1000


def test_steps_add_up():
    values = Cycle(3, 8, 7).values(1001)
    preview = Cycle(3, 8, 7).preview(1001)
    assert dict(preview.steps_at) == Counter(values)
    assert sum(preview.shares.values()) == pytest.approx(1.0)


def test_backward_bits_are_checked():
    for backward in (0, 33, "8"):
        with pytest.raises(ValueError, match="backward"):
            Cycle(3, 8).preview(100, backward=backward)
