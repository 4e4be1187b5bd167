"""What every schedule is: a frozen, checked, pure function from a step to bits.

A new schedule is one file: a `@dataclass(frozen=True, eq=False)` below `Schedule`, registered in
`SCHEDULES`, with `bits_at` (its rule), `text` and `read` (how it is written), and `forms` (examples
of that). The text parser, JSON and `list_schedules` find it through the registry.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from bitcycle.registry import Registry, unknown_name
from bitcycle.schedules.checks import Bits, check_step, check_total

if TYPE_CHECKING:
    from bitcycle.schedules.preview import Preview
    from bitcycle.schedules.text import Reader

MAX_DEPTH = 32  # schedules inside schedules

SCHEDULES: Registry[type[Schedule]] = Registry("schedule", "bitcycle.schedules")


@dataclass(frozen=True)
class ScheduleInfo:
    """One name a schedule goes by; `tier` is its cost (high, medium, low) where that is fixed."""

    name: str
    tier: str | None
    form: str
    summary: str


class Schedule(ABC):
    """A pure function `(step, total_steps) -> bits`; None is float32.

    `low` and `high` are the least and the most bits its definition names, with None (float32)
    above every number: `high` is None as soon as any part is float32, `low` only when all is.
    Whether a run of a given length gets there is what `preview` and `notes` tell.
    """

    forms: ClassVar[tuple[str, ...]]  # examples of the text, shown by parse errors
    is_open: ClassVar[bool] = False  # its text may run on after @ or a comma: seq wants (...)
    is_adaptive: ClassVar[bool] = False  # follows the training: see `adaptive`

    if TYPE_CHECKING:  # fields in some schedules, properties in others

        @property
        def low(self) -> Bits:
            """The least bits that its definition names."""

        @property
        def high(self) -> Bits:
            """The most bits that its definition names."""

    @abstractmethod
    def bits_at(self, step: int, total_steps: int) -> Bits:
        """The rule itself; both arguments are checked already."""

    @abstractmethod
    def text(self) -> str:
        """The text that `parse_schedule` reads back into an equal schedule."""

    @classmethod
    @abstractmethod
    def read(cls, head: str, reader: Reader) -> Self:
        """Reads what follows `head` in the text form."""

    @abstractmethod
    def describe(self) -> str:
        """One line in words."""

    def check_span(self, total_steps: int) -> None:  # noqa: B027  (most schedules fit any length)
        """Raises a ValueError when a run of this many steps cannot hold the schedule."""

    def values_over(self, total_steps: int) -> list[Bits]:
        """All values, for a length that is checked already."""
        return [self.bits_at(step, total_steps) for step in range(total_steps)]

    def bit_widths(self, total_steps: int) -> set[Bits]:
        """All bits that a run of this length may have at some step."""
        return set(self.values(total_steps))

    def notes_over(self, total_steps: int) -> list[str]:
        """What would surprise in a run of this (checked) length."""
        return []

    def count_cycles(self, total_steps: int) -> int:
        """Cycles that a run of this length goes through; 0 for a schedule without cycles."""
        return 0

    def parts(self) -> tuple[Schedule, ...]:
        """The schedules directly inside this one."""
        return ()

    def __call__(self, step: int, total_steps: int) -> Bits:
        total = check_total(total_steps)
        self.check_span(total)
        return self.bits_at(check_step(step, total), total)

    def values(self, total_steps: int) -> list[Bits]:
        """The bits of every step, equal to calling the schedule at each."""
        total = check_total(total_steps)
        self.check_span(total)
        return self.values_over(total)

    def notes(self, total_steps: int) -> list[str]:
        """Sentences for a user: ends never reached, spans without a step, an odd triangle."""
        total = check_total(total_steps)
        self.check_span(total)
        return self.notes_over(total)

    def preview(
        self,
        total_steps: int,
        *,
        backward: Bits = 8,
        forward: Bits | Literal["scheduled"] = "scheduled",
    ) -> Preview:
        """Shares, switches, mean bits and cost over a run.

        The cost is that of a forward schedule with `backward` bits for errors, or, given fixed
        `forward` bits, that of a schedule of the errors.
        """
        from bitcycle.schedules.preview import Preview

        return Preview.of(self, total_steps, backward=backward, forward=forward)

    def to_dict(self) -> dict[str, Any]:
        """Only JSON types; `schedule_from_dict` gives an equal schedule back."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        values = {field.name: _to_json(getattr(self, field.name)) for field in fields}
        return {"type": type(self).kind(), **values}

    @classmethod
    def kind(cls) -> str:
        """The name it is registered under."""
        return next(name for name, entry in SCHEDULES.items() if entry is cls)

    @classmethod
    def infos(cls) -> list[ScheduleInfo]:
        """The names its text begins with, each with an example and one line."""
        summary = (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")
        return [ScheduleInfo(cls.kind(), None, cls.forms[0], summary)]

    def __str__(self) -> str:
        return self.text()

    # Equal means written alike: to Python 1 == 1.0, but step 1 and the whole run are not the same.
    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


def check_depth(parts: Iterable[Schedule]) -> None:
    """Raises when schedules would be nested deeper than `MAX_DEPTH` levels, or are adaptive."""
    level, depth = tuple(parts), 1
    for part in level:
        if part.is_adaptive:
            raise ValueError(
                f"{part} follows the training and cannot be part of another schedule; give it to a "
                "role or a layer as it is"
            )
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"schedules are nested deeper than {MAX_DEPTH} levels; flatten them")
        level = tuple(inner for part in level for inner in part.parts())


def schedule_from_dict(data: object) -> Schedule:
    """The schedule that `to_dict` wrote.

    >>> schedule_from_dict({"type": "ramp", "low": 3, "high": 8, "until": 0.5})
    Ramp(low=3, high=8, until=0.5)
    """
    try:
        return _schedule_from_dict(data)
    except RecursionError:
        raise ValueError("this is nested too deeply to be a schedule") from None


def _schedule_from_dict(data: object) -> Schedule:
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise ValueError(f"a schedule is a dict with a 'type', such as 'static'; got {data!r:.200}")
    schedule_type = SCHEDULES[data["type"]]
    fields = {f.name: f for f in dataclasses.fields(schedule_type)}  # type: ignore[arg-type]
    given = {name: _from_json(item) for name, item in data.items() if name != "type"}
    for name in given:
        if name not in fields:
            raise unknown_name(f"field of {data['type']}", name, fields)
    missing = [n for n, f in fields.items() if n not in given and f.default is dataclasses.MISSING]
    if missing:
        raise ValueError(f"{data['type']} lacks {missing[0]!r}; fields: {', '.join(fields)}")
    return schedule_type(**given)


def _to_json(value: object) -> object:
    if isinstance(value, Schedule):
        return value.to_dict()
    return [_to_json(item) for item in value] if isinstance(value, tuple) else value


def _from_json(value: object) -> object:
    if isinstance(value, dict):
        return _schedule_from_dict(value)
    return tuple(_from_json(item) for item in value) if isinstance(value, list) else value
