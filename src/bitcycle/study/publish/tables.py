"""The tables that only a published page has: verdicts, the same top, what was trained."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from bitcycle.recipes import list_recipes, recipe
from bitcycle.study.headline import verdict
from bitcycle.study.numbers import (
    bitops_text,
    cost_text,
    difference_text,
    p_text,
    share_text,
)
from bitcycle.study.publish.beside import PUBLISHED, change_text, published_change
from bitcycle.study.publish.counterpart import training
from bitcycle.study.publish.cycles import reached
from bitcycle.study.publish.pairs import Pair
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.publish.settings import to_settings
from bitcycle.study.summary import GroupSummary
from bitcycle.study.table_parts import differences_table
from bitcycle.study.table_text import Table, without_empty_columns
from bitcycle.train.config import RunConfig

_IDENTITY = re.compile(r"-[0-9a-f]{10}$")  # that a run's name ends with
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


def top_table(
    evidence: Evidence, pairs: Sequence[Pair], *, title: str = SAME_TOP, caption: str = TOP
) -> Table:
    """Cyclic bits against static ones, by default at the same top."""
    changes = [published_change(evidence, pair) for pair in pairs]
    has_published = any(change is not None for change in changes)
    return without_empty_columns(
        Table(
            name="same-top",
            title=title,
            columns=tuple(
                ("", name)
                for name in ("group", "cyclic", "static", "difference (95 % interval)", "n", "p",
                             "cost", "published", "verdict")
            ),
            rows=tuple(
                (pair.group.group, pair.cyclic.label, pair.static.label,
                 difference_text(pair.difference), str(pair.difference.n),
                 p_text(pair.difference.p), cost_text(pair.cost), change_text(change),
                 pair.words())
                for pair, change in zip(pairs, changes, strict=True)
            ),
            is_number=(False, False, False, True, True, True, True, True, False),
            caption=f"{caption}{PUBLISHED if has_published else ''}{reached_text(pairs)}",
        )
    )  # fmt: skip


def reached_text(pairs: Sequence[Pair]) -> str:
    """Which cycles stay below their upper end, or end there: it is the bits of the evaluation."""
    below: dict[str, None] = {}
    for pair in pairs:
        config = pair.cyclic.method.method.config
        found = reached(config)
        if found is None:
            continue
        top, most, last = found
        who = f"{pair.cyclic.label} in {config.steps} steps"
        if most < top:
            below[f"{who} reaches {most} bits at most"] = None
        elif last < top:
            below[f"{who} ends at {last} bits"] = None
    if not below:
        return ""
    return f" Below the upper end, at which all are evaluated: {'; '.join(below)}."


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
