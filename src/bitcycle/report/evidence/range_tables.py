"""The tables of range tests: bounds with the metric by bits, and how each was tested."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bitcycle.range_test import RangeCurve
from bitcycle.report.evidence.measured import UNKNOWN
from bitcycle.study.compare_table import duration
from bitcycle.study.numbers import bitops_text, fixed
from bitcycle.study.published import published_bound
from bitcycle.study.table_text import Table, without_empty_columns

PUBLISHED = (
    " Published: the lower bound that the CPT paper names for this kind of network at full size, "
    "with no n; its threshold, window and number of steps are not published."
)
Test = Mapping[str, Any]


def curve_of(test: Test) -> RangeCurve:
    """The metric of every step, with its bits."""
    return RangeCurve(
        bits=tuple(bits for bits, number in test["steps_at"] for _ in range(number)),
        metric=tuple(math.nan if m is None else float(m) for m in test["metric"]),
        window=test["plan"]["window"],
        threshold=test["plan"]["threshold"],
        name=test["metric_name"],
    )


def bounds_table(tests: Sequence[Test], labels: Sequence[str]) -> Table:
    """The metric by bits, with the bound that follows."""
    tried = sorted({bits for test in tests for bits, _ in test["steps_at"]})
    names = ("network", "seed", "metric", "threshold", "lower bound", "published",
             "at a threshold below", "upper bound",
             *(f"{bits} bits" for bits in tried))  # fmt: skip
    rows = tuple(
        (
            label,
            str(test["seed"]),
            test["metric_name"],
            f"{test['plan']['threshold']:g}",
            "none" if test["low"] is None else str(test["low"]),
            _published(test),
            _by_threshold(curve_of(test)),
            str(test["high"]) if test.get("find_upper") and test["low"] is not None else "",
            *(_cell(curve_of(test), bits) for bits in tried),
        )
        for test, label in zip(tests, labels, strict=True)
    )
    return without_empty_columns(
        Table(
            name="range-tests",
            title="Lower bounds, and the metric by bits",
            columns=tuple(("", name) for name in names),
            rows=rows,
            is_number=(False, True, False, *[True] * (len(names) - 3)),
            caption="By bits: the mean of the metric over the last window of steps and, in "
            "brackets, its gain over the first one. The lower bound is the first number of bits "
            "with a gain above the threshold; a network that has learned already gains less with "
            "the bits after it. At a threshold below: which bound other thresholds would give, "
            f"none from the last one on.{_upper(tests)}{_units(tests)} {_spread(labels)}"
            f"{PUBLISHED if any(map(_published, tests)) else ''}",
        )
    )


def _published(test: Test) -> str:
    bound = published_bound(test["model"], test["data"]) if "model" in test else None
    return "" if bound is None else str(bound)


def _by_threshold(curve: RangeCurve) -> str:
    """Bits whose gain is above that of all fewer ones: below it they are the bound.

    >>> gains = {2: 10.0, 3: 15.0, 4: 14.0, 5: 17.0}
    >>> metric = tuple(m for gain in gains.values() for m in (0.0, gain))
    >>> bits = tuple(b for b in gains for _ in range(2))
    >>> _by_threshold(RangeCurve(bits=bits, metric=metric, window=1, threshold=20.0, name="m"))
    '10.0: 2, 15.0: 3, 17.0: 5'
    """
    most, said = 0.0, []
    for bits in curve.precisions:
        gain = curve.gain(bits)
        if gain > most:
            most = gain
            said.append(f"{fixed(gain, _decimals(curve))}: {bits}")
    return ", ".join(said)


def _decimals(curve: RangeCurve) -> int:
    """Three digits of the threshold, at least one of them behind the point."""
    return max(2 - math.floor(math.log10(curve.threshold or 1)), 1)


def _cell(curve: RangeCurve, bits: int) -> str:
    if bits not in curve.precisions:
        return ""
    if math.isnan(curve.gain(bits)):
        return "not finite"
    end, gain, decimals = curve.end(bits), curve.gain(bits), _decimals(curve)
    return f"{fixed(end, decimals)} ({fixed(gain, decimals, sign=True)})"


def _upper(tests: Sequence[Test]) -> str:
    if not any(test.get("find_upper") and test["low"] is not None for test in tests):
        return ""
    return " The upper bound is the first number of bits after which more add less than that."


def _units(tests: Sequence[Test]) -> str:
    units = {
        "accuracy": "Accuracy: of training batches, in %.",
        "-loss": "-loss: of training batches, in nats, negative so that more is better.",
    }
    used = {test["metric_name"] for test in tests}
    return "".join(f" {text}" for name, text in units.items() if name in used)


def _spread(labels: Sequence[str]) -> str:
    is_one_each = len(set(labels)) == len(labels)
    return "One seed each, so no spread." if is_one_each else "A row per seed."


def settings_table(tests: Sequence[Test], labels: Sequence[str]) -> Table:
    """What each test was given, and what it took."""
    names = ("network", "seed", "recipe", "bits tried", "errors", "steps each", "window", "restart",
             "schedule", "cost", "wall-clock")  # fmt: skip
    rows = tuple(
        (
            label,
            str(test["seed"]),
            test.get("recipe", test["name"]),
            f"{test['plan']['low']}-{test['plan']['high']}",
            _errors(test),
            str(test["plan"]["steps_per_precision"]),
            str(test["plan"]["window"]),
            "at every precision" if test["plan"]["reset"] else "",
            test["forward"] or "",
            bitops_text(test["bitops"]),
            duration(float(test["seconds"])) if "seconds" in test else UNKNOWN,
        )
        for test, label in zip(tests, labels, strict=True)
    )
    return without_empty_columns(
        Table(
            name="range-test-settings",
            title="How each was tested",
            columns=tuple(("", name) for name in names),
            rows=rows,
            is_number=(False, True, False, False, True, True, True, False, False, True, True),
            caption="Errors: bits of the backward pass. Steps each: at every number of bits, and "
            "the window that means are taken over. Schedule: what the test proposes to train with. "
            "Cost: of the whole test." + _restart(tests),
        )
    )


def _restart(tests: Sequence[Test]) -> str:
    if not any(test["plan"]["reset"] for test in tests):
        return ""
    return " Restart: every number of bits begins with the same weights, else with the last ones."


def _errors(test: Test) -> str:
    backward = test.get("backward", "")
    return (
        "by layer" if isinstance(backward, dict) else "fp32" if backward is None else f"{backward}"
    )
