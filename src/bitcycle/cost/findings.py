"""What the CPT paper's tables report for or against a schedule.

`bitcycle plan` shows these findings next to the cost of a schedule and orders schedules by them
(`rank`). Every number is computed from the tables in `bitcycle.published`. A schedule that no table
reports has no finding. A finding can also come from a user's own runs (`bitcycle.analysis.plan`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Literal, NamedTuple

from bitcycle.formats.catalogue import Format
from bitcycle.published import display_name, read_table
from bitcycle.schedules import Anneal, Cycle, Delay, Schedule, Stages, Static, Triangle
from bitcycle.schedules.base import bits_text

Stance = Literal["for", "against", "mixed"]
Unit = Literal["%", "ppl"]
UNITS: dict[str, Unit] = {"accuracy": "%", "perplexity": "ppl"}  # of a metric
MOST = 0.75  # of the cells of a table
OWN_GAIN, GAIN, GAIN_ELSEWHERE, OPEN, BEHIND = range(5)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One result: whether it speaks for the schedule, what it says, and its table.

    difference: the lowest and the highest difference to the schedule that it is compared with
    (`against`), in points of accuracy or in perplexity; num_better of num_cells are better.
    is_same_bits: measured at the bits of this schedule. is_own: of the user's runs, not published.
    """

    stance: Stance
    text: str
    source: str
    difference: tuple[float, float]
    against: str
    num_better: int
    num_cells: int
    unit: Unit = "%"
    is_same_bits: bool = True
    is_forward: bool = True
    is_own: bool = False

    @property
    def difference_text(self) -> str:
        """The range of differences; in brackets if measured at other bits."""
        low, high = (f"{number:+.2f}" for number in self.difference)
        text = low if low == high else f"{low} to {high}"
        text += " ppl" if self.unit == "ppl" else ""
        return text if self.is_same_bits else f"({text})"


def rank(findings: Iterable[Finding]) -> int:
    """The place of a schedule with these findings: OWN_GAIN, ..., OPEN or BEHIND.

    OWN_GAIN: better in own runs. GAIN: better in every cell of a table at the same bits.
    GAIN_ELSEWHERE: better in three quarters of the cells, perhaps at other bits. BEHIND: a finding
    speaks against it. Own runs count more than tables, unless they leave it open.
    """
    forward = [finding for finding in findings if finding.is_forward]
    decisive = [f for f in forward if f.is_own and f.stance != "mixed"] or forward
    if any(finding.stance == "against" for finding in decisive):
        return BEHIND
    if any(finding.is_own and finding.stance == "for" for finding in decisive):
        return OWN_GAIN
    if any(finding.stance == "for" and finding.is_same_bits for finding in decisive):
        return GAIN
    is_mostly_better = any(f.num_better >= MOST * f.num_cells for f in decisive if not f.is_own)
    return GAIN_ELSEWHERE if is_mostly_better else OPEN


def find_findings(
    forward: Schedule, backward: Schedule, metric: str | None = None
) -> tuple[Finding, ...]:
    """What the tables report about a forward schedule, and about a schedule of the errors.

    Errors are the gradients with respect to a layer's output. A table's values are quoted if they
    are at the same bits; otherwise the finding summarizes those at other bits. metric: accuracy or
    perplexity; forward schedules are then compared by the tables with that metric only.

    >>> [finding.source for finding in find_findings(Cycle(3, 8, 32), Static(8))]
    ['CPT Table 2']
    >>> find_findings(Cycle(3, 8, 32, profile="rex"), Static(8))
    ()
    """
    if any(isinstance(bits, Format) for bits in (forward.low, forward.high)):
        return ()  # the tables have integers only
    found: list[Finding] = []
    unit = UNITS.get(metric or "")
    error = bits_text(backward.bits) if isinstance(backward, Static) else str(backward)
    bits = f"{forward.low}-{forward.high}/{error}"
    if isinstance(forward, Static):
        found += _static_findings(f"{bits_text(forward.bits)}/{error}", unit)
    elif _is_cosine(forward):
        pairs = [pair for pair in _with_unit(cycled_pairs(), unit) if pair.bits == bits]
        static = f"static {bits_text(forward.high)}/{error}"
        what = f"CR at {bits}, 32 cycles,"
        found.append(_quote(pairs, what, static) if pairs else _cycles_at_other_bits(unit))
    elif unit == "ppl":
        pass  # the tables of the other schedules have accuracies only
    elif isinstance(forward, Delay) and _is_cosine(forward.schedule):
        pairs = [pair for pair in delayed_pairs(forward.start) if pair.bits == bits]
        what = f"CR at {bits}, started at {forward.start:g} of the run,"
        found.append(_quote(pairs, what, "CR from the start") if pairs else _delays_at_other_bits())
    elif isinstance(forward, Stages):
        found.append(_stages())
    elif isinstance(forward, Triangle | Anneal):
        found.append(_shape(forward.head, bits))
    if isinstance(backward, Cycle):
        found.append(_cycled_errors())
    return tuple(found)


def _is_cosine(schedule: Schedule) -> bool:
    return isinstance(schedule, Cycle) and schedule.head == "CR"


# -- the tables -----------------------------------------------------------------------------------


class PublishedPair(NamedTuple):
    """A published value and its baseline: accuracy in %, or perplexity."""

    source: str
    model: str
    data: str
    bits: str
    value: float
    baseline: float
    unit: Unit = "%"

    @property
    def is_better(self) -> bool:
        """Whether the value beats the baseline: more accuracy, less perplexity."""
        return self.value < self.baseline if self.unit == "ppl" else self.value > self.baseline

    @property
    def difference(self) -> float:
        """The value minus the baseline."""
        return self.value - self.baseline


@cache
def _read_values() -> dict[tuple[str, str, str, Unit], dict[str, float]]:
    """Tables 2 to 5: (source, model, data, unit) -> value by bits, of CPT and of static bits."""
    values: dict[tuple[str, str, str, Unit], dict[str, float]] = {}

    def add(source: str, row: dict[str, str], data: str, column: str, unit: Unit = "%") -> None:
        if row["method"] in ("cpt", "sbm", "full"):
            bits = row.get("precision_fw_bw") or f"{row['precision']}/fp32"  # Table 4
            key = source, display_name(row["model"]), display_name(data), unit
            values.setdefault(key, {})[bits] = float(row[column])

    for row in read_table("table2_cifar"):
        add("CPT Table 2", row, "cifar10", "cifar10_accuracy")
        add("CPT Table 2", row, "cifar100", "cifar100_accuracy")
    for row in read_table("table3_imagenet"):
        add("CPT Table 3", row, "imagenet", "accuracy")
    for row in read_table("table4_imagenet_full_precision"):
        add("CPT Table 4", row, "imagenet", "accuracy")
    for row in read_table("table5_language"):
        add("CPT Table 5", row, row["dataset"], "perplexity", "ppl")
    return values


@cache
def cycled_pairs() -> tuple[PublishedPair, ...]:
    """Tables 2 to 5: cosine cycles, N = 32, over static bits at the same top."""
    return tuple(
        PublishedPair(source, model, data, bits, value, by_bits[bits.partition("-")[2]], unit)
        for (source, model, data, unit), by_bits in _read_values().items()
        for bits, value in by_bits.items()
        if "-" in bits
    )


@cache
def static_pairs() -> tuple[PublishedPair, ...]:
    """Tables 2, 3 and 5: static bits over static 8/8."""
    return tuple(
        PublishedPair(source, model, data, bits, value, by_bits["8/8"], unit)
        for (source, model, data, unit), by_bits in _read_values().items()
        for bits, value in by_bits.items()
        if "8/8" in by_bits and bits != "8/8" and "-" not in bits
    )


@cache
def delayed_pairs(start: float) -> tuple[PublishedPair, ...]:
    """Table 7: cosine cycles from `start` of the run on over the same cycles from step 0 on.

    Before the start the bits are at the lowest; start = 1.0 leaves them there.
    """
    by_start: dict[float, dict[tuple[str, str], float]] = {}
    for row in read_table("table7_delayed_start"):
        values = by_start.setdefault(int(row["start_epoch_of_160"]) / 160, {})
        values[row["model"], row["precision_fw_bw"]] = float(row["accuracy"])
    if start == 0:
        return ()
    return tuple(
        PublishedPair("CPT Table 7", display_name(model), display_name("cifar100"), bits,
                      value, by_start[0][model, bits])
        for (model, bits), value in by_start.get(start, {}).items()
    )  # fmt: skip


# -- the findings ---------------------------------------------------------------------------------


def _with_unit(pairs: Iterable[PublishedPair], unit: Unit | None) -> list[PublishedPair]:
    return [pair for pair in pairs if unit in (None, pair.unit)]


def _stance(is_better: Sequence[bool]) -> Stance:
    """For: better in every cell of the table. Against: better in fewer than half of them."""
    if all(is_better):
        return "for"
    return "against" if 2 * sum(is_better) < len(is_better) else "mixed"


def _finding(
    pairs: Sequence[PublishedPair], text: str, source: str, against: str, **more: bool
) -> Finding:
    """A finding with the stance and the differences of these pairs, points before perplexity."""
    is_better = [pair.is_better for pair in pairs]
    unit: Unit = "%" if any(pair.unit == "%" for pair in pairs) else "ppl"
    differences = [pair.difference for pair in pairs if pair.unit == unit]
    return Finding(
        stance=_stance(is_better),
        text=text,
        source=source,
        difference=(round(min(differences), 2), round(max(differences), 2)),
        against=against,
        num_better=sum(is_better),
        num_cells=len(is_better),
        unit=unit,
        **more,
    )


def _tables(pairs: Sequence[PublishedPair]) -> str:
    """`CPT Table 2`, `CPT Tables 2 and 3`, `CPT Tables 2, 3 and 5` or `CPT Tables 2 to 5`."""
    numbers = list(dict.fromkeys(int(pair.source.removeprefix("CPT Table ")) for pair in pairs))
    *first, last = numbers
    if not first:
        return f"CPT Table {last}"
    if len(first) > 1 and numbers == list(range(first[0], last + 1)):
        return f"CPT Tables {first[0]} to {last}"
    return f"CPT Tables {', '.join(map(str, first))} and {last}"


def _quote(pairs: Sequence[PublishedPair], what: str, against: str) -> Finding:
    """One sentence: what is compared with what, and both values of every pair."""
    models = [
        f"{model} "
        + ", ".join(f"{p.value:.2f} / {p.baseline:.2f} {p.unit} ({p.data})" for p in group)
        for model, group in groupby(pairs, key=lambda pair: pair.model)
    ]
    source = _tables(pairs)
    return _finding(pairs, f"{what} against {against}: {'; '.join(models)}", source, against)


def _static_findings(bits: str, unit: Unit | None) -> list[Finding]:
    pairs = [pair for pair in _with_unit(static_pairs(), unit) if pair.bits == bits]
    found = [_quote(pairs, f"static {bits}", "static 8/8")] if pairs else []
    # cycles that never start are static at their lowest bits
    delayed = _with_unit(delayed_pairs(1.0), unit)
    never = [pair for pair in delayed if f"{pair.bits[0]}/{pair.bits[-1]}" == bits]
    if never:
        found.append(_quote(never, f"static {bits}", f"CR at {never[0].bits}"))
    return found


@cache
def _cycles_at_other_bits(unit: Unit | None) -> Finding:
    pairs = _with_unit(cycled_pairs(), unit)
    return _finding(
        pairs,
        "CR, 32 cycles, at other bits: better than static bits at the same top in "
        f"{sum(pair.is_better for pair in pairs)} of {len(pairs)} cells",
        _tables(pairs),
        "static bits at the same top",
        is_same_bits=False,
    )


@cache
def _delays_at_other_bits() -> Finding:
    epochs = {int(row["start_epoch_of_160"]) for row in read_table("table7_delayed_start")}
    pairs = [pair for epoch in epochs - {0, 160} for pair in delayed_pairs(epoch / 160)]
    losses = [-pair.difference for pair in pairs]
    assert min(losses) > 0  # the text says so
    return _finding(
        pairs,
        "cycles that start late, at other bits: behind those that start at once in all "
        f"{len(pairs)} cells, by {min(losses):.2f} to {max(losses):.2f} points (ResNet-38 and -74, "
        "CIFAR-100)",
        "CPT Table 7",
        "CR from the start",
        is_same_bits=False,
    )


def _cells(table: str, rows: Iterable[tuple[str, str, float, float]]) -> list[PublishedPair]:
    """Pairs of CIFAR-100 accuracies: (model, bits, value, baseline)."""
    data = display_name("cifar100")
    return [
        PublishedPair(table, display_name(model), data, bits, value, baseline)
        for model, bits, value, baseline in rows
    ]


@cache
def _shape(shape: str, bits: str) -> Finding:
    """Table 6: the triangle, or annealing, against cosine cycles."""
    accuracy = {
        (row["schedule"], row["model"], row["precision_fw_bw"]): float(row["accuracy"])
        for row in read_table("table6_schedule_shapes")
    }
    pairs = _cells(
        "CPT Table 6",
        [
            (model, cell, value, accuracy["cosine", model, cell])
            for (name, model, cell), value in accuracy.items()
            if name == shape
        ],
    )
    name = {"triangle": "the triangle", "anneal": "cosine annealing"}[shape]
    own = [pair for pair in pairs if pair.bits == bits]
    if own:
        return _quote(own, f"{name} at {bits}", "CR")
    return _finding(
        pairs,
        f"{name}, at other bits, against the cosine cycle CR, CIFAR-100, ResNet-74 and -164 "
        "(3-8/8, 3-6/6), MobileNetV2 (4-8/8, 4-6/6): ahead in "
        f"{sum(pair.is_better for pair in pairs)} of {len(pairs)} cells",
        "CPT Table 6",
        "CR",
        is_same_bits=False,
    )


@cache
def _stages() -> Finding:
    """Table 1: low precision first, then float32, at several learning rates."""
    accuracy = {
        (row["model"], row["first_stage_lr"], row["first_stage_bits"]): float(row["accuracy"])
        for row in read_table("table1_lr_vs_precision")
    }

    def pairs_at(lr: str) -> list[PublishedPair]:
        return _cells(
            "CPT Table 1",
            [
                (model, bits, value, accuracy[model, rate, "fp32"])
                for (model, rate, bits), value in accuracy.items()
                if rate == lr and bits != "fp32"
            ],
        )

    large, small = pairs_at("0.1"), pairs_at("0.01")
    return _finding(
        large + small,
        "4, 6 or 8 bits for the first half, then float32, against float32 throughout "
        "(ResNet-38 and -74, CIFAR-100; error bits unpublished): behind in "
        f"{sum(not pair.is_better for pair in large)} of {len(large)} cells when the first half "
        f"has learning rate 0.1, ahead in {sum(pair.is_better for pair in small)} of {len(small)} "
        "when it has 0.01",
        "CPT Table 1",
        "float32",
        is_same_bits=False,
    )


@cache
def _cycled_errors() -> Finding:
    """Table 8: the bits of the errors cycle instead of the forward ones."""
    accuracy = {row["bw"]: float(row["accuracy"]) for row in read_table("table8_gradient_cycling")}
    cycled = [value for bits, value in accuracy.items() if "-" in bits]
    return _finding(
        _cells("CPT Table 8", [("resnet74", "6", value, accuracy["8"]) for value in cycled]),
        "cycled error bits, forward static 6 (ResNet-74, CIFAR-100): "
        f"{min(cycled):.2f} to {max(cycled):.2f} % with errors cycled from 6 to 8, 10, 12 or 16, "
        f"against {accuracy['6']:.2f} % at static 6/6 and {accuracy['8']:.2f} % at static 6/8",
        "CPT Table 8",
        "static 6/8",
        is_forward=False,
    )
