"""`Schedule`, the base class: a frozen, checked, pure function from a step to bits.

Bits are a number, a `Format` such as nvfp4, or None for float32.

A class below `Schedule` with `bits_at`, its rule, is a schedule; the bits of a run are learnt by
evaluating its steps (`schedules/function.py`). A schedule with a text form is a frozen dataclass in
any file of this package, registered in `SCHEDULES`. It also defines `grammar`, its text form, and
`forms`, examples of it. The parser, JSON and `list_schedules` find it in the registry. A schedule
that walks over levels of bits, a range of numbers or a list of formats, is below `Ranged`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bitcycle.bits import MAX_BITS, Bits, PlainBits, has_format, order
from bitcycle.registry import Registry, unknown_name
from bitcycle.schedules.segments import Segment, find_segments

if TYPE_CHECKING:
    from bitcycle.schedules.preview import Preview

Time = int | float  # an int is a step, a float from 0.0 to 1.0 a fraction of the run
Levels = range | tuple[PlainBits, ...]  # numbers of bits from low to high, or a list
MAX_DEPTH = 32  # of schedules inside schedules
BACKWARD_BITS = 8  # of errors and weight gradients, by default, and the most forward bits for that

SCHEDULES: Registry[type[Schedule]] = Registry("schedule", "bitcycle.schedules")


if TYPE_CHECKING:
    derived = property
else:

    class derived:  # noqa: N801
        """A property that an attribute of an instance or a field of a dataclass can replace."""

        def __init__(self, function):
            self.function, self.__doc__ = function, function.__doc__

        def __get__(self, instance, owner):
            if instance is None:
                raise AttributeError("known for an instance only")  # no default of a dataclass
            return self.function(instance)


class Schedule(ABC):
    """A pure function `(step, total_steps) -> bits`; bits can be a `Format`, and None is float32.

    A subclass needs `bits_at` alone:

    >>> class Alternate(Schedule):
    ...     def bits_at(self, step, total_steps):
    ...         return 8 if step % 2 else 4
    >>> Alternate().values(5)
    [4, 8, 4, 8, 4]

    `low` and `high` are the least and the most bits of its `levels`. A format counts as the bits of
    its elements. Float32 (None) is above every number: `high` is None if any part is float32, `low`
    only if all parts are. A short run may not reach them; see `preview` and `notes`.

    grammar: its text after the name. A field follows `:`, `@` or `(`, and `name=` is a setting;
    one in brackets is left out at its default. `":levels@until"` reads ramp:3-8@0.5.
    """

    grammar: ClassVar[str]
    forms: ClassVar[tuple[str, ...]]  # examples of the text form, which parse errors show
    is_open: ClassVar[bool] = False  # its text can end in @ or commas: seq needs parentheses
    is_adaptive: ClassVar[bool] = False  # follows a metric, not only the step: see `adaptive`

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "bits_at" in vars(cls) and "turns" not in vars(cls):
            cls.turns = Schedule.turns  # type: ignore[method-assign]  # another rule turns elsewhere

    @derived
    def levels(self) -> Levels:
        """The bits that it can have, in the order of its definition."""
        raise ValueError(
            f"the bits of {self} are known for a number of steps: schedule.over(total_steps).levels"
        )

    @derived
    def low(self) -> PlainBits:
        """The least bits; the first of several formats with as many."""
        return min(self.levels, key=order)

    @derived
    def high(self) -> PlainBits:
        """The most bits; the last of several formats with as many."""
        return max(reversed(self.levels), key=order)

    @abstractmethod
    def bits_at(self, step: int, total_steps: int) -> PlainBits:
        """Return the bits of a step; the arguments are already checked."""

    @property
    def has_levels(self) -> bool:
        """Whether its definition names its levels; otherwise a run must be evaluated."""
        levels = inspect.getattr_static(type(self), "levels")
        named = levels is not inspect.getattr_static(Schedule, "levels")
        return named and all(part.has_levels for part in self.parts())

    def over(self, total_steps: int) -> Schedule:
        """This schedule with the `levels` of a run of this length; itself if it has levels."""
        if self.has_levels:
            return self
        from bitcycle.schedules.function import Tabulated

        return Tabulated(self, check_total(total_steps))

    def segments(self, total_steps: int) -> list[Segment]:
        """The stretches of equal bits of a run, in order."""
        total = check_total(total_steps)
        if self.has_levels:
            return find_segments(self, total)
        return self.over(total).segments(total)

    def digest(self, total_steps: int) -> str:
        """A hash of the bits of all steps of a run; runs with the same bits have the same."""
        segments = self.segments(total_steps)
        names = {bits: str(Bits.of(bits)) for bits in {segment.bits for segment in segments}}
        rows = (f"{stop}:{names[bits]}" for _, stop, bits in segments)
        return hashlib.sha256(";".join(rows).encode()).hexdigest()[:16]

    def turns(self, total_steps: int) -> Iterable[int]:
        """The steps, from 0 on, between which the bits only rise or only fall: by default all."""
        return range(total_steps)

    def describe(self) -> str:
        """Return a description of one line."""
        return _first_line(type(self))

    def check_span(self, total_steps: int) -> None:  # noqa: B027  (most schedules fit any length)
        """Raise a ValueError if a run of this many steps is too short for the schedule."""

    def bit_widths(self, total_steps: int) -> set[PlainBits]:
        """Return all bits that a run of this length can have at some step."""
        return {segment.bits for segment in self.segments(total_steps)}

    def notes_over(self, total_steps: int) -> list[str]:
        """`notes` for a length that is already checked."""
        return []

    def count_cycles(self, total_steps: int) -> int:
        """Return the number of cycles in a run of this length; 0 without cycles."""
        return 0

    def parts(self) -> tuple[Schedule, ...]:
        """Return the schedules directly inside this one."""
        return ()

    def __call__(self, step: int, total_steps: int) -> PlainBits:
        total = check_total(total_steps)
        self.check_span(total)
        return checked_bits(self, check_step(step, total), total)

    def values(self, total_steps: int) -> list[PlainBits]:
        """Return the bits of every step, as calling the schedule at each step would."""
        segments = self.segments(total_steps)
        return [bits for start, stop, bits in segments for _ in range(start, stop)]

    def notes(self, total_steps: int) -> list[str]:
        """Return warnings for a run of this length, such as bits that it never reaches."""
        total = check_total(total_steps)
        self.check_span(total)
        return self.notes_over(total)

    def preview(
        self,
        total_steps: int,
        *,
        backward: PlainBits | Literal["default"] = "default",
        forward: PlainBits | Literal["scheduled"] = "scheduled",
    ) -> Preview:
        """Return shares, switches, mean bits and cost over a run.

        The cost is that of a forward schedule, with errors (the gradients with respect to a layer's
        output) at `backward` bits, by default those of `default_backward`. If `forward` is given,
        the schedule is that of the errors, and forward bits are fixed.
        """
        from bitcycle.schedules.preview import Preview

        return Preview.of(self, total_steps, backward=backward, forward=forward)

    def definition(self) -> dict[str, Any]:
        """The fields that define it, by name; all attributes if it is no dataclass itself."""
        if "__dataclass_fields__" not in vars(type(self)):
            return dict(vars(self))
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: getattr(self, field.name) for field in fields}

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types; `schedule_from_dict` returns an equal schedule."""
        kind = type(self).kind()
        return {"type": kind, **{n: _to_json(value) for n, value in self.definition().items()}}

    @classmethod
    def kind(cls) -> str:
        """The name it is registered under; ValueError without one."""
        for name, entry in SCHEDULES.items():
            if entry is cls:
                return name
        raise ValueError(
            f"{cls.__name__} has no text form, which files of settings need: register it with "
            "@SCHEDULES.register(name), or use a schedule that has one (bitcycle ls schedules)"
        )

    @classmethod
    def has_text(cls) -> bool:
        """Whether it is registered, so that `parse_schedule` reads its `str`."""
        return any(entry is cls for _, entry in SCHEDULES.items())

    @classmethod
    def names(cls) -> dict[str, dict[str, Any]]:
        """The names that its text can begin with, and the fields that each stands for."""
        return {cls.kind(): {}}

    @derived
    def name(self) -> str:
        """The name that its text begins with, such as CR."""
        return next(
            name
            for name, fields in self.names().items()
            if all(getattr(self, field) == value for field, value in fields.items())
        )

    @classmethod
    def infos(cls) -> list[ScheduleInfo]:
        """What `list_schedules` says of each name."""
        return [ScheduleInfo(name, None, cls.forms[0], _first_line(cls)) for name in cls.names()]

    def __str__(self) -> str:
        if not self.has_text():
            return f"<{self!r}>"  # which `parse_schedule` refuses
        from bitcycle.schedules.text import write

        return write(self)

    def __repr__(self) -> str:
        fields = (f"{name}={value!r}" for name, value in self.definition().items())
        return f"{type(self).__name__}({', '.join(fields)})"

    # compares repr: to Python 1 == 1.0, but as times these are step 1 and the end of the run
    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


def _first_line(schedule_type: type[Schedule]) -> str:
    text = (schedule_type.__doc__ or "").strip() or schedule_type.__name__
    return text.splitlines()[0].rstrip(".")


def checked_bits(schedule: Schedule, step: int, total_steps: int) -> PlainBits:
    """The bits of a step as plain bits; otherwise raise."""
    bits: Any = schedule.bits_at(step, total_steps)
    if type(bits) is int and 1 <= bits <= MAX_BITS:
        return bits  # mostly: a run can have a million steps
    if not isinstance(bits, int) and isinstance(bits, Integral):
        bits = int(bits)  # of numpy
    try:
        return Bits.of(bits).plain
    except ValueError as error:
        way_out = "; round() makes it whole" if isinstance(bits, float) else ""
        raise ValueError(f"step {step} of {schedule}: {error}{way_out}") from None


@dataclass(frozen=True, eq=False, repr=False)
class Ranged(Schedule):
    """The base class of walks over levels: the numbers from `low` to `high`, or a list `levels`.

    A list has numbers of bits and formats that do not fall, such as mxfp4, mxfp8, bf16.
    """

    low: PlainBits = None
    high: PlainBits = None
    levels: Levels = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        levels: Levels
        if isinstance(self.levels, range) or self.levels == ():  # `replace` passes the old range
            levels = check_range(self.low, self.high)
        else:
            levels = check_levels(self.levels)
            given = {bits for bits in (self.low, self.high) if bits is not None}
            if not given <= {levels[0], levels[-1]}:
                raise ValueError(
                    f"give low and high, or levels; got low={self.low!r}, high={self.high!r} and "
                    f"the levels {levels_text(levels)}"
                )
        for name, value in (("low", levels[0]), ("high", levels[-1]), ("levels", levels)):
            object.__setattr__(self, name, value)

    def at_height(self, height: float) -> PlainBits:
        """The level at a height from 0 to 1.

        A range rounds the number of bits, rint(low + (high - low) height), and a list the index.
        """
        first = self.levels.start if isinstance(self.levels, range) else 0
        return self.levels[rint(first + (len(self.levels) - 1) * height) - first]

    def definition(self) -> dict[str, Any]:
        derived = {"levels"} if isinstance(self.levels, range) else {"low", "high"}
        return {name: value for name, value in super().definition().items() if name not in derived}


def check_depth(parts: Iterable[Schedule]) -> None:
    """Raise if schedules are nested deeper than `MAX_DEPTH` levels, or are adaptive."""
    level, depth = tuple(parts), 1
    for part in level:
        if part.is_adaptive:
            raise ValueError(f"{part} follows the training and cannot be part of another schedule")
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"schedules are nested deeper than {MAX_DEPTH} levels")
        level = tuple(inner for part in level for inner in part.parts())


@dataclass(frozen=True)
class ScheduleInfo:
    """A name that the text of a schedule can begin with, for `list_schedules`."""

    name: str
    tier: str | None  # its cost: high, medium or low; None if that depends on the arguments
    form: str  # an example
    summary: str


def list_schedules() -> list[ScheduleInfo]:
    """Return every name that the text of a schedule can begin with, by cost tier.

    >>> [info.name for info in list_schedules() if info.tier == "low"]
    ['RR', 'RT-H']
    """
    tiers = ["high", "medium", "low", None]
    infos = [info for _, schedule_type in SCHEDULES.items() for info in schedule_type.infos()]
    return sorted(infos, key=lambda info: (tiers.index(info.tier), info.name))


# -- JSON -----------------------------------------------------------------------------------------


def schedule_from_dict(data: object) -> Schedule:
    """Return the schedule that `to_dict` describes.

    >>> schedule_from_dict({"type": "ramp", "low": 3, "high": 8, "until": 0.5})
    Ramp(low=3, high=8, until=0.5)
    """
    try:
        return _schedule_from_dict(data)
    except RecursionError:
        raise ValueError(f"the dict is nested deeper than {MAX_DEPTH} levels") from None


def _schedule_from_dict(data: object) -> Schedule:
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise ValueError(f"a schedule is a dict with a 'type', such as 'static'; got {data!r:.200}")
    schedule_type = SCHEDULES[data["type"]]
    fields = {f.name: f for f in dataclasses.fields(schedule_type)}  # type: ignore[arg-type]
    values = {name: _from_json(item) for name, item in data.items() if name != "type"}
    for name in values:
        if name not in fields:
            raise unknown_name(f"field of {data['type']}", name, fields)
    missing = [n for n, f in fields.items() if n not in values and f.default is dataclasses.MISSING]
    if missing:
        raise ValueError(f"{data['type']} lacks {missing[0]!r}; fields: {', '.join(fields)}")
    return schedule_type(**values)


def _to_json(value: object) -> object:
    if isinstance(value, Schedule):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return value if isinstance(value, int | float | str) else Bits.of(value).to_json()


def _from_json(value: object) -> object:
    if isinstance(value, dict):
        return _schedule_from_dict(value)
    return tuple(_from_json(item) for item in value) if isinstance(value, list) else value


# -- times: steps or fractions of the run ---------------------------------------------------------


def check_time(time: object, what: str) -> Time:
    """Return the time if it is an int >= 0 or a float from 0.0 to 1.0; otherwise raise."""
    if isinstance(time, int) and not isinstance(time, bool) and time >= 0:
        return time
    if isinstance(time, float) and math.isfinite(time) and 0.0 <= time <= 1.0:
        return time
    raise ValueError(
        f"{what} must be a step count (a whole number >= 0) or a fraction of the run "
        f"(a float from 0.0 to 1.0), got {time!r}"
    )


def to_step(time: Time, total_steps: int, what: str) -> int:
    """The step of a time in a run of this length.

    >>> to_step(0.25, 64_000, "start"), to_step(100, 64_000, "start"), to_step(0.5, 5, "start")
    (16000, 100, 2)
    """
    if isinstance(time, float):
        return rint(time * total_steps)
    if time > total_steps:
        raise ValueError(f"{what} {time} is beyond the {total_steps} steps available")
    return time


def check_ends(ends: tuple[Time, ...], what: str) -> None:
    """Raise unless the end points grow and the last is 1.0, the end of the run."""
    if not ends:
        raise ValueError(f"{what} needs at least one part")
    for number, end in enumerate(ends, 1):
        check_time(end, f"end point {number} of {what}")
    if not isinstance(ends[-1], float) or ends[-1] != 1.0:
        raise ValueError(
            f"the last end point of {what} must be 1.0, the end of the run, got {ends[-1]!r}"
            + (" (an int is a step count)" if isinstance(ends[-1], int) else "")
        )
    for kind in (int, float):  # how an int and a float compare depends on the run: see to_spans
        alike = [end for end in ends if isinstance(end, kind)]
        previous: Time = 0
        for end in alike:
            if end <= previous:
                raise ValueError(
                    f"end points of {what} must grow from above 0, got {end!r} after {previous!r}"
                )
            previous = end


def to_spans(ends: tuple[Time, ...], total_steps: int, what: str) -> list[tuple[int, int]]:
    """(first step, step after the last) of every part, which can be empty in a short run.

    >>> to_spans((0.2, 50, 1.0), 100, "a sequence")
    [(0, 20), (20, 50), (50, 100)]
    """
    spans = []
    start = 0
    for number, end in enumerate(ends, 1):
        stop = to_step(end, total_steps, f"end point {number} of {what},")
        if stop < start:
            raise ValueError(
                f"over {total_steps} steps, end point {number} of {what} ({end!r}) is step {stop}, "
                f"before the previous one (step {start})"
            )
        spans.append((start, stop))
        start = stop
    return spans


def time_text(time: Time) -> str:
    """'step 100' or '25% of the run'."""
    return f"{100 * time:g}% of the run" if isinstance(time, float) else f"step {time}"


# -- bits -----------------------------------------------------------------------------------------


def check_range(low: object, high: object) -> range:
    """The numbers from low to high, both from 1 to 32; otherwise raise."""
    ends = []
    for name, bits in (("low", low), ("high", high)):
        number = Bits.of(bits, name).plain
        if not isinstance(number, int):
            raise ValueError(f"{name} must be a whole number of bits, not {Bits.of(bits)}")
        ends.append(number)
    if ends[0] > ends[1]:
        raise ValueError(f"low ({low}) must be <= high ({high})")
    return range(ends[0], ends[1] + 1)


def check_levels(levels: object) -> tuple[PlainBits, ...]:
    """Return two or more bits or formats that do not fall, as a tuple; otherwise raise.

    >>> check_levels(["mxfp4", 8, "bf16", "fp32"])
    (mxfp4, 8, bf16, None)
    """
    if not isinstance(levels, list | tuple) or len(levels) < 2:
        raise ValueError(
            f"levels are a list of at least two bits, such as mxfp4,mxfp8,bf16; got {levels!r:.200}"
        )
    checked = tuple(Bits.of(bits, f"level {n}").plain for n, bits in enumerate(levels, 1))
    if checked != tuple(sorted(checked, key=order)):
        raise ValueError(f"levels must not fall, got {levels_text(checked)}")
    if len(set(checked)) < len(list(groupby(checked))):
        raise ValueError(f"levels must not return to one before, got {levels_text(checked)}")
    return checked


def levels_text(levels: Iterable[PlainBits]) -> str:
    """'3-8' for a range, '3,4,fp32' for a list."""
    if isinstance(levels, range):
        return f"{levels[0]}-{levels[-1]}"
    return ",".join(str(Bits.of(bits)) for bits in levels)


def levels_words(levels: Levels) -> str:
    """'from 3 to 8 bits' for a range, 'through mxfp4, 8, bf16' for a list."""
    if isinstance(levels, range):
        return f"from {levels[0]} to {levels[-1]} bits"
    return f"through {levels_text(levels).replace(',', ', ')}"


def sort_bits(bits: Iterable[PlainBits], definition: Iterable[PlainBits] = ()) -> list[PlainBits]:
    """Distinct bits from the least to the most; formats of equal bits as in the definition."""
    places = {each: place for place, each in enumerate(dict.fromkeys(definition))}
    return sorted(set(bits), key=lambda b: (order(b), places.get(b, -1), str(b)))


def default_backward(*forward: Schedule) -> PlainBits:
    """The bits of errors and weight gradients where `backward` is not given.

    forward: the schedule of weights and activations, or one of each. 8 bits if they have at most 8,
    float32 if they are float32; anything else is an error, because no default would be safe.

    >>> from bitcycle.schedules import parse_schedule
    >>> default_backward(parse_schedule("CR:3-8:8")), default_backward(parse_schedule("fp32"))
    (8, None)
    >>> default_backward(parse_schedule("16"))
    Traceback (most recent call last):
    ...
    ValueError: backward has no default with forward 16; give backward, such as 8 or fp32
    """
    levels = [bits for schedule in forward for bits in schedule.levels]
    if all(Bits.of(schedule.low).is_float32 for schedule in forward):
        return None
    if not has_format(levels) and max(map(order, levels)) <= BACKWARD_BITS:
        return BACKWARD_BITS
    found = " and ".join(dict.fromkeys(map(str, forward)))
    raise ValueError(
        f"backward has no default with forward {found}; give backward, such as "
        f"{'bf16' if has_format(levels) else '8 or fp32'}"
    )


def why_default(backward: PlainBits) -> str:
    """Why `default_backward` chose these bits.

    >>> why_default(8), why_default(None)
    ('the default up to 8 bits forward', 'the default with float32 forward')
    """
    if backward is None:
        return "the default with float32 forward"
    return f"the default up to {BACKWARD_BITS} bits forward"


# -- numbers of steps -----------------------------------------------------------------------------


def check_total(total_steps: object) -> int:
    """Return total_steps if it is a whole number of at least 1; otherwise raise."""
    total = _as_int(total_steps, "total_steps")
    if total < 1:
        raise ValueError(f"total_steps must be at least 1, got {total}")
    return total


def check_step(step: object, total_steps: int) -> int:
    """Return the step if 0 <= step < total_steps; otherwise raise."""
    number = _as_int(step, "step")
    if not 0 <= number < total_steps:
        raise ValueError(
            f"step {number} is outside the run: steps are 0 to total_steps - 1 = {total_steps - 1}"
        )
    return number


def check_count(value: object, what: str, *, least: int = 1) -> int:
    """Return a whole number of at least `least`; otherwise raise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{what} must be a whole number of at least {least}, got {value!r}")
    return value


def _as_int(value: object, what: str) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]  # numpy integers too
    except TypeError:
        raise ValueError(f"{what} must be a whole number, got {value!r}") from None


def rint(value: float) -> int:
    """The nearest whole number, ties to even, after rounding to 9 decimals.

    The 9 decimals keep the last bit of the platform's cos and exp from deciding a tie.

    >>> rint(2.5), rint(3.5), rint(2.5000000001), rint(2.50001)
    (2, 4, 2, 3)
    """
    return round(round(value, 9))


def pluralize(number: int, noun: str) -> str:
    """A number with its noun.

    >>> pluralize(1, "cycle"), pluralize(2_000, "switch")
    ('1 cycle', '2,000 switches')
    """
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
