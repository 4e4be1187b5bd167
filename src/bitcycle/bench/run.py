"""Run a benchmark: every chosen workload with every chosen kernel, variants in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bitcycle.bench.others import OTHERS
from bitcycle.bench.result import BenchResult, StepTime, find_processor, time_interleaved
from bitcycle.bench.steps import AUTOCAST, FLOAT, TrainStep, Variant, all_kernels, make_variants
from bitcycle.bench.workloads import WORKLOADS
from bitcycle.extras import MissingExtraError
from bitcycle.kernels import exact_bits
from bitcycle.precision import Precision
from bitcycle.registry import unknown_name

_FULL_BITS = 16  # two operands of 8
_MAY_FAIL = (AUTOCAST, *OTHERS)  # such as an LSTM in bfloat16 on some processors


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What to time; empty workloads, kernels and bits mean all.

    budget: seconds per variant and workload; a slow variant gets fewer repeats.
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
                raise ValueError(
                    f"bits {bits!r} are float32, which is always timed; give fewer bits"
                )

    def variants(self) -> list[Variant]:
        """All variants, float32 first."""
        kernels = [name for name in all_kernels() if not self.kernels or name in self.kernels]
        bits = [Precision.parse(each) for each in self.bits or default_bits()]
        return make_variants([FLOAT, *(name for name in kernels if name != FLOAT)], bits)

    def count_steps(self) -> int:
        """The number of training steps at most, with two warm-up steps per variant."""
        return len(self.workloads or WORKLOADS) * len(self.variants()) * (2 + self.repeats)


def default_bits() -> list[str]:
    """8 bits; also 7 forward if products of 8 x 8 bits are not exact in integers here."""
    return ["FW8/BW8"] if exact_bits("cpu") >= _FULL_BITS else ["FW8/BW8", "FW7/BW8"]


def run_bench(
    config: BenchConfig,
    *,
    say: Callable[[str], None] = lambda line: None,
    advance: Callable[[int], None] = lambda done: None,
) -> BenchResult:
    """Run the benchmark; `advance` is called with the number of steps done or skipped."""
    began = time.monotonic()
    names = config.workloads or tuple(WORKLOADS)
    share = config.count_steps() // len(names)
    rows: list[StepTime] = []
    sizes: dict[str, str] = {}
    with torch.random.fork_rng([]), torch.enable_grad():
        for place, name in enumerate(names):
            say(f"[{place + 1}/{len(names)}] {name}")
            try:
                times, sizes[name] = _time_workload(name, config, advance, place * share)
            except MissingExtraError as error:
                if config.workloads:
                    raise
                times, sizes[name] = [], f"left out: {error}"
            rows += times
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


def _time_workload(
    name: str, config: BenchConfig, advance: Callable[[int], None], done: int
) -> tuple[list[StepTime], str]:
    torch.manual_seed(0)
    workload = WORKLOADS[name](config.is_quick)
    steps: dict[Variant, TrainStep] = {}
    failures: dict[Variant, str] = {}
    for variant in config.variants():
        try:
            steps[variant] = TrainStep(workload, variant)
            if variant.kernel in _MAY_FAIL:
                steps[variant]()
        except Exception as error:  # of torch, of another package, or of the conversion
            if variant.kernel not in _MAY_FAIL and not isinstance(error, ValueError):
                raise
            steps.pop(variant, None)
            what = "low precision" if variant.bits is not None else variant.kernel
            failures[variant] = f"{name}: {what} not timed: {_first_sentence(error)}"

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
                StepTime(workload=name, kernel=variant.kernel, bits=variant.bits_text,
                    notes=(failures[variant],))
            )  # fmt: skip
            continue
        step, timing = steps[variant], timings[str(variant)]
        rows.append(
            StepTime(
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
    return rows, workload.size


def _first_sentence(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].partition(". ")[0] or type(error).__name__


def _notes(workload: str, variant: Variant, step: TrainStep) -> tuple[str, ...]:
    """Layers that stay float32, and what a requested kernel cannot do here."""
    notes = [
        f"{workload}: {layer} stays float32: {why}" for layer, why in step.float_layers().items()
    ]
    reasons = dict.fromkeys(why for _, why in step.layers().values())
    asked = [why.removeprefix("asked for; ") for why in reasons if why.startswith("asked for; ")]
    return tuple([*notes, *(f"{variant.kernel}: {why}" for why in asked)])
