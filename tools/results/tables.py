"""Tables of the data files: those of a study are the laboratory's, a measurement has its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from bitcycle.range_criteria import PrecisionRun, RangeTest, RangeTestConfig
from bitcycle.tables import Table, markdown_rows
from bitcycle_lab.landscape.result import mean_rise
from bitcycle_lab.published import display_name
from bitcycle_lab.study.number_text import fixed
from bitcycle_lab.study.statistics import summarize_values
from bitcycle_lab.study.tables import study_tables
from bitcycle_lab.tasks import TASKS
from tools.results.study_data import Data, restore

PROCESSORS = {"avx512_vnni": "AVX-512 VNNI", "avx2": "AVX2", "portable": "portable C++"}
Options = Mapping[str, Sequence[str]]
Cells = dict[str, dict[str, list[float]]]  # by column and row of a table


def make_table(data: Data, kind: str, options: Options) -> str:
    """A Markdown table.

    kind: of a study one of `bitcycle_lab.study.tables`, such as values or differences, or one of
    MEASUREMENTS. options: `columns` to show, in this order; `against`, the method that a study is
    compared with; the others are headings, and only the rows with one of their values are shown.
    """
    filters = dict(options)
    columns = filters.pop("columns", ())
    if (data["kind"], kind) not in MEASUREMENTS and data["kind"] == "study":
        against = filters.pop("against", [])
        if len(against) > 1:
            raise ValueError(f"a study is compared with one method, not {', '.join(against)}")
        tables = study_tables(restore(data, *against))
        known = {table.name.removeprefix(f"{data['name']}-"): table for table in tables}
    else:
        first = "network" if kind == "ratios" else "method"
        known = {kind: measured_table(first, read_cells(data, kind))}
    if kind not in known:
        raise ValueError(f"there is no table {kind!r}; known: {', '.join(known)}")
    return markdown_rows(choose_columns(shorten(choose_rows(known[kind], filters)), columns))


def choose_rows(table: Table, filters: Options) -> Table:
    """The rows whose cells are among the given ones."""
    rows = table.rows
    for heading, values in filters.items():
        place = choose([heading], table.headings)[0]
        choose(values, [row[place] for row in rows])
        rows = tuple(row for row in rows if row[place] in values)
    return replace(table, rows=rows)


def shorten(table: Table) -> Table:
    """The table with short names of its groups."""
    if table.headings[0] != "group":
        return table
    groups = list(dict.fromkeys(row[0] for row in table.rows))
    names = dict(zip(groups, short_names(groups), strict=True))
    return replace(table, rows=tuple((names[row[0]], *row[1:]) for row in table.rows))


def choose_columns(table: Table, columns: Sequence[str]) -> Table:
    """These columns, or all."""
    places = choose(columns or table.headings, table.headings)
    return replace(
        table,
        columns=tuple(table.columns[place] for place in places),
        rows=tuple(tuple(row[place] for place in places) for row in table.rows),
        is_number=tuple(table.is_number[place] for place in places),
    )


def choose(names: Sequence[str], known: Sequence[str]) -> list[int]:
    """The places of the names."""
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"no {missing[0]!r}; known: {', '.join(dict.fromkeys(known))}")
    return [known.index(name) for name in names]


# -- measurements ---------------------------------------------------------------------------------


def read_cells(data: Data, kind: str) -> Cells:
    """The values of a measurement by column and row."""
    known = [name for each, name in MEASUREMENTS if each == data["kind"]]
    choose([kind], known)
    found: Cells = {}
    for column, row, values in MEASUREMENTS[data["kind"], kind](data):
        found.setdefault(column, {}).setdefault(row, []).extend(values)
    return found


def measured_table(first: str, cells: Cells) -> Table:
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
        return "-"
    if column == "n":
        return f"{sum(values):.0f}"
    found = summarize_values(values)
    mean = fixed(found.mean, 2, sign=column.startswith("difference"))
    if found.low is None or found.high is None:
        return mean
    return f"{mean} ({fixed(found.low, 2)} to {fixed(found.high, 2)})"


def _speed(data: Data) -> Iterator[Measured]:
    """The fastest step over the fastest of float32, by kernel and bits."""
    for row in data["rows"]:
        times = row.get("milliseconds") or row.get("seconds")  # as `bitcycle bench` writes it
        if times and row["base"] and row["kernel"] != "float32":
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
        base = methods.pop("static 8/8")
        for label, method in methods.items():
            row = f"{item['network']}, {label}"
            yield "BitOPs", row, [method["bitops"] / base["bitops"]]
            pairs = zip(method["milliseconds"], base["milliseconds"], strict=True)
            yield f"time, {processor_of(item)}", row, [own / other for own, other in pairs]


def processor_of(item: Data) -> str:
    """The instructions of a measurement of run times."""
    processor = PROCESSORS.get(item["instruction_set"], "no native library")
    return f"{processor} only" if item["is_limited_to_avx2"] else processor


def _minutes(data: Data) -> Iterator[Measured]:
    """Final values of a study, and the minutes of its steps as `run-times` measured them."""
    found = [each for each in restore(data).methods if each.results]
    names = row_names([(each.method.label, each.method.group) for each in found])
    for each, row in zip(found, names, strict=True):
        run = next(iter(each.results.values()))
        method = each.method.label.partition(", N = ")[0]  # a step of more cycles takes as long
        for item in data["with"]["run-times"]["items"]:
            for timed in item["methods"]:
                is_own = each.method.group.startswith(item["network"].replace(" on ", ", "))
                if is_own and timed["method"] == method:
                    minutes = [run.steps * ms / 6e4 for ms in timed["milliseconds"]]
                    yield f"minutes, {processor_of(item)}", row, minutes
        yield run.metric, row, [*each.values.values()]
        yield "n", row, [len(each.results)]


def _fit(data: Data) -> Iterator[Measured]:
    """Accuracy and loss at the end of runs on test and training data: does the network fit them?

    The difference in test loss is to the baseline of the group, paired by seed.
    """
    result = restore(data)
    metric, base = TASKS[result.methods[0].method.config.task].metric, result.study.baseline
    columns = {f"test {metric}": ("final", metric), "test loss": ("final", "loss"),
               f"training {metric}": ("train", metric)}  # fmt: skip
    losses: dict[tuple[str, str], dict[int, float]] = {}
    names = row_names([(entry["label"], entry["group"]) for entry in data["methods"]])
    for entry, row in zip(data["methods"], names, strict=True):
        done = [run for run in entry["runs"] if run["state"] == "done"]
        for column, (part, name) in columns.items():
            yield column, row, [float(run[part][name]) for run in done if part in run]
        losses[entry["group"], entry["label"]] = {
            run["seed"]: float(run["final"]["loss"]) for run in done
        }
        yield "n", row, [len(done)]
    for (group, label), row in zip(losses, names, strict=True):
        own, other = losses[group, label], losses.get((group, base or ""), {})
        pairs = [own[seed] - other[seed] for seed in own if seed in other and label != base]
        yield "difference in test loss", row, pairs


def row_names(methods: Sequence[tuple[str, str]]) -> list[str]:
    """The labels of (label, group), with the short name of the group if there are several.

    >>> row_names([("float32", "GCN, Cora"), ("float32", "SAGE, Cora")])
    ['float32, GCN', 'float32, SAGE']
    """
    names = short_names([group for _, group in methods])
    is_one = len(set(names)) == 1
    pairs = zip(methods, names, strict=True)
    return [label if is_one else f"{label}, {name}" for (label, _), name in pairs]


def short_names(groups: Sequence[str]) -> list[str]:
    """The names of groups without the parts that all of them have.

    >>> short_names(["ResNet-8, CIFAR-10, 500 steps", "ResNet-8, CIFAR-10, 2,000 steps"])
    ['500 steps', '2,000 steps']
    """
    parts = [group.split(", ") for group in groups]
    common = set.intersection(*map(set, parts))
    return [", ".join(p for p in own if p not in common) or ", ".join(own) for own in parts]


def _range_tests(data: Data) -> Iterator[Measured]:
    """The share of the gain at the most bits, by bits and network: a value per seed."""
    for test in data["tests"]:
        if test["plan"].get("criterion") != "relative":
            continue
        fields = ("criterion", "low", "high", "steps_per_precision", "window", "share", "repeats")
        settings = RangeTestConfig(**{name: test["plan"][name] for name in fields})
        runs = tuple(PrecisionRun(n, bits, tuple(losses)) for n, bits, losses in test["runs"])
        row = f"{display_name(test['model'])}, {display_name(test['data'])}"
        for bits, verdict in RangeTest(settings=settings, runs=runs).verdicts.items():
            yield f"{bits} bits", row, [verdict.share]
        yield "n", row, [1]


def _end_of_run(data: Data) -> Iterator[Measured]:
    """Accuracy on test and training images of every variant of a run."""
    tests: dict[str, dict[int, float]] = {}
    for run in data["runs"]:
        for variant, found in run["variants"].items():
            name = run["method"] if variant == "as trained" else f"{run['method']}, {variant}"
            tests.setdefault(name, {})[run["seed"]] = found["test"]["accuracy"]
            if "train" in found:
                yield "training accuracy", name, [found["train"]["accuracy"]]
    yield from _compare("test accuracy", tests, data["baseline"])


def _landscapes(data: Data) -> Iterator[Measured]:
    """How much the loss rises at distance 1 from the weights of a run."""
    rises: dict[str, dict[int, float]] = {}
    for item in data["items"]:
        rise = mean_rise(item["alphas"], item["losses"], 1.0)
        rises.setdefault(item["method"], {})[item["run_seed"]] = rise
    yield from _compare("rise of the loss", rises, next(iter(rises)))


def _compare(what: str, values: Mapping[str, Mapping[int, float]], base: str) -> Iterator[Measured]:
    """Values by method and seed, and their differences, paired by seed."""
    for name, own in values.items():
        yield what, name, [*own.values()]
        both = [seed for seed in own if seed in values[base] and name != base]
        yield f"difference to {base}", name, [own[seed] - values[base][seed] for seed in both]
        yield "n", name, [len(own)]


Measured = tuple[str, str, list[float]]  # column, row, values
MEASUREMENTS: Mapping[tuple[str, str], Callable[[Data], Iterator[Measured]]] = {
    ("speed", "ratios"): _speed,
    ("memory", "ratios"): _memory,
    ("run-times", "ratios"): _run_times,
    ("range-tests", "ratios"): _range_tests,
    ("study", "minutes"): _minutes,
    ("study", "fit"): _fit,
    ("end-of-run", "values"): _end_of_run,
    ("landscapes", "values"): _landscapes,
}
