"""The CPT paper's published costs, and the same counted here: `bitcycle cost --paper`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bitcycle.cost import Cost
from bitcycle.cost.bitops import cost_of_schedules
from bitcycle.schedules import parse_schedule
from bitcycle.tables import text_table
from bitcycle_lab.cost.schedules import TracedModel
from bitcycle_lab.cost.spec import BATCH_SIZE, STEPS, TrainingSpec
from bitcycle_lab.published import BitRange, read_table
from bitcycle_lab.train.config import PrecisionConfig

CYCLES = 32  # the precision cycles of a run, N in the paper
_TABLES = {  # where -> CSV file, prefix of the model's name, its options
    "Table 2": ("table2_cifar", "", {"num_classes": 100}),
    "Fig. 5": ("figure5_cost", "", {"num_classes": 100}),
    "Table 3": ("table3_imagenet", "imagenet_", {}),
}


def compare_with_paper() -> PaperComparison:
    """Trace each network once and count every published cost."""
    counted: dict[tuple[str, str], _NetworkCost] = {}
    costs: list[CostRow] = []
    for where, (table, prefix, options) in _TABLES.items():
        rows = {(row["model"], row["precision_fw_bw"]): row for row in read_table(table)}
        networks: dict[str, TracedModel] = {}
        for (model, cell), row in rows.items():  # one per bits: methods have the same cost
            if model not in networks:
                networks[model] = TracedModel(
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


def _count_network(network: TracedModel, bits: BitRange) -> _NetworkCost:
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
    return bits.high if bits.low == bits.high else f"CR:{bits.low}-{bits.high}:{CYCLES}"


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
