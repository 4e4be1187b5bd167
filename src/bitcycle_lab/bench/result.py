"""The times of a benchmark as a table and as JSON, the timer, and the processor.

`BenchResult` has a `StepTime` per workload and variant. `time_interleaved` times functions in turn,
so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from bitcycle.kernels.choice import missing_library
from bitcycle.native.library import instruction_set
from bitcycle.tables import text_table

MIN_REPEATS = 3  # a function too slow for so many is timed once


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The time of one workload with one variant; without seconds, `notes` say why."""

    workload: str
    kernel: str
    bits: str = ""
    seconds: tuple[float, ...] = ()
    is_once: bool = False
    base: float | None = None  # fastest seconds of float32 in the same rounds
    saved_bytes: int | None = None
    layers: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # kernel, and why
    notes: tuple[str, ...] = ()
    by_width: Mapping[str, float] = field(default_factory=dict)  # fastest seconds, of a cycle
    quantizer: str = "sbm"

    @property
    def timing(self) -> Timing | None:
        """The timing; None if it was not timed."""
        return Timing(self.seconds, self.is_once) if self.seconds else None

    @property
    def ratio(self) -> float | None:
        """The fastest step divided by that of float32; below 1 is faster."""
        return self.timing.fastest / self.base if self.timing and self.base else None

    def products(self) -> str:
        """The number of products per kernel, three per layer.

        >>> layers = {"a": ("native", "auto"), "b": ("simulate", "auto"), "c": ("native", "auto")}
        >>> StepTime(workload="w", kernel="auto", layers=layers).products()
        'native 6, simulate 3'
        """
        counts = Counter(kernel for kernel, _ in self.layers.values())
        return ", ".join(f"{name} {3 * count}" for name, count in counts.most_common())

    def cells(self) -> tuple[str, ...]:
        """The cells of its table row, without the workload."""
        rounded = self.bits if self.quantizer == "sbm" else f"{self.bits} by {self.quantizer}"
        name = (self.kernel, rounded or "-")
        timing, ratio = self.timing, self.ratio
        assert timing is not None
        mark = "once" if timing.is_once else f"{1e3 * timing.lower_quartile:.1f}"
        saved = "-" if self.saved_bytes is None else f"{self.saved_bytes / 1e6:.1f}"
        shown = "-" if ratio is None else f"{ratio:.2f}"
        return (*name, f"{1e3 * timing.fastest:.1f}", mark, shown, saved, self.products() or "-")


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """The times of a benchmark, the processor and the workloads; `str()` is a table."""

    processor: Processor
    sizes: Mapping[str, str]  # by workload
    rows: tuple[StepTime, ...]
    repeats: int
    is_quick: bool = False
    full_sizes: Mapping[str, str] = field(default_factory=dict)  # of the benchmark, for --quick
    budget: float | None = None  # seconds per variant and workload
    seconds: float | None = None  # wall-clock of the whole benchmark
    kernels: tuple[str, ...] = ()  # as asked for; empty: the default
    bits: tuple[str, ...] = ()  # as asked for; empty: the default
    keeps_freed_memory: bool = False  # the allocator of all variants, `keep_freed_memory`

    def find(self, workload: str, kernel: str, bits: str = "") -> StepTime:
        """The time of a variant."""
        for row in self.rows:
            if (row.workload, row.kernel, row.bits) == (workload, kernel, bits):
                return row
        raise KeyError(f"no row {workload}, {kernel}, {bits or 'float32'}")

    def __str__(self) -> str:
        header = ("workload", "kernel", "bits", "ms", "quartile", "ratio", "kept MB", "products by")
        body, former = [], ""
        for row in (row for row in self.rows if row.seconds):
            body.append(("" if row.workload == former else row.workload, *row.cells()))
            former = row.workload
        table = text_table(header, body, right=(3, 4, 5, 6))
        return "\n\n".join([str(self.processor), table, self.legend()])

    def legend(self) -> str:
        """The meaning of the columns, the workloads, and notes."""
        lines = [
            f"ms        a step: forward, backward, SGD; the fastest of {self.repeats}, variants in "
            "turn",
            "quartile  of the same times; far above ms: a busy machine. once: too slow to repeat",
            "ratio     ms / float32's ms, in the same rounds; below 1 is faster",
            "kept      10^6 bytes that the forward pass keeps for the backward pass",
            "products  three per converted layer: output, grad_input, grad_weight",
            "",
        ]
        for name, size in self.sizes.items():
            lines.append(f"{name}: {size}")
            if name in self.full_sizes:
                lines.append(f"  instead of {self.full_sizes[name]}")
        notes = dict.fromkeys(note for row in self.rows for note in row.notes)
        lines += ["", *notes] if notes else []
        if self.is_quick:
            lines += [
                "",
                "--quick ran smaller networks than the benchmark's, as listed above, as a check:",
                "its times and ratios say nothing about speed",
            ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """JSON types only, with derived values for readers."""
        rows = [
            {
                **asdict(row),
                "ratio": row.ratio,
                "fastest": row.timing and row.timing.fastest,
                "lower_quartile": row.timing and row.timing.lower_quartile,
            }
            for row in self.rows
        ]
        return {**asdict(self), "rows": rows}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BenchResult:
        """Read what `to_dict` wrote."""
        return cls(
            processor=Processor(**data["processor"]),
            sizes=dict(data["sizes"]),
            rows=tuple(_read_time(row) for row in data["rows"]),
            repeats=data["repeats"],
            is_quick=data["is_quick"],
            full_sizes=dict(data["full_sizes"]),
            budget=data["budget"],
            seconds=data["seconds"],
            kernels=tuple(data["kernels"]),
            bits=tuple(data["bits"]),
            keeps_freed_memory=data["keeps_freed_memory"],
        )


def _read_time(data: Mapping[str, Any]) -> StepTime:
    derived = ("ratio", "fastest", "lower_quartile")
    fields = {name: value for name, value in data.items() if name not in derived}
    return StepTime(
        **{
            **fields,
            "seconds": tuple(data["seconds"]),
            "layers": {name: (kernel, why) for name, (kernel, why) in data["layers"].items()},
            "notes": tuple(data["notes"]),
        }
    )


@dataclass(frozen=True)
class Timing:
    """The seconds of every repeat.

    >>> timing = Timing((0.4, 0.1, 0.3, 0.2))
    >>> timing.fastest, timing.lower_quartile
    (0.1, 0.2)
    """

    seconds: tuple[float, ...]
    is_once: bool = False  # too slow for its budget: only the warm-up was timed

    @property
    def fastest(self) -> float:
        """The minimum: other processes can only add time."""
        return min(self.seconds)

    @property
    def lower_quartile(self) -> float:
        """The lower quartile; far above the fastest on a busy machine."""
        return sorted(self.seconds)[len(self.seconds) // 4]


def weighted_mean(timings: Sequence[Timing], weights: Sequence[float]) -> Timing:
    """The time of a step that is one of several kinds: the k-th fastest times of all kinds.

    The fastest is so the mean of the fastest, comparable with that of one kind.

    >>> weighted_mean([Timing((3.0, 1.0)), Timing((5.0, 7.0))], [0.25, 0.75]).seconds
    (4.0, 6.0)
    """
    ordered = zip(*(sorted(timing.seconds) for timing in timings), strict=False)
    means = (sum(w * s for w, s in zip(weights, each, strict=True)) for each in ordered)
    return Timing(tuple(means), any(timing.is_once for timing in timings))


def time_interleaved(
    functions: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    budget: float = float("inf"),
    tick: Callable[[], None] = lambda: None,
    prepare: Callable[[str], None] = lambda name: None,
) -> dict[str, Timing]:
    """Time each function `repeats` times, round-robin, after two warm-up calls.

    budget: seconds per function. A slow function gets fewer repeats; if not even three fit, its
    time is that of the faster warm-up call. `tick` is called after every call, `prepare` with the
    function's name before it; neither is timed.

    >>> timings = time_interleaved({"a": lambda: 1, "b": lambda: 2}, repeats=5)
    >>> [len(timing.seconds) for timing in timings.values()]
    [5, 5]
    """

    def take(name: str) -> float:
        prepare(name)
        function = functions[name]
        begin = time.perf_counter()
        function()
        seconds = time.perf_counter() - begin
        tick()
        return seconds

    timings: dict[str, Timing] = {}
    taken: dict[str, list[float]] = {}
    planned: dict[str, int] = {}
    for name in functions:
        first = take(name)  # allocates, chooses kernels
        if first <= budget:
            first = min(first, take(name))
        planned[name] = int(min(repeats, budget / max(first, 1e-9)))
        if planned[name] < min(MIN_REPEATS, repeats):
            timings[name], planned[name] = Timing((first,), is_once=True), 0
        else:
            taken[name] = []
    for repeat in range(repeats):
        for name in taken:
            if repeat < planned[name]:
                taken[name].append(take(name))
    timings |= {name: Timing(tuple(seconds)) for name, seconds in taken.items()}
    return {name: timings[name] for name in functions}


@dataclass(frozen=True, kw_only=True)
class Processor:
    """The processor, its features, and the threads of torch."""

    name: str
    capability: str  # the instruction set of torch's loops
    has_vnni: bool  # AVX512: four 8-bit products per 32-bit sum in one instruction
    has_bf16: bool  # bfloat16 products are faster than float32
    has_amx: bool
    instruction_set: str | None  # of the native library; None without it
    num_threads: int
    torch_version: str

    def __str__(self) -> str:
        found = {"VNNI": self.has_vnni, "BF16": self.has_bf16, "AMX": self.has_amx}
        features = ", ".join(f"{name} {'yes' if has else 'no'}" for name, has in found.items())
        plural = "" if self.num_threads == 1 else "s"
        native = f"native library: {self.instruction_set}"
        return (
            f"{self.name}, {self.num_threads} thread{plural}, torch {self.torch_version}\n"
            f"capability {self.capability}, {features}, "
            f"{native if self.instruction_set else missing_library()}"
        )


def find_processor() -> Processor:
    """The processor of this machine."""
    return Processor(
        name=_processor_name(),
        capability=torch.backends.cpu.get_cpu_capability(),
        has_vnni=_has_feature("_is_vnni_supported"),
        has_bf16=_has_bf16(),
        has_amx=_has_feature("_is_amx_tile_supported"),
        instruction_set=instruction_set(),
        num_threads=torch.get_num_threads(),
        torch_version=torch.__version__,
    )


def _processor_name() -> str:
    ask: Callable[[], dict[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)  # newer torch
    capabilities = ask()
    return str(capabilities.get("cpu_name") or platform.processor() or platform.machine())


def _has_bf16() -> bool:
    """Whether bfloat16 products are faster than float32 ones, as with autocast."""
    try:  # oneDNN also says yes where it only emulates bf16, so the instructions are asked for too
        is_supported = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # a build without oneDNN, another processor
        return False
    instructions = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return is_supported and any(map(_has_feature, instructions))


def _has_feature(name: str) -> bool:
    return bool(getattr(torch.cpu, name, bool)())
