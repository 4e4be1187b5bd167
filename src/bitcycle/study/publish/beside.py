"""Our numbers beside the published ones, and what differs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bitcycle.study.numbers import DECIMALS, cost_text, difference_text, fixed, summary_text
from bitcycle.study.publish.counterpart import cycles_apart, training
from bitcycle.study.publish.pairs import Pair
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.summary import GroupSummary, Row
from bitcycle.study.table_text import Table, without_empty_columns

# what tells groups of one network apart
_SPECIAL = re.compile(r", ([AB]: .*|\d+-\d+/\d+|lr [\d.]+|[\d,]+ steps)$")
PUBLISHED = (
    " Published: the same difference in the paper's table, of its network and data, with no n."
)
COSTS = (
    " Ours counts float32 layers as such (exact convention), the paper every layer at the "
    "scheduled bits."
)


def published_change(evidence: Evidence, pair: Pair) -> float | None:
    """The same difference in a paper, where it has both for one network and data."""
    return _change(_cell(evidence, pair.cyclic), _cell(evidence, pair.static))


def change_text(change: float | None) -> str:
    """A published difference; empty for none."""
    return "" if change is None else fixed(change, DECIMALS, sign=True)


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
                    "" if is_base else change_text(_change(cell, base)),
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


def _change(own: Mapping[str, Any] | None, base: Mapping[str, Any] | None) -> float | None:
    if own is None or base is None or own["group"] != base["group"]:
        return None
    return float(own["value"]) - float(base["value"])


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
