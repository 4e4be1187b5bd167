"""How long a step takes here, measured: the data is read, the model built, a few steps taken."""

from __future__ import annotations

import time
import warnings
from contextlib import closing
from dataclasses import replace
from statistics import median
from typing import Any

from bitcycle.train.config import RunConfig
from bitcycle.train.configfile import to_dict
from bitcycle.train.loop import steps_of_run, update
from bitcycle.train.reproduce import kept_settings
from bitcycle.train.session import build_session
from bitcycle.warnings import BitcycleWarning

WARM_UP, MEASURED = 2, 3


def measure_step(config: RunConfig) -> tuple[float, int]:
    """(seconds of a step, steps of the run): the median of three after a warm-up of two."""
    quiet = replace(config, tracking=replace(config.tracking, tensorboard=False))
    with kept_settings(), warnings.catch_warnings():
        warnings.simplefilter("ignore", BitcycleWarning)  # the run itself will say it
        session = build_session(quiet)
        times: list[float] = []
        with closing(steps_of_run(session, is_endless=True)) as steps:
            for micro_batches, _ in zip(steps, range(WARM_UP + MEASURED), strict=False):
                began = time.perf_counter()
                update(session, micro_batches, checks_loss=False)
                times.append(time.perf_counter() - began)
    return median(times[WARM_UP:] or times), session.total_steps


def step_kind(config: RunConfig) -> str:
    """Equal for configurations whose steps take about the same: the bits themselves do not count.

    >>> from bitcycle.recipes import recipe
    >>> cycled, static = recipe("digits-cpt-3-8-8"), recipe("digits-static-3-8")
    >>> step_kind(cycled) == step_kind(static), step_kind(static) == step_kind(
    ...     recipe("digits-float32")
    ... )
    (True, False)
    """
    settings: dict[str, Any] = to_dict(config)
    precision = settings["precision"]
    kept = ("task", "model", "data", "accumulate", "autocast", "channels_last", "threads",
            "steps", "epochs")  # fmt: skip
    rules = None
    if not config.precision.is_float:
        rules = [precision[key] for key in ("quantizer", "quantizer_options", "skip", "only",
                                            "kernel")]  # fmt: skip
    return repr(([settings[key] for key in kept], settings["optimizer"]["name"], rules))
