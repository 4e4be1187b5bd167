"""Loss surfaces that can be compared: how sharp the minima are, by method, with n."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitcycle.landscape.result import Landscape, Landscapes
from bitcycle.landscape.sharpness import Sharpness
from bitcycle.study.numbers import difference_text, summary_text
from bitcycle.study.statistics import Difference, paired_difference, summarize_values
from bitcycle.study.table_text import Table

MOST = 3  # surfaces in a picture
RANGES = {"batch": "the range of each batch", "observed": "the ranges of training"}
Item = Mapping[str, Any]


def group_by_network(entries: Sequence[Item]) -> list[list[Item]]:
    """Surfaces of the same parameters, data, grid, directions and way: others do not compare."""
    groups: dict[tuple[Any, ...], list[Item]] = {}
    for item in entries:
        origin = item["origin"]
        key = (origin.get("shapes"), origin.get("data"), tuple(item["alphas"]), item["seed"],
               *(item[name] for name in ("num_samples", "ranges")), item.get("asked"),
               origin.get("checkpoint"))  # fmt: skip
        groups.setdefault(key, []).append(item)
    return list(groups.values())


@dataclass(frozen=True)
class Surfaces:
    """Surfaces that can be compared; the numbers by method, then by the run's seed."""

    entries: list[Item]
    surfaces: Landscapes
    sharpness: dict[str, dict[int, Sharpness]]
    centers: dict[str, dict[int, float]]

    @classmethod
    def of(cls, entries: list[Item]) -> Surfaces:
        surfaces = Landscapes(tuple(landscape_of(item) for item in entries))
        sharpness: dict[str, dict[int, Sharpness]] = {}
        centers: dict[str, dict[int, float]] = {}
        for item, own, each in zip(entries, surfaces.sharpness(), surfaces.items, strict=True):
            if item["run_seed"] in sharpness.get(item["method"], {}):
                raise ValueError(
                    f"two surfaces of {item['method']}, seed {item['run_seed']}: give one of each "
                    "run, or publish them into two folders"
                )
            sharpness.setdefault(item["method"], {})[item["run_seed"]] = own
            centers.setdefault(item["method"], {})[item["run_seed"]] = each.center
        return cls(entries, surfaces, sharpness, centers)

    def shown(self) -> Landscapes:
        """The first run of each method, as many as a page is wide."""
        first: dict[str, Landscape] = {}
        for item, surface in zip(self.entries, self.surfaces.items, strict=True):
            first.setdefault(item["method"], surface)
        return Landscapes(tuple(first.values())[:MOST], level=self.surfaces.common_level)

    def verdicts(self) -> list[str]:
        """Every method against the first, by the rise at the largest radius."""
        return _verdicts(self.sharpness)

    def table(self, title: str) -> Table:
        """A row for each method."""
        return _table(title, self.sharpness, self.centers)

    def caption(self) -> str:
        """What the surfaces are."""
        first = self.entries[0]
        size, number = len(first["alphas"]), len(self.entries)
        bits = ", ".join(dict.fromkeys(item["precision"] for item in self.entries))
        samples = " or ".join(dict.fromkeys(str(item["num_samples"]) for item in self.entries))
        shown = len(self.shown().items)
        drawn = "all surfaces" if shown == number else f"{shown} of {number} surfaces, first seeds"
        return (
            f"Grid of {size} x {size} points to {first['alphas'][-1]:g} along two random, "
            f"filter-normalized directions (seed {first['seed']}), the same for all runs; mean "
            f"loss of {samples} training samples, evaluated at {bits}, activations on "
            f"{RANGES[first['ranges']]}. Area: where the loss is at most "
            f"{self.surfaces.common_level:.4g}, out of {4 * first['alphas'][-1] ** 2:g}. The "
            f"picture has {drawn}."
        )


def landscape_of(item: Item) -> Landscape:
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
        area = _difference(values, base_values, lambda sharpness: sharpness.area)
        if difference is None or area is None:
            continue
        radius = next(iter(values.values())).radii[-1]
        if difference.is_beyond_noise is None:
            word = "one seed cannot tell" if difference.n == 1 else "no spread to judge by"
        elif difference.is_beyond_noise:
            word = "wider, beyond noise" if difference.mean < 0 else "sharper, beyond noise"
        else:
            word = "no difference beyond noise"
        said.append(
            f"{method} against {base}: rise at radius {radius:g} differs by "
            f"{difference_text(difference)}, n = {difference.n}: {word}; area by "
            f"{difference_text(area)}."
        )
    return said


def _table(
    title: str,
    by_method: Mapping[str, Mapping[int, Sharpness]],
    centers: Mapping[str, Mapping[int, float]],
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
        title=title,
        columns=tuple(("", name) for name in names),
        rows=tuple(rows),
        is_number=(False, *[True] * (len(names) - 1)),
        caption="Mean ± standard deviation over n runs with different seeds; one run has none.",
    )
