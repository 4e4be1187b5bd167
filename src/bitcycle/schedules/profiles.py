"""Unit profiles: how a cycle grows from 0 to 1, by a letter each.

A new profile is one decorated function in any file of this package; the schedules made of its
letter (repeated `XR`, triangular `XT` or `XT-H` and `XT-V`) exist from then on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bitcycle.registry import Registry

Tier = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Profile:
    """Growth g(p) for a phase p in [0, 1], with g(0) = 0 and never falling."""

    name: str
    letter: str
    growth: Callable[[float], float]
    is_symmetric: bool  # g(1 - p) = 1 - g(p): mirroring in time or in value is the same
    tier: Tier  # of the cost, while growing
    summary: str


PROFILES: Registry[Profile] = Registry("profile", "bitcycle.schedules")


def profile(
    name: str, *, letter: str, tier: Tier, is_symmetric: bool = False
) -> Callable[[Callable[[float], float]], Callable[[float], float]]:
    """Registers a growth function under a name and a letter."""

    def add(growth: Callable[[float], float]) -> Callable[[float], float]:
        summary = (growth.__doc__ or "").strip().splitlines()[0].rstrip(".")
        entry = Profile(name, letter, growth, is_symmetric, tier, summary)
        PROFILES.register(name)(entry)
        return growth

    return add


@profile("linear", letter="L", tier="medium", is_symmetric=True)
def linear(p: float) -> float:
    """an even pace.

    g(p) = p
    """
    return p


@profile("cosine", letter="C", tier="medium", is_symmetric=True)
def cosine(p: float) -> float:
    """slow at both ends.

    g(p) = (1 - cos(pi p)) / 2
    """
    return (1 - math.cos(math.pi * p)) / 2


@profile("exponential", letter="E", tier="high")
def exponential(p: float) -> float:
    """fast, then long near the top.

    g(p) = 1 - exp(-4 p), which stops at 0.98168: enough to round to `high` up to 27 bits apart.
    """
    return 1 - math.exp(-4 * p)


@profile("rex", letter="R", tier="low")
def rex(p: float) -> float:
    """long near the bottom, then fast (reflected exponential).

    g(p) = 1 - u / (0.1 + 0.9 u), u = 1 - p
    """
    u = 1 - p
    return 1 - u / (0.1 + 0.9 * u)
