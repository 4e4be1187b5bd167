"""What a model or a recipe costs, by name: built without data, traced once, priced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from bitcycle.analysis.subject import BATCH_SIZE, STEPS, Subject
from bitcycle.cost import CONVENTIONS, Cost, count_macs, measure_saved, training_cost
from bitcycle.cost.bitops import cost_of_plans, find_plans
from bitcycle.model_precision import set_precision
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.published import BitRange, read_table
from bitcycle.recipes.base import CPT_CYCLES
from bitcycle.scheduler import PrecisionScheduler
from bitcycle.schedules import parse_schedule
from bitcycle.tables import text_table
from bitcycle.train.config import PrecisionConfig

_RING = "aggregation is counted on an example graph of two edges per node, not on the data's"


@dataclass(frozen=True, kw_only=True)
class PricedRun:
    """A subject and its cost; saved_bytes only if it was asked for."""

    subject: Subject
    cost: Cost
    saved_bytes: int | None  # kept for backward, of a step
    saved_kernel: str | None  # that they were measured with; None of a float model too
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Only JSON types."""
        subject = self.subject
        return {
            "model": subject.model,
            "options": dict(subject.options),
            "batch_size": subject.batch_size,
            "precision": {
                k: v for k, v in subject.precision.schedule_texts().items() if v != "fp32"
            },
            "skip": list(subject.precision.skip),
            **self.cost.to_dict(),
            "saved_bytes": self.saved_bytes,
            "saved_kernel": self.saved_kernel,
            "notes": list(self.notes),
        }

    def text(self, *, by_layer: bool = False) -> str:
        """A page: the subject, a table by stage or by layer, what to know."""
        subject, cost = self.subject, self.cost
        given = subject.precision.schedule_texts().items()
        bits = ", ".join(f"{role} {text}" for role, text in given if text != "fp32") or "float32"
        head = f"{subject.model}: {bits}; {subject.batch_size:,} samples a step"
        lines = [head, cost.layer_table() if by_layer else cost.stage_table()]
        if self.saved_bytes is not None:
            by = "" if self.saved_kernel is None else f" with kernel {self.saved_kernel}"
            lines.append(
                f"kept for backward {self.saved_bytes / 2**20:,.1f} MiB a step (measured{by} on "
                "small batches)"
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def price(
    subject: Subject, *, convention: str = "exact", measures_memory: bool = False
) -> PricedRun:
    """The cost of the whole run, before it."""
    model = subject.build(needs_conversion=CONVENTIONS[convention].needs_conversion)
    example = 16 if subject.is_graph else 1
    roles: dict[str, Any] = subject.precision.schedule_texts()
    cost = training_cost(
        model,
        subject.inputs(model, example),
        **roles,
        total_steps=subject.total_steps,
        samples_per_step=subject.batch_size,
        convention=convention,
    )
    saved, kernel = _measure_saved(subject) if measures_memory else (None, None)
    notes = [_RING] if subject.is_graph and convention == "exact" else []
    return PricedRun(
        subject=subject, cost=cost, saved_bytes=saved, saved_kernel=kernel, notes=tuple(notes)
    )


def _measure_saved(subject: Subject) -> tuple[int, str | None]:
    """Bytes kept for backward at the schedules' tops, and the kernel they were measured with.

    Measured with values, on two small batches: what is kept grows with each sample by the same
    amount, and a batch of 128 may not fit here. "auto" decides by the clock, on this machine and
    for these small batches: simulate takes its place.
    """
    kernel = "simulate" if subject.precision.kernel == "auto" else subject.precision.kernel
    subject = replace(subject, device="cpu", precision=replace(subject.precision, kernel=kernel))
    model = subject.build(needs_conversion=False)
    is_converted = any(isinstance(module, QuantizedLayer) for module in model.modules())
    if is_converted:
        roles: dict[str, Any] = subject.precision.schedule_texts()
        scheduler = PrecisionScheduler(model, **roles, total_steps=subject.total_steps)
        set_precision(model, scheduler.top)
    small, large = 2, 4
    if subject.is_graph:
        small, large = 16, 32
    few, more = (
        measure_saved(model, subject.inputs(model, size)).num_bytes for size in (small, large)
    )
    num_bytes = few + (more - few) * (subject.batch_size - small) // (large - small)
    return num_bytes, kernel if is_converted else None


_TABLES = {
    "Table 2": ("table2_cifar", "", {"num_classes": 100}),
    "Fig. 5": ("figure5_cost", "", {"num_classes": 100}),
    "Table 3": ("table3_imagenet", "imagenet_", {}),
}


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """One published cost, in GBitOPs, and ours by the convention 'paper'."""

    where: str
    model: str
    bits: str
    published: float
    counted: float
    saving: float  # of BitOPs, against the same forward top and backward bits held
    exact: float  # GBitOPs by the convention 'exact', same steps and samples

    @property
    def deviation(self) -> float:
        """counted / published - 1."""
        return self.counted / self.published - 1


@dataclass(frozen=True, kw_only=True)
class LatencyRow:
    """A published latency over its baseline's, and the same ratio of operand traffic."""

    model: str
    bits: str
    over: str
    published: float
    uniform: float
    exact: float  # at batches of 128
    single: float  # at batches of 1


@dataclass(frozen=True, kw_only=True)
class RatioRow:
    """A published cost over its static baseline's, where the absolute ones cannot be derived."""

    model: str
    bits: str
    published: float
    counted: float


@dataclass(frozen=True, kw_only=True)
class PaperComparison:
    """Everything that `bitcycle cost --paper` prints; `str()` is that."""

    costs: tuple[CostRow, ...]
    latencies: tuple[LatencyRow, ...]
    ratios: tuple[RatioRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Only JSON types."""
        return {
            "convention": "paper",
            "costs": [{**asdict(row), "deviation": row.deviation} for row in self.costs],
            "latencies": [asdict(row) for row in self.latencies],
            "ratios": [asdict(row) for row in self.ratios],
        }

    def __str__(self) -> str:
        costs = text_table(
            ("", "model", "bits", "published", "counted", "deviation", "saving", "'exact'"),
            [
                (
                    row.where, row.model, row.bits, f"{row.published:.2e}", f"{row.counted:.3e}",
                    f"{row.deviation:+.2%}", f"{row.saving:.2%}" if row.saving else "-",
                    f"{row.exact:.3e}",
                )
                for row in self.costs
            ],
            right=(3, 4, 5, 6, 7),
        )  # fmt: skip
        latencies = text_table(
            ("model", "bits", "over", "published", "uniform", "batch 128", "batch 1"),
            [
                (row.model, row.bits, row.over, f"{row.published:.3f}", f"{row.uniform:.3f}",
                 f"{row.exact:.3f}", f"{row.single:.3f}")
                for row in self.latencies
            ],
            right=(3, 4, 5, 6),
        )  # fmt: skip
        ratios = text_table(
            ("model", "bits", "published", "counted"),
            [(r.model, r.bits, f"{1 - r.published:.2%}", f"{1 - r.counted:.2%}")
             for r in self.ratios],
            right=(2, 3),
        )  # fmt: skip
        worst = max(abs(row.deviation) for row in self.costs)
        return "\n".join([
            "GBitOPs of the CPT paper, and counted by the convention 'paper':",
            costs,
            f"largest deviation {worst:.2%}. 'exact' counts the same run as it is: first and last",
            "layers, no grad_input of the first, nothing for BatchNorm; all layers quantized.",
            f"Table 3 is counted as published, on the {STEPS:,} x {BATCH_SIZE} samples of CIFAR:",
            "90 epochs of ImageNet have 14 times as many. Fig. 5 is read off a figure.",
            "",
            "Latency on a ZC706 (Table 2) over its baseline's, and the same ratio of operand",
            "traffic. Traffic is a model, not a measurement; uniform: all operands equally large;",
            "the others by tensor sizes:",
            latencies,
            "",
            "Savings of the language models (Table 5); their absolute costs cannot be derived:",
            ratios,
        ])  # fmt: skip


def compare_with_paper() -> PaperComparison:
    """Traces each network once and counts every published cell."""
    counted: dict[tuple[str, str], _Counted] = {}
    costs: list[CostRow] = []
    for where, (table, prefix, options) in _TABLES.items():
        rows = {(row["model"], row["precision_fw_bw"]): row for row in read_table(table)}
        networks: dict[str, _Network] = {}
        for (model, cell), row in rows.items():  # methods that share a cell share its cost
            if model not in networks:
                networks[model] = _Network(prefix + model, options)
            cost = counted[model, cell] = networks[model].count(BitRange.parse(cell))
            costs.append(
                CostRow(
                    where=where,
                    model=model,
                    bits=cell,
                    published=float(row["gbitops"]),
                    counted=cost.paper.bitops / 1e9,
                    saving=cost.paper.saving,
                    exact=cost.exact.bitops / 1e9,
                )
            )
    return PaperComparison(
        costs=tuple(costs), latencies=tuple(_latencies(counted)), ratios=tuple(_ratios())
    )


@dataclass(frozen=True)
class _Counted:
    paper: Cost
    exact: Cost
    single: Cost


class _Network:
    """A network of the paper, everything in it quantized, traced once."""

    def __init__(self, model: str, options: dict[str, int]) -> None:
        subject = Subject(model=model, options=options, precision=PrecisionConfig(forward=8))
        self.model = subject.build()
        self.trace = count_macs(self.model, subject.inputs(self.model, 1))

    def count(self, bits: BitRange) -> _Counted:
        roles = {"forward": _forward(bits), "backward": bits.backward}
        plans = find_plans(self.model, roles, STEPS)
        paper, exact, single = (
            cost_of_plans(
                self.trace,
                plans,
                total_steps=STEPS,
                samples_per_step=samples,
                convention=convention,
            )
            for convention, samples in (("paper", BATCH_SIZE), ("exact", BATCH_SIZE), ("exact", 1))
        )
        return _Counted(paper, exact, single)


def _forward(bits: BitRange) -> int | str:
    return bits.high if bits.low == bits.high else f"CR:{bits.low}-{bits.high}:{CPT_CYCLES}"


def _latencies(counted: dict[tuple[str, str], _Counted]) -> Iterator[LatencyRow]:
    hours = {
        (row["model"], row["precision_fw_bw"]): float(row["latency_hours_zc706"])
        for row in read_table("table2_cifar")
    }
    for (model, cell), value in hours.items():
        bits = BitRange.parse(cell)
        # a cycle against its top held, 6/6 against 8/8
        over = "8/8" if bits.low == bits.high else f"{bits.high}/{bits.backward}"
        if over == cell:
            continue
        now, before = counted[model, cell], counted[model, over]
        yield LatencyRow(
            model=model,
            bits=cell,
            over=over,
            published=value / hours[model, over],
            uniform=now.paper.uniform_traffic / before.paper.uniform_traffic,
            exact=now.exact.traffic / before.exact.traffic,
            single=now.single.traffic / before.single.traffic,
        )


def _ratios() -> Iterator[RatioRow]:
    rows = {(row["model"], row["precision_fw_bw"]): row for row in read_table("table5_language")}
    for (model, cell), row in rows.items():
        bits = BitRange.parse(cell)
        if bits.low == bits.high:
            continue
        static = rows[model, f"{bits.high}/{bits.backward}"]
        preview = parse_schedule(_forward(bits)).preview(STEPS, backward=bits.backward)
        yield RatioRow(
            model=model,
            bits=cell,
            published=float(row["gbitops"]) / float(static["gbitops"]),
            counted=preview.relative_cost,
        )
