"""The schedules that meet a budget, for a model or a recipe by name: built without data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bitcycle.analysis.subject import Subject, find_subject
from bitcycle.cost import CONVENTIONS, Plan, plan
from bitcycle.models import MODELS
from bitcycle.schedules import parse_schedule
from bitcycle.train.config import PrecisionConfig

Bounds = tuple[int | None, int | None]
BACKWARD = 8  # bits of the errors, where nothing says otherwise


def plan_by_name(
    name: str,
    *,
    saving: float | None = None,
    bitops: float | None = None,
    low: int | None = None,
    high: int | None = None,
    range_test: str | Path | None = None,
    backward: str | None = None,
    cycles: Sequence[int] | None = None,
    tops: Sequence[int] = (),
    options: Mapping[str, Any] | None = None,
    skip: Sequence[str] | None = None,
    total_steps: int | None = None,
    batch_size: int | None = None,
    convention: str = "exact",
) -> Plan:
    """`bitcycle.cost.plan` of a model of the registry, a recipe or a YAML file.

    What is given here comes first; then, for the bounds, the file of a range test; then what the
    recipe says: its bounds, errors, length and batch.

    >>> found = plan_by_name("resnet8", low=3, high=8, saving=0.4, skip=["fc"])
    >>> found.total_steps, found.samples_per_step, found.rows[0].forward
    (64000, 128, 'delay@0.375(CR:4-8:2)')
    """
    convention_entry = CONVENTIONS[convention]
    tested = (None, None) if range_test is None else read_bounds(range_test)
    low, high = _fill((low, high), tested)
    if name in MODELS:
        _check_bounds(name, low, high)
    roles = {} if name not in MODELS else {"forward": str(high)}
    subject = find_subject(
        name, roles=roles, options=options, skip=skip, total_steps=total_steps,
        batch_size=batch_size,
    )  # fmt: skip
    low, high = _check_bounds(name, *_fill((low, high), _bounds_of(subject.precision)))
    errors = _errors_of(subject, name) if backward is None else parse_schedule(backward)
    subject = replace(subject, precision=_static(subject.precision, high, str(errors)))
    model = subject.build(needs_conversion=convention_entry.needs_conversion)
    return plan(
        model,
        subject.inputs(model, 16 if subject.is_graph else 1),
        low=low,
        high=high,
        total_steps=subject.total_steps,
        saving=saving,
        bitops=bitops,
        backward=errors,
        cycles=cycles,
        tops=tops,
        samples_per_step=subject.batch_size,
        convention=convention,
    )


def read_bounds(path: str | Path) -> tuple[int, int]:
    """The bounds in the JSON file that `bitcycle range-test` writes."""
    target = Path(path).expanduser()
    if not target.is_file():
        raise ValueError(f"there is no file {path}; `bitcycle range-test` writes range-test.json")
    try:
        data = json.loads(target.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    bounds = [data.get(key) if isinstance(data, dict) else None for key in ("low", "high")]
    if isinstance(data, dict) and "curve" in data and bounds == [None, None]:
        raise ValueError(f"the range test of {path} found no bits that pass; give low and high")
    low, high = bounds
    if type(low) is not int or type(high) is not int:
        raise ValueError(f"{path} has no 'low' and 'high' as `bitcycle range-test` writes them")
    return low, high


def _fill(first: Bounds, second: Bounds) -> Bounds:
    low, high = (b if a is None else a for a, b in zip(first, second, strict=True))
    return low, high


def _check_bounds(name: str, low: int | None, high: int | None) -> tuple[int, int]:
    if low is None or high is None:
        missing = " and ".join(k for k, bits in (("low", low), ("high", high)) if bits is None)
        raise ValueError(
            f"{name} does not say between which bits: give {missing}, or the file of a range test"
        )
    return low, high


def _bounds_of(precision: PrecisionConfig) -> Bounds:
    """Those of the forward schedule; a static one only tells the upper."""
    if isinstance(precision.forward, dict):
        return None, None
    if precision.auto_high is not None:
        return None, precision.auto_high
    schedule = parse_schedule(precision.forward)
    return None if schedule.low == schedule.high else schedule.low, schedule.high


def _errors_of(subject: Subject, name: str) -> Any:
    precision = subject.precision
    if precision.is_float or name in MODELS:
        return parse_schedule(BACKWARD)
    text = precision.backward if precision.error == "inherit" else precision.error
    if isinstance(text, dict):
        raise ValueError(f"the errors of {name} differ by layer: give backward for all")
    return parse_schedule(text)


def _static(precision: PrecisionConfig, high: int, backward: str) -> PrecisionConfig:
    """The same layers and rules at the upper bound: what the candidates take the place of."""
    roles = dict.fromkeys(("weight", "act", "error", "grad"), "inherit")
    return replace(precision, forward=high, backward=backward, **roles)  # type: ignore[arg-type]
