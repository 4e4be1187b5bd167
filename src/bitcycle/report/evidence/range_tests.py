"""The page of range tests: what `bitcycle range-test` found, a picture for each."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bitcycle.range_test import RangeCurve
from bitcycle.report.evidence.page import Page, again, block, made_from
from bitcycle.report.evidence.picture import plain_style, svg_text
from bitcycle.report.range_test import draw_range_curve
from bitcycle.study.numbers import bitops_text, fixed
from bitcycle.study.publish.commands import recipe_needs_data
from bitcycle.study.publish.jsontext import rounded
from bitcycle.study.table_text import Table, to_markdown

DIGITS = 6  # of a metric


def is_range_test(data: Mapping[str, Any]) -> bool:
    """Whether a file is a range-test.json."""
    return {"plan", "curve", "name", "seed"} <= data.keys()


def gather_range_tests(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All of them, each with the metric of every step; what follows from that is left out."""
    tests = []
    for found in files:
        curve = found["curve"]
        counts = {bits: curve["bits"].count(bits) for bits in dict.fromkeys(curve["bits"])}
        metric = [None if m is None else rounded(m, DIGITS) for m in curve["metric"]]
        tests.append(
            {
                "name": found["name"],
                "seed": found["seed"],
                "plan": found["plan"],
                "low": found["low"],
                "high": found["high"],
                "forward": found["forward"],
                "bitops": found["bitops"],
                "metric_name": curve["name"],
                "steps_at": [[bits, number] for bits, number in counts.items()],
                "metric": metric,
            }
        )
    tests.sort(key=lambda test: (test["name"], test["seed"]))
    return {"kind": "range-tests", "tests": tests}


def render_range_tests(name: str, data: Mapping[str, Any]) -> Page:
    """A table of all, then each with its gains and its picture."""
    tests = data["tests"]
    files: dict[str, str] = {}
    parts: list[str] = []
    for test in tests:
        curve = curve_of(test)
        own = f"{test['name']}-seed{test['seed']}"
        picture = f"{name}-{own}.svg"
        with plain_style():
            files[picture] = svg_text(draw_range_curve(curve))
        parts += [_gains(own, test, curve), f"![The metric at rising bits]({picture})"]
    title = "Precision range tests"
    found = "; ".join(f"{t['name']}: {_low(t)}" for t in tests)
    head = [
        made_from(name),
        f"# {title}",
        "The fewest bits at which a model still learns, from a short training at rising bits; the "
        "lower end of its schedule. What counts as learning is the threshold, which is a choice.",
        to_markdown(_summary(tests)).rstrip("\n"),
    ]
    publish = "bitcycle study publish RUNS/*-range-test/range-test.json --to results"
    tail = ["## How it was made", block(*map(_command, tests), publish), again(name)]
    files[f"{name}.md"] = "\n\n".join([*head, *parts, *tail]) + "\n"
    return Page(title=title, file=f"{name}.md", sentence=f"{found}.", files=files)


def curve_of(test: Mapping[str, Any]) -> RangeCurve:
    """The metric of every step, with its bits."""
    return RangeCurve(
        bits=tuple(bits for bits, number in test["steps_at"] for _ in range(number)),
        metric=tuple(math.nan if m is None else float(m) for m in test["metric"]),
        window=test["plan"]["window"],
        threshold=test["plan"]["threshold"],
        name=test["metric_name"],
    )


def _low(test: Mapping[str, Any]) -> str:
    return "no bits pass" if test["low"] is None else f"from {test['low']} bits on"


def _summary(tests: Sequence[Mapping[str, Any]]) -> Table:
    names = ("recipe", "seed", "bits tried", "steps each", "threshold", "lower bound", "schedule",
             "cost")  # fmt: skip
    rows = tuple(
        (
            test["name"],
            str(test["seed"]),
            f"{test['plan']['low']}-{test['plan']['high']}",
            str(test["plan"]["steps_per_precision"]),
            f"{test['plan']['threshold']:g}",
            "none" if test["low"] is None else str(test["low"]),
            test["forward"] or "-",
            bitops_text(test["bitops"]),
        )
        for test in tests
    )
    seeds = {name: sum(t["name"] == name for t in tests) for name in [t["name"] for t in tests]}
    one = [name for name, number in seeds.items() if number == 1]
    return Table(
        name="range-tests",
        title="Lower bounds",
        columns=tuple(("", name) for name in names),
        rows=rows,
        is_number=(False, True, False, True, True, True, False, True),
        caption=f"One seed each, so no spread: {', '.join(one)}." if one else "A line per seed.",
    )


def _gains(title: str, test: Mapping[str, Any], curve: RangeCurve) -> str:
    rows = tuple(
        (str(bits), *(_number(v) for v in (curve.start(bits), curve.end(bits))),
         _number(curve.gain(bits), sign=True), "yes" if curve.passes(bits) else "no")
        for bits in curve.precisions
    )  # fmt: skip
    table = Table(
        name=title,
        title=title,
        columns=tuple(("", name) for name in ("bits", "start", "end", "gain", "passes")),
        rows=rows,
        is_number=(True, True, True, True, False),
        caption=f"{curve.name}: means over the first and the last {curve.window} of "
        f"{test['plan']['steps_per_precision']} steps; passes with a gain above "
        f"{curve.threshold:g}.",
    )
    return to_markdown(table).rstrip("\n")


def _number(value: float, *, sign: bool = False) -> str:
    return "-" if math.isnan(value) else fixed(value, 2, sign=sign)


def _command(test: Mapping[str, Any]) -> str:
    plan = test["plan"]
    words = ["bitcycle", "range-test", test["name"], "--seed", str(test["seed"])]
    for key in ("low", "high", "steps_per_precision", "window"):
        words += [f"--{key.replace('_', '-')}", str(plan[key])]
    words += ["--threshold", f"{plan['threshold']:g}", *(["--reset"] if plan["reset"] else [])]
    words += ["--data.root", "DATA"] if recipe_needs_data(test["name"]) else []
    return shlex.join([*words, "--output", "RUNS"])
