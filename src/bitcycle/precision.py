"""`Precision`: the bits of a layer's weight, act, error and grad, and its text form 'w4a4e8g8'.

The roles are the weight, the activation (the layer's input), the error (the gradient with respect
to the layer's output, which the backward pass multiplies) and the weight gradient.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

ROLES = ("weight", "act", "error", "grad")
# the keyword whose schedule a role inherits
PARENTS = {"weight": "forward", "act": "forward", "error": "backward", "grad": "backward"}
FLOAT_BITS = 24  # a float32 mantissa: tensors at these bits or more stay float32
MAX_BITS = 32

_FORMS = (
    "accepted forms: 'FW4/BW8' (weight and act 4, error and grad 8), 'w4a4e8' (roles not named "
    "are float32), 'fp32'"
)
_LETTERS = {"w": "weight", "a": "act", "e": "error", "g": "grad"}
_PAIR = re.compile(r"fw(fp32|\d+)(?:/bw(fp32|\d+))?|bw(fp32|\d+)", re.IGNORECASE)
_SHORT = re.compile(r"(?:([waeg])(\d+))+", re.IGNORECASE)


def check_bits(bits: object, what: str = "bits") -> int | None:
    """Return the bits if they are None or a whole number from 1 to 32; otherwise raise.

    >>> check_bits(8), check_bits(None)
    (8, None)
    """
    if bits is None:
        return None
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= MAX_BITS:
        raise ValueError(
            f"{what} must be None (float32) or a whole number from 1 to {MAX_BITS}, got {bits!r}"
        )
    return bits


def is_float(bits: int | None) -> bool:
    """Whether a tensor at these bits stays float32: None, or 24 and more.

    >>> is_float(None), is_float(24), is_float(23)
    (True, True, False)
    """
    return bits is None or bits >= FLOAT_BITS


def cost_bits(bits: int | None) -> int:
    """The bits that a cost counts: 32 for float32.

    >>> cost_bits(8), cost_bits(24), cost_bits(None)
    (8, 32, 32)
    """
    return 32 if bits is None or bits >= FLOAT_BITS else bits


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The bits of weight, act, error and grad; None is float32.

    >>> str(Precision(weight=4, act=4, error=8))
    'w4a4e8'
    >>> Precision.parse("FW4/BW8")
    Precision(weight=4, act=4, error=8, grad=8)
    """

    weight: int | None = None
    act: int | None = None
    error: int | None = None
    grad: int | None = None

    def __post_init__(self) -> None:
        for role, bits in self.items():
            check_bits(bits, f"{role} bits")

    @classmethod
    def parse(cls, text: str | Precision) -> Precision:
        """Read 'FW4/BW8', 'w4a4e8' or 'fp32'; a Precision is returned unchanged."""
        if isinstance(text, Precision):
            return text
        if not isinstance(text, str):
            raise ValueError(f"cannot read a precision from {text!r}; {_FORMS}")
        compact = text.strip()
        if compact.lower() == "fp32":
            return cls()
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

    def items(self) -> Iterator[tuple[str, int | None]]:
        """(role, bits) in the fixed order weight, act, error, grad."""
        return ((role, getattr(self, role)) for role in ROLES)

    def replace(self, **bits: int | None) -> Precision:
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
        """The roles that are rounded: those with fewer than 24 bits."""
        return tuple(role for role, bits in self.items() if not is_float(bits))

    @property
    def top(self) -> int | None:
        """The most bits of any quantized role; None if all are float32."""
        return max((bits for _, bits in self.items() if not is_float(bits) and bits), default=None)

    def __str__(self) -> str:
        named = [f"{role[0]}{bits}" for role, bits in self.items() if bits is not None]
        return "".join(named) or "fp32"


def _number(text: str | None) -> int | None:
    return None if text is None or text.lower() == "fp32" else int(text)
