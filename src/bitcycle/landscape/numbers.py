"""Numbers in JSON files, NaN and infinity among them, which JSON has no words for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def to_plain(value: Any) -> Any:
    """Tuples as lists, numbers that are not finite as texts; floats come back to the bit.

    >>> to_plain({"losses": (0.1, math.inf, math.nan)})
    {'losses': [0.1, 'inf', 'nan']}
    """
    if isinstance(value, Mapping):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_plain(value: float | str) -> float:
    """One number as `to_plain` wrote it.

    >>> from_plain("-inf"), from_plain(0.1)
    (-inf, 0.1)
    """
    return float(value)
