"""Schedules as text: `parse_schedule` reads what `str(schedule)` writes.

The parser finds the schedule type by the name at the start of the text, and the type reads the rest
from a `Reader`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NoReturn

from bitcycle.formats.catalogue import ALIASES, FORMATS, NAME_PATTERN, Format, parse_format
from bitcycle.precision import MAX_BITS
from bitcycle.registry import unknown_name
from bitcycle.schedules.base import (
    LADDER_FORM,
    MAX_DEPTH,
    SCHEDULES,
    Bits,
    Schedule,
    bits_text,
    check_rungs,
)
from bitcycle.schedules.ladder import FIRST, make_ladder
from bitcycle.schedules.simple import Static

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:-[A-Za-z]+)*")
_FORMAT = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_NAME = re.compile(r"[a-z]+")
_SETTINGS = re.compile(r"(?::[A-Za-z0-9.=]+)*")  # cycles, and name=value
_WHOLE = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_AUTO = re.compile(r"(?<![A-Za-z0-9])auto(?=\s*-\s*([0-9]+))", re.IGNORECASE)
_SHOWN = 72  # characters of the text that an error shows
_BITS_RULE = f"bits must be a format, fp32 or a whole number from 1 to {MAX_BITS}"
_ALL_FORMS = "all forms: bitcycle ls schedules"
_FORMAT_FORM = "CR:mxfp4,bf16:8"

ScheduleLike = Schedule | str | int | Format | None


def parse_schedule(text: ScheduleLike) -> Schedule:
    """Return a schedule from its text, an int or a format (static bits) or None (float32).

    A schedule is returned unchanged.

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
    try:
        return Static(text)
    except ValueError:
        raise ValueError(
            f"{_BITS_RULE}, got {text!r}; a schedule is text such as CR:3-8:32 ({_ALL_FORMS})"
        ) from None


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
        self._rungs: tuple[Bits, ...] | None = None  # of the ladder that is read

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
                head = self._take(_WORD)
                kind, before = self._type_of(head, at), self._form
                self._form, self._rungs = _example(kind, head), None
                result = self._on_ladder(kind.read(head, self))
                self._form = before
        except ScheduleTextError:
            raise
        except ValueError as error:  # a rule of the schedule itself, such as low <= high
            self.fail(at, str(error))
        self._depth -= 1
        return result

    def _on_ladder(self, path: Schedule) -> Schedule:
        """The ladder of a schedule whose range was a list of rungs; otherwise the schedule."""
        rungs, self._rungs = self._rungs, None
        return path if rungs is None else make_ladder(rungs, path)

    def _type_of(self, head: str, at: int) -> type[Schedule]:
        if not head:
            if not re.match("[0-9]", self.text[at:]):
                self.fail(at, "expected a schedule")
            return Static
        if re.fullmatch(NAME_PATTERN, head, re.IGNORECASE):
            return Static
        heads = {info.name: entry for _, entry in SCHEDULES.items() for info in entry.infos()}
        for name, schedule_type in heads.items():
            if name.lower() == head.lower():
                return schedule_type
        return self.fail(at, str(unknown_name("schedule", head, [*heads, *FORMATS, *ALIASES])))

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

    def bits(self) -> Bits:
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

    def bit_range(self) -> tuple[int, int]:
        """Read two numbers of bits, low-high, or the rungs of a ladder with commas between.

        For a ladder these are the numbers of its first and last rung, and `schedule` makes the
        ladder of the schedule that has them.
        """
        at = self.position()
        low = self.bits()
        if self.accept(","):
            self._rungs = check_rungs((low, *self.bits_list()))
            return FIRST, FIRST + len(self._rungs) - 1
        if not self.is_next("-") and not isinstance(low, int):
            self.fail(self.position(), "expected ',' (a ladder of formats has two rungs or more)")
        self.expect("-", f"a range such as 3-8; a ladder has commas, as in {LADDER_FORM}")
        high_at = self.position()
        high = self.bits()
        for where, bits in ((at, low), (high_at, high)):
            if not isinstance(bits, int):
                rungs = f"{bits_text(low)},{bits_text(high)}{self._take(_SETTINGS)}"
                self.fail(where, f"expected a number of bits, got {bits_text(bits)}: a minus sign "
                                 "is a range of whole numbers; list formats with commas, as in "
                                 f"{self._form.partition(':')[0]}:{rungs}")  # fmt: skip
        assert isinstance(low, int)
        assert isinstance(high, int)
        return low, high

    def bits_list(self) -> tuple[Bits, ...]:
        """Read numbers of bits or formats, separated by commas."""
        listed = [self.bits()]
        while self.accept(","):
            listed.append(self.bits())
        return tuple(listed)

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


def _example(kind: type[Schedule], head: str) -> str:
    """A valid text of the schedule with this name.

    >>> from bitcycle.schedules import Ramp, Static
    >>> _example(Static, ""), _example(Ramp, "ramp")
    ('8', 'ramp:3-8@0.5')
    """
    forms = {info.name.lower(): info.form for info in kind.infos()}
    return forms.get(head.lower(), kind.forms[0])
