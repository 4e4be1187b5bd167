"""The cells of CPT's tables as recipes: a row of a published table is a base recipe with its bits.

>>> cell = next(cells_of("CPT Table 2"))
>>> cell.name, cell.published[0].value
('cifar10-resnet74-dorefa-8-8', 91.16)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from bitcycle_lab.published import Published, read_table, values
from bitcycle_lab.recipes.base import DEFAULTS, Base, Settings, change, find_base
from bitcycle_lab.recipes.notation import Notation

Row = dict[str, str]
EPOCHS = 160  # of a run on CIFAR, as the tables count
SHAPE_LABELS = {"anneal": "cosine annealing"}
METHODS = {"sbm": "static", "cpt": "CPT", "dorefa": "DoReFa", "wageubn": "WAGEUBN"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One result of a published table: a base recipe with other settings.

    label and group: how a study of the table names the method and what it is compared within.
    place: (row, column) of the table.
    """

    base: Base
    suffix: str  # of the recipe's name, after the base's
    config: Settings
    label: str
    group: str
    place: tuple[str, str]
    published: tuple[Published, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return f"{self.base.name}-{self.suffix}"


def cells_of(where: str, *, network: str | None = None, on: str | None = None) -> Iterator[Cell]:
    """The cells of a table, such as "CPT Table 2", in its order.

    network: only those of this base recipe. on: put their bits on another base recipe, for small
    twins of a table, which have no published values.

    >>> twins = cells_of("CPT Table 8", network="cifar100-resnet74", on="digits")
    >>> [cell.name for cell in twins][:3]
    ['digits-static-6-6', 'digits-static-6-8', 'digits-gradcycle-6-6-8']
    """
    file, bases, make, columns = TABLES[where]
    for row in read_table(file):
        for name in bases(row):
            if network not in (None, name):
                continue
            cell = make(row, find_base(on or name))
            dataset = name.partition("-")[0]
            own = [c for c in columns if not c.startswith("cifar") or c.startswith(f"{dataset}_")]
            published = () if on else values(row, where, *own)
            yield replace(cell, published=published, notes=(*cell.base.notes, *cell.notes))


def _cell(base: Base, text: str) -> Cell:
    """A method in the papers' notation, which is also its label."""
    notation = Notation.parse(text)
    network, data = base.shown
    return Cell(
        base=base,
        suffix=notation.name,
        config=notation.change(base.config, cycles=base.cycles),
        label=text,
        group=f"{network}, {data}",
        place=(f"{network}, {text}", data),
    )


def _table1(row: Row, base: Base) -> Cell:
    """The first half at low precision and one learning rate; then float32 at 0.01 and 0.001."""
    bits, rate = row["first_stage_bits"], f"{float(row['first_stage_lr']):g}"
    network, data = base.shown
    label = "float32"
    notes: tuple[str, ...] = ()
    changes: dict[str, Any] = {
        "optimizer.lr": 0.01,
        # the first stage is a warm-up of half of the run, the only one at its own rate
        "lr": {"milestones": [0.75], "warmup": 0.5, "warmup_lr": float(rate)},
    }
    if bits == "fp32":
        changes["precision"] = DEFAULTS
    else:
        label = f"{bits} bits"
        notes = ("the error bits of the first stage are unpublished, 8 here",)
        changes["precision.forward"] = f"stages:{bits}@0.5,fp32"
        changes["precision.backward"] = "stages:8@0.5,fp32"
    return Cell(
        base=base,
        suffix=f"stage1-{bits}-lr{rate}",
        config=change(base.config, changes),
        label=label,
        group=f"{network}, {data}, lr {rate}",
        place=(f"{network}, {label}", f"lr {rate}"),
        notes=notes,
    )


def _table3(row: Row, base: Base) -> Cell:
    """CPT against static bits, with its costs."""
    notes = ("published costs count 1/14 of the samples of 90 epochs",)
    return replace(_by_method(row, base), notes=notes)


def _table4(row: Row, base: Base) -> Cell:
    """CPT between 8 bits and full precision; errors stay float32."""
    return _cell(base, "float32" if row["method"] == "full" else f"CPT {row['precision']}/32")


def _table6(row: Row, base: Base) -> Cell:
    """Cosine cycles against triangles and cosine annealing."""
    shape, bits = row["schedule"], row["precision_fw_bw"]
    cell = _cell(base, f"{'CPT' if shape == 'cosine' else shape} {bits}")
    label = SHAPE_LABELS.get(shape, shape)
    return _within(cell, bits, label, place=(label, f"{base.shown[0]}, {bits}"))


def _table7(row: Row, base: Base) -> Cell:
    """CPT that starts late; the lowest bits until then."""
    bits, epoch = row["precision_fw_bw"], int(row["start_epoch_of_160"])
    cell = _cell(base, f"CPT {bits}")
    place = (f"{base.shown[0]}, {bits}", f"epoch {epoch}")
    cell = _within(cell, bits, f"from epoch {epoch}", place=place)
    if not epoch:
        return cell
    forward = cell.config["precision"]["forward"]
    changes = {"precision.forward": f"delay@{epoch / EPOCHS}({forward})"}
    notes = ["the table's caption says CIFAR-10, its text and values CIFAR-100"]
    if epoch == EPOCHS:
        changes["eval.precision"] = "scheduled"
        notes.append("start160 never cycles: evaluated at the lowest bits, which it trained with")
    suffix = f"{cell.suffix}-start{epoch}"
    config = change(cell.config, changes)
    return replace(cell, suffix=suffix, config=config, notes=tuple(notes))


def _table8(row: Row, base: Base) -> Cell:
    """Forward static at 6, errors static or cycled."""
    forward, backward = row["fw"], row["bw"]
    method = "gradients cycled" if "-" in backward else "static"
    cell = _cell(base, f"{method} {forward}/{backward}")
    return replace(cell, place=(f"forward {forward}", f"backward {backward}"))


def _within(cell: Cell, bits: str, label: str, *, place: tuple[str, str]) -> Cell:
    """A cell that is compared with others of the same bits, and named by what differs."""
    return replace(cell, label=label, group=f"{cell.group}, {bits}", place=place)


def _by_method(row: Row, base: Base) -> Cell:
    """Tables 2, 3, 5 and Fig. 5."""
    return _cell(base, f"{METHODS[row['method']]} {row['precision_fw_bw']}")


def _cifar(row: Row) -> list[str]:
    return [f"{row.get('dataset', 'cifar100')}-{row['model']}"]


def _both_cifars(row: Row) -> list[str]:
    return [f"{dataset}-{row['model']}" for dataset in ("cifar10", "cifar100")]


def _imagenet(row: Row) -> list[str]:
    return [f"imagenet-{row['model']}"]


def _language(row: Row) -> list[str]:
    return ["wikitext103-transformer" if row["model"] == "transformer" else "ptb-lstm"]


# table -> (file, base recipes of a row, cell of a row, columns with published numbers)
TABLES: dict[
    str,
    tuple[str, Callable[[Row], list[str]], Callable[[Row, Base], Cell], tuple[str, ...]],
] = {
    "CPT Table 1": ("table1_lr_vs_precision", _cifar, _table1, ("accuracy",)),
    "CPT Table 2": (
        "table2_cifar",
        _both_cifars,
        _by_method,
        ("cifar10_accuracy", "cifar100_accuracy", "gbitops", "latency_hours_zc706"),
    ),
    "CPT Table 3": ("table3_imagenet", _imagenet, _table3, ("accuracy", "gbitops")),
    "CPT Table 4": ("table4_imagenet_full_precision", _imagenet, _table4, ("accuracy",)),
    "CPT Table 5": ("table5_language", _language, _by_method, ("perplexity", "gbitops")),
    "CPT Table 6": ("table6_schedule_shapes", _cifar, _table6, ("accuracy",)),
    "CPT Table 7": ("table7_delayed_start", _cifar, _table7, ("accuracy",)),
    "CPT Table 8": ("table8_gradient_cycling", _cifar, _table8, ("accuracy",)),
    "CPT Fig. 5": ("figure5_cost", _cifar, _by_method, ("gbitops",)),
}
