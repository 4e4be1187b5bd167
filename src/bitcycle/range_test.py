"""The precision range test: the lowest precision that still learns.

`precision_range_test` trains for a number of steps at each bit-width. The rules, and the
`RangeTest` it returns, are in `range_criteria.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from bitcycle.model_precision import quantized_layers, set_precision
from bitcycle.nn.control import advance_clocks
from bitcycle.nonfinite import NonFiniteError
from bitcycle.ops.noise import hash_ints
from bitcycle.precision import Precision
from bitcycle.range_criteria import (
    CAREFUL_BELOW,
    NOISE,
    REPEATS,
    SHARE,
    Criterion,
    PrecisionRun,
    RangeTest,
    RangeTestConfig,
    RangeTestError,
)
from bitcycle.schedules import ScheduleLike, Static, parse_schedule
from bitcycle.snapshot import Snapshot, Stateful

TrainStep = Callable[[], Any]  # one optimizer step; returns anything that float() takes
PrecisionAt = Callable[[int], Precision | dict[str, Precision]]
MIN_REPEATS = 2  # a spread needs two


def precision_range_test(
    model: nn.Module,
    train_step: TrainStep,
    *,
    restore: Iterable[Stateful] = (),
    low: int = 2,
    high: int = 8,
    steps_per_precision: int,
    window: int | None = None,
    metric: Literal["loss", "accuracy"] | None = None,
    criterion: Criterion | None = None,
    share: float = SHARE,
    repeats: int = REPEATS,
    careful_below: int = CAREFUL_BELOW,
    total_steps: int | None = None,
    rewind: Callable[[int], object] | None = None,
    chance: float | None = None,
    threshold: float | None = None,
    backward: ScheduleLike = 8,
    progress: Callable[[str], object] | None = None,
) -> RangeTest:
    """Train for `steps_per_precision` steps at high, high - 1, ... bits, and find the lower bound.

    gain(b) = L0 - mean(last `window` losses at b bits), L0 = mean(first `window` losses at `high`);
    b passes if gain(b) - share x gain(high) is at least two standard errors above 0;
    lower bound = the fewest b that pass, with all higher bits passing too.

    Every precision starts from the same state: the model, everything in `restore` and the random
    generators of torch, numpy and Python, which are also restored at the end and after an error. A
    NaN (metric, weights, or a `NonFiniteError`) means that the bits fail, and the test ends at the
    first bits that clearly fail. It is repeated with other random seeds, twice at least and
    `repeats` times at most, until no decision is within two standard errors. Raises a
    `RangeTestError` if the loss at `high` bits does not fall by more than noise.

    train_step: one optimizer step of your own loop, without the PrecisionScheduler; returns the
    training loss, or with metric="accuracy" a number that rises. Under torch.distributed every
    process takes part, and the metric is the mean over them.
    total_steps: the length of the run that the bound is for. The result then says what share of the
    run it rests on.
    careful_below: fewer bits than this pass only if they are as good as `high` (a share of 0.98) in
    trainings of at least a tenth of total_steps, since the first steps teach what any precision can
    learn.
    window: a quarter of the steps by default.
    rewind: rewinds data that train_step draws from elsewhere; called before every precision with
    the number of the repeat, and with 0 after the test.
    criterion: "relative", the rule above, or "paper", which a threshold selects too: the test of
    CPT, which needs a threshold or chance. Training continues from low to high bits up
    to the first b with mean(last window at b bits) - mean(first window at b bits) > threshold,
    the lower bound. The metric rises; with metric="loss" it falls.
    threshold: of that criterion.
    chance: the accuracy of a random guess, for a threshold of 2 x chance.
    backward: the bits of the errors, which are the gradients with respect to a layer's output.
    progress: called with a line of text after every precision.
    """
    error = parse_schedule(backward)
    if not isinstance(error, Static):
        raise ValueError(f"backward ({error}) must be a number of bits or fp32 in a range test")
    if total_steps is not None and total_steps < 1:
        raise ValueError(f"total_steps ({total_steps}) must be at least 1")
    if metric not in (None, "loss", "accuracy"):
        raise ValueError(f"metric ({metric!r}) must be 'loss', which falls, or 'accuracy'")
    if chance is not None:
        if threshold is not None:
            raise ValueError(f"pass chance ({chance}) or threshold ({threshold}), not both")
        if not 0 < chance < math.inf:
            raise ValueError(f"chance ({chance}) must be greater than 0, such as 1 / num_classes")
        threshold = 2 * chance
    settings = RangeTestConfig(
        criterion=criterion, low=low, high=high, steps_per_precision=steps_per_precision,
        window=window, share=share, repeats=repeats, careful_below=careful_below,
        threshold=threshold,
    )  # fmt: skip
    if settings.is_paper and threshold is None:
        raise ValueError("criterion 'paper' needs a threshold, or chance")
    if settings.is_paper and rewind is not None:
        raise ValueError("rewind has no effect with a threshold: training continues")
    return run_range_test(
        model,
        train_step,
        lambda bits: Precision(weight=bits, act=bits, error=error.bits, grad=error.bits),
        settings.complete(high=high, steps_per_precision=steps_per_precision),
        name=metric or ("metric" if settings.is_paper else "loss"),
        higher_is_better=metric == "accuracy" or (metric is None and settings.is_paper),
        total_steps=total_steps,
        restore=restore,
        rewind=rewind,
        progress=progress,
    )


# -- the test -------------------------------------------------------------------------------------


def run_range_test(
    model: nn.Module,
    train_step: TrainStep,
    precision_at: PrecisionAt,
    settings: RangeTestConfig,
    *,
    name: str,
    higher_is_better: bool,
    total_steps: int | None = None,
    restore: Iterable[Stateful] = (),
    rewind: Callable[[int], object] | None = None,
    progress: Callable[[str], object] | None = None,
) -> RangeTest:
    """`precision_range_test` with complete settings and the layers' precision at b bits."""
    num_steps, is_paper = settings.steps_per_precision, settings.is_paper
    assert num_steps is not None
    test = RangeTest(
        settings=settings, runs=(), name=name, higher_is_better=higher_is_better,
        total_steps=total_steps,
    )  # fmt: skip
    clock = quantized_layers(model)[0][1].shared.step
    start = Snapshot(model, restore)
    order = (_paper_order if is_paper else _relative_order)(lambda: test)
    try:
        for bits in range(test.high, settings.low - 1, -1):  # raises if a layer cannot have these
            set_precision(model, precision_at(bits))  # type: ignore[arg-type]
        for repeat, bits in order:
            if not is_paper:
                start.restore()
                _begin_repeat(repeat, rewind)
            elif test.runs and not test.runs[-1].is_finite:
                start.restore()
            set_precision(model, precision_at(bits))  # type: ignore[arg-type]
            number = bits - settings.low if is_paper else repeat
            first = clock + number * num_steps
            metric = _train(model, train_step, num_steps, first_clock=first, name=name)
            test = replace(test, runs=(*test.runs, PrecisionRun(repeat, bits, metric)))
            if progress:
                progress(_progress_line(test))
            if len(test.runs) == 1 and not is_paper:
                _check_top(test)
    finally:
        start.restore()
        if rewind is not None:
            rewind(0)
    if not is_paper:
        _check_top(test)
    if test.low is None:
        raise RangeTestError(
            f"no precision from {settings.low} to {test.high} bits passes: use more steps per "
            f"precision or a lower threshold\n\n{test}",
            test,
        )
    return test


def _paper_order(so_far: Callable[[], RangeTest]) -> Iterator[tuple[int, int]]:
    """(repeat, bits) of every training: rising bits up to the first that pass."""
    test = so_far()
    for bits in range(test.settings.low, test.high + 1):
        yield 0, bits
        if so_far().low is not None:
            return


def _relative_order(so_far: Callable[[], RangeTest]) -> Iterator[tuple[int, int]]:
    """(repeat, bits) of every training: falling bits down to the first that clearly fail.

    Further repeats train at the bits that decide: the most bits, the lower bound, the bits below
    it, and what is within noise.
    """
    test = so_far()
    precisions = range(test.high, test.settings.low - 1, -1)
    for repeat in range(test.settings.repeats):
        test = so_far()
        decisions = map(test.decision, precisions)
        first = next((each for each in decisions if each != "passes"), "fails")
        if repeat >= MIN_REPEATS and first == "fails":
            return
        near = () if test.low is None else (test.low, test.low - 1)
        for bits in precisions:
            if bits == test.high or bits in near or so_far().decision(bits) == "open":
                yield repeat, bits
            if so_far().decision(bits) == "fails":
                break


def _begin_repeat(repeat: int, rewind: Callable[[int], object] | None) -> None:
    """Seed the generators from their present state and the number of the repeat; rewind data."""
    if repeat > 0:
        base = int(torch.randint(2**31, ()))
        seed = hash_ints(base, repeat) % 2**32
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
    if rewind is not None:
        rewind(repeat)


def _progress_line(test: RangeTest) -> str:
    run = test.runs[-1]
    ends = f"{test.start(run):.4g} -> {test.end(run):.4g}" if run.is_finite else "not finite"
    repeat = "" if test.settings.is_paper else f"repeat {run.repeat + 1}  "
    return f"range test  {repeat}{run.bits} bits  {test.name} {ends}"


def _check_top(test: RangeTest) -> None:
    """Raise unless the model learned at the most bits."""
    top = test.verdicts[test.high]
    if math.isnan(top.gain):
        message = f"training diverges at {test.high} bits, which fewer bits are compared with"
        raise RangeTestError(message, test)
    if not top.gain > NOISE * top.error:
        raise RangeTestError(
            f"the model learns no more than noise (two standard errors) at {test.high} bits: "
            f"{test.name} {top.start:.4g} -> {top.end:.4g} ± {top.error:.2g}; use more steps per "
            "precision",
            test,
        )


def _train(
    model: nn.Module, train_step: TrainStep, num_steps: int, *, first_clock: int, name: str
) -> tuple[float, ...]:
    """The metric of every step; NaN is the last if training diverged.

    first_clock: of the rounding noise. name: of the metric.
    """
    layers = [layer for _, layer in quantized_layers(model)]
    expected = [layer.precision for layer in layers]
    metrics: list[float] = []
    for clock in range(first_clock, first_clock + num_steps):
        advance_clocks(layers, clock)
        try:
            metric = _to_number(train_step(), name)
        except NonFiniteError:
            metric = math.nan
        if [layer.precision for layer in layers] != expected:
            raise ValueError(
                "train_step changed the bits of the model, which the range test sets; remove the "
                "PrecisionScheduler's step() from it"
            )
        if not all(bool(torch.isfinite(weight).all()) for weight in model.parameters()):
            metric = math.nan
        metric = _mean_over_processes(metric, layers[0].control.device)
        metrics.append(metric if math.isfinite(metric) else math.nan)
        if math.isnan(metrics[-1]):
            break
    return tuple(metrics)


def _to_number(metric: Any, name: str) -> float:
    try:
        return float(metric.detach() if isinstance(metric, torch.Tensor) else metric)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"train_step must return the {name} as a number, got {metric!r:.80}"
        ) from None


def _mean_over_processes(metric: float, device: torch.device) -> float:
    if not (dist.is_available() and dist.is_initialized()):
        return metric
    total = torch.tensor(metric, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()
