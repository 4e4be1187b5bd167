"""Tables of the data files: those of a study are the library's, a measurement has one of ratios."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from bitcycle.tables import Table, markdown_rows, without_empty_columns
from bitcycle_lab.study.number_text import fixed
from bitcycle_lab.study.statistics import Summary, summarize_values
from bitcycle_lab.study.tables import study_tables
from tools.results.study_data import Data, restore

BASE, FLOAT = "static 8/8", "float32"
PROCESSORS = {"avx512_vnni": "AVX-512 VNNI", "avx2": "AVX2", "portable": "portable C++"}
Options = Mapping[str, Sequence[str]]
Ratios = dict[str, dict[str, Summary]]  # by column and row of a table


def make_table(data: Data, kind: str, options: Options) -> str:
    """A Markdown table.

    kind: of a study one of `bitcycle_lab.study.tables`, such as values or differences; "ratios" of
    a measurement. options: `against` is the method that a study is compared with, `column` a column
    of ratios; the others are headings, and only the rows with one of their values are shown.
    """
    filters = dict(options)
    if data["kind"] == "study":
        against = filters.pop("against", [])
        if len(against) > 1:
            raise ValueError(f"a study is compared with one method, not {', '.join(against)}")
        tables = study_tables(restore(data, *against))
        known = {table.name.removeprefix(f"{data['name']}-"): table for table in tables}
    else:
        known = {"ratios": ratios_table(ratios_of(data, filters.pop("column", ())))}
    if kind not in known:
        raise ValueError(f"there is no table {kind!r}; known: {', '.join(known)}")
    return markdown_rows(choose_rows(known[kind], filters))


def choose_rows(table: Table, filters: Options) -> Table:
    """The rows whose cells are among the given ones; a group that all rows share is left out."""
    rows = table.rows
    for heading, values in filters.items():
        if heading not in table.headings:
            raise ValueError(f"no column {heading!r}; known: {', '.join(table.headings)}")
        place = table.headings.index(heading)
        if missing := sorted(set(values) - {row[place] for row in rows}):
            raise ValueError(f"no row with {heading} {missing[0]!r}")
        rows = tuple(row for row in rows if row[place] in values)
    if table.headings[0] == "group" and len({row[0] for row in rows}) == 1:
        rows = tuple(("", *row[1:]) for row in rows)
    return without_empty_columns(replace(table, rows=rows))


# -- measurements ---------------------------------------------------------------------------------


def ratios_of(data: Data, columns: Sequence[str] = ()) -> Ratios:
    """The ratios of a measurement: to float32, or to static 8/8 for whole runs. columns: or all."""
    if data["kind"] not in MEASUREMENTS:
        raise ValueError(f"there are no ratios of {data['kind']}; known: {', '.join(MEASUREMENTS)}")
    found: Ratios = {}
    for column, row, values in MEASUREMENTS[data["kind"]](data):
        found.setdefault(column, {})[row] = summarize_values(values)
    if missing := sorted(set(columns) - set(found)):
        raise ValueError(f"no column {missing[0]!r}; known: {', '.join(found)}")
    return {column: found[column] for column in columns or found}


def ratios_table(ratios: Ratios) -> Table:
    """A row per network; a ratio over several rounds has its interval."""
    rows = list(dict.fromkeys(row for column in ratios.values() for row in column))
    cells = [[_text(column.get(row)) for column in ratios.values()] for row in rows]
    return Table(
        name="ratios",
        title="",
        columns=(("", "network"), *(("", column) for column in ratios)),
        rows=tuple((row, *own) for row, own in zip(rows, cells, strict=True)),
        is_number=(False, *(True for _ in ratios)),
    )


def _text(ratio: Summary | None) -> str:
    if ratio is None:
        return ""
    if ratio.low is None or ratio.high is None:
        return fixed(ratio.mean, 2)
    return f"{fixed(ratio.mean, 2)} ({fixed(ratio.low, 2)} to {fixed(ratio.high, 2)})"


def _speed(data: Data) -> Iterator[Measured]:
    """The fastest step over the fastest of float32, by kernel and bits."""
    for row in data["rows"]:
        times = row.get("milliseconds") or row.get("seconds")  # as `bitcycle bench` writes it
        if times and row["base"] and row["kernel"] != FLOAT:
            bits = re.sub(r"^w(\d+)a\1e(\d+)$", r"\1/\2", row["bits"])  # w4a4e8 is 4/8
            yield f"{row['kernel']} {bits}".strip(), row["workload"], [min(times) / row["base"]]


def _memory(data: Data) -> Iterator[Measured]:
    """The bytes kept for the backward pass over those of float32, by kernel."""
    for row in data["rows"]:
        yield row["kernel"], row["model"], [row["ratio"]]


def _run_times(data: Data) -> Iterator[Measured]:
    """BitOPs, and the time within each round, over those of static 8/8."""
    for item in data["items"]:
        processor = PROCESSORS.get(item["instruction_set"], "no native library")
        limit = " only" if item["is_limited_to_avx2"] else ""
        methods = {method["method"]: method for method in item["methods"]}
        base = methods.pop(BASE)
        for label, method in methods.items():
            row = f"{item['network']}, {label}"
            yield "BitOPs", row, [method["bitops"] / base["bitops"]]
            pairs = zip(method["milliseconds"], base["milliseconds"], strict=True)
            times = [own / other for own, other in pairs]
            yield f"time, {processor}{limit}", row, times


Measured = tuple[str, str, list[float]]  # column, row, values
MEASUREMENTS: Mapping[str, Callable[[Data], Iterator[Measured]]] = {
    "speed": _speed,
    "memory": _memory,
    "run-times": _run_times,
}
