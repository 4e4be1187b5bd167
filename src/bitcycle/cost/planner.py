"""`plan` ranks the schedules that meet a BitOPs budget by published findings and by their cost.

The candidates are all published schedules within the bounds (`list_candidates`). `Pricer` traces
the model once and prices each candidate as `training_cost` does. `Plan` is the result, and the
table that `bitcycle plan` prints.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from torch import nn

from bitcycle.cost.bitops import BitsOf, find_layer_schedules
from bitcycle.cost.conventions import CONVENTIONS, LayerCost, OperandBits, Usage
from bitcycle.cost.findings import (
    BEHIND,
    GAIN,
    GAIN_ELSEWHERE,
    OWN_GAIN,
    Finding,
    find_findings,
    rank,
)
from bitcycle.cost.throughput import DEVICES, Throughput, legend, speedup_cells
from bitcycle.cost.trace import Trace, count_macs
from bitcycle.formats.catalogue import Format
from bitcycle.model_precision import quantized_layers
from bitcycle.precision import FLOAT_BITS, Precision, check_bits, cost_bits
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
from bitcycle.schedules.base import (
    bits_text,
    check_count,
    check_range,
    check_total,
    default_backward,
    order,
    pluralize,
)
from bitcycle.schedules.cycle import Cyclic
from bitcycle.schedules.segments import Segment, count_steps, find_segments
from bitcycle.tables import text_table

# the candidates
CYCLES = (2, 8, 32)  # 32: CPT; 8, and 2 for a short fine-tune: Better Schedules (2024)
CPT_CYCLES, CPT_CYCLE_STEPS = 32, 2_000  # CPT on CIFAR
RAMPS = (0.25, 0.5, 0.75)  # 0.5: CPT, Fig. 1
SWITCHES = (0.25, 0.5, 0.75, 0.9)  # 0.5: CPT, Table 1
HEALING = 0.82  # of an NVFP4 run, then bf16: arXiv 2509.25149
STARTS = (0.375, 0.5, 0.625, 0.75)  # CPT, Table 7: epochs 60, 80, 100, 120 of 160

# the table
WIDTH = 100
LIMIT = 20
_LADDER_CYCLES = re.compile(r"(?P<head>[A-Za-z-]+:[^:@()]*,[^:@()]*):(?P<cycles>\d+)")
NEAR = 0.001  # savings this close share a line


def plan(
    model: nn.Module,
    example_inputs: Any,
    *,
    low: int | None = None,
    high: int | None = None,
    ladder: Sequence[Bits | str] = (),
    total_steps: int,
    saving: float | None = None,
    bitops: float | None = None,
    backward: ScheduleLike = "default",
    cycles: Sequence[int] | None = None,
    tops: Sequence[int] = (),
    samples_per_step: int | None = None,
    batch_size: int | None = None,
    convention: str = "exact",
    metric: str | None = None,
    own: Mapping[str, Finding] | None = None,
) -> Plan:
    """Rank the schedules between `low` and `high` bits, or over a ladder, that meet a budget.

    First come schedules that a published result shows to gain, then those that none decides, and
    last those that one shows to be behind (`findings.rank`); within these, the most expensive is
    first.

    ladder: formats or bits from the fewest to the most, such as ["mxfp4", "mxfp8", "bf16"], in
    place of low and high.

    The budget is either `saving`, a share of the BitOPs of the static upper bound (forward at
    `high`, errors at the top of `backward`), or `bitops`, an absolute number. `cycles` and `tops`
    are those of `list_candidates`; `example_inputs`, `batch_size`, `samples_per_step` and
    `convention` those of `training_cost`. `backward` is 8 by default if no candidate has more than
    8 bits, and must be given otherwise. metric: that of `find_findings`. own: findings of own runs
    by the text of the forward schedule. The model is traced once. If no candidate meets the
    budget, the error names the cheapest one.

    >>> import torch
    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    >>> found = plan(model, torch.ones(1, 4), low=3, high=8, total_steps=64_000, saving=0.4)
    >>> found.rows[0].forward, round(found.rows[0].saving, 4)
    ('RT-H:5-8:2', 0.4093)
    >>> found.recommended
    'RT-H:5-8:32 saves 40.9%; no published result decides it'
    """
    rungs = _check_bounds(low, high, ladder, tops)
    top = rungs[-1]
    if backward == "default":
        backward = Static(default_backward(Static(max((top, *tops), key=order))))
    errors = parse_schedule(backward)
    if ladder:
        schedules = list_ladder_candidates(rungs, total_steps=total_steps, cycles=cycles)
    else:
        assert low is not None
        assert high is not None
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
        metric=metric,
        own=own,
        rungs=rungs if ladder else (),
    )
    upper_bound = pricer.upper_bound(top)
    rows = [pricer.price(schedule, upper_bound) for schedule in schedules]
    rows.sort(key=lambda row: (row.rank, -row.bitops, not row.ends_at_top, row.forward))
    budget = _budget(saving, bitops, upper_bound)
    unit = CONVENTIONS[convention].unit
    gains = [row for row in rows if row.rank <= GAIN_ELSEWHERE]
    fits = any(row.bitops <= budget for row in gains)
    cheapest = min(rows, key=lambda row: row.bitops)
    if cheapest.bitops > budget:
        fewer = "begin the ladder with fewer bits, lower" if ladder else "lower `low` or"
        ways = f"{fewer} the error bits, or convert more layers"
        first = "save less" if bitops is None else "raise the budget, train for fewer steps"
        raise ValueError(
            f"none of {len(rows):,} schedules meets the budget of {budget:.4g} {unit} "
            f"({1 - budget / upper_bound:.1%} less than {name_bound(top, errors)}): the cheapest, "
            f"forward {cheapest.forward}, takes {cheapest.bitops:.4g} and saves "
            f"{cheapest.saving:.1%}; {first}, {ways}"
        )
    return Plan(
        rows=tuple(row for row in rows if row.bitops <= budget),
        num_candidates=len(rows),
        budget=budget,
        upper_bound=upper_bound,
        low=rungs[0],
        high=top,
        ladder=rungs if ladder else (),
        backward=str(errors),
        total_steps=total_steps,
        samples_per_step=pricer.samples_per_step,
        convention=convention,
        unit=unit,
        uncounted=pricer.trace.uncounted,
        gain_outside=None if fits else min(gains, key=lambda row: row.bitops, default=None),
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
        if number >= 1:
            raise ValueError(f"a saving is below 100%, got {text!r}")
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


def _check_bounds(
    low: int | None, high: int | None, ladder: Sequence[Bits | str], tops: Sequence[int]
) -> tuple[Bits, ...]:
    """The rungs of the ladder, or low and high."""
    if not ladder:
        if low is None or high is None:
            raise ValueError(f"give low ({low}) and high ({high}), or a ladder of formats")
        return low, high
    if low is not None or high is not None or tops:
        raise ValueError(
            "low, high and tops are bounds of integers: give them, or a ladder, not both"
        )
    return check_ladder(ladder)


def check_ladder(ladder: Sequence[Bits | str]) -> tuple[Bits, ...]:
    """Return the rungs of a ladder: at least two, different, from the fewest bits to the most.

    >>> check_ladder(["mxfp4", "mxfp8", "bf16"])
    (mxfp4, mxfp8, bf16)
    """
    rungs = tuple(
        check_bits(int(rung) if isinstance(rung, str) and rung.isdigit() else rung, "a rung")
        for rung in ladder
    )
    text = ", ".join(map(bits_text, rungs))
    if len(rungs) < 2:
        raise ValueError(f"a ladder needs at least two rungs, such as nvfp4, bf16; got {text}")
    if len(set(rungs)) < len(rungs):
        raise ValueError(f"the ladder {text} has a rung twice; leave one out")
    if list(rungs) != sorted(rungs, key=order):
        raise ValueError(
            f"the ladder {text} must rise from the fewest bits to the most: "
            f"{', '.join(map(bits_text, sorted(rungs, key=order)))}"
        )
    return rungs


def list_ladder_candidates(
    rungs: Sequence[Bits], *, total_steps: int, cycles: Sequence[int] | None = None
) -> list[Schedule]:
    """The schedules of `list_candidates` over a ladder, which may begin at any of its rungs.

    The two stages include the published healing: the lowest rung for 82 % of the run, then the top.

    >>> rungs = check_ladder(["nvfp4", "bf16"])
    >>> [str(each) for each in list_ladder_candidates(rungs, total_steps=100, cycles=[8])][:3]
    ['nvfp4', 'CR:nvfp4,bf16:8', 'CT:nvfp4,bf16:8']
    """
    total = check_total(total_steps)
    numbers = _check_cycles(cycles, total)
    texts = [bits_text(rung) for rung in rungs]
    found = list(texts[:-1])
    for first in range(len(texts) - 1):
        ladder = ",".join(texts[first:])
        for n in numbers:
            found += [f"{name}:{ladder}:{n}" for name in sorted(Cycle.named())]
            found += [f"anneal:{ladder}:{n}", f"triangle:{ladder}:{n}"]
            found += [f"delay@{start!r}(CR:{ladder}:{n})" for start in STARTS]
        found += [f"ramp:{ladder}@{until!r}" for until in RAMPS]
        found += [
            f"stages:{texts[first]}@{end!r},{texts[-1]}" for end in sorted((*SWITCHES, HEALING))
        ]
    return [each for each in map(parse_schedule, found) if _fits(each, total)]


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
    metric: str | None = None
    own: Mapping[str, Finding] = field(default_factory=dict)
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
        metric: str | None = None,
        own: Mapping[str, Finding] | None = None,
        rungs: Sequence[Bits] = (),
    ) -> Pricer:
        """Trace the model and keep the arguments of `training_cost`.

        rungs: forward formats of the candidates, which the quantizer must take.
        """
        needs_conversion = CONVENTIONS[convention].needs_conversion
        if needs_conversion:
            quantized_layers(model)  # raises if there are none: every schedule would cost the same
        for forward in (*rungs, None):
            bits_of = find_layer_schedules(
                model,
                {"forward": Static(forward), "backward": backward},
                total_steps,
                needs_conversion=needs_conversion,
            ).bits_of
        segments = find_segments(backward, total_steps)
        trace = count_macs(model, example_inputs, batch_size=batch_size)
        samples = trace.batch_size if samples_per_step is None else samples_per_step
        check_count(samples, "samples_per_step")
        return cls(
            trace, backward, total_steps, samples, convention, bits_of, segments, metric, own or {}
        )

    def price(self, schedule: Schedule, upper_bound: int) -> PricedSchedule:
        """A forward schedule with its cost, bits over the run and findings."""
        total = self.total_steps
        segments = find_segments(schedule, total)
        layers = self._count(count_steps(segments, self._backward_segments))
        bitops = sum(layer.bitops for layer in layers)
        own = self.own.get(str(schedule))
        published = find_findings(schedule, self.backward, self.metric)
        return PricedSchedule(
            schedule=schedule,
            bitops=bitops,
            saving=1 - bitops / upper_bound,
            mean_bits=sum((s.stop - s.start) * cost_bits(s.bits) for s in segments) / total,
            top_share=sum(s.stop - s.start for s in segments if s.bits == schedule.high) / total,
            last=segments[-1].bits,
            findings=published if own is None else (own, *published),
            segments=tuple(segments),
            throughput=Throughput.of(layers),
        )

    def bitops(self, segments: list[Segment]) -> int:
        """BitOPs of a run with these forward bits, by the convention."""
        layers = self._count(count_steps(segments, self._backward_segments))
        return sum(layer.bitops for layer in layers)

    def upper_bound(self, high: Bits) -> int:
        """BitOPs with forward bits static at `high` and errors at the top of their schedule."""
        layers = self._count({(high, self.backward.high): self.total_steps})
        return sum(layer.bitops for layer in layers)

    def _count(self, steps: dict[Pair, int]) -> tuple[LayerCost, ...]:
        usages: list[Usage] = []
        by_pair = [(self._operands(pair), number) for pair, number in steps.items()]
        for place in range(len(self.trace.layers)):
            usage: dict[OperandBits, tuple[int, int]] = {}
            for operands, number in by_pair:
                before = usage.get(operands[place], (0, 0))[0]
                total = before + number  # pairs can share bits: a float layer is always at 32
                usage[operands[place]] = total, total * self.samples_per_step
            usages.append(usage)
        return CONVENTIONS[self.convention](self.trace, usages)

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
    """A forward schedule, its cost and bits over the run, and its findings, own ones first."""

    schedule: Schedule
    bitops: int
    saving: float  # share of the static upper bound's BitOPs
    mean_bits: float  # float32 counts as 32
    top_share: float  # share of the steps at the schedule's most bits
    last: Bits  # bits of the last step
    findings: tuple[Finding, ...]
    segments: tuple[Segment, ...] = field(repr=False, compare=False)
    throughput: Throughput | None = field(default=None, compare=False)  # of formats, as published

    @property
    def forward(self) -> str:
        """The text to pass as `forward`."""
        return str(self.schedule)

    @property
    def ends_at_top(self) -> bool:
        """Whether the last step has the schedule's most bits."""
        return self.last == self.schedule.high

    @property
    def rank(self) -> int:
        """Its place by its findings: OWN_GAIN, ..., OPEN or BEHIND of `findings`."""
        return rank(self.findings)

    @property
    def finding(self) -> Finding | None:
        """The finding about its forward bits that decides its place; None without one."""
        found = [finding for finding in self.findings if finding.is_forward]
        if self.rank == GAIN_ELSEWHERE:
            found = [finding for finding in found if not finding.is_own]
        stance = {OWN_GAIN: "for", GAIN: "for", BEHIND: "against"}.get(self.rank)
        return next((each for each in found if each.stance == stance), found[0] if found else None)

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
            "last": _plain(self.last),
            "ends_at_top": self.ends_at_top,
            "tier": self.tier,
            "is_behind": self.rank == BEHIND,
            "findings": [
                {**vars(finding), "difference": list(finding.difference)}
                for finding in self.findings
            ],
            **(
                {}
                if self.throughput is None
                else {"published_throughput": self.throughput.to_dict()}
            ),
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The schedules that cost no more than the budget, the recommended first; `str()` is a table.

    The order is by findings, then by cost. The most expensive schedule is the closest to the static
    upper bound.
    """

    rows: tuple[PricedSchedule, ...]
    num_candidates: int
    budget: int  # in `unit`, as are all costs here
    upper_bound: int  # forward static at `high`, errors at their top
    low: Bits
    high: Bits
    backward: str
    total_steps: int
    samples_per_step: int
    convention: str
    unit: str  # of the convention, such as BitOPs
    uncounted: tuple[str, ...]
    gain_outside: PricedSchedule | None = None  # the cheapest with published gains, if none fits
    notes: tuple[str, ...] = ()
    ladder: tuple[Bits, ...] = ()  # of the candidates, in place of all bits from low to high

    def to_dict(self, limit: int | None = None) -> dict[str, Any]:
        """Return a dict of JSON types; all rows, or the first `limit`."""
        plain = {
            name: _plain(getattr(self, name))
            for name in ("num_candidates", "budget", "upper_bound", "low", "high", "backward",
                         "total_steps", "samples_per_step", "convention", "unit")
        }  # fmt: skip
        if self.ladder:
            plain["ladder"] = [bits_text(rung) for rung in self.ladder]
        rows = [row.to_dict() for row in self.rows[:limit]]
        return {
            **plain, "recommended": self.recommended, "num_rows": len(self.rows),
            "notes": list(self.notes), "uncounted": list(self.uncounted), "rows": rows,
        }  # fmt: skip

    def lines(self) -> list[tuple[PricedSchedule, list[int]]]:
        """The lines of the table: a row, and the other numbers of cycles that cost the same.

        Rows share a line if they differ only in their number of cycles and cost about the same. The
        row has the published number of cycles if they are as long as the published ones.
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
            if self.total_steps >= CPT_CYCLES * CPT_CYCLE_STEPS:
                chosen = next((r for r in rows if _cycles(r.schedule) == CPT_CYCLES), chosen)
            lines.append((chosen, [_cycles(row.schedule) for row in rows if row is not chosen]))
        return sorted(lines, key=lambda line: places[line[0].forward])

    def __str__(self) -> str:
        return self.text()

    @property
    def recommended(self) -> str:
        """The first line of the table and the reason that it is the first."""
        row, _ = self.lines()[0]
        return f"{row.forward} saves {row.saving:.1%}; {_reason(row)}"

    def text(self, limit: int | None = LIMIT) -> str:
        """At most `limit` lines of the table, with a legend and their findings."""
        lines = self.lines()
        shown = lines[:limit]
        known: dict[Finding, int] = {}
        for row, _ in shown:
            for finding in row.findings:
                known.setdefault(finding, len(known) + 1)
        rated = [row.throughput for row, _ in shown if row.throughput is not None]
        header = (
            "forward", "also", "saves", "cost", *(DEVICES if rated else ()), "mean", "ends",
            "difference", "result",
        )  # fmt: skip
        cells = [
            (
                row.forward, ", ".join(map(str, others)), *_costs(row),
                *(speedup_cells(row.throughput) if rated else ()), *_ending(row),
                *_evidence(row, known),
            )
            for row, others in shown
        ]  # fmt: skip
        right = range(2, header.index("ends"))
        table = text_table(header, cells, right=right).splitlines()
        num_ahead = sum(row.rank != BEHIND for row, _ in shown)
        if num_ahead < len(shown):
            table.insert(2 + num_ahead, "shown behind by the result at the right:")
        if hidden := len(lines) - len(shown):
            num_behind = sum(row.rank == BEHIND for row, _ in lines[len(shown) :])
            behind = f", {num_behind:,} of them shown behind" if num_behind else ""
            table += ["", f"and {hidden:,} more lines{behind}"]
        parts = [
            self._title(),
            self._recommendation(),
            "\n".join(table),
            _legend(known),
            *(["\n".join(legend(*rated[:1]))] if rated else []),
            *self.notes,
        ]
        if self.uncounted:
            parts.append("\n".join(["not counted:", *(f"  {line}" for line in self.uncounted)]))
        return "\n\n".join(parts)

    def _recommendation(self) -> str:
        text = f"recommended: {self.recommended}"
        if outside := self.gain_outside:
            text += (
                f". No schedule with published gains meets the budget; of those {outside.forward} "
                f"saves the most: {outside.saving:.1%}"
            )
        return _wrap(text, indent=" " * len("recommended: "))

    @property
    def bound_name(self) -> str:
        """The static upper bound, such as 'static 8/8'."""
        return name_bound(self.high, parse_schedule(self.backward))

    def _title(self) -> str:
        bound = self.bound_name
        share = 1 - self.budget / self.upper_bound
        compared = f"{share:.1%} less than {bound}" if share >= 0 else f"more than {bound}"
        over = f"between {self.low} and {self.high} bits"
        if self.ladder:
            over = f"over {', '.join(map(bits_text, self.ladder))}"
        return _wrap(
            f"{len(self.rows):,} of {self.num_candidates:,} schedules {over}, errors at "
            f"{self.backward}, cost at most {self.budget:.4g} "
            f"{self.unit}: {compared} ({self.upper_bound:.4g}), over "
            f"{pluralize(self.total_steps, 'step')} of "
            f"{pluralize(self.samples_per_step, 'sample')}, convention {self.convention!r}. "
            "Ordered by results, then by cost, most expensive first."
        )


def name_bound(high: Bits, backward: Schedule) -> str:
    """The static upper bound: forward bits, and the top of the errors' schedule.

    >>> name_bound(8, parse_schedule("CR:6-10:8"))
    'static 8/10'
    """
    return f"static {bits_text(high)}/{bits_text(backward.high)}"


def _plain(value: Any) -> Any:
    """A format as its name; anything else unchanged."""
    return value.name if isinstance(value, Format) else value


def _costs(row: PricedSchedule) -> tuple[str, str]:
    return f"{row.saving:.1%}", f"{row.bitops:.3e}"


def _ending(row: PricedSchedule) -> tuple[str, str]:
    end = "top" if row.ends_at_top else f"at {bits_text(row.last)}"
    return f"{row.mean_bits:.2f}", end


def _cycles(schedule: Schedule) -> int:
    inner = schedule.schedule if isinstance(schedule, Delay) else schedule
    if isinstance(inner, Cyclic):
        return inner.cycles
    found = _LADDER_CYCLES.search(str(inner))
    return int(found["cycles"]) if found else 0


def _shape(schedule: Schedule) -> str:
    """The text of the schedule with one cycle, equal for all numbers of cycles."""
    if isinstance(schedule, Delay):
        return f"delay@{schedule.start!r}({_shape(schedule.schedule)})"
    if isinstance(schedule, Cyclic):
        return str(replace(schedule, cycles=1))  # type: ignore[type-var]
    return _LADDER_CYCLES.sub(r"\g<head>:1", str(schedule))


def _evidence(row: PricedSchedule, numbers: Mapping[Finding, int]) -> tuple[str, str]:
    """The difference that decides the row's place, and its source with the number of the note."""
    if row.finding is None:
        return "-", "no result"
    others = [f"[{numbers[f]}]" for f in row.findings if f.is_forward and f != row.finding]
    source = row.finding.source.removeprefix("CPT ").replace(" and ", ", ")
    return row.finding.difference_text, " ".join([source, f"[{numbers[row.finding]}]", *others])


def _reason(row: PricedSchedule) -> str:
    """Why a row is the first of the plan."""
    finding = row.finding
    if finding is None:
        return "no published result decides it"
    points = "" if finding.unit == "ppl" else " points"
    has_other = not finding.is_own and _cycles(row.schedule) not in (0, CPT_CYCLES)
    cycles = f", measured with {CPT_CYCLES} cycles" if has_other else ""
    difference = (
        f"{finding.difference_text.strip('()')}{points} against {finding.against} "
        f"({finding.source}{cycles})"
    )
    if row.rank <= GAIN:
        return difference
    if row.rank == GAIN_ELSEWHERE:
        count = f"better in {finding.num_better} of {finding.num_cells} cells"
        return f"{count}{'' if finding.is_same_bits else ', at other bits'}: {difference}"
    if row.rank == BEHIND:
        return f"all within the budget are shown behind, this one by {difference}"
    return f"results do not decide it: {difference}"


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _legend(known: dict[Finding, int]) -> str:
    lines = [
        "also: these numbers of cycles cost the same within 0.1 %; mean: bits over all steps;",
        "ends: bits of the last step, or top: the schedule's most bits; difference: in points of",
        "accuracy or in perplexity (ppl), in brackets if measured at other bits;",
        "result: a table of the CPT paper, or own runs, with the note below",
    ]
    for finding, number in known.items():
        lines += textwrap.wrap(
            f"{finding.text} [{finding.source}]", WIDTH, initial_indent=f"{f'[{number}]':>4} ",
            subsequent_indent=" " * 5, break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)
