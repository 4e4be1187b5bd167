"""Tables of the data files: those of a study are the laboratory's, a measurement has its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from bitcycle.range_criteria import PrecisionRun, RangeTest, RangeTestConfig
from bitcycle.tables import Table, markdown_rows, without_empty_columns
from bitcycle_lab.landscape.result import mean_rise
from bitcycle_lab.published import display_name
from bitcycle_lab.study.number_text import fixed
from bitcycle_lab.study.statistics import summarize_values
from bitcycle_lab.study.tables import study_tables
from bitcycle_lab.tasks import TASKS
from bitcycle_lab.train.config_file import build_config
from tools.results.study_data import Data, restore

BASE, FLOAT = "static 8/8", "float32"
PROCESSORS = {"avx512_vnni": "AVX-512 VNNI", "avx2": "AVX2", "portable": "portable C++"}
Options = Mapping[str, Sequence[str]]
Cells = dict[str, dict[str, list[float]]]  # by column and row of a table


def make_table(data: Data, kind: str, options: Options) -> str:
    """A Markdown table.

    kind: of a study one of `bitcycle_lab.study.tables`, such as values or differences; a
    measurement has one, of ratios or values. options: `against` is the method that a study is
    compared with, `column` a column of a measurement, `hide` a column to leave out; the others are
    headings, and only the rows with one of their values are shown.
    """
    filters = dict(options)
    hidden = filters.pop("hide", ())
    if data["kind"] == "study" and kind != "minutes":
        against = filters.pop("against", [])
        if len(against) > 1:
            raise ValueError(f"a study is compared with one method, not {', '.join(against)}")
        tables = study_tables(restore(data, *against))
        known = {table.name.removeprefix(f"{data['name']}-"): table for table in tables}
    else:
        cells = read_cells(data, kind, filters.pop("column", ()))
        known = {kind: measured_table(cells, "network" if kind == "ratios" else "method")}
    if kind not in known:
        raise ValueError(f"there is no table {kind!r}; known: {', '.join(known)}")
    return markdown_rows(hide_columns(choose_rows(known[kind], filters), hidden))


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


def hide_columns(table: Table, hidden: Sequence[str]) -> Table:
    """The table without some columns."""
    if missing := sorted(set(hidden) - set(table.headings)):
        raise ValueError(f"no column {missing[0]!r}; known: {', '.join(table.headings)}")
    kept = [place for place, heading in enumerate(table.headings) if heading not in hidden]
    return replace(
        table,
        columns=tuple(table.columns[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in table.rows),
        is_number=tuple(table.is_number[place] for place in kept),
    )


# -- measurements ---------------------------------------------------------------------------------


def read_cells(data: Data, kind: str, columns: Sequence[str] = ()) -> Cells:
    """The values of a measurement by column and row. columns: in this order, or all."""
    known = {table for each, table in MEASUREMENTS if each == data["kind"]}
    if kind not in known:
        raise ValueError(f"{data['kind']} has no {kind!r}; known: {', '.join(known) or 'none'}")
    found: Cells = {}
    for column, row, values in MEASUREMENTS[data["kind"], kind](data):
        found.setdefault(column, {})[row] = values
    if missing := sorted(set(columns) - set(found)):
        raise ValueError(f"no column {missing[0]!r}; known: {', '.join(found)}")
    return {column: found[column] for column in columns or found}


def measured_table(cells: Cells, first: str) -> Table:
    """A row per network or method, as `first` says; a mean of several values has its interval."""
    rows = list(dict.fromkeys(row for column in cells.values() for row in column))
    texts = [[_text(name, column.get(row)) for name, column in cells.items()] for row in rows]
    return Table(
        name="measured",
        title="",
        columns=(("", first), *(("", column) for column in cells)),
        rows=tuple((row, *own) for row, own in zip(rows, texts, strict=True)),
        is_number=(False, *(True for _ in cells)),
    )


def _text(column: str, values: Sequence[float] | None) -> str:
    if not values:
        return ""
    if column == "n":
        return f"{values[0]:.0f}"
    found, sign = summarize_values(values), column.startswith("difference")
    mean = fixed(found.mean, 2, sign=sign)
    if found.low is None or found.high is None:
        return mean
    return f"{mean} ({fixed(found.low, 2)} to {fixed(found.high, 2)})"


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
        methods = {method["method"]: method for method in item["methods"]}
        base = methods.pop(BASE)
        for label, method in methods.items():
            row = f"{item['network']}, {label}"
            yield "BitOPs", row, [method["bitops"] / base["bitops"]]
            pairs = zip(method["milliseconds"], base["milliseconds"], strict=True)
            times = [own / other for own, other in pairs]
            yield f"time, {processor_of(item)}", row, times


def processor_of(item: Data) -> str:
    """The instructions of a measurement of run times."""
    processor = PROCESSORS.get(item["instruction_set"], "no native library")
    return f"{processor} only" if item["is_limited_to_avx2"] else processor


def _minutes(data: Data) -> Iterator[Measured]:
    """Final values of a study, and the minutes of its steps as `run-times` measured them."""
    for entry in data["methods"]:
        runs = [run for run in entry["runs"] if run["state"] == "done"]
        metric = TASKS[build_config(entry["settings"]).task].metric
        row = f"{entry['label']}, {runs[0]['steps']:,} steps"
        for item in data["with"]["run-times"]["items"]:
            for timed in item["methods"]:
                network = item["network"].replace(" on ", ", ")
                if entry["group"].startswith(network) and _is_same(entry, timed["method"]):
                    minutes = [runs[0]["steps"] * ms / 6e4 for ms in timed["milliseconds"]]
                    yield f"minutes, {processor_of(item)}", row, minutes
        yield metric, row, [run["final"][metric] for run in runs]
        yield "n", row, [len(runs)]


def _is_same(entry: Data, method: str) -> bool:
    """Whether a method was timed: a step of more cycles takes the same time."""
    label: str = entry["label"]
    return label.partition(", N = ")[0] == method


def _range_tests(data: Data) -> Iterator[Measured]:
    """The share of the gain at the most bits, by bits and network: a value per seed."""
    shares: dict[tuple[int, str], list[float]] = {}
    for test in data["tests"]:
        if test["plan"].get("criterion") != "relative":
            continue
        fields = ("criterion", "low", "high", "steps_per_precision", "window", "share", "repeats")
        settings = RangeTestConfig(**{name: test["plan"][name] for name in fields})
        runs = tuple(PrecisionRun(n, bits, tuple(losses)) for n, bits, losses in test["runs"])
        row = f"{display_name(test['model'])}, {display_name(test['data'])}"
        for bits, verdict in RangeTest(settings=settings, runs=runs).verdicts.items():
            shares.setdefault((bits, row), []).append(verdict.share)
    for (bits, row), values in sorted(shares.items(), key=lambda found: found[0][0]):
        yield f"{bits} bits", row, values
    for row in dict.fromkeys(row for _, row in shares):
        yield "n", row, [max(len(own) for (_, name), own in shares.items() if name == row)]


def _end_of_run(data: Data) -> Iterator[Measured]:
    """Accuracy on test and training images of every variant of a run, paired by seed."""
    tests: dict[str, dict[int, Data]] = {}
    for run in (run for part in data["parts"] for run in part["runs"]):
        for variant, found in run["variants"].items():
            name = run["method"] if variant == "as trained" else f"{run['method']}, {variant}"
            tests.setdefault(name, {})[run["seed"]] = found
    base = tests[data["baseline"]]
    for name, seeds in tests.items():
        own = {seed: found["test"]["accuracy"] for seed, found in seeds.items()}
        yield "test accuracy", name, list(own.values())
        yield "training accuracy", name, [f["train"]["accuracy"] for f in seeds.values()]
        both = [seed for seed in own if seed in base and name != data["baseline"]]
        pairs = [own[seed] - base[seed]["test"]["accuracy"] for seed in both]
        yield f"difference to {data['baseline']}", name, pairs
        yield "n", name, [len(own)]


def _landscapes(data: Data) -> Iterator[Measured]:
    """How much the loss rises at distance 1 from the weights of a run, paired by seed."""
    rises: dict[str, dict[int, float]] = {}
    for item in data["items"]:
        rise = mean_rise(item["alphas"], item["losses"], 1.0)
        rises.setdefault(item["method"], {})[item["run_seed"]] = rise
    base = next(iter(rises))
    for name, own in rises.items():
        yield "rise of the loss", name, list(own.values())
        both = [seed for seed in own if seed in rises[base] and name != base]
        yield f"difference to {base}", name, [own[seed] - rises[base][seed] for seed in both]
        yield "n", name, [len(own)]


Measured = tuple[str, str, list[float]]  # column, row, values
MEASUREMENTS: Mapping[tuple[str, str], Callable[[Data], Iterator[Measured]]] = {
    ("speed", "ratios"): _speed,
    ("memory", "ratios"): _memory,
    ("run-times", "ratios"): _run_times,
    ("range-tests", "ratios"): _range_tests,
    ("study", "minutes"): _minutes,
    ("end-of-run", "values"): _end_of_run,
    ("landscapes", "values"): _landscapes,
}
