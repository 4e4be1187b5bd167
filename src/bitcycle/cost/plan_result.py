"""A plan: the schedules that meet a budget, sorted by cost, as objects, JSON and a table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bitcycle.cost.plan_findings import Finding
from bitcycle.cost.plan_runs import Run
from bitcycle.precision import cost_bits
from bitcycle.schedules import Bits, Cycle, Delay, Schedule, parse_schedule
from bitcycle.schedules.checks import bits_text, count
from bitcycle.schedules.cyclic import Cyclic
from bitcycle.tables import text_table

WIDTH = 100
LIMIT = 20
NEAR = 0.001  # savings this close share a line of the table
_SIGNS = {"for": "+", "against": "-", "mixed": "~"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One schedule: what it costs over the run, and what is known about it."""

    schedule: Schedule
    bitops: int
    saving: float  # share of the static upper bound's BitOPs that is not spent
    mean_bits: float  # float32 counts as 32
    top_share: float  # of the steps, at the most bits of the schedule
    last: Bits  # bits of the last step
    findings: tuple[Finding, ...]
    runs: tuple[Run, ...] = field(repr=False, compare=False)  # its stretches of equal bits

    @property
    def forward(self) -> str:
        """The text to give as `forward`."""
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
        """Only JSON types."""
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
    """The schedules that cost no more than the budget, dearest first; `str()` is a table.

    Dearest first: what lies nearest to the budget departs least from the static upper bound.
    """

    rows: tuple[Row, ...]
    num_candidates: int
    budget: int  # BitOPs, or the unit of the convention, as everywhere here
    upper_bound: int  # forward static at `high`, errors at their top
    low: int
    high: int
    backward: str
    total_steps: int
    samples_per_step: int
    convention: str
    unit: str  # that the convention counts in, mostly BitOPs
    uncounted: tuple[str, ...]

    def to_dict(self, limit: int | None = None) -> dict[str, Any]:
        """Only JSON types; all rows, or the first `limit`."""
        plain = {
            name: getattr(self, name)
            for name in ("num_candidates", "budget", "upper_bound", "low", "high", "backward",
                         "total_steps", "samples_per_step", "convention", "unit")
        }  # fmt: skip
        rows = [row.to_dict() for row in self.rows[:limit]]
        return {
            **plain, "num_rows": len(self.rows), "uncounted": list(self.uncounted), "rows": rows
        }  # fmt: skip

    def lines(self) -> list[tuple[Row, list[int]]]:
        """Rows that differ only in their number of cycles, and cost about the same, as one.

        With the row that stands for them come the other numbers of cycles.
        """
        groups: dict[tuple[object, ...], list[Row]] = {}
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
        """At most `limit` lines of the table, the findings they refer to, and how to read both."""
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
            parts.insert(2, f"and {hidden:,} more lines, none dearer")
        if self.uncounted:
            parts.append("\n".join(["not counted:", *(f"  {line}" for line in self.uncounted)]))
        return "\n\n".join(parts)

    @property
    def bound_name(self) -> str:
        """The static upper bound in words, such as 'static 8/8'."""
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
                f"{count(self.total_steps, 'step')} of {count(self.samples_per_step, 'sample')}, "
                f"convention {self.convention!r}. Dearest first.",
                WIDTH,
            )
        )


def name_bound(high: int, backward: Schedule) -> str:
    """Static forward bits, and the top of the errors' schedule.

    >>> name_bound(8, parse_schedule("CR:6-10:8"))
    'static 8/10'
    """
    return f"static {high}/{bits_text(backward.high)}"


def describe_row(
    schedule: Schedule, runs: Sequence[Run], *, bitops: int, upper_bound: int,
    findings: tuple[Finding, ...],
) -> Row:  # fmt: skip
    """The row of a schedule whose stretches and price are known."""
    total = runs[-1].stop
    return Row(
        schedule=schedule,
        bitops=bitops,
        saving=1 - bitops / upper_bound,
        mean_bits=sum((run.stop - run.start) * cost_bits(run.bits) for run in runs) / total,
        top_share=sum(run.stop - run.start for run in runs if run.bits == schedule.high) / total,
        last=runs[-1].bits,
        findings=findings,
        runs=tuple(runs),
    )


def _numbers(row: Row) -> tuple[str, ...]:
    end = "top" if row.ends_at_top else f"at {bits_text(row.last)}"
    return (
        f"{row.saving:.1%}", f"{row.bitops:.3e}", f"{row.mean_bits:.2f}", f"{row.top_share:.0%}",
        end,
    )  # fmt: skip


def _cycles(schedule: Schedule) -> int:
    inner = schedule.schedule if isinstance(schedule, Delay) else schedule
    return inner.cycles if isinstance(inner, Cyclic) else 0


def _shape(schedule: Schedule) -> str:
    """The text of the schedule, whatever its cycles."""
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
