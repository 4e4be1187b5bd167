"""Formats once more, slowly: one number at a time, in exact fractions where the rules are exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from bitcycle.formats.catalogue import Format


def exponent_of(value: Fraction) -> int:
    """floor(log2 value) for value > 0."""
    found = value.numerator.bit_length() - value.denominator.bit_length()
    return found if Fraction(2) ** found <= value else found - 1


def element(y: float | Fraction, of: Format) -> Fraction:
    """The nearest value of an element by search among the two around it; ties to even."""
    exact = Fraction(y) if isinstance(y, Fraction) else Fraction(float(y))
    size = abs(exact)
    exponent = max(exponent_of(size) if size else of.min_exponent, of.min_exponent)
    step = Fraction(2) ** (exponent - of.mantissa)
    below = size // step
    rest = size / step - below
    is_up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1)
    found = min((below + is_up) * step, Fraction(of.max_value))
    return -found if exact < 0 else found


def round_mx(block: Sequence[float], of: Format, scale: str = "floor") -> list[float]:
    if not all(map(math.isfinite, block)):
        return [math.nan] * len(block)
    amax = max(abs(Fraction(x)) for x in block)
    if amax == 0:
        return list(block)
    exponent = exponent_of(amax) - of.max_exponent
    if scale == "rceil" and amax > Fraction(of.max_value) * Fraction(2) ** exponent:
        exponent += 1
    power = Fraction(2) ** min(max(exponent, -127), 127)
    return [math.copysign(float(element(Fraction(x) / power, of) * power), x) for x in block]


def tensor_scale(values: Sequence[float]) -> np.float32:
    """g of NVFP4."""
    return np.float32(max(map(abs, values))) / np.float32(448 * 6)


def round_nvfp4(block: Sequence[float], of: Format, e4m3: Format, g: np.float32) -> list[float]:
    """One block, in the float32 operations of the rule; g: large enough."""
    amax = np.float32(max(map(abs, block)))
    s = min(max(amax / np.float32(6) / g, np.float32(2**-6)), np.float32(448))
    s = np.float32(float(element(s, e4m3)))
    factor = (np.float32(1) / g) / s
    found = [np.float32(float(element(np.float32(x) * factor, of))) * (s * g) for x in block]
    return [math.copysign(float(value), x) for value, x in zip(found, block, strict=True)]


def round_fp8(block: Sequence[float], of: Format) -> list[float]:
    """One block with the scale max / amax."""
    amax = np.float32(max(map(abs, block)))
    scale = np.float32(of.max_value) / amax if amax else np.float32(1)
    found = [np.float32(float(element(np.float32(x) * scale, of))) / scale for x in block]
    return [math.copysign(float(value), x) for value, x in zip(found, block, strict=True)]
