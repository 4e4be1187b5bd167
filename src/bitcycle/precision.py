"""`Precision`: the bits of a layer's weight, act, error and grad, and its text form 'w4a4e8g8'.

Bits are a number of an integer grid, a `Format` such as nvfp4, or None for float32. The roles are
the weight, the activation (the layer's input), the error (the gradient with respect to the layer's
output, which the backward pass multiplies) and the weight gradient.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TypeGuard

from bitcycle.formats.catalogue import NAME_PATTERN, Format, parse_format

Bits = int | Format | None  # None is float32

ROLES = ("weight", "act", "error", "grad")
# the keyword whose schedule a role inherits
PARENTS = {"weight": "forward", "act": "forward", "error": "backward", "grad": "backward"}
FLOAT_BITS = 24  # a float32 mantissa: tensors at these bits or more stay float32
MAX_BITS = 32

_FORMS = (
    "accepted forms: 'FW4/BW8' (weight and act 4, error and grad 8), 'w4a4e8' (roles not named "
    "are float32), 'fp32'; with formats 'FWnvfp4/BWbf16', 'w=nvfp4,a=nvfp4,e=8', 'bf16'"
)
_LETTERS = {"w": "weight", "a": "act", "e": "error", "g": "grad"}
_BITS = rf"({NAME_PATTERN}|\d+)"
_PAIR = re.compile(rf"fw{_BITS}(?:/bw{_BITS})?|bw{_BITS}", re.IGNORECASE)
_SHORT = re.compile(r"(?:([waeg])(\d+))+", re.IGNORECASE)
_NAMED = re.compile(r"[a-z]+\s*=[^,=]*(?:,\s*[a-z]+\s*=[^,=]*)*", re.IGNORECASE)


def check_bits(bits: object, what: str = "bits") -> Bits:
    """Return the bits if they are None, a whole number from 1 to 32 or a format; otherwise raise.

    The name of a format becomes the format.

    >>> check_bits(8), check_bits(None), check_bits("nvfp4")
    (8, None, nvfp4)
    """
    if bits is None or isinstance(bits, Format):
        return bits
    if isinstance(bits, str) and not bits.isdigit():
        try:
            return parse_format(bits)
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= MAX_BITS:
        raise ValueError(
            f"{what} must be None (float32), a whole number from 1 to {MAX_BITS} or the name of a "
            f"format, got {bits!r}"
        )
    return bits


def check_max_bits(bits: object, what: str = "max_bits") -> int | None:
    """Return the limit if it is None or a whole number from 1 to 32; otherwise raise.

    >>> check_max_bits(8), check_max_bits(None)
    (8, None)
    """
    if bits is None:
        return None
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= MAX_BITS:
        raise ValueError(
            f"{what} must be None (no limit) or a whole number from 1 to {MAX_BITS}, got {bits!r}"
        )
    return bits


def is_float(bits: Bits) -> bool:
    """Whether a tensor at these bits stays float32: None, or 24 and more.

    >>> is_float(None), is_float(24), is_float(23), is_float(check_bits("bf16"))
    (True, True, False, False)
    """
    return bits is None or (isinstance(bits, int) and bits >= FLOAT_BITS)


def is_integer(bits: Bits) -> TypeGuard[int]:
    """Whether a tensor at these bits is on a grid of integers.

    >>> is_integer(8), is_integer(24), is_integer(check_bits("mxint8"))
    (True, False, False)
    """
    return isinstance(bits, int) and bits < FLOAT_BITS


def cost_bits(bits: Bits) -> int:
    """The bits that a cost counts: 32 for float32, those of an element for a format.

    >>> cost_bits(8), cost_bits(24), cost_bits(None), cost_bits(check_bits("nvfp4"))
    (8, 32, 32, 4)
    """
    if isinstance(bits, Format):
        return bits.bits
    return 32 if bits is None or bits >= FLOAT_BITS else bits


def bits_text(bits: Bits) -> str:
    """'8', 'nvfp4' or 'fp32'."""
    return "fp32" if bits is None else str(bits)


def order(bits: Bits) -> int:
    """A sort key: the bits of an element, with float32 above every number."""
    return 33 if bits is None else bits.bits if isinstance(bits, Format) else bits


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The bits of weight, act, error and grad; None is float32.

    >>> str(Precision(weight=4, act=4, error=8))
    'w4a4e8'
    >>> Precision.parse("FW4/BW8")
    Precision(weight=4, act=4, error=8, grad=8)
    >>> str(Precision.parse("FWnvfp4/BWbf16"))
    'w=nvfp4,a=nvfp4,e=bf16,g=bf16'
    """

    weight: Bits = None
    act: Bits = None
    error: Bits = None
    grad: Bits = None

    def __post_init__(self) -> None:
        for role, bits in self.items():
            checked = check_bits(bits, f"{role} bits")
            if checked is not bits:  # the name of a format
                object.__setattr__(self, role, checked)

    @classmethod
    def parse(cls, text: str | Precision) -> Precision:
        """Read 'FW4/BW8', 'w4a4e8', 'w=nvfp4,e=8' or 'fp32'; a Precision is returned unchanged."""
        if isinstance(text, Precision):
            return text
        if not isinstance(text, str):
            raise ValueError(f"cannot read a precision from {text!r}; {_FORMS}")
        compact = text.strip()
        if re.fullmatch(NAME_PATTERN, compact, re.IGNORECASE):
            return cls(**dict.fromkeys(ROLES, parse_format(compact)))
        if _NAMED.fullmatch(compact):
            return cls(**_read_named(compact))
        if pair := _PAIR.fullmatch(compact):
            forward, backward = _number(pair[1]), _number(pair[2] or pair[3])
            return cls(weight=forward, act=forward, error=backward, grad=backward)
        if _SHORT.fullmatch(compact):
            roles: dict[str, int] = {}
            for letter, digits in re.findall(r"([a-z])(\d+)", compact.lower()):
                role = _LETTERS[letter]
                if role in roles:
                    raise ValueError(f"{text!r} names {role} twice; {_FORMS}")
                roles[role] = int(digits)
            return cls(**roles)
        stray = re.match(r"(?:[waeg]\d+)*((?![waeg])[a-z])\d", compact.lower())
        hint = f"unknown role {stray[1]!r} (roles: w, a, e, g); " if stray else ""
        raise ValueError(f"cannot read a precision from {text!r}; {hint}{_FORMS}")

    def items(self) -> Iterator[tuple[str, Bits]]:
        """(role, bits) in the fixed order weight, act, error, grad."""
        return ((role, getattr(self, role)) for role in ROLES)

    def replace(self, **bits: Bits) -> Precision:
        """Return a copy with some roles changed."""
        unknown = sorted(set(bits) - set(ROLES))
        if unknown:
            raise ValueError(f"unknown role {unknown[0]!r}; roles: {', '.join(ROLES)}")
        return replace(self, **bits)

    def in_force(self, roles: Collection[str]) -> Precision:
        """The bits that round something, where only `roles` have a rule: None for all others.

        Bits of a role without a rule have no effect, nor have 24 bits or more.

        >>> print(Precision.parse("FW8/BW8").in_force({"weight", "act", "error"}))
        w8a8e8
        """
        rounded = {r: b for r, b in self.items() if r in roles and not is_float(b)}
        return Precision(**rounded)

    @property
    def quantized_roles(self) -> tuple[str, ...]:
        """The roles that are rounded: those with fewer than 24 bits, or with a format."""
        return tuple(role for role, bits in self.items() if not is_float(bits))

    @property
    def top(self) -> int | None:
        """The most bits of any role on a grid of integers; None if there is none."""
        return max((bits for _, bits in self.items() if is_integer(bits)), default=None)

    def __str__(self) -> str:
        if any(isinstance(bits, Format) for _, bits in self.items()):
            return ",".join(f"{role[0]}={bits}" for role, bits in self.items() if bits is not None)
        named = [f"{role[0]}{bits}" for role, bits in self.items() if bits is not None]
        return "".join(named) or "fp32"


def _number(text: str | None) -> Bits:
    if text is None:
        return None
    return int(text) if text.isdigit() else parse_format(text)


def _read_named(text: str) -> dict[str, Bits]:
    """'w=nvfp4,e=8' by role."""
    roles: dict[str, Bits] = {}
    for part in text.split(","):
        letter, value = (piece.strip() for piece in part.split("="))
        role = _LETTERS.get(letter.lower())
        if role is None:
            raise ValueError(f"{text!r}: unknown role {letter!r} (roles: w, a, e, g); {_FORMS}")
        if role in roles:
            raise ValueError(f"{text!r} names {role} twice; {_FORMS}")
        try:
            roles[role] = _number(value)
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None
    return roles
