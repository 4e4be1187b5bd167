"""The page of loss landscapes: how sharp the minima of static and cyclic runs are, with n."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bitcycle.landscape.result import Landscape, Landscapes
from bitcycle.landscape.sharpness import Sharpness
from bitcycle.report.evidence.page import Page, again, block, made_from
from bitcycle.report.evidence.picture import plain_style, svg_text
from bitcycle.report.landscape import draw_landscapes
from bitcycle.study.numbers import difference_text, summary_text
from bitcycle.study.publish.jsontext import rounded
from bitcycle.study.statistics import Difference, paired_difference, summarize_values
from bitcycle.study.table_text import Table, escape_markdown, to_markdown

DIGITS = 5  # of a loss
MOST = 4  # surfaces in the picture
_NAME = re.compile(r"(?P<method>.*?)(?:-[0-9a-f]{10})?-seed(?P<seed>[0-9]+)")


def is_landscape(data: Mapping[str, Any]) -> bool:
    """Whether a file is a landscape.json."""
    return {"alphas", "losses", "origin", "precision"} <= data.keys()


def gather_landscapes(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every surface, its losses rounded."""
    items = []
    for found in files:
        method, seed = name_of(found["label"])
        keep = ("checkpoint", "step", "shapes", "data", "torch")
        items.append(
            {
                "label": found["label"],
                "method": method,
                "run_seed": seed,
                "precision": found["precision"],
                "num_samples": found["num_samples"],
                "seed": found["seed"],
                "ranges": found["ranges"],
                "origin": {key: found["origin"][key] for key in keep if key in found["origin"]},
                "alphas": [rounded(a) for a in found["alphas"]],
                "losses": [[rounded(float(x), DIGITS) for x in row] for row in found["losses"]],
            }
        )
    items.sort(key=lambda item: (item["run_seed"], not _is_static(item), item["method"]))
    return {"kind": "landscapes", "items": items}


def _is_static(item: Mapping[str, Any]) -> bool:
    return "static" in item["method"]


def name_of(label: str) -> tuple[str, int]:
    """Method and seed of a run.

    >>> name_of("digits-static-8-8-498b0b2c75-seed2"), name_of("mine")
    (('digits-static-8-8', 2), ('mine', 0))
    """
    found = _NAME.fullmatch(label)
    return (found["method"], int(found["seed"])) if found else (label, 0)


def render_landscapes(name: str, data: Mapping[str, Any]) -> Page:
    """The numbers of every method over its seeds, and the picture of the first ones."""
    entries = data["items"]
    found = Landscapes(tuple(landscape_of(item) for item in entries))
    sharp = found.sharpness()
    by_method: dict[str, dict[int, Sharpness]] = {}
    centers: dict[str, dict[int, float]] = {}
    for item, own, surface in zip(entries, sharp, found.items, strict=True):
        by_method.setdefault(item["method"], {})[item["run_seed"]] = own
        centers.setdefault(item["method"], {})[item["run_seed"]] = surface.center
    shown = Landscapes(found.items[:MOST], level=found.common_level)
    with plain_style():
        svg = svg_text(draw_landscapes(shown, kind="contour"))
    title = "Loss landscapes"
    verdicts = list(_verdicts(by_method))
    first = entries[0]
    size = len(first["alphas"])
    parts = [
        made_from(name),
        f"# {title}",
        f"**{escape_markdown(' '.join(verdicts) or 'One method: nothing to compare.')}**",
        f"![Contours of the loss around the weights of runs]({name}.svg)",
        to_markdown(_table(by_method, centers)).rstrip("\n"),
        f"Grid of {size} x {size} points to {first['alphas'][-1]:g} along two filter-normalized "
        f"directions (seed {first['seed']}), {first['num_samples']} training samples, evaluated at "
        f"{', '.join(dict.fromkeys(item['precision'] for item in entries))}, ranges "
        f"{first['ranges']}. Rise: mean of loss minus loss at the centre on a circle; area: where "
        f"the loss is at most {found.common_level:.4g}. A wider minimum has less rise and more "
        f"area. The picture has {len(shown.items)} of {len(entries)} surfaces.",
        "## How it was made",
        block(_command(entries), "bitcycle study publish FOLDER/*.landscape.json --to results"),
        f"torch {', '.join(sorted({item['origin'].get('torch', '?') for item in entries}))}. RUNS "
        f"and FOLDER stand for folders. {again(name)}",
    ]
    return Page(
        title=title, file=f"{name}.md", sentence=" ".join(verdicts) or "One method.",
        files={f"{name}.svg": svg, f"{name}.md": "\n\n".join(parts) + "\n"},
    )  # fmt: skip


def landscape_of(item: Mapping[str, Any]) -> Landscape:
    """Labelled by method and seed."""
    grid = tuple(item["alphas"])
    return Landscape(
        alphas=grid,
        betas=grid,
        losses=tuple(tuple(float(x) for x in row) for row in item["losses"]),
        label=f"{item['method']}, seed {item['run_seed']}",
        precision=item["precision"],
        num_samples=item["num_samples"],
        seed=item["seed"],
        ranges=item["ranges"],
        origin=dict(item["origin"]),
    )


def _difference(
    values: Mapping[int, Sharpness], base: Mapping[int, Sharpness], of: Callable[[Sharpness], float]
) -> Difference | None:
    own, other = ({seed: of(s) for seed, s in side.items()} for side in (values, base))
    return paired_difference(own, other)


def _verdicts(by_method: Mapping[str, Mapping[int, Sharpness]]) -> list[str]:
    """Every method against the first, by the rise at the largest radius."""
    (base, base_values), *others = by_method.items()
    said = []
    for method, values in others:
        difference = _difference(values, base_values, lambda sharpness: sharpness.rises[-1])
        if difference is None:
            continue
        radius = next(iter(values.values())).radii[-1]
        if difference.is_beyond_noise is None:
            word = "one seed cannot tell" if difference.n == 1 else "no spread to judge by"
        elif difference.is_beyond_noise:
            word = "wider, beyond noise" if difference.mean < 0 else "sharper, beyond noise"
        else:
            word = "no difference beyond noise"
        said.append(
            f"{method} against {base}: rise at radius {radius:g} {difference_text(difference)}, "
            f"n = {difference.n}: {word}."
        )
    return said


def _table(
    by_method: Mapping[str, Mapping[int, Sharpness]], centers: Mapping[str, Mapping[int, float]]
) -> Table:
    radii = next(iter(next(iter(by_method.values())).values())).radii
    rows = []
    for method, values in by_method.items():
        found = list(values.values())
        rises = [summary_text(summarize_values(s.rises[k] for s in found))
                 for k in range(len(radii))]  # fmt: skip
        area = summary_text(summarize_values(s.area for s in found))
        center = summary_text(summarize_values(centers[method].values()))
        rows.append((method, str(len(found)), center, *rises, area))
    names = ("method", "n", "loss at the centre", *(f"rise, r = {r:g}" for r in radii), "area")
    return Table(
        name="sharpness",
        title="Sharpness",
        columns=tuple(("", name) for name in names),
        rows=tuple(rows),
        is_number=(False, *[True] * (len(names) - 1)),
        caption="Mean ± standard deviation over n runs with different seeds; one run has none.",
    )


def _command(entries: Sequence[Mapping[str, Any]]) -> str:
    first = entries[0]
    words = ["bitcycle", "landscape", *(f"RUNS/{item['label']}" for item in entries)]
    words += ["--grid", str(len(first["alphas"])), "--extent", f"{first['alphas'][-1]:g}"]
    words += ["--samples", str(first["num_samples"]), "--seed", str(first["seed"])]
    return shlex.join([*words, "--ranges", first["ranges"], "--output", "FOLDER"])
