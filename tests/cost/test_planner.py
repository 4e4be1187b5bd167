"""Plans: which schedules meet a budget, what they cost, and how that is written."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.cost import CONVENTIONS, Plan, plan
from bitcycle.cost.findings import BEHIND, GAIN, GAIN_ELSEWHERE, OPEN, Finding
from bitcycle.cost.planner import Pricer, list_candidates, parse_saving
from bitcycle.schedules import parse_schedule
from bitcycle.schedules.segments import find_segments
from tests import toys


class Counting(nn.Module):
    """A net that knows how often it was run."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.num_calls = toys.net(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        return self.net(x)


def make_plan(model: nn.Module | None = None, **options: Any) -> Plan:
    model = bc.quantize_model(toys.net()) if model is None else model
    given = {"low": 3, "high": 8, "total_steps": 240, "samples_per_step": 16, **options}
    return plan(model, toys.randn(1, 2, 6, 6), **given)


def test_hundreds_of_candidates_take_one_trace() -> None:
    model = bc.quantize_model(Counting())
    found = make_plan(model, saving=0.0, tops=[5, 6, 7])
    assert found.num_candidates > 500
    assert len(found.rows) == found.num_candidates
    assert model.num_calls == 1


def test_every_row_costs_exactly_what_training_cost_says() -> None:
    model = bc.quantize_model(toys.net(), skip=["head.2"])
    found = make_plan(model, saving=0.2, cycles=[3], total_steps=100)
    assert len(found.rows) > 40
    for row in found.rows:
        cost = bc.training_cost(
            model, toys.randn(1, 2, 6, 6), forward=row.forward, backward=8, total_steps=100,
            samples_per_step=16, baseline="FW8/BW8",
        )  # fmt: skip
        assert row.bitops == cost.bitops
        assert row.saving == cost.saving


def test_the_numbers_of_a_row_are_those_of_its_preview() -> None:
    wide = make_plan(saving=0.0, low=20, high=30, cycles=[7], total_steps=90)
    for row in (*make_plan(saving=0.0, cycles=[7], total_steps=90).rows, *wide.rows):
        preview = row.schedule.preview(90)
        assert row.mean_bits == pytest.approx(preview.mean_bits, rel=1e-12)
        assert row.top_share == preview.shares.get(row.schedule.high, 0.0)
        assert (row.last, row.ends_at_top) == (preview.last, preview.ends_at_top)


def test_exactly_the_candidates_within_the_budget_are_listed_by_results_then_cost() -> None:
    everything, some = make_plan(saving=0.0), make_plan(saving=0.4)
    fitting = [row for row in everything.rows if row.bitops <= 0.6 * everything.upper_bound]
    assert 0 < len(fitting) < len(everything.rows)
    assert list(some.rows) == fitting
    places = [(row.rank, -row.bitops) for row in everything.rows]
    assert places == sorted(places)
    assert {rank for rank, _ in places} == {GAIN, GAIN_ELSEWHERE, OPEN, BEHIND}


def test_what_is_shown_behind_comes_last_and_the_recommended_schedule_first() -> None:
    found = cached_plan(saving=0.4, cycles=(8,))
    text = found.text(limit=None)
    ahead, _, behind = text.partition("shown behind by the result at the right:\n")
    assert "delay@" not in ahead
    assert "delay@0.375(CR:4-8:8)" in behind
    assert "(-3.39 to -0.51)  Table 7 [" in behind
    first, _ = found.lines()[0]
    assert f"recommended: {first.forward} saves {first.saving:.1%}; " in text
    words = " ".join(text.split())
    assert (
        "No schedule with published gains meets the budget; of those CR:3-8:8 saves the " in words
    )


def test_a_published_gain_at_these_bits_is_recommended_with_its_difference_and_table() -> None:
    found = cached_plan(saving=0.2, cycles=(8,), metric="accuracy")
    assert found.rows[0].forward == "CR:3-8:8"
    assert found.gain_outside is None
    difference = "+0.20 to +0.91 points against static 8/8 (CPT Table 2"
    assert found.recommended.endswith(f"%; {difference}, measured with 32 cycles)")
    long = cached_plan(saving=0.2, cycles=(32,), metric="accuracy")
    assert long.recommended.endswith(f"%; {difference})")
    [line] = [line for line in str(found).splitlines() if line.startswith("CR:3-8:8 ")]
    assert line.endswith("+0.20 to +0.91    Table 2 [1]")


def test_when_all_are_behind_the_recommendation_says_so() -> None:
    found = make_plan(bitops=min(row.bitops for row in make_plan(saving=0.0).rows))
    assert {row.rank for row in found.rows} == {BEHIND}
    assert "all within the budget are shown behind, this one by -" in found.recommended


def test_own_findings_reorder_the_plan() -> None:
    own = Finding(
        stance="for", text="RR:3-8:8 against static 8", source="own runs, n = 3",
        difference=(0.31, 0.31), against="static 8", num_better=3, num_cells=3, is_own=True,
    )  # fmt: skip
    found = make_plan(saving=0.4, cycles=[8], own={"RR:3-8:8": own})
    assert found.rows[0].forward == "RR:3-8:8"
    assert found.recommended.endswith("; +0.31 points against static 8 (own runs, n = 3)")
    [line] = [line for line in str(found).splitlines() if line.startswith("RR:3-8:8 ")]
    assert line.endswith("+0.31             own runs, n = 3 [1]")


def test_a_saving_and_the_same_number_of_bitops_give_the_same_plan() -> None:
    by_saving = make_plan(saving=0.4)
    assert make_plan(bitops=by_saving.budget) == by_saving
    assert by_saving.budget == 3 * by_saving.upper_bound // 5


def test_a_saving_is_taken_as_the_decimal_number_that_it_is_written_as() -> None:
    # all three products at q = 2, b = 8 cost 36 / 192 of those at q = b = 8: 0.8125 is saved
    model = bc.quantize_model(nn.Linear(4, 8))
    inputs = torch.ones(1, 4, requires_grad=True)
    found = plan(model, inputs, low=2, high=8, total_steps=240, saving=0.8125)
    assert [row.forward for row in found.rows] == ["2"]
    with pytest.raises(ValueError, match="none of"):
        plan(model, inputs, low=2, high=8, total_steps=240, saving=0.8126)


def test_when_nothing_fits_the_cheapest_is_named_with_what_it_saves() -> None:
    cheapest = min(make_plan(saving=0.0).rows, key=lambda row: row.bitops)
    with pytest.raises(
        ValueError, match=r"none of 280 .*90\.0% less than static 8/8.*cheapest, forward 3, "
    ) as error:
        make_plan(saving=0.9)
    assert f"takes {cheapest.bitops:.4g} and saves {cheapest.saving:.1%}" in str(error.value)
    assert "; save less, lower `low`" in str(error.value)  # fewer steps save the same share
    with pytest.raises(ValueError, match="; raise the budget, train for fewer steps, lower `low`"):
        make_plan(bitops=1.0)


def test_the_same_question_has_the_same_answer_and_leaves_the_model_alone() -> None:
    model = bc.quantize_model(toys.net())
    bc.set_precision(model, "w4a4e8")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    assert make_plan(model, saving=0.3) == make_plan(model, saving=0.3)
    assert bc.get_precision(model) == bc.Precision.parse("w4a4e8")
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_published_saving_of_cpt_is_found() -> None:
    model = bc.quantize_model(nn.Linear(4, 8))
    inputs = torch.ones(1, 4, requires_grad=True)  # all three products, as the paper counts
    found = plan(model, inputs, low=3, high=8, total_steps=64_000, saving=0.36, cycles=[32])
    [row] = [row for row in found.rows if row.forward == "CR:3-8:32"]
    assert round(100 * row.saving, 2) == 36.67  # 3-8/8
    assert (row.tier, row.ends_at_top) == ("medium", True)
    assert [finding.source for finding in row.findings] == ["CPT Table 2"]


def test_what_cannot_be_meant_is_an_error() -> None:
    for options, message in (
        ({}, r"exactly one of saving \(None\) and bitops \(None\)"),
        ({"saving": 0.4, "bitops": 1e9}, "exactly one"),
        ({"saving": 1.0}, "saving must be a share from 0 to below 1, such as 0.4, got 1.0"),
        ({"saving": -0.1}, "saving must be a share"),
        ({"saving": float("nan")}, "saving must be a share"),
        ({"bitops": 0}, "bitops must be a number above 0"),
        ({"bitops": float("inf")}, "bitops must be a number above 0"),
        ({"saving": 0.4, "low": 8}, "low and high are both 8"),
        ({"saving": 0.4, "backward": "CR:3-8:x"}, "expected the number of cycles"),
        ({"saving": 0.4, "backward": "CR:3-8:2000"}, r"cycles \(2000\) must be <= total_steps"),
    ):
        with pytest.raises(ValueError, match=message):
            make_plan(**options)


def test_a_saving_is_read_from_text() -> None:
    for text, share in (("40%", 0.4), ("0.4", 0.4), (" 36.67 % ", 0.3667), ("0", 0.0), ("0%", 0.0)):
        assert parse_saving(text) == share


def test_a_text_that_is_no_share_is_an_error() -> None:
    for text, message in (
        ("40", "did you mean 40%?"),
        ("120%", "below 100%, got '120%'"),
        ("a lot", "such as 40% or 0.4, got 'a lot'"),
        ("", "got ''"),
    ):
        with pytest.raises(ValueError, match=message.replace("?", r"\?")):
            parse_saving(text)


def texts(low: int, high: int, **options: object) -> list[str]:
    return [str(one) for one in list_candidates(low, high, **options)]  # type: ignore[arg-type]


def test_one_range_and_one_number_of_cycles_give_every_published_kind() -> None:
    assert texts(3, 4, total_steps=64_000, cycles=[8]) == [
        "3",
        *(f"{name}:3-4:8" for name in ("CR", "CT", "ER", "ET-H", "ET-V", "LR", "LT", "RR", "RT-H",
                                       "RT-V", "anneal", "triangle")),
        *(f"delay@{start}(CR:3-4:8)" for start in (0.375, 0.5, 0.625, 0.75)),
        *(f"ramp:3-4@{until}" for until in (0.25, 0.5, 0.75)),
        *(f"stages:3@{end},4" for end in (0.25, 0.5, 0.75, 0.9)),
    ]  # fmt: skip


def test_every_lower_bound_is_tried_and_only_the_given_tops() -> None:
    def ramps(*tops: int) -> list[str]:
        found = texts(5, 8, total_steps=100, cycles=[1], tops=tops)
        return [text.removesuffix("@0.5") for text in found if text.endswith("@0.5")]

    assert ramps() == ["ramp:5-8", "ramp:6-8", "ramp:7-8"]
    assert ramps(6, 8) == ["ramp:5-8", "ramp:6-8", "ramp:7-8", "ramp:5-6"]


def test_bits_that_mean_float32_are_no_lower_bounds() -> None:
    found = list_candidates(22, 32, total_steps=100, cycles=[2])
    assert {one.low for one in found} == {22, 23}


def test_the_published_numbers_of_cycles_are_the_default_as_far_as_they_fit() -> None:
    def cycles(total_steps: int) -> list[str]:
        found = texts(3, 4, total_steps=total_steps)
        return [text.rpartition(":")[2] for text in found if text.startswith("CR")]

    assert cycles(64_000) == ["2", "8", "32"]
    assert cycles(31) == ["2", "8"]
    assert cycles(1) == []


def test_a_late_start_that_leaves_too_few_steps_is_left_out() -> None:
    found = texts(3, 4, total_steps=10, cycles=[5])
    assert [text for text in found if text.startswith("delay")] == [
        "delay@0.375(CR:3-4:5)", "delay@0.5(CR:3-4:5)",
    ]  # fmt: skip


def test_every_candidate_is_written_so_that_it_can_be_read_back_and_none_twice() -> None:
    found = list_candidates(3, 8, total_steps=64_000, tops=[6, 7])
    assert [parse_schedule(str(one)) for one in found] == found
    assert len(set(found)) == len(found)


def test_candidates_that_cannot_be_meant_are_an_error() -> None:
    for options, message in (
        ({"low": 8, "high": 8}, "low and high are both 8"),
        ({"low": 8, "high": 3}, r"low \(8\) must be <= high \(3\)"),
        ({"low": 24, "high": 32}, r"low \(24\) is float32, as are all bits from 24 on"),
        ({"cycles": []}, "cycles is empty"),
        ({"cycles": [8, 0]}, "cycles must be a whole number of at least 1, got 0"),
        ({"cycles": [101]}, r"cycles \(101\) must be <= total_steps \(100\)"),
        ({"tops": [3]}, r"tops must be above low \(3\) and up to high \(8\), got 3"),
        ({"tops": [9]}, "got 9"),
        ({"total_steps": 0}, "total_steps must be at least 1"),
    ):
        given = {"low": 3, "high": 8, "total_steps": 100, **options}
        with pytest.raises(ValueError, match=message):
            texts(**given)  # type: ignore[arg-type]


def pricer(model: nn.Module, inputs: Tensor, backward: int | str = 8, **changes: Any) -> Pricer:
    options = {"total_steps": 97, "samples_per_step": 5, "batch_size": None, "convention": "exact"}
    return Pricer.of(model, inputs, backward=parse_schedule(backward), **{**options, **changes})


@pytest.mark.parametrize("convention", CONVENTIONS.names())
def test_a_price_is_the_training_cost_of_the_same_schedules(convention: str) -> None:
    for backward in (8, 6, "fp32", "CR:6-8:3", "stages:4@0.3,8"):
        model, inputs = bc.quantize_model(toys.net(), skip=["head.2"]), toys.randn(2, 2, 6, 6)
        prices = pricer(model, inputs, backward, convention=convention)
        for forward in ("5", "CR:3-8:8", "delay@0.375(CR:4-8:2)", "ramp:3-8@0.5", "stages:3@0.9,8"):
            cost = bc.training_cost(
                model, inputs, forward=forward, backward=backward, total_steps=97,
                samples_per_step=5, convention=convention,
            )  # fmt: skip
            assert prices.bitops(find_segments(parse_schedule(forward), 97)) == cost.bitops
            if forward != "5":
                assert prices.upper_bound(8) == sum(layer.bitops for layer in cost.baseline_layers)


def test_the_hand_count_of_one_linear() -> None:
    model = bc.quantize_model(nn.Linear(4, 8))  # 32 MACs; a first layer has no grad_input
    prices = pricer(model, torch.ones(1, 4), 6, total_steps=10, samples_per_step=3)
    segments = find_segments(parse_schedule("stages:4@0.4,8"), 10)
    # 12 samples at q = 4 and 18 at q = 8: q q + q b
    assert prices.bitops(segments) == 32 * (12 * (16 + 24) + 18 * (64 + 48))
    assert prices.upper_bound(8) == 32 * 30 * (64 + 48)


def test_the_batch_of_the_example_is_that_of_the_run_unless_told_otherwise() -> None:
    model = bc.quantize_model(nn.Linear(4, 8))
    assert pricer(model, torch.ones(7, 4), samples_per_step=None).samples_per_step == 7


def test_bad_settings_are_errors() -> None:
    for changes, message in (
        ({"convention": "exakt"}, "unknown cost convention 'exakt'"),
        ({"samples_per_step": 0}, "samples_per_step must be a whole number of at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            pricer(bc.quantize_model(nn.Linear(4, 8)), torch.ones(1, 4), **changes)


def test_a_float_model_is_an_error_since_every_schedule_would_cost_the_same() -> None:
    with pytest.raises(ValueError, match="no quantized layer"):
        pricer(nn.Linear(4, 8), torch.ones(1, 4))


@functools.cache
def cached_plan(saving: float = 0.35, **options: object) -> Plan:
    model = bc.quantize_model(toys.linears(4, 8, 8))
    given = {"low": 3, "high": 8, "total_steps": 64_000, **options}
    inputs = toys.randn(1, 4).requires_grad_()  # so that every layer has all three products
    return plan(model, inputs, saving=saving, **given)  # type: ignore[arg-type]


def test_the_table_fits_100_columns_and_says_what_it_compares_with() -> None:
    text = str(cached_plan())
    assert max(map(len, text.splitlines())) <= 100
    words = " ".join(text.split())
    assert "of 280 schedules between 3 and 8 bits, errors at 8, cost at most" in words
    assert "35.0% less than static 8/8" in words
    assert "over 64,000 steps of 1 sample, convention 'exact'" in words


def test_the_widest_table_fits_too() -> None:
    options = {"low": 10, "high": 16, "backward": "CR:10-16:32", "convention": "followup"}
    text = cached_plan(saving=0.2, **options).text(limit=None)
    assert "delay@0.375(CR:10-16:32)" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_numbers_of_cycles_that_cost_the_same_share_a_line() -> None:
    lines = cached_plan().text(limit=None).splitlines()
    [line] = [line for line in lines if line.startswith("RR:3-8")]
    assert line.split()[:4] == ["RR:3-8:32", "2,", "8", "60.1%"]  # 0.399 of static 8/8
    short = cached_plan(total_steps=63_999).text(limit=None)  # cycles would be shorter than CPT's
    [line] = [line for line in short.splitlines() if line.startswith("RR:3-8")]
    assert line.split()[:3] == ["RR:3-8:8", "2,", "32"]


def test_every_row_is_behind_exactly_one_line_and_lines_keep_the_order() -> None:
    found = cached_plan(saving=0.0, total_steps=240)  # short: the cost depends on the cycles
    lines = found.lines()
    assert sum(1 + len(others) for _, others in lines) == len(found.rows)
    places = [(row.rank, -row.bitops) for row, _ in lines]
    assert places == sorted(places)
    by_text = {row.forward: row for row in found.rows}
    for row, others in lines:
        for cycles in others:
            head, _, end = row.forward.rpartition(":")
            other = by_text[f"{head}:{cycles}{')' if end.endswith(')') else ''}"]
            assert abs(other.saving - row.saving) <= 0.001
            assert (other.last, other.findings) == (row.last, row.findings)


def test_an_end_below_the_top_is_shown() -> None:
    text = cached_plan(saving=0.3, cycles=(8,), low=4).text(limit=None)
    [line] = [line for line in text.splitlines() if line.startswith("triangle:4-8")]
    assert "at 4" in line
    [line] = [line for line in text.splitlines() if line.startswith("LT:4-8")]
    assert "top" in line


def test_findings_are_numbered_where_they_are_used_and_written_once() -> None:
    text = cached_plan(cycles=(8,)).text(limit=None)
    [line] = [line for line in text.splitlines() if line.startswith("CR:3-8")]
    number = line.split()[-1]
    assert number == "[1]"
    words = " ".join(text.split())
    assert f"{number} CR at 3-8/8, 32 cycles, against static 8/8: ResNet-74 93.23" in words
    assert words.count("[CPT Table 1]") == 1


def test_a_limit_cuts_lines_and_the_findings_that_only_they_used() -> None:
    found = cached_plan()
    text = found.text(limit=1)
    hidden = len(found.lines()) - 1
    assert f"and {hidden} more lines" in text
    assert text.count("[CPT") == len(found.lines()[0][0].findings)
    assert "more lines" not in found.text(limit=None)


def test_json_carries_every_row_and_only_json_types() -> None:
    found = cached_plan()
    data = json.loads(json.dumps(found.to_dict()))
    assert data == found.to_dict()
    assert [row["forward"] for row in data["rows"]] == [row.forward for row in found.rows]
    assert data["num_rows"] == len(found.rows)
    assert data["rows"][0]["bitops"] <= data["budget"] < data["upper_bound"]
    few = found.to_dict(limit=2)
    assert (len(few["rows"]), few["num_rows"]) == (2, len(found.rows))


def test_what_was_not_counted_is_listed() -> None:
    assert "not counted" not in str(cached_plan())
    found = dataclasses.replace(cached_plan(), uncounted=("odd (Odd): no counter",))
    assert str(found).endswith("not counted:\n  odd (Odd): no counter")


def test_the_upper_bound_has_the_errors_at_their_top() -> None:
    found = cached_plan(backward="CR:6-10:8")
    assert found.bound_name == "static 8/10"
    words = " ".join(str(found).split())
    assert "errors at CR:6-10:8" in words
    assert "35.0% less than static 8/10" in words
    assert "[CPT Table 8]" in words


def test_an_absolute_budget_above_the_upper_bound_is_not_called_a_saving() -> None:
    model = bc.quantize_model(toys.linears(4, 8))
    found = plan(model, toys.randn(1, 4), low=3, high=8, total_steps=100, bitops=1e18)
    assert "more than static 8/8" in " ".join(str(found).split())
