"""Run a benchmark: every chosen workload with every chosen kernel, variants in turn."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from bitcycle.extras import MissingExtraError
from bitcycle.precision import Precision
from bitcycle.registry import unknown_name
from bitcycle_lab.bench.others import OTHERS, installed_others
from bitcycle_lab.bench.result import (
    BenchResult,
    StepTime,
    Timing,
    find_processor,
    time_interleaved,
    weighted_mean,
)
from bitcycle_lab.bench.steps import (
    AUTO,
    AUTOCAST,
    FLOAT,
    INSIDE,
    CycleBits,
    TrainStep,
    Variant,
    VariantBits,
    all_kernels,
    is_ours,
    parse_bits,
)
from bitcycle_lab.bench.workloads import WORKLOADS, Workload, WorkloadBuilder

DEFAULT_BITS = (*(f"FW{width}/BW8" for width in range(2, 9)), "3-8/8")
_SIMULATED_BITS = "FW8/BW8"  # the time of `simulate` does not depend on the bits
_MAY_FAIL = (AUTOCAST, *OTHERS)  # such as an LSTM in bfloat16 on some processors


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What to time; empty workloads mean all.

    Without kernels: float32, bf16-autocast, simulate, auto, auto inside autocast, other packages.
    Without bits: 2 to 8 bits forward and a cycle from 3 to 8 with 8 bits backward; `simulate` and
    auto inside autocast at 8 bits alone.
    budget: seconds per variant and workload; a slow variant gets fewer repeats.
    """

    workloads: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    bits: tuple[str | VariantBits, ...] = ()
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
            found = parse_bits(bits)
            if isinstance(found, Precision) and not found.quantized_roles:
                raise ValueError(f"bits {bits!r} are float32, which is always timed")

    def variants(self) -> list[Variant]:
        """All variants, float32 first."""
        default = (AUTOCAST, "simulate", AUTO, INSIDE, *installed_others())
        chosen = self.kernels or default
        found = [Variant(FLOAT)]
        for kernel in (name for name in all_kernels() if name in chosen and name != FLOAT):
            is_alone = kernel in ("simulate", INSIDE)
            bits = self.bits or ((_SIMULATED_BITS,) if is_alone else DEFAULT_BITS)
            own = [Variant(kernel, parse_bits(each)) for each in bits]
            found += own if is_ours(kernel) else [Variant(kernel)]
        return found

    def count_steps(self) -> int:
        """The number of training steps at most."""
        return len(self.workloads or WORKLOADS) * self.steps_per_workload()

    def steps_per_workload(self) -> int:
        """The same for one workload, with two warm-up steps per variant."""
        kinds = sum(len(variant.widths) or 1 for variant in self.variants())
        return kinds * (2 + self.repeats)


def run_bench(
    config: BenchConfig,
    *,
    workloads: Mapping[str, WorkloadBuilder] | None = None,
    say: Callable[[str], None] = lambda line: None,
    advance: Callable[[int], None] = lambda done: None,
) -> BenchResult:
    """Run the benchmark; `advance` is called with the number of steps done or skipped.

    workloads: in place of the built-in ones.
    """
    began = time.monotonic()
    builders = WORKLOADS if workloads is None else workloads
    names = config.workloads or tuple(builders)
    share = config.steps_per_workload()
    rows: list[StepTime] = []
    sizes: dict[str, str] = {}
    full_sizes: dict[str, str] = {}
    with torch.random.fork_rng([]), torch.enable_grad():
        for place, name in enumerate(names):
            say(f"[{place + 1}/{len(names)}] {name}")
            try:
                workload = _build(builders[name], config)
                times = _time_workload(name, workload, config, advance, place * share)
                sizes[name] = workload.size
                if workload.full_size not in ("", workload.size):
                    full_sizes[name] = workload.full_size
            except MissingExtraError as error:
                if config.workloads:
                    raise
                times, sizes[name] = [], f"left out: {error}"
            rows += times
            advance((place + 1) * share)
    return BenchResult(
        processor=find_processor(),
        sizes=sizes,
        full_sizes=full_sizes,
        rows=tuple(rows),
        repeats=config.repeats,
        is_quick=config.is_quick,
        budget=config.budget,
        seconds=round(time.monotonic() - began, 3),
        kernels=config.kernels,
        bits=tuple(map(str, config.bits)),
    )


def _build(build: WorkloadBuilder, config: BenchConfig) -> Workload:
    torch.manual_seed(0)
    return build(config.is_quick)


def _time_workload(
    name: str,
    workload: Workload,
    config: BenchConfig,
    advance: Callable[[int], None],
    done: int,
) -> list[StepTime]:
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

    timings, by_width = _time_steps(steps, config, tick)
    base = timings[Variant(FLOAT)].fastest
    rows = []
    for variant in config.variants():
        if variant in failures:
            rows.append(
                StepTime(workload=name, kernel=variant.kernel, bits=variant.bits_text,
                    notes=(failures[variant],), quantizer=variant.quantizer)
            )  # fmt: skip
            continue
        step, timing = steps[variant], timings[variant]
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
                by_width=by_width.get(variant, {}),
                quantizer=variant.quantizer,
            )
        )
    return rows


def _time_steps(
    steps: dict[Variant, TrainStep], config: BenchConfig, tick: Callable[[], None]
) -> tuple[dict[Variant, Timing], dict[Variant, dict[str, float]]]:
    """Time all variants in turn, and each width of a cycle; the fastest of each width."""
    kinds = {
        f"{variant} {width or ''}": (variant, width)
        for variant in steps
        for width in variant.widths or (0,)
    }

    def prepare(name: str) -> None:
        variant, width = kinds[name]
        if width:
            steps[variant].set_width(width)

    found = time_interleaved(
        {name: steps[variant] for name, (variant, _) in kinds.items()},
        repeats=config.repeats,
        budget=config.budget,
        tick=tick,
        prepare=prepare,
    )
    timings, by_width = {}, {}
    for variant in steps:
        own = [found[name] for name, (of, _) in kinds.items() if of == variant]
        timings[variant] = own[0]
        if isinstance(variant.bits, CycleBits):
            timings[variant] = weighted_mean(own, list(variant.bits.shares().values()))
            fastest = (timing.fastest for timing in own)
            by_width[variant] = dict(zip(map(str, variant.widths), fastest, strict=True))
    return timings, by_width


def _first_sentence(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].partition(". ")[0] or type(error).__name__


def _notes(workload: str, variant: Variant, step: TrainStep) -> tuple[str, ...]:
    """Layers that stay float32, what a kernel cannot do here, and the mean of a cycle."""
    notes = [
        f"{workload}: {layer} stays float32: {why}" for layer, why in step.float_layers().items()
    ]
    layers = step.layers().values()
    reasons = dict.fromkeys(why for _, why in layers)
    asked = [why.removeprefix("asked for; ") for why in reasons if why.startswith("asked for; ")]
    notes += [f"{variant.kernel}: {why}" for why in asked]
    if variant.kernel == AUTO:
        simulated = Counter(why for kernel, why in layers if kernel == "simulate")
        notes += [
            f"{workload}: auto simulates {count} of {len(layers)} layers: "
            f"{why.removeprefix('auto: ')}"
            for why, count in simulated.items()
        ]
    if isinstance(variant.bits, CycleBits):
        shares = ", ".join(f"{w}: {100 * s:.0f} %" for w, s in variant.bits.shares().items())
        notes.append(
            f"{variant.bits_text}: the mean over the steps of one cosine cycle: the fastest step "
            f"of each width, weighted by how often it occurs ({shares})"
        )
    return tuple(notes)
