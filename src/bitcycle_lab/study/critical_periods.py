"""Critical learning periods: a deficit of low precision, varied in length (A) or in time (B).

A: R steps at `low`, then N normal steps at the run's own bits; R varies. B: a run of N + w steps
with a window of w steps at `low` that starts at a varied step. Both train N normal steps.

During A's deficit the learning rate stays at its first value, so that the N normal steps have the
whole policy; a cosine decays over all R + N steps. In B the policy runs over the whole run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from bitcycle.registry import unknown_name
from bitcycle_lab.published import display_name
from bitcycle_lab.study.study import Method
from bitcycle_lab.train.config import LrConfig, RunConfig, steps_of

BASELINE = "no deficit"


@dataclass(frozen=True, kw_only=True)
class Periods:
    """Both protocols of one base recipe."""

    base: str
    low: int
    deficits: tuple[int, ...]  # R
    window: int
    starts: tuple[int, ...]

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Periods:
        """Read an entry of a study file."""
        known = [field.name for field in fields(cls)]
        for key in settings:
            if key not in known:
                raise unknown_name("key", key, known)
        values: dict[str, Any] = {key: settings.get(key) for key in known}
        if not isinstance(values["base"], str):
            raise ValueError(f"base ({values['base']!r}) must be the name of a base recipe")
        for key, least, most in (("low", 1, 8), ("window", 1, None)):
            if type(values[key]) is not int or not least <= values[key] <= (most or values[key]):
                limit = f"{least} to {most}" if most else f"at least {least}"
                raise ValueError(f"{key} ({values[key]!r}) must be a whole number, {limit}")
        for key, least in (("deficits", 1), ("starts", 0)):
            steps = values[key]
            if not isinstance(steps, list) or not all(type(s) is int and s >= least for s in steps):
                raise ValueError(f"{key} ({steps!r}) must be a list of steps, {least} or more")
            values[key] = tuple(steps)
        return cls(**values)

    def methods(self, config: RunConfig) -> Iterator[Method]:
        """A's, then B's, each a group with its own baseline. config: the base at static bits."""
        if config.steps is None:
            raise ValueError(f"{self.base} has a length in epochs; critical periods need steps")
        where = f"{display_name(config.model.name)}, {display_name(config.data.name)}"
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

    >>> from bitcycle_lab.recipes import recipe
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
    if lr.policy not in ("step", "constant", "cosine"):
        raise ValueError(f"lr.policy {lr.policy!r} has no form with a deficit before it")
    if lr.policy != "step":
        return lr
    milestones = tuple(deficit + steps_of(time, normal) for time in lr.milestones)
    return replace(lr, milestones=milestones)


def sliding_window(config: RunConfig, *, low: int, start: int, length: int) -> RunConfig:
    """A run `length` steps longer, of which so many from `start` on are at `low`.

    >>> from bitcycle_lab.recipes import recipe
    >>> base = recipe("digits-static-8-8")
    >>> [sliding_window(base, low=3, start=s, length=60).precision.forward for s in (0, 120, 240)]
    ['stages:3@60,8', 'stages:8@120,3@180,8', 'stages:8@240,3']
    """
    assert config.steps is not None
    total, end, high = config.steps + length, start + length, config.precision.forward
    if end > total:
        raise ValueError(f"a window of {length} steps from step {start} ends after step {total}")
    parts = [f"{high}@{start}"] if start else []
    parts += [f"{low}@{end}", f"{high}"] if end < total else [f"{low}"]
    return replace(
        config,
        name=f"{config.name}-low{low}-window{length}-at{start}",
        steps=total,
        precision=replace(config.precision, forward=f"stages:{','.join(parts)}"),
    )
