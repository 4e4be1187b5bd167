"""The page of loss landscapes: how sharp the minima of static and cyclic runs are, with n."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bitcycle.report.evidence.measured import UNKNOWN, machine_line, take, wall_clock_line
from bitcycle.report.evidence.page import Page, again, block, exactly, folders, made_from
from bitcycle.report.evidence.picture import plain_style, small_svg_text
from bitcycle.report.evidence.surfaces import Item, Surfaces, group_by_network
from bitcycle.report.landscape import draw_landscapes
from bitcycle.study.publish.given import portable, training_command
from bitcycle.study.publish.jsontext import rounded
from bitcycle.study.table_text import escape_markdown, to_markdown

DIGITS = 5  # of a loss
_NAME = re.compile(r"(?P<method>.*?)(?:-[0-9a-f]{10})?-seed(?P<seed>[0-9]+)")


def is_landscape(data: Mapping[str, Any]) -> bool:
    """Whether a file is a landscape.json."""
    return {"alphas", "losses", "origin", "precision"} <= data.keys()


def gather_landscapes(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every surface, its losses rounded."""
    items = [_gather(found) for found in files]
    return {"kind": "landscapes", "items": sorted(items, key=_order)}


def merge_landscapes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Both; a surface of the same run, made the same way, is replaced."""
    items = {_same(item): item for item in (*old["items"], *new["items"])}
    return {"kind": "landscapes", "items": sorted(items.values(), key=_order)}


def _order(item: Item) -> tuple[int, bool, str]:
    return item["run_seed"], not _is_static(item), item["method"]


def _same(item: Item) -> tuple[str, ...]:
    return item["label"], *_options(item)


def _gather(found: Mapping[str, Any]) -> dict[str, Any]:
    label = "/".join(found["label"].strip("/").split("/")[-2:])  # runs of one name: their folders
    method, seed = name_of(label)
    keep = ("checkpoint", "step", "shapes", "data", "torch")
    keys = ("precision", "num_samples", "seed", "ranges")
    newer = {key: found[key] for key in ("model", "asked") if key in found}
    trained_by = training_command(found.get("trained_by", ()), threads=found.get("trained_threads"))
    return {
        "label": label,
        "method": method,
        "run_seed": seed,
        **{key: found[key] for key in keys},
        **newer,
        "overrides": portable(found.get("overrides", ())),
        **({"trained_by": trained_by} if trained_by else {}),
        "origin": {key: found["origin"][key] for key in keep if key in found["origin"]},
        **take({"threads": found["origin"].get("threads"), **found}),
        "alphas": [rounded(a) for a in found["alphas"]],
        "losses": [[rounded(float(x), DIGITS) for x in row] for row in found["losses"]],
    }


def _is_static(item: Item) -> bool:
    return "static" in item["method"]


def name_of(label: str) -> tuple[str, int]:
    """Method and seed of a run.

    >>> name_of("digits-static-8-8-498b0b2c75-seed2"), name_of("mine")
    (('digits-static-8-8', 2), ('mine', 0))
    """
    found = _NAME.fullmatch(label)
    return (found["method"], int(found["seed"])) if found else (label, 0)


def render_landscapes(name: str, data: Mapping[str, Any]) -> Page:
    """The numbers of every method over its seeds, and a picture of the first ones."""
    entries = data["items"]
    files: dict[str, str] = {}
    sections: list[str] = []
    said: list[str] = []
    groups = group_by_network(entries)
    for place, group in enumerate(groups):
        picture = f"{name}.svg" if place == 0 else f"{name}-{place + 1}.svg"
        with_title = f" of {_network(group[0])}" if len(groups) > 1 else ""
        found = Surfaces.of(group)
        with plain_style():
            files[picture] = small_svg_text(draw_landscapes(found.shown(), kind="contour"))
        said += found.verdicts()
        sections += [
            f"![Contours of the loss around the weights of runs{with_title}]({picture})",
            to_markdown(found.table(f"Sharpness{with_title}")).rstrip("\n"),
            escape_markdown(found.caption()),
        ]
    words = [
        *dict.fromkeys(item["trained_by"] for item in entries if "trained_by" in item),
        *commands(entries),
        "bitcycle study publish FOLDER/*.landscape.json --to results",
    ]
    title, sentence = "Loss landscapes", " ".join(said) or "One method: nothing to compare."
    parts = [
        made_from(name),
        f"# {title}",
        "The CPT paper says that cyclic precision ends in a wider minimum than static bits.",
        f"**{escape_markdown(sentence)}**",
        *sections,
        "Rise: mean of loss minus loss at the centre on a circle of radius r. A wider minimum has "
        "less rise and more area. Differences are of runs with the same seed, with a 95 % "
        "interval.",
        "## How it was made",
        block(*words),
        f"{_trained(entries)} The last command writes this page and its file. {again(name)}"
        f"{folders(words)}",
        escape_markdown(machine_line(entries, each="a process")),
        escape_markdown(wall_clock_line(entries, "landscape")),
    ]
    files[f"{name}.md"] = "\n\n".join(parts) + "\n"
    return Page(title=title, file=f"{name}.md", sentence=sentence, files=files)


def _network(item: Item) -> str:
    data = item["origin"].get("data")
    return f"{item['model']} on {data}" if "model" in item else str(item["method"])


def commands(entries: Sequence[Item]) -> list[str]:
    """What repeats the surfaces: a command for all that have the same options."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for item in entries:
        groups.setdefault(tuple(_options(item)), []).append(f"RUNS/{item['label']}")
    return [
        shlex.join(["bitcycle", "landscape", *runs, *options, "--output", "FOLDER"])
        for options, runs in groups.items()
    ]


def _options(item: Item) -> list[str]:
    words = ["--grid", str(len(item["alphas"])), "--extent", exactly(item["alphas"][-1])]
    words += ["--samples", str(item["num_samples"]), "--seed", str(item["seed"])]
    words += ["--precision", item.get("asked", item["precision"]), "--ranges", item["ranges"]]
    words += ["--checkpoint", item["origin"].get("checkpoint", "last")]
    for key in ("threads", "jobs"):
        words += [f"--{key}", str(item[key])] if key in item else []
    return [*words, *item.get("overrides", ())]


def _trained(entries: Sequence[Item]) -> str:
    lacks = sum("trained_by" not in item for item in entries)
    if lacks == len(entries):
        return f"How the runs were trained is {UNKNOWN}."
    return "The commands before `landscape` train the runs." + (
        f" For {lacks} of {len(entries)} runs that is {UNKNOWN}." if lacks else ""
    )
