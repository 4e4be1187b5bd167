"""Which schedules meet a budget: every published one, priced exactly, from one traced batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from torch import nn

from bitcycle.cost.bitops import CONVENTIONS
from bitcycle.cost.plan_candidates import list_candidates
from bitcycle.cost.plan_findings import find_findings
from bitcycle.cost.plan_price import Pricer
from bitcycle.cost.plan_result import Plan, Row, describe_row, name_bound
from bitcycle.cost.plan_runs import find_runs
from bitcycle.schedules import ScheduleLike, parse_schedule


def plan(
    model: nn.Module,
    example_inputs: Any,
    *,
    low: int,
    high: int,
    total_steps: int,
    saving: float | None = None,
    bitops: float | None = None,
    backward: ScheduleLike = 8,
    cycles: Sequence[int] | None = None,
    tops: Sequence[int] = (),
    samples_per_step: int | None = None,
    batch_size: int | None = None,
    convention: str = "exact",
) -> Plan:
    """The schedules between `low` and `high` bits that cost no more than a budget.

    The budget is either a `saving`, the share of the BitOPs of the static upper bound (forward
    `high`, errors at their top) that must not be spent, or an absolute number of `bitops`. The
    candidates, with their `cycles` and `tops`, are those of `list_candidates`. Each is priced as
    `training_cost` prices it, but the model is traced only once; `example_inputs`, `batch_size`,
    `samples_per_step` and `convention` are those of `training_cost`. When nothing meets the budget
    the error names the cheapest candidate.

    >>> import torch
    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    >>> found = plan(model, torch.ones(1, 4), low=3, high=8, total_steps=64_000, saving=0.4)
    >>> found.rows[0].forward, round(found.rows[0].saving, 4)
    ('RT-H:5-8:2', 0.4093)
    """
    errors = parse_schedule(backward)
    schedules = list_candidates(low, high, total_steps=total_steps, cycles=cycles, tops=tops)
    _check_budget(saving, bitops)
    pricer = Pricer.of(
        model,
        example_inputs,
        backward=errors,
        total_steps=total_steps,
        samples_per_step=samples_per_step,
        batch_size=batch_size,
        convention=convention,
    )
    upper_bound = pricer.upper_bound(high)
    rows: list[Row] = []
    for schedule in schedules:
        runs = find_runs(schedule, total_steps)
        rows.append(
            describe_row(
                schedule,
                runs,
                bitops=pricer.bitops(runs),
                upper_bound=upper_bound,
                findings=find_findings(schedule, errors),
            )
        )
    rows.sort(key=lambda row: (-row.bitops, not row.ends_at_top, row.forward))
    budget = _budget(saving, bitops, upper_bound)
    unit = CONVENTIONS[convention].unit
    if rows[-1].bitops > budget:
        bound = name_bound(high, errors)
        raise ValueError(_nothing_fits(rows, budget, upper_bound, bound, unit))
    return Plan(
        rows=tuple(row for row in rows if row.bitops <= budget),
        num_candidates=len(rows),
        budget=budget,
        upper_bound=upper_bound,
        low=low,
        high=high,
        backward=str(errors),
        total_steps=total_steps,
        samples_per_step=pricer.samples_per_step,
        convention=convention,
        unit=unit,
        uncounted=pricer.trace.uncounted,
    )


def parse_saving(text: str) -> float:
    """A share from '40%' or '0.4'.

    >>> parse_saving("40%"), parse_saving("0.4")
    (0.4, 0.4)
    """
    try:
        number = Fraction(text.strip().removesuffix("%"))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"a saving is a share such as 40% or 0.4, got {text!r}") from None
    if text.strip().endswith("%"):
        number /= 100
    elif number >= 1:
        raise ValueError(f"a saving is a share below 1, got {text!r}; did you mean {text}%?")
    return float(number)


def _check_budget(saving: float | None, bitops: float | None) -> None:
    if (saving is None) == (bitops is None):
        raise ValueError(f"give exactly one of saving ({saving}) and bitops ({bitops})")
    if saving is not None and not 0 <= saving < 1:
        raise ValueError(f"saving must be a share from 0 to below 1, such as 0.4, got {saving!r}")
    if bitops is not None and not (math.isfinite(bitops) and bitops > 0):
        raise ValueError(f"bitops must be a number above 0, such as 1.2e15, got {bitops!r}")


def _budget(saving: float | None, bitops: float | None, upper_bound: int) -> int:
    """In whole BitOPs; a saving of 0.4 is four tenths, not the nearest binary fraction."""
    if saving is None:
        assert bitops is not None
        return math.floor(bitops)
    return math.floor((1 - Fraction(str(saving))) * upper_bound)


def _nothing_fits(rows: Sequence[Row], budget: int, upper_bound: int, bound: str, unit: str) -> str:
    cheapest = rows[-1]
    return (
        f"none of {len(rows):,} schedules meets the budget of {budget:.4g} {unit} "
        f"({1 - budget / upper_bound:.1%} less than {bound}): the cheapest, "
        f"forward {cheapest.forward}, takes {cheapest.bitops:.4g} and saves {cheapest.saving:.1%}; "
        "raise the budget, lower `low` or the error bits, convert more layers, or train less"
    )
