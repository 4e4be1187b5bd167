"""`plan` lists the schedules that meet a BitOPs budget, with their cost and published findings.

The candidates are all published schedules within the bounds (`list_candidates`). `Pricer` traces
the model once and prices each candidate as `training_cost` does. `Plan` is the result, and the
table that `bitcycle plan` prints.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from torch import nn

from bitcycle.cost.bitops import BitsOf, find_layer_schedules
from bitcycle.cost.conventions import CONVENTIONS, OperandBits, Usage
from bitcycle.cost.findings import Finding, find_findings
from bitcycle.cost.trace import Trace, count_macs
from bitcycle.model_precision import quantized_layers
from bitcycle.precision import FLOAT_BITS, Precision, cost_bits
from bitcycle.schedules import (
    Anneal,
    Bits,
    Cycle,
    Delay,
    Ramp,
    Schedule,
    ScheduleLike,
    Stages,
    Static,
    Triangle,
    parse_schedule,
)
from bitcycle.schedules.base import bits_text, check_count, check_range, check_total, pluralize
from bitcycle.schedules.cycle import Cyclic
from bitcycle.schedules.segments import Segment, count_steps, find_segments
from bitcycle.tables import text_table

# the candidates
CYCLES = (2, 8, 32)  # 32: CPT; 8, and 2 for a short fine-tune: Better Schedules (2024)
RAMPS = (0.25, 0.5, 0.75)  # 0.5: CPT, Fig. 1
SWITCHES = (0.25, 0.5, 0.75, 0.9)  # 0.5: CPT, Table 1
STARTS = (0.375, 0.5, 0.625, 0.75)  # CPT, Table 7: epochs 60, 80, 100, 120 of 160

# the table
WIDTH = 100
LIMIT = 20
NEAR = 0.001  # savings this close share a line
_SIGNS = {"for": "+", "against": "-", "mixed": "~"}


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
    """List the schedules between `low` and `high` bits that cost no more than a budget.

    The budget is either `saving`, a share of the BitOPs of the static upper bound (forward at
    `high`, errors at the top of `backward`), or `bitops`, an absolute number. `cycles` and `tops`
    are those of `list_candidates`; `example_inputs`, `batch_size`, `samples_per_step` and
    `convention` those of `training_cost`. The model is traced once. If no candidate meets the
    budget, the error names the cheapest one.

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
    rows = [pricer.price(schedule, upper_bound) for schedule in schedules]
    rows.sort(key=lambda row: (-row.bitops, not row.ends_at_top, row.forward))
    budget = _budget(saving, bitops, upper_bound)
    unit = CONVENTIONS[convention].unit
    if rows[-1].bitops > budget:
        cheapest = rows[-1]
        raise ValueError(
            f"none of {len(rows):,} schedules meets the budget of {budget:.4g} {unit} "
            f"({1 - budget / upper_bound:.1%} less than {name_bound(high, errors)}): the cheapest, "
            f"forward {cheapest.forward}, takes {cheapest.bitops:.4g} and saves "
            f"{cheapest.saving:.1%}; raise the budget, lower `low` or the error bits, convert more "
            "layers, or train for fewer steps"
        )
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
    """Read a share from '40%' or '0.4'.

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
    """The budget in whole BitOPs. A saving of 0.4 is four tenths, not the nearest float."""
    if saving is None:
        assert bitops is not None
        return math.floor(bitops)
    return math.floor((1 - Fraction(str(saving))) * upper_bound)


# -- candidates ------------------------------------------------------------------------------------


def list_candidates(
    low: int,
    high: int,
    *,
    total_steps: int,
    cycles: Sequence[int] | None = None,
    tops: Sequence[int] = (),
) -> list[Schedule]:
    """Every published schedule between `low` and `high` bits.

    These are static bits and, from each of low, ..., high - 1 up to high: the ten named schedules,
    CPT's triangle and annealing, ramps, two stages, and CPT's cycle with a delayed start. cycles:
    the numbers of cycles, by default those of `CYCLES` that fit the run. tops: upper bounds besides
    `high`.

    >>> [str(one) for one in list_candidates(3, 4, total_steps=100, cycles=[8])][:5]
    ['3', 'CR:3-4:8', 'CT:3-4:8', 'ER:3-4:8', 'ET-H:3-4:8']
    """
    check_range(low, high)
    if low == high:
        raise ValueError(f"low and high are both {low}, so there is nothing to schedule; lower low")
    if low >= FLOAT_BITS:
        raise ValueError(f"low ({low}) is float32, as are all bits from {FLOAT_BITS} on; lower it")
    total = check_total(total_steps)
    numbers = _check_cycles(cycles, total)
    for top in tops:
        if top not in range(low + 1, high + 1):
            raise ValueError(f"tops must be above low ({low}) and up to high ({high}), got {top}")
    found: list[Schedule] = [Static(bits) for bits in range(low, min(high, FLOAT_BITS))]
    for top in sorted({high, *tops}, reverse=True):
        for bottom in range(low, min(top, FLOAT_BITS)):
            found += [one for one in _between(bottom, top, numbers) if _fits(one, total)]
    return found


def _between(low: int, high: int, cycles: Sequence[int]) -> Iterator[Schedule]:
    for n in cycles:
        for _, example in sorted(Cycle.named().items()):
            yield Cycle(low, high, n, example.profile, example.form, example.reflect)
        yield Anneal(low, high, n)
        yield Triangle(low, high, n)
        for start in STARTS:
            yield Delay(Cycle(low, high, n), start=start)
    for until in RAMPS:
        yield Ramp(low, high, until=until)
    for end in SWITCHES:
        yield Stages(((low, end), (high, 1.0)))


def _fits(schedule: Schedule, total_steps: int) -> bool:
    """Whether the run has room for all cycles, also after a delayed start."""
    try:
        schedule.check_span(total_steps)
    except ValueError:
        return False
    return True


def _check_cycles(cycles: Sequence[int] | None, total_steps: int) -> list[int]:
    if cycles is None:
        return [n for n in CYCLES if n <= total_steps]
    if not cycles:
        raise ValueError("cycles is empty: give at least one number, such as 8")
    for n in cycles:
        Cycle(3, 8, n).check_span(total_steps)  # raises unless it is a whole number that fits
    return sorted(set(cycles))


# -- prices ----------------------------------------------------------------------------------------

Pair = tuple[Bits, Bits]  # forward and backward bits of a step


@dataclass(frozen=True)
class Pricer:
    """Prices forward schedules for one traced model and length of the run."""

    trace: Trace
    backward: Schedule
    total_steps: int
    samples_per_step: int
    convention: str
    _bits_of: BitsOf = field(repr=False)
    _backward_segments: list[Segment] = field(repr=False)
    _known: dict[Pair, list[OperandBits]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        example_inputs: Any,
        *,
        backward: Schedule,
        total_steps: int,
        samples_per_step: int | None,
        batch_size: int | None,
        convention: str,
    ) -> Pricer:
        """Trace the model and keep the arguments of `training_cost`."""
        needs_conversion = CONVENTIONS[convention].needs_conversion
        if needs_conversion:
            quantized_layers(model)  # raises if there are none: every schedule would cost the same
        bits_of = find_layer_schedules(
            model,
            {"forward": "fp32", "backward": backward},
            total_steps,
            needs_conversion=needs_conversion,
        ).bits_of
        segments = find_segments(backward, total_steps)
        trace = count_macs(model, example_inputs, batch_size=batch_size)
        samples = trace.batch_size if samples_per_step is None else samples_per_step
        check_count(samples, "samples_per_step")
        return cls(trace, backward, total_steps, samples, convention, bits_of, segments)

    def price(self, schedule: Schedule, upper_bound: int) -> PricedSchedule:
        """A forward schedule with its cost, bits over the run and findings."""
        total = self.total_steps
        segments = find_segments(schedule, total)
        bitops = self.bitops(segments)
        return PricedSchedule(
            schedule=schedule,
            bitops=bitops,
            saving=1 - bitops / upper_bound,
            mean_bits=sum((s.stop - s.start) * cost_bits(s.bits) for s in segments) / total,
            top_share=sum(s.stop - s.start for s in segments if s.bits == schedule.high) / total,
            last=segments[-1].bits,
            findings=find_findings(schedule, self.backward),
            segments=tuple(segments),
        )

    def bitops(self, segments: list[Segment]) -> int:
        """BitOPs of a run with these forward bits, by the convention."""
        return self._count(count_steps(segments, self._backward_segments))

    def upper_bound(self, high: int) -> int:
        """BitOPs with forward bits static at `high` and errors at the top of their schedule."""
        return self._count({(high, self.backward.high): self.total_steps})

    def _count(self, steps: dict[Pair, int]) -> int:
        usages: list[Usage] = []
        by_pair = [(self._operands(pair), number) for pair, number in steps.items()]
        for place in range(len(self.trace.layers)):
            usage: dict[OperandBits, tuple[int, int]] = {}
            for operands, number in by_pair:
                before = usage.get(operands[place], (0, 0))[0]
                total = before + number  # pairs can share bits: a float layer is always at 32
                usage[operands[place]] = total, total * self.samples_per_step
            usages.append(usage)
        return sum(layer.bitops for layer in CONVENTIONS[self.convention](self.trace, usages))

    def _operands(self, pair: Pair) -> list[OperandBits]:
        """The operand bits of every layer."""
        if pair not in self._known:
            q, b = pair
            precision = Precision(weight=q, act=q, error=b, grad=b)
            self._known[pair] = [self._bits_of(m, precision) for m in self.trace.modules]
        return self._known[pair]


# -- the plan --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PricedSchedule:
    """A forward schedule, its cost and bits over the run, and its published findings."""

    schedule: Schedule
    bitops: int
    saving: float  # share of the static upper bound's BitOPs
    mean_bits: float  # float32 counts as 32
    top_share: float  # share of the steps at the schedule's most bits
    last: Bits  # bits of the last step
    findings: tuple[Finding, ...]
    segments: tuple[Segment, ...] = field(repr=False, compare=False)

    @property
    def forward(self) -> str:
        """The text to pass as `forward`."""
        return str(self.schedule)

    @property
    def ends_at_top(self) -> bool:
        """Whether the last step has the schedule's most bits."""
        return self.last == self.schedule.high

    @property
    def tier(self) -> str | None:
        """Cost tier of the ten named schedules: high, medium or low."""
        return self.schedule.tier if isinstance(self.schedule, Cycle) else None

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types."""
        return {
            "forward": self.forward,
            "bitops": self.bitops,
            "saving": self.saving,
            "mean_bits": self.mean_bits,
            "top_share": self.top_share,
            "last": self.last,
            "ends_at_top": self.ends_at_top,
            "tier": self.tier,
            "findings": [vars(finding) for finding in self.findings],
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The schedules that cost no more than the budget, most expensive first; `str()` is a table.

    The most expensive schedule is the closest to the static upper bound.
    """

    rows: tuple[PricedSchedule, ...]
    num_candidates: int
    budget: int  # in `unit`, as are all costs here
    upper_bound: int  # forward static at `high`, errors at their top
    low: int
    high: int
    backward: str
    total_steps: int
    samples_per_step: int
    convention: str
    unit: str  # of the convention, such as BitOPs
    uncounted: tuple[str, ...]

    def to_dict(self, limit: int | None = None) -> dict[str, Any]:
        """Return a dict of JSON types; all rows, or the first `limit`."""
        plain = {
            name: getattr(self, name)
            for name in ("num_candidates", "budget", "upper_bound", "low", "high", "backward",
                         "total_steps", "samples_per_step", "convention", "unit")
        }  # fmt: skip
        rows = [row.to_dict() for row in self.rows[:limit]]
        return {
            **plain, "num_rows": len(self.rows), "uncounted": list(self.uncounted), "rows": rows
        }  # fmt: skip

    def lines(self) -> list[tuple[PricedSchedule, list[int]]]:
        """The lines of the table: a row, and the other numbers of cycles that cost the same.

        Rows share a line if they differ only in their number of cycles and cost about the same.
        """
        groups: dict[tuple[object, ...], list[PricedSchedule]] = {}
        for row in self.rows:
            key = (_shape(row.schedule), row.ends_at_top, row.last, row.findings)
            near = groups.setdefault(key, [])
            if near and near[0].saving < row.saving - NEAR:
                groups[(*key, row.forward)] = [row]
            else:
                near.append(row)
        places = {row.forward: place for place, row in enumerate(self.rows)}
        lines = []
        for rows in groups.values():
            rows = sorted(rows, key=lambda row: _cycles(row.schedule))
            chosen = rows[len(rows) // 2]
            lines.append((chosen, [_cycles(row.schedule) for row in rows if row is not chosen]))
        return sorted(lines, key=lambda line: places[line[0].forward])

    def __str__(self) -> str:
        return self.text()

    def text(self, limit: int | None = LIMIT) -> str:
        """At most `limit` lines of the table, with a legend and their findings."""
        lines = self.lines()
        shown = lines[:limit]
        known: dict[Finding, int] = {}
        for row, _ in shown:
            for finding in row.findings:
                known.setdefault(finding, len(known) + 1)
        header = ("forward", "cycles also", "saves", self.unit, "mean", "at top", "ends",
                  "tier", "published")  # fmt: skip
        cells = [
            (row.forward, ", ".join(map(str, others)), *_numbers(row), row.tier or "-",
             " ".join(f"{_SIGNS[f.stance]}{known[f]}" for f in row.findings) or ".")
            for row, others in shown
        ]  # fmt: skip
        parts = [
            self._title(),
            text_table(header, cells, right=(2, 3, 4, 5)),
            _legend(known),
        ]
        if hidden := len(lines) - len(shown):
            parts.insert(2, f"and {hidden:,} more lines, none more expensive")
        if self.uncounted:
            parts.append("\n".join(["not counted:", *(f"  {line}" for line in self.uncounted)]))
        return "\n\n".join(parts)

    @property
    def bound_name(self) -> str:
        """The static upper bound, such as 'static 8/8'."""
        return name_bound(self.high, parse_schedule(self.backward))

    def _title(self) -> str:
        bound = self.bound_name
        share = 1 - self.budget / self.upper_bound
        compared = f"{share:.1%} less than {bound}" if share >= 0 else f"more than {bound}"
        return "\n".join(
            textwrap.wrap(
                f"{len(self.rows):,} of {self.num_candidates:,} schedules between {self.low} and "
                f"{self.high} bits, errors at {self.backward}, cost at most {self.budget:.4g} "
                f"{self.unit}: {compared} ({self.upper_bound:.4g}), over "
                f"{pluralize(self.total_steps, 'step')} of "
                f"{pluralize(self.samples_per_step, 'sample')}, convention {self.convention!r}. "
                "Most expensive first.",
                WIDTH,
            )
        )


def name_bound(high: int, backward: Schedule) -> str:
    """The static upper bound: forward bits, and the top of the errors' schedule.

    >>> name_bound(8, parse_schedule("CR:6-10:8"))
    'static 8/10'
    """
    return f"static {high}/{bits_text(backward.high)}"


def _numbers(row: PricedSchedule) -> tuple[str, ...]:
    end = "top" if row.ends_at_top else f"at {bits_text(row.last)}"
    return (
        f"{row.saving:.1%}", f"{row.bitops:.3e}", f"{row.mean_bits:.2f}", f"{row.top_share:.0%}",
        end,
    )  # fmt: skip


def _cycles(schedule: Schedule) -> int:
    inner = schedule.schedule if isinstance(schedule, Delay) else schedule
    return inner.cycles if isinstance(inner, Cyclic) else 0


def _shape(schedule: Schedule) -> str:
    """The text of the schedule with one cycle, equal for all numbers of cycles."""
    if isinstance(schedule, Delay):
        return f"delay@{schedule.start!r}({_shape(schedule.schedule)})"
    return str(replace(schedule, cycles=1) if isinstance(schedule, Cyclic) else schedule)  # type: ignore[type-var]


def _legend(known: dict[Finding, int]) -> str:
    lines = [
        "cycles also: these numbers cost the same within 0.1 %; mean: bits over all steps;",
        "at top: share of the steps at the schedule's most bits; ends: bits of the last step;",
        "published: + for, - against, ~ mixed, . not measured in the CPT paper's tables",
    ]
    for finding, number in known.items():
        lines += textwrap.wrap(
            f"{finding.text} [{finding.source}]", WIDTH, initial_indent=f"{number:>3}  ",
            subsequent_indent=" " * 5,
        )  # fmt: skip
    return "\n".join(lines)
