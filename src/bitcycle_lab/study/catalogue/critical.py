"""Critical learning periods: a deficit of low precision, varied in length (A) or in time (B).

A: R steps at `low`, then N normal steps at `high`; R varies. B: a run of N + w steps with a window
of w steps at `low` that starts at a varied step, so that both protocols train N steps at `high`.

During A's deficit the learning rate stays at its first value, so that the N normal steps have the
whole policy; a cosine decays over all R + N steps. In B the policy runs over the whole run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bitcycle_lab.recipes import recipe
from bitcycle_lab.recipes.base import with_bits
from bitcycle_lab.study.catalogue.methods import IMAGES, group, small_study
from bitcycle_lab.study.study import STUDIES, Method, Study
from bitcycle_lab.train.config import LrConfig, RunConfig, steps_of

BASELINE = "no deficit"


@dataclass(frozen=True, kw_only=True)
class Periods:
    """Both protocols of one base recipe at static 8/8; 8 is `high`."""

    base: str
    low: int
    deficits: tuple[int, ...]  # R
    window: int
    starts: tuple[int, ...]

    def methods(self) -> Iterator[Method]:
        """A's, then B's, each a group with its own baseline."""
        config = with_bits(recipe(self.base), "static", "8/8")
        assert config.steps is not None
        where = group(config)
        rate = "decaying" if config.lr.policy == "cosine" else "held"
        for deficit in (0, *self.deficits):
            yield Method(
                label=f"R = {deficit}" if deficit else BASELINE,
                config=deficit_first(config, low=self.low, deficit=deficit),
                group=f"{where}, A: {self.low} bits first, rate {rate}",
                at=deficit,
            )
        total = config.steps + self.window
        sliding = f"{where}, B: {self.low} bits for {self.window:,} of {total:,} steps"
        yield Method(label=BASELINE, config=replace(config, steps=total), group=sliding)
        for start in self.starts:
            yield Method(
                label=f"from step {start}",
                config=sliding_window(config, low=self.low, start=start, length=self.window),
                group=sliding,
                at=start,
            )


def deficit_first(config: RunConfig, *, low: int, deficit: int) -> RunConfig:
    """`deficit` steps at `low` before the run's own steps; its static bits are the normal ones.

    >>> late = deficit_first(recipe("digits-static-8-8"), low=3, deficit=60)
    >>> late.precision.forward, late.steps, late.lr.milestones
    ('stages:3@60,8', 300, (180, 240))
    """
    if not deficit:
        return config
    assert config.steps is not None
    return replace(
        config,
        name=f"{config.name}-low{low}-deficit{deficit}",
        steps=deficit + config.steps,
        lr=_after_deficit(config.lr, deficit, config.steps),
        precision=replace(
            config.precision, forward=f"stages:{low}@{deficit},{config.precision.forward}"
        ),
    )


def _after_deficit(lr: LrConfig, deficit: int, normal: int) -> LrConfig:
    """The policy with its milestones after the deficit; constant and cosine have none."""
    assert lr.policy in ("step", "constant", "cosine")
    if lr.policy != "step":
        return lr
    milestones = tuple(deficit + steps_of(time, normal) for time in lr.milestones)
    return replace(lr, milestones=milestones)


def sliding_window(config: RunConfig, *, low: int, start: int, length: int) -> RunConfig:
    """A run `length` steps longer, of which so many from `start` on are at `low`.

    >>> base = recipe("digits-static-8-8")
    >>> [sliding_window(base, low=3, start=s, length=60).precision.forward for s in (0, 120, 240)]
    ['stages:3@60,8', 'stages:8@120,3@180,8', 'stages:8@240,3']
    """
    assert config.steps is not None
    total, end, high = config.steps + length, start + length, config.precision.forward
    assert end <= total
    parts = [f"{high}@{start}"] if start else []
    parts += [f"{low}@{end}", f"{high}"] if end < total else [f"{low}"]
    return replace(
        config,
        name=f"{config.name}-low{low}-window{length}-at{start}",
        steps=total,
        precision=replace(config.precision, forward=f"stages:{','.join(parts)}"),
    )


FULL = (
    Periods(
        base="cifar10-resnet74",
        low=3,
        deficits=(8_000, 16_000, 32_000, 64_000),
        window=16_000,
        starts=(0, 16_000, 32_000, 48_000, 64_000),
    ),
    Periods(
        base="arxiv-gcn",
        low=3,
        deficits=(100, 200, 300, 400, 500),
        window=150,
        starts=(0, 100, 200, 300, 400, 500),
    ),
)
SMALL = (
    Periods(
        base="digits",
        low=2,
        deficits=(60, 120, 240, 480),
        window=120,
        starts=(0, 60, 120, 180, 240),
    ),
    Periods(
        base="cora-gcn",
        low=2,
        deficits=(50, 100, 200, 400),
        window=80,
        starts=(0, 50, 100, 150, 200),
    ),
)
DESCRIPTION = "When does low precision harm? Deficits of varied length, and of varied time."
NOTES = (
    "networks, bits and lengths are our choice; the follow-up's own values are not in this "
    "package; it says that low precision early in training can do damage that lasts",
    "A: R steps at low bits, then as many normal steps as the recipe has; the rate is held at its "
    "first value during the deficit (step and constant policies), a cosine decays over all steps",
    "B: the run has the window's steps in addition to the normal ones, and the rate policy runs "
    "over all of them",
    "evaluated at the normal bits, also where a window ends the run",
)


@STUDIES.register("critical-periods")
def critical_periods() -> Study:
    """Both protocols."""
    return Study(
        name="critical-periods",
        description=DESCRIPTION,
        methods=tuple(method for periods in FULL for method in periods.methods()),
        baseline=BASELINE,
        kind="critical-periods",
        notes=NOTES,
    )


@STUDIES.register("critical-periods-small")
def critical_periods_small() -> Study:
    """Both protocols, on digits and Cora."""
    return small_study(
        "critical-periods-small",
        DESCRIPTION,
        [method for periods in SMALL for method in periods.methods()],
        baseline=BASELINE,
        kind="critical-periods",
        notes=(*NOTES, IMAGES),
    )
