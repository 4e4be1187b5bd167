"""`Precision`: the bits of a layer's weight, act, error and grad, and its text form 'w4a4e8g8'.

Bits are a number of an integer grid, a `Format` such as nvfp4, or None for float32. The roles are
the weight, the activation (the layer's input), the error (the gradient with respect to the layer's
output, which the backward pass multiplies) and the weight gradient.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from bitcycle.bits import MAX_BITS, Bits, PlainBits, has_format, is_whole_bits
from bitcycle.formats.catalogue import NAME_PATTERN, parse_format

ROLES = ("weight", "act", "error", "grad")
# the keyword whose schedule a role inherits
PARENTS = {"weight": "forward", "act": "forward", "error": "backward", "grad": "backward"}

_FORMS = (
    "accepted forms: 'FW4/BW8' (weight and act 4, error and grad 8), 'w4a4e8' (roles not named "
    "are float32), 'fp32'; with formats 'FWnvfp4/BWbf16', 'w=nvfp4,a=nvfp4,e=8', 'bf16'"
)
_LETTERS = {"w": "weight", "a": "act", "e": "error", "g": "grad"}
_BITS = rf"({NAME_PATTERN}|\d+)"
_PAIR = re.compile(rf"fw{_BITS}(?:/bw{_BITS})?|bw{_BITS}", re.IGNORECASE)
_SHORT = re.compile(r"(?:([waeg])(\d+))+", re.IGNORECASE)
_NAMED = re.compile(r"[a-z]+\s*=[^,=]*(?:,\s*[a-z]+\s*=[^,=]*)*", re.IGNORECASE)


def check_max_bits(bits: object, what: str = "max_bits") -> int | None:
    """Return the limit if it is None or a whole number from 1 to 32; otherwise raise.

    >>> check_max_bits(8), check_max_bits(None)
    (8, None)
    """
    if bits is not None and not is_whole_bits(bits):
        raise ValueError(
            f"{what} must be None (no limit) or a whole number from 1 to {MAX_BITS}, got {bits!r}"
        )
    return bits  # type: ignore[return-value]


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

    weight: PlainBits = None
    act: PlainBits = None
    error: PlainBits = None
    grad: PlainBits = None

    def __post_init__(self) -> None:
        for role, bits in self.items():
            plain = Bits.of(bits, f"{role} bits").plain
            if plain is not bits:  # the name of a format
                object.__setattr__(self, role, plain)

    @classmethod
    def parse(cls, text: str | Precision) -> Precision:
        """Read 'FW4/BW8', 'w4a4e8', 'w=nvfp4,e=8' or 'fp32'; a Precision is returned unchanged."""
        if isinstance(text, Precision):
            return text
        if not isinstance(text, str):
            raise ValueError(f"cannot read a precision from {text!r}; {_FORMS}")
        compact = text.strip()
        if re.fullmatch(NAME_PATTERN, compact, re.IGNORECASE):
            return cls(**dict.fromkeys(ROLES, _read_bits(compact)))
        if _NAMED.fullmatch(compact):
            return cls(**_read_named(compact))
        if pair := _PAIR.fullmatch(compact):
            forward, backward = _read_bits(pair[1]), _read_bits(pair[2] or pair[3])
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

    def items(self) -> Iterator[tuple[str, PlainBits]]:
        """(role, bits) in the fixed order weight, act, error, grad."""
        return ((role, getattr(self, role)) for role in ROLES)

    @cached_property  # layers of equal bits share a precision
    def bits(self) -> dict[str, Bits]:
        """The bits by role, read."""
        return {role: Bits.of(bits) for role, bits in self.items()}

    def replace(self, **bits: PlainBits) -> Precision:
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
        return Precision(**{r: getattr(self, r) for r in self.quantized_roles if r in roles})

    @property
    def quantized_roles(self) -> tuple[str, ...]:
        """The roles that are rounded: those with fewer than 24 bits, or with a format."""
        return tuple(role for role, bits in self.bits.items() if not bits.is_float32)

    @property
    def top(self) -> int | None:
        """The most bits of any role on a grid of integers; None if there is none."""
        return max(bits.grid_bits for bits in self.bits.values()) or None

    def __str__(self) -> str:
        if has_format(bits for _, bits in self.items()):
            return ",".join(f"{role[0]}={bits}" for role, bits in self.items() if bits is not None)
        named = [f"{role[0]}{bits}" for role, bits in self.items() if bits is not None]
        return "".join(named) or "fp32"


def _read_bits(text: str | None) -> PlainBits:
    if text is None:
        return None
    return int(text) if text.isdigit() else parse_format(text)


def _read_named(text: str) -> dict[str, PlainBits]:
    """'w=nvfp4,e=8' by role."""
    roles: dict[str, PlainBits] = {}
    for part in text.split(","):
        letter, value = (piece.strip() for piece in part.split("="))
        role = _LETTERS.get(letter.lower())
        if role is None:
            raise ValueError(f"{text!r}: unknown role {letter!r} (roles: w, a, e, g); {_FORMS}")
        if role in roles:
            raise ValueError(f"{text!r} names {role} twice; {_FORMS}")
        try:
            roles[role] = _read_bits(value)
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None
    return roles
