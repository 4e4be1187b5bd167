"""Schedules as text: `parse_schedule` reads what `str(schedule)` writes.

The `grammar` of a schedule type says which of its fields stand in the text, and the type of a field
says how it is read. `str` and `parse_schedule` are the two directions of that.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple, NoReturn, get_type_hints

from bitcycle.bits import MAX_BITS, Bits, PlainBits
from bitcycle.formats.catalogue import ALIASES, FORMATS, NAME_PATTERN, Format, parse_format
from bitcycle.precision import PARENTS, Precision
from bitcycle.registry import unknown_name
from bitcycle.schedules.base import MAX_DEPTH, SCHEDULES, Levels, Schedule, Time, levels_text
from bitcycle.schedules.function import Function, StepFunction
from bitcycle.schedules.simple import Stages, Static

_PIECE = re.compile(r"(\[?)([:@(])([a-z]+)(=?)")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:-[A-Za-z]+)*")
_FORMAT = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_NAME = re.compile(r"[a-z]+")
_WHOLE = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_AUTO = re.compile(r"(?<![A-Za-z0-9])auto(?=\s*-\s*([0-9]+))", re.IGNORECASE)
_SHOWN = 72  # characters of the text that an error shows
_BITS_RULE = f"bits must be a format, fp32 or a whole number from 1 to {MAX_BITS}"
_ALL_FORMS = "all forms: bitcycle ls schedules"
_FORMAT_FORM = "CR:mxfp4,bf16:8"

# a list has the bits of equal stages
ScheduleLike = Schedule | str | int | Format | Sequence[PlainBits | str] | StepFunction | None


class Piece(NamedTuple):
    """A field in the text of a schedule: `:cycles`, or `:window=` with its name."""

    symbol: str
    name: str
    type: Any
    default: Any  # MISSING if it must be there
    has_name: bool
    is_optional: bool  # not written at its default


@cache
def pieces_of(schedule_type: type[Schedule]) -> list[Piece]:
    """The pieces of the grammar of a schedule type."""
    hints = get_type_hints(schedule_type)
    defaults = {f.name: f.default for f in dataclasses.fields(schedule_type)}  # type: ignore[arg-type]
    defaults["levels"] = dataclasses.MISSING  # a text has them, or low and high
    return [
        Piece(symbol, name, hints[name], defaults[name], bool(equals), bool(bracket))
        for bracket, symbol, name, equals in _PIECE.findall(schedule_type.grammar)
    ]


# -- writing --------------------------------------------------------------------------------------


def write(schedule: Schedule) -> str:
    """The text of a schedule."""
    text = schedule.name
    for piece in pieces_of(type(schedule)):
        value = getattr(schedule, piece.name)
        if not (piece.is_optional and value == piece.default):
            name = f"{piece.name}=" if piece.has_name else ""
            text += f"{piece.symbol}{name}{_write_value(value)}{')' if piece.symbol == '(' else ''}"
    return text


def _write_value(value: Any) -> str:
    if not isinstance(value, range | tuple):
        return repr(value) if isinstance(value, float) else str(value)
    if isinstance(value, range) or not isinstance(value[0], tuple):
        return levels_text(value)
    *before, (last, _) = value
    pieces = [*(f"{_write_part(part)}@{end!r}" for part, end in before), _write_part(last)]
    return (", " if isinstance(last, Schedule) else ",").join(pieces)


def _write_part(part: Any) -> str:
    if isinstance(part, Schedule):
        return f"({part})" if part.is_open else str(part)
    return str(Bits.of(part))


# -- reading --------------------------------------------------------------------------------------


def parse_schedule(text: ScheduleLike) -> Schedule:
    """Return a schedule from its text, an int or a format (static bits) or None (float32).

    A list has the bits of equal stages. A function takes the step and the number of steps of the
    run and returns bits. A schedule is returned unchanged.

    >>> str(parse_schedule([4, 5, 6, 8])), parse_schedule([4, 8]).values(6)
    ('stages:4@0.25,5@0.5,6@0.75,8', [4, 4, 4, 8, 8, 8])
    >>> parse_schedule(lambda step, total: 8 if step % 2 else 4).values(4)
    [4, 8, 4, 8]
    >>> parse_schedule("delay@0.25(CR:3-8:8)").values(8)
    Traceback (most recent call last):
    ...
    ValueError: cycles (8) must be <= total_steps (6) in CR:3-8:8
    >>> str(parse_schedule(" cr : 3-8 ")), parse_schedule(8), str(parse_schedule(None))
    ('CR:3-8:32', Static(bits=8), 'fp32')
    >>> parse_schedule("CR:mxfp4,mxfp8,bf16:1").values(6)
    [mxfp4, mxfp4, mxfp4, mxfp8, bf16, bf16]
    """
    if isinstance(text, Schedule):
        return text
    if isinstance(text, str):
        return Reader(text).whole_text()
    if isinstance(text, list | tuple):
        return _equal_stages(text)
    if callable(text):
        return Function(text)
    try:
        return Static(text)  # type: ignore[arg-type]
    except ValueError:
        raise ValueError(
            f"{_BITS_RULE}, got {text!r}; a schedule is text such as CR:3-8:32 ({_ALL_FORMS})"
        ) from None


def _equal_stages(bits: Sequence[Any]) -> Stages:
    if not bits or any(isinstance(each, list | tuple) for each in bits):
        raise ValueError(
            f"a list has the bits of equal stages, such as [4, 6, 8], got {bits!r:.200}; with an "
            "end for each stage: Stages([(4, 0.25), (8, 1.0)])"
        )
    return Stages([(each, number / len(bits)) for number, each in enumerate(bits, 1)])


def auto_high(text: object) -> int | None:
    """The upper end of a range whose lower end is `auto`; the largest if there are several.

    `auto` stands for the lower bound that a run's precision range test finds.

    >>> auto_high("CR:auto-8:32"), auto_high("CR:3-8:32")
    (8, None)
    """
    ends = [int(end) for end in _AUTO.findall(text)] if isinstance(text, str) else []
    return max(ends, default=None)


def fill_auto(text: str, low: int) -> str:
    """Replace every `auto` in a text by a number, at most by the upper end of its range.

    >>> fill_auto("seq(CR:auto-8:8@0.8, LR:auto-4:2)", 5)
    'seq(CR:5-8:8@0.8, LR:4-4:2)'
    """
    return _AUTO.sub(lambda found: str(min(low, int(found[1]))), text)


class ScheduleTextError(ValueError):
    """A text that is not a schedule; the message points at the character."""


class Reader:
    """Reads the text of a schedule from left to right; spaces between pieces do not matter."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._at = 0
        self._depth = 0
        self._form = "CR:3-8:32"  # an example of the schedule that is read

    def whole_text(self) -> Schedule:
        """Read a schedule that is the whole text."""
        result = self.schedule()
        if self.position() < len(self.text):
            self.fail(self.position(), f"expected the end of the text after {result}")
        return result

    def schedule(self) -> Schedule:
        """Read a schedule of any type, also in parentheses."""
        at = self.position()
        self._depth += 1
        if self._depth > 2 * MAX_DEPTH:  # every level can have parentheses of its own
            self.fail(at, f"schedules are nested deeper than {MAX_DEPTH} levels")
        try:
            if self.accept("("):
                result = self.schedule()
                self.expect(")", "the closing parenthesis")
            else:
                before = self._form
                result = self._named_schedule(at)
                self._form = before
        except ScheduleTextError:
            raise
        except ValueError as error:  # a rule of the schedule itself, such as low <= high
            self.fail(at, str(error))
        self._depth -= 1
        return result

    def _named_schedule(self, at: int) -> Schedule:
        """Read a name, or the bits of a static schedule, and the pieces that follow."""
        head = self._take(_WORD)
        if not head and re.match("[0-9]", self.text[at:]):
            self._form = Static.forms[0]
            return Static(self.bits())
        if re.fullmatch(NAME_PATTERN, head, re.IGNORECASE):
            return Static(parse_format(head))
        names = {name: entry for _, entry in SCHEDULES.items() for name in entry.names()}
        found = [name for name in names if name.lower() == head.lower()]
        if not found:
            self.fail(at, self._why_unknown(at, head, names))
        kind = names[found[0]]
        forms = {info.name: info.form for info in kind.infos()}
        self._form = forms.get(found[0], kind.forms[0])
        return kind(**kind.names()[found[0]], **self._fields(kind))

    def _why_unknown(self, at: int, head: str, names: dict[str, type[Schedule]]) -> str:
        """Why no schedule begins here, with what was probably meant."""
        if self.is_next("<"):
            return (
                "this stands for a schedule written in Python, which has no text form; pass the "
                "function or the object itself"
            )
        if hint := _precision_hint(self.text[at:]):
            return hint
        words = {name: {kind.kind(), *kind.names()[name].values()} for name, kind in names.items()}
        if named := [name for name in names if head.lower() in words[name]]:
            listed = ", ".join(named)
            return f"the {head.lower()} schedules are {listed}, such as {named[0]}:3-8:32"
        if not head:
            return "expected a schedule"
        return str(unknown_name("schedule", head, [*names, *FORMATS, *ALIASES]))

    def _fields(self, kind: type[Schedule]) -> dict[str, Any]:
        """Read the pieces of a grammar."""
        pieces = pieces_of(kind)
        fields: dict[str, Any] = {}
        for piece in pieces:
            if piece.has_name:
                break
            if piece.default is dataclasses.MISSING:
                self.expect(piece.symbol, piece.name)
            elif not self.accept(piece.symbol):
                continue
            if piece.type == Levels:
                fields |= self.levels()
            else:
                fields[piece.name] = _READERS[piece.type](self, piece.name)
            if piece.symbol == "(":
                self.expect(")", "the closing parenthesis")
        if settings := [piece.name for piece in pieces if piece.has_name]:
            fields |= self.settings(settings)
        return fields

    def position(self) -> int:
        """The index of the next piece."""
        while self._at < len(self.text) and self.text[self._at].isspace():
            self._at += 1
        return self._at

    def is_next(self, symbol: str) -> bool:
        """Whether the next piece is this symbol."""
        return self.text.startswith(symbol, self.position())

    def accept(self, symbol: str) -> bool:
        """Skip the symbol if it is next, and return whether it was."""
        found = self.is_next(symbol)
        self._at += len(symbol) if found else 0
        return found

    def expect(self, symbol: str, what: str) -> None:
        """Skip the symbol, which must be next."""
        if not self.accept(symbol):
            self.fail(self.position(), f"expected {symbol!r} ({what})")

    def whole(self, what: str) -> int:
        """Read a whole number."""
        at = self.position()
        digits = self._take(_WHOLE)
        if not 1 <= len(digits) <= 18:
            self.fail(at, f"expected {what}, a whole number")
        return int(digits)

    def bits(self) -> PlainBits:
        """Read a number of bits or the name of a format, fp32 included."""
        at = self.position()
        name = self._take(_FORMAT)
        if name.lower() == "auto":
            self.fail(at, "auto is the lower end of a run's forward schedule, as in CR:auto-8:32, "
                          "found by its precision range test, which tries whole numbers of bits; "
                          "elsewhere use a number or a format")  # fmt: skip
        if name:
            try:
                return parse_format(name)
            except ValueError as error:
                self.fail(at, str(error))
        if not re.match("[0-9]", self.text[at:]):
            self.fail(at, "expected bits, a whole number or a format")
        number = self.whole("bits")
        if not 1 <= number <= MAX_BITS:
            self.fail(at, f"{_BITS_RULE}, got {number}")
        return number

    def levels(self) -> dict[str, Any]:
        """Read two numbers of bits, low-high, or levels with commas between; by field."""
        listed = self.bits_list()
        if len(listed) > 1:
            return {"levels": listed}
        self.expect("-", f"a range such as 3-8; levels have commas, as in {_FORMAT_FORM}")
        return {"low": listed[0], "high": self.bits()}

    def bits_list(self) -> tuple[PlainBits, ...]:
        """Read numbers of bits or formats, separated by commas."""
        listed = [self.bits()]
        while self.accept(","):
            listed.append(self.bits())
        return tuple(listed)

    def pairs(self, read: Callable[[], Any]) -> tuple[tuple[Any, Time], ...]:
        """Read parts, each with the time at which it ends, separated by commas."""
        listed: list[tuple[Any, Time]] = []
        while not listed or self.accept(","):
            listed.append((read(), self.time("the end") if self.accept("@") else 1.0))
        return tuple(listed)

    def part(self) -> Schedule:
        """Read a schedule inside a sequence."""
        at, is_grouped = self.position(), self.is_next("(")
        part = self.schedule()
        if part.is_open and not is_grouped:
            self.fail(at, f"inside seq, write it in parentheses, such as ({part})@0.5")
        return part

    def settings(self, known: Iterable[str]) -> dict[str, Any]:
        """Read settings :name=value; a value is a number or a word."""
        found: dict[str, Any] = {}
        while self.accept(":"):
            at = self.position()
            name = self._take(_NAME)
            if name not in known:
                self.fail(at, str(unknown_name("setting", name, known)))
            if name in found:
                self.fail(at, f"{name} is set twice")
            self.expect("=", f"the value of {name}")
            at, text = self.position(), self._take(_NUMBER) or self._take(_WORD)
            if not 1 <= len(text) <= 40:
                self.fail(at, f"expected the value of {name}")
            is_word = text[0].isalpha()
            found[name] = text if is_word else int(text) if text.isdigit() else float(text)
        return found

    def time(self, what: str) -> int | float:
        """Read a step count (digits only) or a fraction of the run (with a point or exponent)."""
        at = self.position()
        digits = self._take(_NUMBER)
        if not 1 <= len(digits) <= 40:
            self.fail(at, f"expected {what}: a step count or a fraction of the run such as 0.5")
        return int(digits) if digits.isdigit() else float(digits)

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.position())
        if found is None:
            return ""
        self._at = found.end()
        return found.group()

    def fail(self, at: int, reason: str) -> NoReturn:
        """Raise an error that points at a character."""
        start = max(0, at - _SHOWN // 2)
        shown = "".join(c if c.isprintable() else "?" for c in self.text[start : start + _SHOWN])
        others = "" if "bitcycle ls schedules" in reason else f"{_ALL_FORMS}; "
        raise ScheduleTextError(
            f"cannot read a schedule from {self.text!r:.80}: {reason}\n"
            f"    {shown}\n    {' ' * (at - start)}^\n"
            f"a valid form: {self._form} ({others}formats: {_FORMAT_FORM})"
        )


def _precision_hint(text: str) -> str:
    """How to pass a precision such as FW8/BW8, which has bits of several roles; '' for others."""
    try:
        by_role = {role: str(bits) for role, bits in Precision.parse(text).bits.items()}
    except ValueError:
        return ""
    words: dict[str, str] = {}
    for role, bits in by_role.items():
        siblings = {other for each, other in by_role.items() if PARENTS[each] == PARENTS[role]}
        if bits != "fp32":
            words[PARENTS[role] if len(siblings) == 1 else role] = bits
    way = ", ".join(f"{k}={v if v.isdigit() else repr(v)}" for k, v in words.items())
    return f"{text.strip()!r} is a precision; a schedule has the bits of one keyword: {way}"


_READERS: dict[Any, Callable[[Reader, str], Any]] = {
    int: Reader.whole,
    Time: Reader.time,
    PlainBits: lambda reader, _: reader.bits(),
    tuple[PlainBits, ...]: lambda reader, _: reader.bits_list(),
    tuple[tuple[PlainBits, Time], ...]: lambda reader, _: reader.pairs(reader.bits),
    Schedule: lambda reader, _: reader.schedule(),
    tuple[tuple[Schedule, Time], ...]: lambda reader, _: reader.pairs(reader.part),
}
