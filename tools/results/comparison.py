"""Cyclic precision against static bits of the same top precision: the claim of the CPT paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bitcycle.precision import PARENTS, cost_bits
from bitcycle.schedules import Delay, Schedule, parse_schedule
from bitcycle.schedules.cyclic import Cyclic
from bitcycle.study.identity import ROLES
from bitcycle.study.numbers import (
    POINTS,
    UNITS,
    decimals_for,
    fixed,
    interval_text,
    share_text,
)
from bitcycle.study.statistics import Difference, holm, paired_difference
from bitcycle.study.summary import GroupSummary, Row, best_of, summarize
from bitcycle.train.config import RunConfig
from tools.results.study_data import DEFAULT, StudyData, to_settings

BETTER, NOISE, WORSE, UNKNOWN = "better", "within noise", "worse", "without an interval"
Choose = Callable[[Row, Sequence[Row], GroupSummary], Row | None]
MATCH = 0.01  # of the static value: an interval inside it is a match


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A cyclic method and a static one over common seeds.

    ids: of both configurations, equal in studies that share runs. published: the same difference
    in the paper's table.
    """

    study: str
    group: GroupSummary
    cyclic: Row
    static: Row
    difference: Difference
    cost: float
    ids: tuple[str, str]
    published: float | None

    @property
    def verdict(self) -> str:
        """On which side of 0 the interval of the difference lies."""
        beyond = self.difference.is_beyond_noise
        if beyond is None:
            return UNKNOWN
        if not beyond:
            return NOISE
        return BETTER if (self.difference.mean > 0) == self.group.higher_is_better else WORSE

    @property
    def is_match(self) -> bool:
        """Whether the interval excludes a difference of more than 1 % of the static value."""
        low, high, summary = self.difference.low, self.difference.high, self.static.summary
        if low is None or high is None or summary is None:
            return False
        return max(-low, high) <= MATCH * abs(summary.mean)


def compare(study: StudyData) -> list[Comparison]:
    """Every cyclic method of the study with static bits of the same top precision."""
    return _pairs(study, _same_top)


def compare_at_cost(study: StudyData) -> list[Comparison]:
    """Every cyclic method with the best static bits of the study that cost no more."""
    return _pairs(study, _best_no_dearer)


def _pairs(study: StudyData, choose: Choose) -> list[Comparison]:
    found = []
    for group in summarize(study.result) if study.result.study.kind != "critical-periods" else ():
        for row in group.done:
            config = row.method.method.config
            if not is_cyclic(config):
                continue
            statics = [
                other
                for other in group.done
                if not other.is_scheduled and _is_alike(config, other.method.method.config)
            ]
            static = choose(row, statics, group)
            if static is None:
                continue
            difference = paired_difference(row.method.values, static.method.values)
            if difference is not None:
                keys = [side.method.method.key for side in (row, static)]
                found.append(
                    Comparison(
                        study=study.name,
                        group=group,
                        cyclic=row,
                        static=static,
                        difference=difference,
                        cost=(row.bitops or 0.0) / (static.bitops or 1.0),
                        ids=(study.ids[keys[0]], study.ids[keys[1]]),
                        published=published_difference(study, *keys),
                    )
                )
    return found


def _same_top(row: Row, statics: Sequence[Row], group: GroupSummary) -> Row | None:
    top = top_bits(row.method.method.config)
    return next((s for s in statics if top_bits(s.method.method.config) == top), None)


def _best_no_dearer(row: Row, statics: Sequence[Row], group: GroupSummary) -> Row | None:
    return best_of(statics, row.bitops or 0.0, higher_is_better=group.higher_is_better)


def published_difference(study: StudyData, own: str, base: str) -> float | None:
    """Of two methods by key, where a paper has both for one network and dataset."""
    cell, other = study.published.get(own), study.published.get(base)
    if cell is None or other is None or own == base or cell["group"] != other["group"]:
        return None
    return float(cell["value"]) - float(other["value"])


# -- bits of a configuration --------------------------------------------------------------------


def is_cyclic(config: RunConfig) -> bool:
    """Whether the bits of any role go up and down.

    >>> from bitcycle.recipes import recipe
    >>> [is_cyclic(recipe(f"digits-{name}")) for name in ("cpt-3-8-8", "static-8-8", "float32")]
    [True, False, False]
    """
    return any(_cycles(schedule, config.steps) for schedule in _schedules(config).values())


def is_cpt(config: RunConfig) -> bool:
    """Whether it is CPT's own schedule and quantizer: cosine cycles of the forward bits.

    >>> from bitcycle.recipes import recipe
    >>> [is_cpt(recipe(f"cifar100-resnet74-{name}")) for name in ("cpt-3-8-8", "triangle-3-8-8")]
    [True, False]
    """
    schedules = _schedules(config)
    if set(schedules) != {"forward ", "backward "}:
        return False
    backward = schedules["backward "]
    return (
        config.precision.quantizer == DEFAULT.precision.quantizer
        and str(schedules["forward "]).startswith("CR:")
        and backward.low == backward.high
    )


def top_bits(config: RunConfig) -> dict[str, int]:
    """The highest bits of weights, activations, errors and gradients, by pattern of layers."""
    given = config.precision.given(auto=1)
    found: dict[str, int] = {}
    for role, parent in PARENTS.items():
        texts: dict[str, Any] = {}  # "" is every layer
        for text in (given[parent], given.get(role, {})):
            texts |= text if isinstance(text, dict) else {"": text}
        found |= {f"{role} {k}": cost_bits(parse_schedule(t).high) for k, t in texts.items()}
    return found


def _schedules(config: RunConfig) -> dict[str, Schedule]:
    return {
        f"{role} {pattern}": parse_schedule(text)
        for role, value in config.precision.given(auto=1).items()
        for pattern, text in (value if isinstance(value, dict) else {"": value}).items()
    }


def _cycles(schedule: Schedule, steps: int | None) -> bool:
    if isinstance(schedule, Cyclic):
        return schedule.low != schedule.high
    if isinstance(schedule, Delay):  # a start is a share of the run or a step
        start = schedule.start
        if start == 1.0 if isinstance(start, float) else steps is not None and start >= steps:
            return False
    return any(_cycles(part, steps) for part in schedule.parts())


def _is_alike(config: RunConfig, static: RunConfig) -> bool:
    """In all but the bits; float32 has no quantizer that could differ."""
    own, other = _all_but_bits(config), _all_but_bits(static)
    if static.precision.is_float:
        own["precision"] = other["precision"]
    return own == other


def _all_but_bits(config: RunConfig) -> dict[str, Any]:
    settings = to_settings(config)
    settings.pop("range_test", None)
    precision = {k: v for k, v in settings.get("precision", {}).items() if k not in ROLES}
    return {**settings, "name": None, "precision": precision}


# -- over all studies ---------------------------------------------------------------------------


def distinct(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Studies that share runs count once: the comparison with the most seeds."""
    best: dict[tuple[str, str], Comparison] = {}
    for each in comparisons:
        known = best.get(each.ids)
        if known is None or each.difference.n > known.difference.n:
            best[each.ids] = each
    return list(best.values())


def one_per_network(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """CPT against the baseline of a study, one per network and dataset: that with most seeds."""
    best: dict[tuple[str, str], Comparison] = {}
    for each in comparisons:
        config = each.cyclic.method.method.config
        if each.static.label != each.group.baseline or not is_cpt(config):
            continue
        place = config.model.name, config.data.name
        if place not in best or each.difference.n > best[place].difference.n:
            best[place] = each
    return list(best.values())


# -- in words -----------------------------------------------------------------------------------


def counts_text(comparisons: Sequence[Comparison]) -> str:
    """How many are better, within noise and worse."""
    counts = Counter(each.verdict for each in comparisons)
    unknown = f", {counts[UNKNOWN]} {UNKNOWN}" if counts[UNKNOWN] else ""
    return f"{counts[BETTER]} better, {counts[NOISE]} within noise, {counts[WORSE]} worse{unknown}"


def costs_text(comparisons: Sequence[Comparison]) -> str:
    """The cost of the cyclic runs, of the static ones' BitOPs."""
    low, high = (share_text(end(each.cost for each in comparisons)) for end in (min, max))
    return low if low == high else f"{low} to {high}"


def seeds_text(comparisons: Sequence[Comparison]) -> str:
    """n of all of them."""
    low, high = (end(each.difference.n for each in comparisons) for end in (min, max))
    return f"n = {low}" if low == high else f"n = {low} to {high}"


def network_text(group: str) -> str:
    """A group as one says it.

    >>> network_text("small ResNet-8, digits, 30 steps")
    'small ResNet-8 on digits, 30 steps'
    """
    return group.replace(", ", " on ", 1)


def difference_words(each: Comparison) -> str:
    """The difference with its unit and interval."""
    low, high = each.difference.low, each.difference.high
    half = None if low is None or high is None else (high - low) / 2
    mean = fixed(each.difference.mean, decimals_for(half), sign=True)
    interval = "no interval" if half is None else f"95 % interval {interval_text(low, high)}"
    return f"{mean}{POINTS.get(each.group.metric, '')}, {interval}"


def summarize_comparisons(comparisons: Sequence[Comparison]) -> str:
    """One or two comparisons with their numbers; more are counted, with two beyond noise."""
    is_few = len(comparisons) <= 2
    beyond = [each for each in comparisons if each.verdict in (BETTER, WORSE)]
    said, places = [], set[str]()
    if not is_few:
        said.append(
            f"{len(comparisons)} cyclic schedules against static bits of the same top precision: "
            f"{counts_text(comparisons)}, with {costs_text(comparisons)} of the bit operations "
            f"({seeds_text(comparisons)})."
        )
    for each in comparisons if is_few else beyond[:2]:
        text = claim(each, has_place=each.group.group not in places)
        places.add(each.group.group)
        cost = f" with {share_text(each.cost)} of the bit operations (n = {each.difference.n})"
        said.append(f"{text}{cost if is_few else ''}.")
    return " ".join(said)


def claim(each: Comparison, *, has_place: bool = True) -> str:
    """One comparison: matched, better, worse, or not told apart."""
    assert each.cyclic.summary is not None
    assert each.static.summary is not None
    decimals, unit = decimals_for(each.static.summary.std), UNITS.get(each.group.metric, "")
    own, base = (fixed(s.summary.mean, decimals) for s in (each.cyclic, each.static) if s.summary)
    place = f" for {network_text(each.group.group)}" if each.group.group and has_place else ""
    verb = {
        BETTER: "was better than",
        WORSE: "was worse than",
        NOISE: "matched" if each.is_match else "did not differ beyond noise from",
        UNKNOWN: "cannot be told from",
    }[each.verdict]
    change = "" if verb == "matched" else f": {difference_words(each)}"
    label = f"{each.cyclic.label[:1].upper()}{each.cyclic.label[1:]}"
    return (
        f"{label} {verb} {each.static.label}{place} ({each.group.metric} {own}{unit} against "
        f"{base}{unit}{change})"
    )


def overall_answer(comparisons: Sequence[Comparison]) -> str:
    """All comparisons counted, after Holm's correction, and the losses that they exclude."""
    if not comparisons:
        return "No finished study compares cyclic with static bits of the same top precision yet."
    known = [each for each in comparisons if each.verdict != UNKNOWN]
    stays = holm([each.difference.p or 0.0 for each in known])
    left = Counter(each.verdict for each, stay in zip(known, stays, strict=True) if stay)
    lows = [e.difference.low for e in known if e.group.metric == "accuracy" and e.difference.low]
    return (
        f"{len(comparisons)} comparisons of a cyclic schedule with static bits of the same top "
        f"precision: {counts_text(comparisons)}, at {costs_text(comparisons)} of the bit "
        f"operations. Corrected for their number (Holm), {left[BETTER]} better and {left[WORSE]} "
        f"worse remain. Within noise is not equal: {sum(low >= -1 for low in lows)} of "
        f"{len(lows)} intervals exclude a loss of more than 1 point of accuracy."
    )
