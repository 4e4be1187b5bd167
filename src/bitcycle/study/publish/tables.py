"""The tables that only a published page has: verdicts, the same top, the published values."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bitcycle.recipes import list_recipes, recipe
from bitcycle.study.headline import verdict
from bitcycle.study.numbers import (
    DECIMALS,
    bitops_text,
    cost_text,
    difference_text,
    fixed,
    p_text,
    share_text,
    summary_text,
)
from bitcycle.study.publish.counterpart import cycles_apart, training
from bitcycle.study.publish.pairs import Pair
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.publish.settings import to_settings
from bitcycle.study.summary import GroupSummary, Row
from bitcycle.study.table_parts import differences_table
from bitcycle.study.table_text import Table, without_empty_columns
from bitcycle.train.config import RunConfig

_IDENTITY = re.compile(r"-[0-9a-f]{10}$")  # that a run's name ends with
# what tells groups of one network apart
_SPECIAL = re.compile(r", ([AB]: .*|\d+-\d+/\d+|lr [\d.]+|[\d,]+ steps)$")
SAME_TOP = "Cyclic against static bits at the same top"
NO_DEARER = "Cyclic against the best static bits that cost no more"
TOP = (
    "Each cyclic schedule against static bits at its upper end: the same network, data, length and "
    "quantizer. Difference: paired over common seeds, with its 95 % interval; n pairs; p: of the "
    "paired t-test, not corrected for the number of rows. Cost: training BitOPs, exact convention, "
    "the static one's = 1."
)
BUDGET = (
    "The static bits with the best mean among those of the same quantizer that cost no more than "
    "the cyclic schedule; chosen among several, that one is on the lucky side. Cost: of the cyclic "
    "one, the static one's = 1."
)

COSTS = (
    " Ours counts float32 layers as such (exact convention), the paper every layer at the "
    "scheduled bits."
)


def with_verdicts(groups: Sequence[GroupSummary]) -> Table:
    """The differences with a last column that says in words what each is."""
    table = differences_table(groups)
    words = [
        verdict(group, row) if row.difference is not None else "nothing to compare"
        for group in groups
        if group.baseline_row is not None
        for row in group.rows
        if row is not group.baseline_row
    ]
    return replace(
        table,
        columns=(*table.columns, ("", "verdict")),
        rows=tuple((*row, word) for row, word in zip(table.rows, words, strict=True)),
        is_number=(*table.is_number, False),
    )


def top_table(pairs: Sequence[Pair], *, title: str = SAME_TOP, caption: str = TOP) -> Table:
    """Cyclic bits against static ones, by default at the same top."""
    return without_empty_columns(
        Table(
            name="same-top",
            title=title,
            columns=tuple(
                ("", name)
                for name in ("group", "cyclic", "static", "difference (95 % interval)", "n", "p",
                             "cost", "verdict")
            ),
            rows=tuple(
                (pair.group.group, pair.cyclic.label, pair.static.label,
                 difference_text(pair.difference), str(pair.difference.n),
                 p_text(pair.difference.p), cost_text(pair.cost), pair.words())
                for pair in pairs
            ),
            is_number=(False, False, False, True, True, True, True, False),
            caption=caption,
        )
    )  # fmt: skip


def published_table(evidence: Evidence, groups: Sequence[GroupSummary]) -> Table:
    """Ours beside the published value of the same bits, and both differences to the baseline."""
    rows = []
    for group in groups:
        base = _cell(evidence, group.baseline_row)
        for row in group.rows:
            cell = _cell(evidence, row)
            if cell is None:
                continue
            is_base = row is group.baseline_row
            rows.append(
                (
                    group.group,
                    row.label,
                    summary_text(row.summary),
                    str(row.summary.n) if row.summary else "0",
                    fixed(cell["value"], DECIMALS),
                    difference_text(row.difference) if row.difference else "",
                    "" if is_base else _published_difference(cell, base),
                    cost_text(row.relative_cost) if row.relative_cost is not None else "",
                    _published_cost(cell, base),
                    f"{cell['where']}, {cell['group']}",
                )
            )
    return without_empty_columns(
        Table(
            name="published",
            title="Beside the published values",
            columns=(
                ("", "group"), ("", "method"), ("", "ours"), ("", "n"), ("", "published"),
                ("difference to the baseline", "ours"), ("difference to the baseline", "published"),
                ("cost", "ours"), ("cost", "published"), ("", "published for"),
            ),
            rows=tuple(rows),
            is_number=(False, False, *[True] * 7, False),
            caption=what_differs(evidence, has_costs=any(row[8] for row in rows)) if rows else "",
        )
    )  # fmt: skip


def _cell(evidence: Evidence, row: Row | None) -> Mapping[str, Any] | None:
    return None if row is None else evidence.published.get(row.method.method.key)


def _published_difference(cell: Mapping[str, Any], base: Mapping[str, Any] | None) -> str:
    if base is None or base["group"] != cell["group"]:
        return ""
    return fixed(cell["value"] - base["value"], DECIMALS, sign=True)


def _published_cost(cell: Mapping[str, Any], base: Mapping[str, Any] | None) -> str:
    if base is None or base["group"] != cell["group"] or not base["cost"] or not cell["cost"]:
        return ""
    return cost_text(cell["cost"] / base["cost"])


def what_differs(evidence: Evidence, *, has_costs: bool) -> str:
    """Network, data, length and cycles of both sides; what the papers leave out."""
    configs = {row.method.key: row.method.config for row in evidence.result.methods}
    twins: dict[str, dict[str, list[str]]] = {}  # published -> ours -> its lengths
    for key, cell in evidence.published.items():
        config = configs[key]
        group = next(m.method.group for m in evidence.result.methods if m.method.key == key)
        ours = _SPECIAL.sub("", group) or config.model.name
        lengths = twins.setdefault(f"{cell['group']}, {cell['training']}", {}).setdefault(ours, [])
        if training(config) not in lengths:
            lengths.append(training(config))
    said: dict[str, None] = {}
    for theirs, networks in twins.items():
        for network, lengths in networks.items():
            ours = f"{network}, {' or '.join(lengths)}"
            is_same = ours == theirs
            text = (
                f"ours and published: {ours}"
                if is_same
                else f"ours is {ours}; published is {theirs}"
            )
            said[text] = None
    for own, published in cycles_apart(evidence.study):
        cycles = "1 cycle" if own == 1 else f"{own} cycles"
        said[f"where ours has {cycles} the paper has {published}"] = None
    text = " ".join(f"{part[:1].upper()}{part[1:]}." for part in said)
    return (
        f"What differs: {text}{COSTS if has_costs else ''} Published numbers have no spread and no "
        "n. Where the set-ups differ, compare differences and relative costs, not values."
    )


def methods_table(evidence: Evidence) -> Table:
    """What each method is: its bits, its rules, its cost next to float32, its runs."""
    rows = []
    recipes = {info.name for info in list_recipes()}
    for row in evidence.result.methods:
        config = row.method.config
        precision = config.precision
        done = list(row.results.values())
        shares = [run.cost["relative_to_float32"] for run in done]
        kernels = sorted({name for run in done for name in run.kernels.values()})
        is_float = precision.is_float
        rows.append(
            (
                row.method.group,
                row.method.label,
                "float32" if is_float else str(precision.forward),
                "float32" if is_float else str(precision.backward),
                "" if is_float else precision.quantizer,
                ", ".join(kernels),
                ", ".join(dict.fromkeys(run.eval_precision for run in done)),
                training(config),
                "" if row.bitops is None else bitops_text(row.bitops).removesuffix("BitOPs"),
                share_text(sum(shares) / len(shares)) if shares and any(shares) else "",
                evidence.ids[row.method.key],
                _recipe(config, recipes),
            )
        )
    names = ("group", "method", "forward", "backward", "quantizer", "kernel", "evaluated at",
             "training", "BitOPs", "of float32", "identity", "recipe")  # fmt: skip
    return without_empty_columns(
        Table(
            name="methods",
            title="What was trained",
            columns=tuple(("", name) for name in names),
            rows=tuple(rows),
            is_number=tuple(name in ("BitOPs", "of float32") for name in names),
            caption="Identity: a hash of all settings; the folder of a run ends with it and the "
            "seed. BitOPs: of one run, counted during training.",
        )
    )


def _recipe(config: RunConfig, known: Collection[str]) -> str:
    """Its name, where all settings are the recipe's but threads and folders; else empty."""
    name = _IDENTITY.sub("", config.name)
    if name not in known:
        return ""
    own, theirs = ({**to_settings(c), "name": "", "threads": None} for c in (config, recipe(name)))
    return name if own == theirs else ""
