"""The number formats by name: bf16, fp16, FP8, MX and NVFP4, as values of a precision.

A `Format` says which numbers an element can have, and by which rule elements share a scale. Formats
stand wherever bits do: `Precision`, schedules, cost, logs. float32 is None there and integers are
ints, so `int8` is read as 8. `formats.rounding` rounds tensors to them.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from typing import Literal

from bitcycle.registry import unknown_name

Kind = Literal["float", "fp8", "mx", "nvfp4"]


@dataclass(frozen=True, repr=False)
class Format:
    """Elements with a sign, an exponent and a mantissa, and the rule of their scale.

    An element is a multiple of 2^(e - mantissa), e >= min_exponent, up to max_value. kind: "float"
    (no scale), "fp8" (one scale per tensor, row or large block), "mx" (a power of two per `block`
    elements), "nvfp4" (an e4m3 scale per block and one per tensor). bits: of an element.

    >>> parse_format("mxfp4"), parse_format("e4m3"), parse_format("int8"), parse_format("fp32")
    (mxfp4, fp8, 8, None)
    >>> parse_format("nvfp4").values
    (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    """

    name: str
    kind: Kind
    element: str
    bits: int
    mantissa: int
    min_exponent: int
    max_value: float
    block: int | None = None

    @property
    def max_exponent(self) -> int:
        """The exponent of `max_value`."""
        return math.frexp(self.max_value)[1] - 1

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Mantissa bits, least exponent and the bits of `max_value` as a float32: int32 numbers.

        >>> parse_format("nvfp4").numbers == (1, 0, 0x40C00000)
        True
        """
        (bits,) = struct.unpack("=i", struct.pack("=f", self.max_value))
        return self.mantissa, self.min_exponent, bits

    @property
    def values(self) -> tuple[float, ...]:
        """Every value of an element that is not negative."""
        found, step = {0.0}, 2.0 ** (self.min_exponent - self.mantissa)
        for exponent in range(self.min_exponent, self.max_exponent + 1):
            first = 0 if exponent == self.min_exponent else 2**self.mantissa
            found |= {number * step for number in range(first, 2 ** (self.mantissa + 1))}
            step *= 2
        return tuple(sorted(value for value in found if value <= self.max_value))

    @property
    def stored_as(self) -> str | None:
        """The element of tensor cores that has every value of this one; None if there is none.

        >>> [parse_format(name).stored_as for name in ("mxfp4", "e5m2", "nvfp4", "mxint8", "bf16")]
        ['e4m3', 'e5m2', 'e2m1', None, None]
        """
        types = {"fp8": ("e4m3", "e5m2"), "mx": ("e4m3", "e5m2"), "nvfp4": ("e2m1",)}
        return next((t for t in types.get(self.kind, ()) if self._is_within(*_ELEMENTS[t])), None)

    def _is_within(self, mantissa: int, min_exponent: int, max_value: float) -> bool:
        """Whether another element has every value of this one."""
        least = self.min_exponent - self.mantissa  # the exponent of the smallest step
        return (
            self.mantissa <= mantissa
            and least >= min_exponent - mantissa
            and self.max_value <= max_value
        )

    def describe(self) -> str:
        """One line: elements, and the scale.

        >>> parse_format("nvfp4").describe()
        'e2m1 elements up to 6, an e4m3 scale per 16 and a float32 scale per tensor'
        """
        elements = f"{self.element} elements up to {self.max_value:g}"
        scales = {
            "float": "no scale",
            "fp8": "a float32 scale per tensor",
            "mx": f"a power of two per {self.block}",
            "nvfp4": f"an e4m3 scale per {self.block} and a float32 scale per tensor",
        }
        return f"{elements}, {scales[self.kind]}"

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


# name: mantissa bits, least exponent, largest value
_ELEMENTS = {
    "bf16": (7, -126, (2 - 2**-7) * 2.0**127),
    "fp16": (10, -14, 65504.0),
    "e4m3": (3, -6, 448.0),
    "e5m2": (2, -14, 57344.0),
    "e2m3": (3, 0, 7.5),
    "e3m2": (2, -2, 28.0),
    "e2m1": (1, 0, 6.0),
    "int8": (6, 0, 127 / 64),
}


def _format(name: str, kind: Kind, element: str, bits: int, block: int | None = None) -> Format:
    return Format(name, kind, element, bits, *_ELEMENTS[element], block)


FORMATS = {
    each.name: each
    for each in (
        _format("bf16", "float", "bf16", 16),
        _format("fp16", "float", "fp16", 16),
        _format("fp8", "fp8", "e4m3", 8),
        _format("e5m2", "fp8", "e5m2", 8),
        _format("mxfp8", "mx", "e4m3", 8, 32),
        _format("mxfp8_e5m2", "mx", "e5m2", 8, 32),
        _format("mxint8", "mx", "int8", 8, 32),
        _format("mxfp6", "mx", "e2m3", 6, 32),
        _format("mxfp6_e3m2", "mx", "e3m2", 6, 32),
        _format("mxfp4", "mx", "e2m1", 4, 32),
        _format("nvfp4", "nvfp4", "e2m1", 4, 16),
    )
}
ALIASES = {"e4m3": "fp8", "mxfp8_e4m3": "mxfp8", "mxfp6_e2m3": "mxfp6", "mxfp4_e2m1": "mxfp4"}
# a name of a format in a text, or an integer one such as int8
NAME_PATTERN = r"int[0-9]+|fp32|" + "|".join(
    sorted(map(re.escape, [*FORMATS, *ALIASES]), key=len, reverse=True)
)

MIN_INTEGER, MAX_INTEGER = 2, 16  # of the names int2 to int16


def list_formats() -> list[Format]:
    """Return every format with a name of its own, from the most bits to the fewest.

    >>> [each.name for each in list_formats() if each.bits == 4]
    ['mxfp4', 'nvfp4']
    """
    return list(FORMATS.values())


def parse_format(text: str) -> Format | int | None:
    """Return the format of a name; an int for int2 to int16, None for fp32."""
    name = text.strip().lower() if isinstance(text, str) else ""
    name = ALIASES.get(name, name)
    if name in FORMATS:
        return FORMATS[name]
    if name == "fp32":
        return None
    if re.fullmatch("int[0-9]{1,2}", name):
        bits = int(name[3:])
        if MIN_INTEGER <= bits <= MAX_INTEGER:
            return bits
        raise ValueError(f"{text!r}: integers are int{MIN_INTEGER} to int{MAX_INTEGER}")
    raise unknown_name("format", text, ["fp32", *FORMATS, *ALIASES, "int8"])
