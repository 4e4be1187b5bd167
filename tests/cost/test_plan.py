"""Plans: which schedules meet a budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.cost import Plan, plan
from bitcycle.cost.plan import parse_saving
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
    given = {"low": 3, "high": 8, "total_steps": 1000, "samples_per_step": 16, **options}
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


def test_exactly_the_candidates_within_the_budget_are_listed_dearest_first() -> None:
    everything, some = make_plan(saving=0.0), make_plan(saving=0.4)
    fitting = [row for row in everything.rows if row.bitops <= 0.6 * everything.upper_bound]
    assert 0 < len(fitting) < len(everything.rows)
    assert list(some.rows) == fitting
    costs = [row.bitops for row in everything.rows]
    assert costs == sorted(costs, reverse=True)


def test_a_saving_and_the_same_number_of_bitops_give_the_same_plan() -> None:
    by_saving = make_plan(saving=0.4)
    assert make_plan(bitops=by_saving.budget) == by_saving
    assert by_saving.budget == 3 * by_saving.upper_bound // 5


def test_a_saving_is_taken_as_the_decimal_number_that_it_is_written_as() -> None:
    # all three products at q = 2, b = 8 cost 36 / 192 of those at q = b = 8: 0.8125 is saved
    model = bc.quantize_model(nn.Linear(4, 8))
    inputs = torch.ones(1, 4, requires_grad=True)
    found = plan(model, inputs, low=2, high=8, total_steps=1000, saving=0.8125)
    assert [row.forward for row in found.rows] == ["2"]
    with pytest.raises(ValueError, match="none of"):
        plan(model, inputs, low=2, high=8, total_steps=1000, saving=0.8126)


def test_when_nothing_fits_the_cheapest_is_named_with_what_it_saves() -> None:
    cheapest = make_plan(saving=0.0).rows[-1]
    with pytest.raises(
        ValueError, match=r"none of 280 .*90\.0% less than static 8/8.*cheapest, forward 3, "
    ) as error:
        make_plan(saving=0.9)
    assert f"takes {cheapest.bitops:.4g} and saves {cheapest.saving:.1%}" in str(error.value)


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
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
    ],
)
def test_what_cannot_be_meant_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_plan(**options)


@pytest.mark.parametrize(
    ("text", "share"), [("40%", 0.4), ("0.4", 0.4), (" 36.67 % ", 0.3667), ("0", 0.0), ("0%", 0.0)]
)
def test_a_saving_is_read_from_text(text: str, share: float) -> None:
    assert parse_saving(text) == share


@pytest.mark.parametrize(
    ("text", "message"),
    [("40", "did you mean 40%?"), ("a lot", "such as 40% or 0.4, got 'a lot'"), ("", "got ''")],
)
def test_a_text_that_is_no_share_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        parse_saving(text)
