"""JSON for files that people compare: what fits a line stands on one, always in the same way."""

from __future__ import annotations

import json
import math
from typing import Any

WIDTH = 160
DIGITS = 12  # more than any statistic of the page needs


def to_json(value: Any) -> str:
    """
    >>> print(to_json({"a": [1, 2.5], "b": "x" * 5}), end="")
    {"a": [1, 2.5], "b": "xxxxx"}
    """
    return _text(value, "") + "\n"


def _text(value: Any, indent: str) -> str:
    short = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(indent) + len(short) <= WIDTH or not isinstance(value, dict | list) or not value:
        return short
    inner = f"{indent} "
    if isinstance(value, dict):
        parts = [f"{json.dumps(k, ensure_ascii=False)}: {_text(v, inner)}"
                 for k, v in value.items()]  # fmt: skip
        opening, closing = "{", "}"
    else:
        parts = [_text(part, inner) for part in value]
        opening, closing = "[", "]"
    body = f",\n{inner}".join(parts)
    return f"{opening}\n{inner}{body}\n{indent}{closing}"


def rounded(number: float, digits: int = DIGITS) -> float | str:
    """To so many significant digits; what JSON has no word for is a text.

    >>> rounded(98.88888888888889, 5), rounded(math.inf), rounded(3.0)
    (98.889, 'inf', 3.0)
    """
    return float(f"{number:.{digits}g}") if math.isfinite(number) else str(number)
