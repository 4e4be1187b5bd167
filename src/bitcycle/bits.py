"""`Bits`: what a tensor is rounded to, an integer grid of n bits, a format, or float32.

Users write and see plain bits: an int, a `Format` or its name, and None for float32. What computes
with them reads them by `Bits.of`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bitcycle.formats.catalogue import Format, parse_format

PlainBits = int | Format | None  # None is float32
FLOAT_BITS = 24  # a float32 mantissa: tensors at these bits or more stay float32
MAX_BITS = 32


@dataclass(frozen=True, repr=False)
class Bits:
    """An integer grid, a format or float32. plain: as users write it.

    >>> Bits.of(8).kind, Bits.of("nvfp4").kind, Bits.of(None).kind, Bits.of(24).kind
    ('integer', 'nvfp4', None, None)
    >>> [Bits.of(each).cost_bits for each in (8, 24, None, "nvfp4")]
    [8, 32, 32, 4]
    """

    plain: PlainBits

    @classmethod
    def of(cls, value: object, what: str = "bits") -> Bits:
        """Read None, a whole number from 1 to 32, a format or its name; otherwise raise.

        >>> Bits.of(8).plain, Bits.of("int8").plain, Bits.of("e4m3").plain, str(Bits.of(None))
        (8, 8, fp8, 'fp32')
        """
        if isinstance(value, Bits):
            return value
        if isinstance(value, str) and not value.isdigit():
            try:
                return cls(parse_format(value))
            except ValueError as error:
                raise ValueError(f"{what}: {error}") from None
        if value is None or isinstance(value, Format) or is_whole_bits(value):
            return cls(value)  # type: ignore[arg-type]
        raise ValueError(
            f"{what} must be None (float32), a whole number from 1 to {MAX_BITS} or the name of a "
            f"format, got {value!r}"
        )

    @property
    def kind(self) -> str | None:
        """The kind: "integer", that of a format (float, fp8, mx, nvfp4), or None for float32."""
        if isinstance(self.plain, Format):
            return self.plain.kind
        return None if self.plain is None or self.plain >= FLOAT_BITS else "integer"

    @property
    def is_format(self) -> bool:
        """Whether it is a format, such as bf16."""
        return isinstance(self.plain, Format)

    @property
    def is_bf16(self) -> bool:
        """Whether it is bf16, which processors multiply."""
        return isinstance(self.plain, Format) and self.plain.name == "bf16"

    @property
    def is_float32(self) -> bool:
        """Whether nothing is rounded: None, or 24 bits and more."""
        return self.kind is None

    @property
    def grid_bits(self) -> int:
        """The bits of an integer grid; 0 without one."""
        return int(self.plain) if self.kind == "integer" else 0  # type: ignore[arg-type]

    @property
    def levels(self) -> int:
        """The steps of an integer grid, 2^n - 1; 0 without one."""
        return (1 << self.grid_bits) - 1

    @property
    def numbers(self) -> tuple[int, int, int]:
        """The int32 numbers of a format (`Format.numbers`); zeros without one."""
        return self.plain.numbers if isinstance(self.plain, Format) else (0, 0, 0)

    @property
    def stored_as(self) -> str | None:
        """The element of tensor cores that has every value of the format (`Format.stored_as`)."""
        return self.plain.stored_as if isinstance(self.plain, Format) else None

    @property
    def block(self) -> int | None:
        """How many elements of a format share a scale; None where they have none of their own."""
        return self.plain.block if isinstance(self.plain, Format) else None

    @property
    def cost_bits(self) -> int:
        """The bits that a cost counts: 32 for float32, those of an element for a format."""
        if isinstance(self.plain, Format):
            return self.plain.bits
        return self.grid_bits or MAX_BITS

    @property
    def order(self) -> int:
        """A sort key: the bits of an element, with float32 above every number."""
        if isinstance(self.plain, Format):
            return self.plain.bits
        return MAX_BITS + 1 if self.plain is None else self.plain

    def to_json(self) -> int | str | None:
        """A number, the name of a format or None; `of` reads it."""
        return self.plain.name if isinstance(self.plain, Format) else self.plain

    def __str__(self) -> str:
        return "fp32" if self.plain is None else str(self.plain)

    __repr__ = __str__


def is_whole_bits(value: object) -> bool:
    """Whether it is a whole number from 1 to 32."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_BITS


def order(bits: object) -> int:
    """The sort key of plain bits.

    >>> sorted([None, 8, Bits.of("bf16").plain, 4], key=order)
    [4, 8, bf16, None]
    """
    return Bits.of(bits).order


def has_format(bits: Iterable[object]) -> bool:
    """Whether any of these plain bits is a format."""
    return any(Bits.of(each).is_format for each in bits)
