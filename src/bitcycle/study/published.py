"""The published numbers of a study's methods, beside ours."""

from __future__ import annotations

from bitcycle.recipes import Published
from bitcycle.study.base import Method
from bitcycle.study.results import StudyResult


def published_values(method: Method, metric: str) -> tuple[Published, ...]:
    """Its published values of that metric, equal numbers once."""
    by_number = {p.value: p for p in reversed(method.published) if p.metric == metric}
    return tuple(sorted(by_number.values(), key=lambda p: method.published.index(p)))


def published_value(method: Method, metric: str) -> float | None:
    """Its published value, when there is exactly one."""
    found = published_values(method, metric)
    return found[0].value if len(found) == 1 else None


def published_cost(method: Method) -> float | None:
    """In GBitOPs, when there is exactly one."""
    return published_value(method, "cost")


def published_relative_cost(method: Method, base: Method | None) -> float | None:
    """To the published cost of the baseline."""
    own = published_cost(method)
    other = None if base is None else published_cost(base)
    return own / other if own is not None and other else None


def published_difference(method: Method, base: Method | None, metric: str) -> float | None:
    """To the published value of the baseline; None for the baseline itself."""
    if base is None or base is method:
        return None
    own, other = published_value(method, metric), published_value(base, metric)
    return None if own is None or other is None else own - other


def sources(result: StudyResult) -> tuple[str, ...]:
    """Where the published numbers stand: tables and figures, each once."""
    found = (p.where for row in result.methods for p in row.method.published)
    return tuple(dict.fromkeys(found))
