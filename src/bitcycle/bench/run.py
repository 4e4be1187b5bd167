"""Measures every chosen workload by every chosen kernel, all variants of a workload in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from bitcycle.bench.others import OTHERS
from bitcycle.bench.result import BenchResult, Row, find_processor, time_interleaved
from bitcycle.bench.steps import AUTOCAST, FLOAT, TrainStep, Variant, all_kernels, make_variants
from bitcycle.bench.workloads import WORKLOADS
from bitcycle.extras import MissingExtraError
from bitcycle.kernels import exact_bits
from bitcycle.ops import fused
from bitcycle.precision import Precision
from bitcycle.registry import unknown_name

_FULL_BITS = 16  # two operands of 8
_MAY_FAIL = (AUTOCAST, *OTHERS)  # an LSTM has no bfloat16 on some processors


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What to measure; names left empty mean everything there is.

    budget: seconds that a variant may take per workload; fewer repeats fit if it is slow.
    """

    workloads: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    bits: tuple[str | Precision, ...] = ()
    repeats: int = 10
    budget: float = 30.0
    is_quick: bool = False

    def __post_init__(self) -> None:
        for name in self.workloads:
            if name not in WORKLOADS:
                raise unknown_name("workload", name, WORKLOADS)
        for name in self.kernels:
            if name not in all_kernels():
                raise unknown_name("kernel", name, all_kernels())
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {self.repeats}")
        if not self.budget > 0:
            raise ValueError(f"budget must be more than 0 seconds, got {self.budget}")
        for bits in self.bits:
            if not Precision.parse(bits).quantized_roles:
                raise ValueError(f"bits {bits!r} are float32, which is measured anyway; give fewer")

    def variants(self) -> list[Variant]:
        """float32 first: everything is compared with it."""
        kernels = [name for name in all_kernels() if not self.kernels or name in self.kernels]
        bits = [Precision.parse(each) for each in self.bits or default_bits()]
        return make_variants([FLOAT, *(name for name in kernels if name != FLOAT)], bits)

    def count_steps(self) -> int:
        """Training steps if none is cut short: two warm up, the others are timed."""
        return len(self.workloads or WORKLOADS) * len(self.variants()) * (2 + self.repeats)


def default_bits() -> list[str]:
    """8 bits; also 7 forward where 8 x 8 bits are not exact in integers, but 7 x 8 are."""
    return ["FW8/BW8"] if exact_bits("cpu") >= _FULL_BITS else ["FW8/BW8", "FW7/BW8"]


def run_bench(
    config: BenchConfig,
    *,
    say: Callable[[str], None] = lambda line: None,
    advance: Callable[[int], None] = lambda done: None,
) -> BenchResult:
    """Measure; `advance` is told how many of the config's steps are done or need not be done."""
    began = time.monotonic()
    names = config.workloads or tuple(WORKLOADS)
    share = config.count_steps() // len(names)
    rows: list[Row] = []
    sizes: dict[str, str] = {}
    with torch.random.fork_rng([]), torch.enable_grad(), _compiling(not config.is_quick):
        for place, name in enumerate(names):
            say(f"[{place + 1}/{len(names)}] {name}")
            try:
                measured, sizes[name] = _measure(name, config, advance, place * share)
            except MissingExtraError as error:
                if config.workloads:
                    raise
                measured, sizes[name] = [], f"left out: {error}"
            rows += measured
            advance((place + 1) * share)
    return BenchResult(
        processor=find_processor(),
        sizes=sizes,
        rows=tuple(rows),
        repeats=config.repeats,
        is_quick=config.is_quick,
        budget=config.budget,
        seconds=round(time.monotonic() - began, 3),
    )


@contextmanager
def _compiling(at_once: bool) -> Iterator[None]:
    """Fused passes compiled in the first step, which is not timed, rather than in a later one."""
    former = fused.WARM_UP
    try:
        if at_once:
            fused.WARM_UP = 0
        yield
    finally:
        fused.WARM_UP = former


def _measure(
    name: str, config: BenchConfig, advance: Callable[[int], None], done: int
) -> tuple[list[Row], str]:
    torch.manual_seed(0)
    load = WORKLOADS[name](config.is_quick)
    steps: dict[Variant, TrainStep] = {}
    failures: dict[Variant, str] = {}
    for variant in config.variants():
        try:
            steps[variant] = TrainStep(load, variant)
            if variant.kernel in _MAY_FAIL:
                steps[variant]()
        except Exception as error:  # of torch or another package, or of a model we cannot convert
            if variant.kernel not in _MAY_FAIL and not isinstance(error, ValueError):
                raise
            steps.pop(variant, None)
            what = "low precision" if variant.bits is not None else variant.kernel
            failures[variant] = f"{name}: {what} not measured: {_first_sentence(error)}"

    def tick() -> None:
        nonlocal done
        done += 1
        advance(done)

    timings = time_interleaved(
        {str(variant): step for variant, step in steps.items()},
        repeats=config.repeats,
        budget=config.budget,
        tick=tick,
    )
    base = timings[FLOAT].fastest
    rows = []
    for variant in config.variants():
        if variant in failures:
            rows.append(
                Row(workload=name, kernel=variant.kernel, bits=variant.bits_text,
                    notes=(failures[variant],))
            )  # fmt: skip
            continue
        step, timing = steps[variant], timings[str(variant)]
        rows.append(
            Row(
                workload=name,
                kernel=variant.kernel,
                bits=variant.bits_text,
                seconds=timing.seconds,
                is_once=timing.is_once,
                base=base,
                saved_bytes=step.count_saved(),
                layers=step.layers(),
                notes=_notes(name, variant, step),
            )
        )
    return rows, load.size


def _first_sentence(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].partition(". ")[0] or type(error).__name__


def _notes(workload: str, variant: Variant, step: TrainStep) -> tuple[str, ...]:
    """What stays float32, and what a kernel that was asked for cannot do here."""
    notes = [
        f"{workload}: {layer} stays float32: {why}" for layer, why in step.float_layers().items()
    ]
    reasons = dict.fromkeys(why for _, why in step.layers().values())
    asked = [why.removeprefix("asked for; ") for why in reasons if why.startswith("asked for; ")]
    return tuple([*notes, *(f"{variant.kernel}: {why}" for why in asked)])
