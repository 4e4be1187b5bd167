"""Find the model and the bounds of `bitcycle plan` by name; `cost/planner.py` makes the list."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bitcycle.analysis.training_spec import TrainingSpec, find_spec
from bitcycle.cost import CONVENTIONS, Plan, plan
from bitcycle.models import MODELS
from bitcycle.schedules import parse_schedule
from bitcycle.train.config import PrecisionConfig

Bounds = tuple[int | None, int | None]
BACKWARD = 8  # default bits of the errors (the gradients with respect to a layer's output)


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
    """`bitcycle.cost.plan` of a model, a recipe or a YAML file.

    Arguments override the file of a range test, and that overrides the bounds of the recipe. Error
    bits, steps and batch size are the recipe's by default.

    >>> found = plan_by_name("resnet8", low=3, high=8, saving=0.4, skip=["fc"])
    >>> found.total_steps, found.samples_per_step, found.rows[0].forward
    (64000, 128, 'delay@0.375(CR:4-8:2)')
    """
    needs_conversion = CONVENTIONS[convention].needs_conversion
    tested = (None, None) if range_test is None else read_bounds(range_test)
    low, high = _fill((low, high), tested)
    if name in MODELS:
        _check_bounds(name, low, high)
    roles = {} if name not in MODELS else {"forward": str(high)}
    spec = find_spec(
        name, roles=roles, options=options, skip=skip, total_steps=total_steps,
        batch_size=batch_size,
    )  # fmt: skip
    low, high = _check_bounds(name, *_fill((low, high), _bounds_of(spec.precision)))
    errors = _errors_of(spec, name) if backward is None else parse_schedule(backward)
    spec = replace(spec, precision=_static(spec.precision, high, str(errors)))
    model = spec.build(needs_conversion=needs_conversion)
    return plan(
        model,
        spec.inputs(model, 16 if spec.is_graph else 1),
        low=low,
        high=high,
        total_steps=spec.total_steps,
        saving=saving,
        bitops=bitops,
        backward=errors,
        cycles=cycles,
        tops=tops,
        samples_per_step=spec.batch_size,
        convention=convention,
    )


def read_bounds(path: str | Path) -> tuple[int, int]:
    """Read the bounds from the JSON file that `bitcycle range-test` writes."""
    target = Path(path).expanduser()
    if not target.is_file():
        raise ValueError(f"there is no file {path}; `bitcycle range-test` writes range-test.json")
    try:
        data = json.loads(target.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    bounds = [data.get(key) if isinstance(data, dict) else None for key in ("low", "high")]
    if isinstance(data, dict) and "curve" in data and bounds == [None, None]:
        raise ValueError(f"no bits passed in the range test of {path}; give low and high")
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
            f"the bounds of {name} are not known: give {missing}, or the file of a range test"
        )
    return low, high


def _bounds_of(precision: PrecisionConfig) -> Bounds:
    """The bounds of the forward schedule; static bits are only an upper bound."""
    if isinstance(precision.forward, dict):
        return None, None
    if precision.auto_high is not None:
        return None, precision.auto_high
    schedule = parse_schedule(precision.forward)
    return None if schedule.low == schedule.high else schedule.low, schedule.high


def _errors_of(spec: TrainingSpec, name: str) -> Any:
    precision = spec.precision
    if precision.is_float or name in MODELS:
        return parse_schedule(BACKWARD)
    text = precision.backward if precision.error == "inherit" else precision.error
    if isinstance(text, dict):
        raise ValueError(f"the error bits of {name} differ by layer: give backward for all layers")
    return parse_schedule(text)


def _static(precision: PrecisionConfig, high: int, backward: str) -> PrecisionConfig:
    """The same conversion with static bits at the upper bound."""
    roles = dict.fromkeys(("weight", "act", "error", "grad"), "inherit")
    return replace(precision, forward=high, backward=backward, **roles)  # type: ignore[arg-type]
