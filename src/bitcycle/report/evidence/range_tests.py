"""The page of range tests: what `bitcycle range-test` found, all networks in one table."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bitcycle.range_test import RangeCurve
from bitcycle.report.evidence.measured import machine_line, take, wall_clock_line
from bitcycle.report.evidence.page import Page, again, block, exactly, folders, made_from
from bitcycle.report.evidence.picture import plain_style, small_svg_text
from bitcycle.report.evidence.range_tables import Test, bounds_table, curve_of, settings_table
from bitcycle.report.range_test import draw_range_panels
from bitcycle.study.publish.commands import recipe_needs_data
from bitcycle.study.publish.given import overrides_but, portable
from bitcycle.study.publish.jsontext import rounded
from bitcycle.study.table_text import escape_markdown, to_markdown

DIGITS = 6  # of a metric
OWN_OPTIONS = ("seed", "threads", "output", "range_test")  # which the command spells out


def is_range_test(data: Mapping[str, Any]) -> bool:
    """Whether a file is a range-test.json."""
    return {"plan", "curve", "name", "seed"} <= data.keys()


def gather_range_tests(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All of them, each with the metric of every step; what follows from that is left out."""
    tests = [_gather(found) for found in files]
    for key, number in Counter(map(_key, tests)).items():
        if number > 1:
            name, is_restarted, seed = key
            how = ", restarted" if is_restarted else ""
            raise ValueError(f"{number} range tests of {name}, seed {seed}{how}: give one of them")
    return {"kind": "range-tests", "tests": sorted(tests, key=_key)}


def merge_range_tests(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Both; a recipe and seed that is tested again is replaced."""
    tests = {_key(test): test for test in (*old["tests"], *new["tests"])}
    return {"kind": "range-tests", "tests": [tests[key] for key in sorted(tests)]}


def _key(test: Test) -> tuple[str, bool, int]:
    return test["name"], test["plan"]["reset"], test["seed"]


def _gather(found: Mapping[str, Any]) -> dict[str, Any]:
    curve = found["curve"]
    counts = {bits: curve["bits"].count(bits) for bits in dict.fromkeys(curve["bits"])}
    keys = ("model", "data", "backward", "find_upper", "stop_early")  # older files lack them
    return {
        "name": found["name"],
        "seed": found["seed"],
        **{key: found[key] for key in keys if key in found},
        "recipe": portable([found.get("recipe", found["name"])])[0],
        "overrides": overrides_but(found.get("overrides", ()), OWN_OPTIONS),
        "plan": found["plan"],
        "low": found["low"],
        "high": found["high"],
        "forward": found["forward"],
        "bitops": found["bitops"],
        **take(found),
        "metric_name": curve["name"],
        "steps_at": [[bits, number] for bits, number in counts.items()],
        "metric": [None if m is None else rounded(m, DIGITS) for m in curve["metric"]],
    }


def render_range_tests(name: str, data: Mapping[str, Any]) -> Page:
    """What was found, a panel for each network, how each was tested."""
    tests = data["tests"]
    labels = labels_of(tests)
    panels: dict[str, RangeCurve] = {}
    for test, label in zip(tests, labels, strict=True):
        panels.setdefault(label, curve_of(test))  # of several seeds the first
    with plain_style():
        svg = small_svg_text(draw_range_panels(panels))
    title, sentence = "Precision range tests", _sentence(tests, labels)
    publish = "bitcycle study publish RUNS/*-range-test/range-test.json --to results"
    commands = [*map(command, tests), publish]
    parts = [
        made_from(name),
        f"# {title}",
        "The fewest bits at which a network still learns, from a short training at rising bits: "
        "the lower end of its schedule. What counts as learning is the threshold, which is a "
        "choice.",
        f"**{escape_markdown(sentence)}**",
        f"![The metric of each network at rising bits]({name}.svg)",
        "Faint: the metric of a step; bold: its mean over the window; dashed: the height at which "
        "the bits pass; circle: where the first bits do."
        + ("" if len(panels) == len(tests) else " Of several seeds the first is drawn."),
        to_markdown(bounds_table(tests, labels)).rstrip("\n"),
        to_markdown(settings_table(tests, labels)).rstrip("\n"),
        "## How it was made",
        block(*commands),
        f"The last command writes this page and its file. {again(name)}{folders(commands)}",
        escape_markdown(machine_line(tests, each="a test")),
        escape_markdown(wall_clock_line(tests, "range test")),
    ]
    files = {f"{name}.svg": svg, f"{name}.md": "\n\n".join(parts) + "\n"}
    return Page(title=title, file=f"{name}.md", sentence=sentence, files=files)


def labels_of(tests: Sequence[Test]) -> list[str]:
    """The network and its data; more where that does not tell tests apart."""
    short = [f"{t['model']} on {t['data']}" if "model" in t else t["name"] for t in tests]
    names: dict[str, set[str]] = {}
    ways: dict[str, set[bool]] = {}
    for test, label in zip(tests, short, strict=True):
        names.setdefault(label, set()).add(test["name"])
        ways.setdefault(test["name"], set()).add(test["plan"]["reset"])
    return [
        (label if len(names[label]) == 1 else test["name"])
        + (", restarted" if len(ways[test["name"]]) == 2 and test["plan"]["reset"] else "")
        for test, label in zip(tests, short, strict=True)
    ]


def _sentence(tests: Sequence[Test], labels: Sequence[str]) -> str:
    """The bound of each network; over its seeds, if it has several."""
    found: dict[str, list[str]] = {}
    for test, label in zip(tests, labels, strict=True):
        low = "no bits pass" if test["low"] is None else f"learns from {test['low']} bits on"
        found.setdefault(label, []).append(low)
    said = []
    for label, lows in found.items():
        counts = {low: lows.count(low) for low in sorted(set(lows))}
        each = [f"{low} ({n} of {len(lows)} seeds)" for low, n in counts.items()]
        said.append(f"{label}: {', '.join(each) if len(lows) > 1 else lows[0]}")
    return f"{'; '.join(said)}."


def command(test: Test) -> str:
    """What repeats a test, spelled out."""
    plan = test["plan"]
    recipe = test.get("recipe", test["name"])
    words = ["bitcycle", "range-test", recipe, "--seed", str(test["seed"])]
    for key in ("low", "high", "steps_per_precision", "window", "threshold"):
        words += [f"--{key.replace('_', '-')}", exactly(plan[key])]
    flags = {"--reset": plan["reset"], "--upper": test.get("find_upper"),
             "--stop-early": test.get("stop_early")}  # fmt: skip
    words += [flag for flag, is_set in flags.items() if is_set]
    words += test.get("overrides", [])
    if "--data.root" not in words and recipe_needs_data(recipe):
        words += ["--data.root", "DATA"]
    words += ["--threads", str(test["threads"])] if "threads" in test else []
    return shlex.join([*words, "--output", "RUNS"])
