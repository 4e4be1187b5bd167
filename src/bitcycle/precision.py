"""`Precision`: the bits of a layer's weight, act, error and grad, and its text form 'w4a4e8g8'.

Bits are a number of an integer grid, a `Format` such as nvfp4, or None for float32. The roles are
the weight, the activation (the layer's input), the error (the gradient with respect to the layer's
output, which the backward pass multiplies) and the weight gradient.

    output = act x weight       grad_input = error x weight       grad_weight = error x act

Weight and act have the same bits in the products that read them, unless `backward_operands` is
"backward": then grad_input and grad_weight read them at the bits of the error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from bitcycle.bits import MAX_BITS, Bits, PlainBits, has_format, is_whole_bits
from bitcycle.formats.catalogue import NAME_PATTERN, parse_format

ROLES = ("weight", "act", "error", "grad")
# the keyword whose schedule a role inherits
PARENTS = {"weight": "forward", "act": "forward", "error": "backward", "grad": "backward"}
BackwardOperands = Literal["forward", "backward"]
FORWARD_OPERANDS = ("weight", "act")  # what output multiplies, and one of them each gradient

_FORMS = (
    "accepted forms: 'FW4/BW8' (weight and act 4, error and grad 8), 'w4a4e8' (roles not named "
    "are float32), 'fp32'; with formats 'FWnvfp4/BWbf16', 'w=nvfp4,a=nvfp4,e=8', 'bf16', "
    "'w=bf16/nvfp4,a=bf16/nvfp4,e=nvfp4' (bf16 in output, nvfp4 in both backward products)"
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


def check_backward_operands(value: object) -> BackwardOperands:
    """Return "forward" or "backward"; otherwise raise."""
    if value not in ("forward", "backward"):
        raise ValueError(
            "backward_operands must be 'forward' (weights and activations have the same bits in "
            "all products) or 'backward' (backward products read them at the error's), got "
            f"{value!r}"
        )
    return value


@dataclass(frozen=True, kw_only=True, repr=False)
class Precision:
    """The bits of weight, act, error and grad; None is float32.

    backward_operands: "backward" makes grad_input and grad_weight read weight and act at the bits
    of the error. It needs formats or float32: codes of an integer grid are made once and saved.

    >>> str(Precision(weight=4, act=4, error=8))
    'w4a4e8'
    >>> Precision.parse("FW4/BW8")
    Precision(weight=4, act=4, error=8, grad=8)
    >>> str(Precision.parse("FWnvfp4/BWbf16"))
    'w=nvfp4,a=nvfp4,e=bf16,g=bf16'
    >>> str(Precision(weight="bf16", act="bf16", error="nvfp4", backward_operands="backward"))
    'w=bf16/nvfp4,a=bf16/nvfp4,e=nvfp4'
    """

    weight: PlainBits = None
    act: PlainBits = None
    error: PlainBits = None
    grad: PlainBits = None
    backward_operands: BackwardOperands = "forward"

    def __post_init__(self) -> None:
        for role, bits in self.items():
            plain = Bits.of(bits, f"{role} bits").plain
            if plain is not bits:  # the name of a format
                object.__setattr__(self, role, plain)
        check_backward_operands(self.backward_operands)
        if self.has_backward_operands:
            for role in (*FORWARD_OPERANDS, "error"):
                refuse_grid(role, getattr(self, role))

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
            return cls().replace(**roles)
        stray = re.match(r"(?:[waeg]\d+)*((?![waeg])[a-z])\d", compact.lower())
        hint = f"unknown role {stray[1]!r} (roles: w, a, e, g); " if stray else ""
        raise ValueError(f"cannot read a precision from {text!r}; {hint}{_FORMS}")

    @property
    def has_backward_operands(self) -> bool:
        """Whether backward products read weight and act at the bits of the error."""
        return self.backward_operands == "backward"

    def in_backward(self, role: str) -> PlainBits:
        """The bits of weight or act as the backward products read it."""
        bits: PlainBits = getattr(self, "error" if self.has_backward_operands else role)
        return bits

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
        return replace(self, **bits)  # type: ignore[arg-type]

    def in_force(self, roles: Collection[str]) -> Precision:
        """The bits that round something, where only `roles` have a rule: None for all others.

        Bits of a role without a rule have no effect, nor have 24 bits or more, nor has
        `backward_operands` while weight and act have the bits of the error.

        >>> print(Precision.parse("FW8/BW8").in_force({"weight", "act", "error"}))
        w8a8e8
        """
        kept = {r: getattr(self, r) for r in self.quantized_roles if r in roles}
        operands = {kept.get(role) for role in FORWARD_OPERANDS if role in roles}
        differ = self.has_backward_operands and not operands <= {kept.get("error")}
        return Precision(**kept, backward_operands="backward" if differ else "forward")

    @property
    def quantized_roles(self) -> tuple[str, ...]:
        """The roles that are rounded: those with fewer than 24 bits, or with a format."""
        return tuple(role for role, bits in self.bits.items() if not bits.is_float32)

    @property
    def top(self) -> int | None:
        """The most bits of any role on a grid of integers; None if there is none."""
        return max(bits.grid_bits for bits in self.bits.values()) or None

    def text(self, roles: Collection[str] = ROLES) -> str:
        """The short form, for a layer that has these roles; `parse` reads it."""
        shown = {role: bits for role, bits in self.items() if role in roles}
        named = {role: str(bits) for role, bits in shown.items() if bits is not None}
        if self.has_backward_operands:
            error = Bits.of(self.error)
            operands = [role for role in FORWARD_OPERANDS if role in roles]
            named |= {role: f"{Bits.of(shown[role])}/{error}" for role in operands}
        elif not has_format(shown.values()):
            return "".join(f"{role[0]}{bits}" for role, bits in named.items()) or "fp32"
        return ",".join(f"{role[0]}={named[role]}" for role in ROLES if role in named)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        named = [f"{role}={bits!r}" for role, bits in self.items()]
        if self.has_backward_operands:
            named.append(f"backward_operands={self.backward_operands!r}")
        return f"Precision({', '.join(named)})"


def refuse_grid(role: str, bits: PlainBits) -> None:
    """Raise if these bits of an operand do not go with backward_operands="backward"."""
    if Bits.of(bits).kind == "integer":
        raise ValueError(
            f"backward_operands='backward' needs formats (nvfp4, mxfp8, bf16) or fp32, but {role} "
            f"has {bits} bits: the codes of an integer grid are made in the forward pass and "
            "multiplied again in the backward pass; leave backward_operands at 'forward', or use "
            "formats"
        )


def _read_bits(text: str | None) -> PlainBits:
    if text is None:
        return None
    return int(text) if text.isdigit() else parse_format(text)


def _read_named(text: str) -> dict[str, Any]:
    """'w=nvfp4,e=8' by role; 'w=bf16/nvfp4' is bf16 in output and nvfp4 in grad_input."""
    roles: dict[str, Any] = {}
    in_backward: dict[str, PlainBits] = {}
    for part in text.split(","):
        letter, value = (piece.strip() for piece in part.split("="))
        role = _LETTERS.get(letter.lower())
        if role is None:
            raise ValueError(f"{text!r}: unknown role {letter!r} (roles: w, a, e, g); {_FORMS}")
        if role in roles:
            raise ValueError(f"{text!r} names {role} twice; {_FORMS}")
        value, slash, backward = value.partition("/")
        try:
            roles[role] = _read_bits(value.strip())
            if slash:
                in_backward[role] = _read_bits(backward.strip())
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None
    if in_backward:
        operands = [role for role in FORWARD_OPERANDS if role in roles]
        if set(in_backward) != set(operands) or set(in_backward.values()) != {roles.get("error")}:
            raise ValueError(
                f"{text!r}: after the slash stand the bits of the backward products, which are the "
                f"error's, for both weight and act; {_FORMS}"
            )
        roles["backward_operands"] = "backward"
    return roles
