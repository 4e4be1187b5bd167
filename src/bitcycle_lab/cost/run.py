"""`bitcycle cost`: the cost of a run, of several schedules, or of the CPT paper's networks.

`estimate_cost` builds the model of a `TrainingSpec` without data and counts the run before it.
`compare_schedules` counts several schedules of one model (`--schedules`), and `compare_with_paper`
every published cost (`--paper`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bitcycle.bits import Bits, order
from bitcycle.cost import CONVENTIONS, Cost, count_macs, measure_saved, training_cost
from bitcycle.cost.bitops import LayerSchedules, cost_of_schedules, find_layer_schedules
from bitcycle.model_precision import is_converted, set_precision
from bitcycle.precision import ROLES, Precision
from bitcycle.scheduler import PrecisionScheduler
from bitcycle.schedules import parse_schedule
from bitcycle.tables import text_table
from bitcycle_lab.cost.spec import BATCH_SIZE, STEPS, TrainingSpec
from bitcycle_lab.published import BitRange, read_table
from bitcycle_lab.recipes.base import CPT_CYCLES
from bitcycle_lab.train.config import PrecisionConfig

_GRAPH_NOTE = "aggregation is counted on an example graph of two edges per node"
_TABLES = {  # where -> CSV file, prefix of the model's name, its options
    "Table 2": ("table2_cifar", "", {"num_classes": 100}),
    "Fig. 5": ("figure5_cost", "", {"num_classes": 100}),
    "Table 3": ("table3_imagenet", "imagenet_", {}),
}


def estimate_cost(
    spec: TrainingSpec, *, convention: str = "exact", measures_memory: bool = False
) -> RunCost:
    """Count the cost of a whole run before it."""
    model = spec.build(needs_conversion=CONVENTIONS[convention].needs_conversion)
    roles: dict[str, Any] = spec.precision.schedule_texts()
    cost = training_cost(
        model,
        spec.inputs(model, spec.example_size),
        **roles,
        total_steps=spec.total_steps,
        samples_per_step=spec.batch_size,
        convention=convention,
    )
    saved, kernel = _measure_saved(spec) if measures_memory else (None, None)
    return RunCost(
        spec=spec,
        cost=cost,
        saved_bytes=saved,
        saved_kernel=kernel,
        notes=_notes(spec, convention),
    )


def _notes(spec: TrainingSpec, convention: str) -> tuple[str, ...]:
    return (_GRAPH_NOTE,) if spec.is_graph and convention == "exact" else ()


def _measure_saved(spec: TrainingSpec) -> tuple[int, str | None]:
    """Bytes kept for backward at the tops of the schedules, and the kernel of the measurement.

    Two small batches are measured and extrapolated, since the bytes grow linearly with the samples
    and the whole batch may not fit into memory. "auto" would choose kernels by the shapes of
    these small batches, so simulate replaces it.
    """
    kernel = "simulate" if spec.precision.kernel == "auto" else spec.precision.kernel
    spec = replace(spec, device="cpu", precision=replace(spec.precision, kernel=kernel))
    model = spec.build(needs_conversion=False)
    if is_converted(model):
        roles: dict[str, Any] = spec.precision.schedule_texts()
        scheduler = PrecisionScheduler(model, **roles, total_steps=spec.total_steps)
        set_precision(model, scheduler.top)
    small, large = 2, 4
    if spec.is_graph:
        small, large = 16, 32
    few, more = (
        measure_saved(model, spec.inputs(model, size)).num_bytes for size in (small, large)
    )
    num_bytes = few + (more - few) * (spec.batch_size - small) // (large - small)
    return num_bytes, kernel if is_converted(model) else None


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """The cost of a run before it, and optionally the bytes that a step keeps for backward."""

    spec: TrainingSpec
    cost: Cost
    saved_bytes: int | None  # None if not measured
    saved_kernel: str | None  # the kernel of that measurement; None also for a float model
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types."""
        spec = self.spec
        return {
            "model": spec.model,
            "options": dict(spec.options),
            "batch_size": spec.batch_size,
            "precision": spec.shown_bits(),
            "skip": list(spec.precision.skip),
            **self.cost.to_dict(),
            "saved_bytes": self.saved_bytes,
            "saved_kernel": self.saved_kernel,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return self.text()

    def text(self, *, by_layer: bool = False) -> str:
        """The model and its bits, the cost by stage or by layer, and notes."""
        spec, cost = self.spec, self.cost
        bits = ", ".join(f"{role} {text}" for role, text in spec.shown_bits().items()) or "float32"
        head = f"{spec.model}: {bits}; {spec.batch_size:,} samples a step"
        lines = [head, cost.layer_table() if by_layer else cost.stage_table()]
        if self.saved_bytes is not None:
            by = "" if self.saved_kernel is None else f" with kernel {self.saved_kernel}"
            lines.append(
                f"kept for backward {self.saved_bytes / 2**20:,.1f} MiB a step (measured{by} on "
                "small batches)"
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


# -- bitcycle cost --schedules ---------------------------------------------------------------------


class _TracedModel:
    """A model that is traced once, to count many schedules."""

    def __init__(self, spec: TrainingSpec, *, needs_conversion: bool = True) -> None:
        self.needs_conversion = needs_conversion
        self.model = spec.build(needs_conversion=needs_conversion)
        self.trace = count_macs(self.model, spec.inputs(self.model, spec.example_size))

    def schedules(self, roles: Mapping[str, Any], total_steps: int) -> LayerSchedules:
        return find_layer_schedules(
            self.model, roles, total_steps, needs_conversion=self.needs_conversion
        )


def compare_schedules(
    specs: Sequence[TrainingSpec], *, convention: str = "exact", budget: float | None = None
) -> ScheduleComparison:
    """Count runs of one model that differ in their schedules; the cheapest is the first row.

    Shares are of the reference: the same run at static bits, the highest of all schedules. budget:
    the share that a run may cost. The model is traced once for each quantizer of the specs.
    """
    needs_conversion = CONVENTIONS[convention].needs_conversion
    models: dict[str | None, _TracedModel] = {}
    runs = []
    for spec in specs:
        key = None if spec.precision.is_float else spec.precision.quantizer
        if key not in models:
            models[key] = _TracedModel(spec, needs_conversion=needs_conversion)
        roles = spec.precision.schedule_texts()
        runs.append((models[key].trace, models[key].schedules(roles, spec.total_steps)))
    highest = _highest([top for _, schedules in runs for top in schedules.tops])
    costs = [
        cost_of_schedules(
            trace,
            schedules,
            total_steps=spec.total_steps,
            samples_per_step=spec.batch_size,
            convention=convention,
            baseline=highest,
        )
        for spec, (trace, schedules) in zip(specs, runs, strict=True)
    ]
    # they differ if a quantizer has a rule of its own for attention
    reference = max(sum(layer.bitops for layer in cost.baseline_layers) for cost in costs)
    rows = [_schedule_row(*pair, reference) for pair in zip(specs, costs, strict=True)]
    return ScheduleComparison(
        spec=specs[0],
        convention=convention,
        unit=costs[0].unit,
        reference=f"static {Bits.of(highest.weight)}/{Bits.of(highest.error)}",
        reference_bitops=reference,
        budget=budget,
        rows=tuple(sorted(rows, key=lambda row: row.bitops)),
        uncounted=costs[0].uncounted,
        notes=_notes(specs[0], convention),
    )


def _highest(tops: Sequence[Precision]) -> Precision:
    return Precision(
        **{role: max((getattr(top, role) for top in tops), key=order) for role in ROLES}
    )


def _schedule_row(spec: TrainingSpec, cost: Cost, reference: int) -> ScheduleRow:
    forward = parse_schedule(spec.precision.forward)  # type: ignore[arg-type]
    texts = {role: str(text) for role, text in spec.shown_bits().items() if role != "forward"}
    if texts.keys() <= {"backward"}:
        backward = texts.get("backward", "fp32")
    else:
        backward = ", ".join(f"{role} {text}" for role, text in texts.items())
    return ScheduleRow(
        forward=str(forward),
        backward=backward,
        bitops=cost.bitops,
        share=cost.bitops / reference if reference else 1.0,
        mean_bits=forward.preview(spec.total_steps).mean_bits,
    )


def parse_share(text: str) -> float:
    """Read a share from "70%" or "0.7".

    >>> parse_share("70%"), parse_share("0.7")
    (0.7, 0.7)
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ValueError(f"budget {text!r} must be above 0% and at most 100%, such as 70% or 0.7")
    return share


@dataclass(frozen=True, kw_only=True)
class ScheduleRow:
    """The cost of one schedule."""

    forward: str
    backward: str
    bitops: int
    share: float  # of the reference's BitOPs
    mean_bits: float  # of forward; float32 counts as 32


@dataclass(frozen=True, kw_only=True)
class ScheduleComparison:
    """The costs of several schedules, cheapest first; `str()` is a table."""

    spec: TrainingSpec  # of the first schedule; the others differ in their precision only
    convention: str
    unit: str
    reference: str  # such as "static 8/8"
    reference_bitops: int
    budget: float | None  # as a share of the reference
    rows: tuple[ScheduleRow, ...]
    uncounted: tuple[str, ...]
    notes: tuple[str, ...]

    def is_within(self, row: ScheduleRow) -> bool:
        """Whether a row costs no more than the budget."""
        return self.budget is None or row.share <= self.budget * (1 + 1e-9)  # 56.25% of 56.25%

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types."""
        names = ("convention", "unit", "reference", "reference_bitops", "budget")
        return {
            "model": self.spec.model,
            "options": dict(self.spec.options),
            "total_steps": self.spec.total_steps,
            "batch_size": self.spec.batch_size,
            "skip": list(self.spec.precision.skip),
            **{name: getattr(self, name) for name in names},
            "rows": [{**asdict(row), "within_budget": self.is_within(row)} for row in self.rows],
            "uncounted": list(self.uncounted),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        spec, budget = self.spec, "" if self.budget is None else f"{100 * self.budget:g}%"
        header: tuple[str, ...] = ("schedule", "backward", self.unit, "share", "mean bits")
        rows: list[tuple[str, ...]] = [
            (row.forward, row.backward, f"{row.bitops:.3e}", f"{row.share:.2%}",
             f"{row.mean_bits:.2f}")
            for row in self.rows
        ]  # fmt: skip
        if budget:
            header = (*header, f"within {budget}")
            marks = ["yes" if self.is_within(row) else "no" for row in self.rows]
            rows = [(*cells, mark) for cells, mark in zip(rows, marks, strict=True)]
        lines = [
            f"{spec.model}: {spec.total_steps:,} steps of {spec.batch_size:,} samples, convention "
            f"{self.convention!r}",
            f"share: of {self.reference}, {self.reference_bitops:.3e} {self.unit}",
            text_table(header, rows, right=(2, 3, 4)),
        ]
        cheapest = self.rows[0]
        if not self.is_within(cheapest):
            lines.append(
                f"none is within {budget}; the cheapest, {cheapest.forward} with backward "
                f"{cheapest.backward}, costs {cheapest.share:.2%}"
            )
        if self.uncounted:
            lines += ["not counted:", *(f"  {line}" for line in self.uncounted)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


# -- bitcycle cost --paper ------------------------------------------------------------------------


def compare_with_paper() -> PaperComparison:
    """Trace each network once and count every published cost."""
    counted: dict[tuple[str, str], _NetworkCost] = {}
    costs: list[CostRow] = []
    for where, (table, prefix, options) in _TABLES.items():
        rows = {(row["model"], row["precision_fw_bw"]): row for row in read_table(table)}
        networks: dict[str, _TracedModel] = {}
        for (model, cell), row in rows.items():  # one per bits: methods have the same cost
            if model not in networks:
                networks[model] = _TracedModel(
                    TrainingSpec(
                        model=prefix + model, options=options, precision=PrecisionConfig(forward=8)
                    )
                )
            cost = counted[model, cell] = _count_network(networks[model], BitRange.parse(cell))
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
class _NetworkCost:
    paper: Cost
    exact: Cost
    single: Cost  # exact, at batches of 1


def _count_network(network: _TracedModel, bits: BitRange) -> _NetworkCost:
    roles = {"forward": _forward(bits), "backward": bits.backward}
    schedules = network.schedules(roles, STEPS)
    paper, exact, single = (
        cost_of_schedules(
            network.trace,
            schedules,
            total_steps=STEPS,
            samples_per_step=samples,
            convention=convention,
        )
        for convention, samples in (("paper", BATCH_SIZE), ("exact", BATCH_SIZE), ("exact", 1))
    )
    return _NetworkCost(paper, exact, single)


def _forward(bits: BitRange) -> int | str:
    return bits.high if bits.low == bits.high else f"CR:{bits.low}-{bits.high}:{CPT_CYCLES}"


def _latencies(counted: dict[tuple[str, str], _NetworkCost]) -> Iterator[LatencyRow]:
    hours = {
        (row["model"], row["precision_fw_bw"]): float(row["latency_hours_zc706"])
        for row in read_table("table2_cifar")
    }
    for (model, cell), value in hours.items():
        bits = BitRange.parse(cell)
        # cycles against static bits at their top, 6/6 against 8/8
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
        assert preview.relative_cost is not None
        yield RatioRow(
            model=model,
            bits=cell,
            published=float(row["gbitops"]) / float(static["gbitops"]),
            counted=preview.relative_cost,
        )


@dataclass(frozen=True, kw_only=True)
class PaperComparison:
    """The published costs and ours; `str()` is what `bitcycle cost --paper` prints."""

    costs: tuple[CostRow, ...]
    latencies: tuple[LatencyRow, ...]
    ratios: tuple[RatioRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types."""
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


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """A published cost in GBitOPs, and ours by the convention 'paper'."""

    where: str
    model: str
    bits: str
    published: float
    counted: float
    saving: float  # of BitOPs, against static bits at the same top
    exact: float  # GBitOPs by the convention 'exact', same steps and samples

    @property
    def deviation(self) -> float:
        """counted / published - 1."""
        return self.counted / self.published - 1


@dataclass(frozen=True, kw_only=True)
class LatencyRow:
    """A published latency relative to its baseline, and the same ratio of operand traffic."""

    model: str
    bits: str
    over: str
    published: float
    uniform: float
    exact: float  # at batches of 128
    single: float  # at batches of 1


@dataclass(frozen=True, kw_only=True)
class RatioRow:
    """A published cost relative to its static baseline, if the absolute ones cannot be derived."""

    model: str
    bits: str
    published: float
    counted: float
