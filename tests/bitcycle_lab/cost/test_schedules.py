"""The costs of several schedules of one model."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import bitcycle as bc
from bitcycle.cost import CONVENTIONS, Trace, count_macs
from bitcycle.schedules import parse_schedule
from bitcycle_lab.cost.run import estimate_cost
from bitcycle_lab.cost.schedules import ScheduleComparison, compare_schedules, parse_share
from bitcycle_lab.cost.spec import TrainingSpec, find_spec
from bitcycle_lab.models import build_model


def specs(*pairs: str, model: str = "resnet8", **options: Any) -> list[TrainingSpec]:
    """A spec for each text such as "CR:3-8:8/8"."""
    found = []
    for pair in pairs:
        forward, _, backward = pair.partition("/")
        roles = {"forward": forward, "backward": backward}
        found.append(find_spec(model, roles=roles, total_steps=97, batch_size=5, **options))
    return found


def pairs(table: ScheduleComparison) -> list[str]:
    return [f"{row.forward}/{row.backward}" for row in table.rows]


@pytest.mark.parametrize("convention", CONVENTIONS.names())
def test_every_row_costs_what_training_cost_says(convention: str) -> None:
    model = bc.quantize_model(build_model("resnet8"), skip=["fc"])
    table = compare_schedules(
        specs("8/8", "CR:3-8:8/8", "delay@0.4(CR:4-8:2)/6", "6/CR:6-8:3", "5/fp32", skip=["fc"]),
        convention=convention,
    )
    for row in table.rows:
        cost = bc.training_cost(
            model, model.example_inputs(1), forward=row.forward, backward=row.backward,
            total_steps=97, samples_per_step=5, convention=convention, baseline="FW8/BW32",
        )  # fmt: skip
        assert (row.bitops, row.share) == (cost.bitops, cost.relative)
        assert row.mean_bits == parse_schedule(row.forward).preview(97).mean_bits


def test_all_rows_take_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []

    def count(*arguments: Any) -> Trace:
        traced.append(arguments)
        return count_macs(*arguments)

    monkeypatch.setattr("bitcycle_lab.cost.schedules.count_macs", count)
    compare_schedules(specs("8/8", "6/6", "CR:3-8:8/8", "bf16/bf16"))
    assert len(traced) == 1


def test_rows_are_ordered_by_cost_and_compared_with_the_highest_bits_listed() -> None:
    table = compare_schedules(specs("8/6", "6/6", "CR:3-6:8/8"))
    assert pairs(table) == ["CR:3-6:8/8", "6/6", "8/6"]
    static = estimate_cost(specs("8/8")[0]).cost
    assert (table.reference, table.reference_bitops) == ("static 8/8", static.bitops)
    assert all(row.share < 1 for row in table.rows)


def test_a_budget_includes_the_rows_that_cost_exactly_as_much() -> None:
    table = compare_schedules(specs("8/8", "6/6", "5/5"), budget=parse_share("56.25%"))  # 36 / 64
    assert [table.is_within(row) for row in table.rows] == [True, True, False]
    assert [row["within_budget"] for row in table.to_dict()["rows"]] == [True, True, False]


def test_a_budget_that_nothing_meets_names_the_cheapest_row() -> None:
    text = str(compare_schedules(specs("8/8", "6/6"), budget=0.5))
    last = text.splitlines()[-1]
    assert "50%" in last
    assert "56.25%" in last
    assert "yes" not in text


def test_formats_of_several_quantizers_integers_and_float32_share_a_table() -> None:
    table = compare_schedules(
        specs("nvfp4/bf16", "8/8", "mxfp4/mxfp8", "fp32/fp32", "stages:nvfp4@0.8,bf16/bf16")
    )
    assert table.reference == "static fp32/fp32"
    for row in table.rows:
        [alone] = specs(f"{row.forward}/{row.backward}")
        assert row.bitops == estimate_cost(alone).cost.bitops
    assert table.rows[-1].share == 1


def test_the_table_of_schedules_is_json_too_and_names_what_is_not_counted() -> None:
    table = replace(compare_schedules(specs("8/8", "6/6")), uncounted=("odd: no counter",))
    data = json.loads(json.dumps(table.to_dict()))
    assert (data["model"], data["total_steps"], data["batch_size"]) == ("resnet8", 97, 5)
    assert [row["forward"] for row in data["rows"]] == ["6", "8"]
    assert data["budget"] is None
    assert str(table).endswith("not counted:\n  odd: no counter")


@pytest.mark.parametrize("text", ["70", "0", "0%", "101%", "-5%", "nan", "much", "", "%"])
def test_a_budget_that_is_no_share_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}'"):
        parse_share(text)
