"""The small rules all schedules share: rounding, checks of bits and steps, numbers as words."""

from __future__ import annotations

import operator

from bitcycle.precision import check_bits

Bits = int | None  # None is float32


def rint(value: float) -> int:
    """The nearest whole number, ties to even, after rounding to 9 decimals.

    Without the 9 decimals the last bit of the platform's cos and exp could decide a tie.

    >>> rint(2.5), rint(3.5), rint(2.5000000001), rint(2.50001)
    (2, 4, 2, 3)
    """
    return round(round(value, 9))


def order(bits: Bits) -> int:
    """Sorts bits with float32 (None) above every number."""
    return 33 if bits is None else bits


def bits_text(bits: Bits) -> str:
    """'8' or 'fp32'."""
    return "fp32" if bits is None else str(bits)


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "cycle"), count(2_000, "switch")
    ('1 cycle', '2,000 switches')
    """
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def check_range(low: object, high: object) -> None:
    """Raises unless low and high are whole numbers from 1 to 32 in order."""
    for name, bits in (("low", low), ("high", high)):
        if check_bits(bits, name) is None:
            raise ValueError(
                f"{name} must be a whole number of bits, got None; bits from 24 on are float32"
            )
    assert isinstance(low, int)
    assert isinstance(high, int)
    if low > high:
        raise ValueError(f"low ({low}) must be <= high ({high}); swap them")


def check_total(total_steps: object) -> int:
    """A positive number of steps."""
    total = _as_int(total_steps, "total_steps")
    if total < 1:
        raise ValueError(f"total_steps must be at least 1, got {total}")
    return total


def check_step(step: object, total_steps: int) -> int:
    """A step of the run: 0 <= step < total_steps."""
    number = _as_int(step, "step")
    if not 0 <= number < total_steps:
        raise ValueError(
            f"step {number} is outside the run: steps go from 0 to total_steps - 1 = "
            f"{total_steps - 1}; raise total_steps or stop stepping"
        )
    return number


def _as_int(value: object, what: str) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]  # numpy integers too
    except TypeError:
        raise ValueError(f"{what} must be a whole number, got {value!r}") from None
