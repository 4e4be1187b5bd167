"""`Preview`: shares, switches, mean bits and cost of a schedule over a run."""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from bitcycle.bits import Bits, PlainBits
from bitcycle.precision import BackwardOperands
from bitcycle.schedules.base import (
    BACKWARD_BITS,
    Schedule,
    check_total,
    default_backward,
    pluralize,
    sort_bits,
    why_default,
)


@dataclass(frozen=True)
class Preview:
    """The numbers of one schedule over one run.

    >>> from bitcycle.schedules import Cycle
    >>> print(Cycle(3, 8, cycles=8, profile="rex").preview(640))
    RR:3-8:8: 8 repeated rex cycles from 3 to 8 bits, over 640 steps
      bits  3: 53.8%  4: 27.5%  5: 10.0%  6: 5.0%  7: 3.8%
      mean  3.77 bits, 39 switches, 8 cycles
      cost  0.395 of static 8 (backward 8, the default up to 8 bits forward)
      end   at 7: never reaches its top of 8 (at most 7)
      note  RR:3-8:8 never reaches 8 in 640 steps: the rex profile from 3 to 8 bits needs 91
            steps in a cycle, here 80; use fewer cycles or more steps
    """

    schedule: Schedule
    total_steps: int
    # bits of the errors (gradients with respect to a layer's output), for the cost
    backward: PlainBits | Literal["not given"]
    steps_at: tuple[tuple[PlainBits, int], ...]  # (bits, number of steps), fewest bits first
    num_switches: int
    num_cycles: int
    mean_bits: float  # float32 counts as 32, a format as the bits of an element
    # mean of (q^2 + 2 q b) / (high^2 + 2 high b); 2 b^2 where backward products read operands at b
    relative_cost: float | None
    last: PlainBits
    notes: tuple[str, ...]
    forward: PlainBits | Literal["scheduled"] = "scheduled"  # else the errors are
    is_default_backward: bool = field(default=False, compare=False)

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        total_steps: int,
        *,
        backward: PlainBits | Literal["default"] = "default",
        forward: PlainBits | Literal["scheduled"] = "scheduled",
        backward_operands: BackwardOperands = "forward",
    ) -> Preview:
        """Evaluate the schedule at every step; with `forward` bits it is the errors' schedule.

        If backward is not given and has no default, the cost is not counted. backward_operands: as
        in `PrecisionScheduler`.
        """
        total = check_total(total_steps)
        schedule = schedule.over(total)
        values = schedule.values(total)
        is_default = backward == "default" and forward == "scheduled"
        b: PlainBits | Literal["not given"]
        if is_default:
            try:
                b = default_backward(schedule)
            except ValueError:
                b = "not given"
        else:
            b = BACKWARD_BITS if backward == "default" else Bits.of(backward, "backward").plain
        if forward != "scheduled":
            forward = Bits.of(forward, "forward").plain
        counts = Counter(values)
        steps_at = tuple((q, counts[q]) for q in sort_bits(counts, schedule.levels))

        def cost(bits: PlainBits) -> int:  # output costs q q, grad_input and grad_weight q e each
            pair = (bits, b) if forward == "scheduled" else (forward, bits)
            q, e = (Bits.of(each).cost_bits for each in pair)
            return q**2 + 2 * e * (e if backward_operands == "backward" else q)

        return cls(
            schedule=schedule,
            total_steps=total,
            backward=b,
            forward=forward,
            steps_at=steps_at,
            num_switches=sum(before != after for before, after in pairwise(values)),
            num_cycles=schedule.count_cycles(total),
            mean_bits=sum(Bits.of(bits).cost_bits * count for bits, count in steps_at) / total,
            relative_cost=None
            if b == "not given"
            else sum(cost(bits) * count for bits, count in steps_at)
            / (total * cost(schedule.high)),
            last=values[-1],
            notes=tuple(schedule.notes(total)),
            is_default_backward=is_default,
        )

    @property
    def shares(self) -> dict[PlainBits, float]:
        """The share of steps at each bit-width."""
        return {bits: count / self.total_steps for bits, count in self.steps_at}

    @property
    def reaches_top(self) -> bool:
        """Whether any step has the schedule's `high`."""
        return self.schedule.high in self.shares

    @property
    def ends_at_top(self) -> bool:
        """Whether the last step has the schedule's `high`."""
        return self.last == self.schedule.high

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types; the keys of `steps_at` are texts such as '8' or 'fp32'."""
        return {
            "schedule": str(self.schedule),
            "definition": self._definition(),
            "total_steps": self.total_steps,
            "backward": _to_json(self.backward) if self.forward == "scheduled" else "scheduled",
            "forward": _to_json(self.forward),
            "low": _to_json(self.schedule.low),
            "high": _to_json(self.schedule.high),
            "steps_at": {str(Bits.of(bits)): count for bits, count in self.steps_at},
            "num_switches": self.num_switches,
            "num_cycles": self.num_cycles,
            "mean_bits": self.mean_bits,
            "relative_cost": self.relative_cost,
            "last": _to_json(self.last),
            "reaches_top": self.reaches_top,
            "ends_at_top": self.ends_at_top,
            "notes": list(self.notes),
        }

    def _definition(self) -> dict[str, Any] | None:
        """The fields of the schedule; None without a JSON form, as of a Python function."""
        try:
            return self.schedule.to_dict()
        except ValueError:
            return None

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = 88) -> str:
        """Lines of at most `width` characters."""
        shares = [f"{Bits.of(bits)}:~{100 * s:.1f}%" for bits, s in self.shares.items()]
        changes = pluralize(self.num_switches, "switch")
        if self.num_cycles:
            changes += f", {pluralize(self.num_cycles, 'cycle')}"
        rows = [
            ("bits", "  ".join(shares)),
            ("mean", f"{self.mean_bits:.2f} bits, {changes}"),
            ("cost", self._cost()),
            ("end", self._ending()),
            *(("note", note) for note in self.notes),
        ]  # fmt: skip
        title = f"{self.schedule}: {self.schedule.describe()}, over {self.total_steps:,} steps"
        lines = textwrap.wrap(title, width, subsequent_indent="  ")
        for name, body in rows:
            lines += textwrap.wrap(
                body, width, initial_indent=f"  {name:<6}", subsequent_indent=" " * 8
            )
        return "\n".join(lines).replace("~", " ")  # ~ is a space at which no line wraps

    def _cost(self) -> str:
        if self.relative_cost is None:
            try:
                default_backward(self.schedule)
            except ValueError as error:
                return f"not counted: {error}"
        top = Bits.of(self.schedule.high)
        return f"{self.relative_cost:.3f} of static {top} ({self._other_side()})"

    def _other_side(self) -> str:
        if self.forward == "scheduled":
            assert self.backward != "not given"
            why = f", {why_default(self.backward)}" if self.is_default_backward else ""
            return f"backward {Bits.of(self.backward)}{why}"
        return f"forward {Bits.of(self.forward)}"

    def _ending(self) -> str:
        top, last = Bits.of(self.schedule.high), Bits.of(self.last)
        if self.ends_at_top:
            return f"at {last}, its top"
        if self.reaches_top:
            return f"at {last}: does not end at its top of {top}"
        most = Bits.of(self.steps_at[-1][0])
        return f"at {last}: never reaches its top of {top} (at most {most})"


def _to_json(bits: PlainBits | str) -> int | str | None:
    return bits if isinstance(bits, str) else Bits.of(bits).to_json()
