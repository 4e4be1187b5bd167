"""What a measurement found: a row per workload and variant, as a table and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bitcycle.bench.processor import Processor
from bitcycle.bench.timing import Timing
from bitcycle.tables import text_table


@dataclass(frozen=True, kw_only=True)
class Row:
    """One workload by one variant; without seconds, the notes say why it was not measured."""

    workload: str
    kernel: str
    bits: str = ""
    seconds: tuple[float, ...] = ()
    is_once: bool = False
    base: float | None = None  # fastest seconds of float32 in the same rounds
    saved_bytes: int | None = None
    layers: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # kernel, and why
    notes: tuple[str, ...] = ()

    @property
    def timing(self) -> Timing | None:
        """Minimum and lower quartile."""
        return Timing(self.seconds, self.is_once) if self.seconds else None

    @property
    def ratio(self) -> float | None:
        """Fastest step over the fastest of float32; below 1 is faster."""
        return self.timing.fastest / self.base if self.timing and self.base else None

    def products(self) -> str:
        """How many products each kernel forms, three per layer.

        >>> layers = {"a": ("int8/bf16/int8", "asked for"), "b": ("int8", "asked for")}
        >>> Row(workload="w", kernel="int8", layers=layers).products()
        'int8 5, bf16 1'
        """
        counts: Counter[str] = Counter()
        for kernel, _ in self.layers.values():
            parts = kernel.split("/")
            counts.update(parts * (3 // len(parts)))
        return ", ".join(f"{name} {count}" for name, count in counts.most_common())

    def cells(self) -> tuple[str, ...]:
        """Of the table, but for the workload; the row must have been measured."""
        name = (self.kernel, self.bits or "-")
        timing, ratio = self.timing, self.ratio
        assert timing is not None
        mark = "once" if timing.is_once else f"{1e3 * timing.lower_quartile:.1f}"
        saved = "-" if self.saved_bytes is None else f"{self.saved_bytes / 1e6:.1f}"
        shown = "-" if ratio is None else f"{ratio:.2f}"
        return (*name, f"{1e3 * timing.fastest:.1f}", mark, shown, saved, self.products() or "-")


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """All rows, the machine, and what the workloads are; `str()` is the page for a terminal."""

    processor: Processor
    sizes: Mapping[str, str]  # workload -> what it is
    rows: tuple[Row, ...]
    repeats: int
    is_quick: bool = False
    budget: float | None = None  # seconds that a variant had per workload
    seconds: float | None = None  # wall-clock of all of it

    def find(self, workload: str, kernel: str, bits: str = "") -> Row:
        """The row of a variant."""
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
        """What the columns and the workloads mean, and what else there is to say."""
        lines = [
            f"ms        a step: forward, backward, SGD; the fastest of {self.repeats}, variants in "
            "turn",
            "quartile  of the same times; far above ms: a busy machine. once: too slow to repeat",
            "ratio     ms / float32's ms, in the same rounds; below 1 is faster",
            "kept      10^6 bytes that the forward pass keeps for the backward pass",
            "products  three per converted layer: output, grad_input, grad_weight. int8 forms in "
            "float32\n          what is not exact in integers, or has scales on the summed axis",
            "",
            *(f"{name}: {size}" for name, size in self.sizes.items()),
        ]
        notes = dict.fromkeys(note for row in self.rows for note in row.notes)
        lines += ["", *notes] if notes else []
        if self.is_quick:
            lines += ["", "--quick: sizes too small to tell what is fast; a check that all works"]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; derived figures are in it for those who read it."""
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
        """What `to_dict` wrote, also after a way through JSON."""
        return cls(
            processor=Processor(**data["processor"]),
            sizes=dict(data["sizes"]),
            rows=tuple(_read_row(row) for row in data["rows"]),
            repeats=data["repeats"],
            is_quick=data["is_quick"],
            budget=data.get("budget"),
            seconds=data.get("seconds"),
        )


def _read_row(data: Mapping[str, Any]) -> Row:
    derived = ("ratio", "fastest", "lower_quartile")
    fields = {name: value for name, value in data.items() if name not in derived}
    return Row(
        **{
            **fields,
            "seconds": tuple(data["seconds"]),
            "layers": {name: (kernel, why) for name, (kernel, why) in data["layers"].items()},
            "notes": tuple(data["notes"]),
        }
    )
