"""The page of the wall-clock time of training runs next to their BitOPs.

The data file has an item per network and processor, from `benchmarks/run_time.py --json`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from bitcycle.analysis.numbers import fixed
from bitcycle.analysis.statistics import Summary, summarize_values
from bitcycle.bench.result import Timing
from bitcycle.tables import escape_markdown
from tools.results import page
from tools.results.commands import gather_files_command, portable
from tools.results.page import Data, Page
from tools.results.pictures import bars
from tools.results.sentences import listed

BASE, FLOAT = "static 8/8", "float32"
ABOUT = ("steps", "repeats", "warmup", "instruction_set", "is_limited_to_avx2")
PROCESSORS = {"avx512_vnni": "AVX-512 VNNI", "avx2": "AVX2", "portable": "portable C++"}


def gather_run_times(files: Sequence[Data]) -> dict[str, Any]:
    """The data of files that `benchmarks/run_time.py --json` wrote."""
    items = [
        {
            "network": found["network"],
            "study": portable([file["study"]])[0],
            "overrides": portable(file["overrides"]),
            **{key: file[key] for key in ABOUT},
            **page.recorded_machine_and_time(found),
            "methods": [
                {key: method[key] for key in ("method", "schedule", "kernel", "bitops")}
                | {"cpu_share": page.rounded(method["cpu_share"], 3)}
                | {"milliseconds": [page.rounded(number, 5) for number in method["milliseconds"]]}
                for method in found["methods"]
            ],
        }
        for file in files
        for found in file["networks"]
    ]
    return merge_run_times({"items": []}, {"items": items})


def merge_run_times(old: Data, new: Data) -> dict[str, Any]:
    """Old and new items; a new one of the same network, processor and threads replaces the old."""
    found = (*old["items"], *new["items"])
    items = {(item["network"], processor(item), item["threads"]): item for item in found}
    return {"kind": "run-times", "items": [items[key] for key in sorted(items)]}


def processor(item: Data) -> str:
    """The instructions of the native kernels, and the number of threads if there are several."""
    name = PROCESSORS.get(item["instruction_set"], "no native library")
    threads = f", {item['threads']} threads" if item["threads"] > 1 else ""
    return f"{name}{' only' * item['is_limited_to_avx2']}{threads}"


class Row(NamedTuple):
    """A method of a network on a processor; ratios of times are over the rounds."""

    item: Data
    method: Data
    label: str
    bitops: float  # static 8/8 = 1
    of_static: Summary
    of_float32: Summary

    @property
    def name(self) -> str:
        """Network and method."""
        return f"{self.item['network']}, {self.label}"

    def cells(self) -> list[str]:
        """Its row of a table."""
        times = Timing(tuple(self.method["milliseconds"]))
        ratios = map(ratio_text, (self.of_static, self.of_float32))
        return [self.item["network"], processor(self.item), self.label, fixed(self.bitops, 2),
                *ratios, fixed(times.lower_quartile, 1), str(len(times.seconds))]  # fmt: skip


def rows_of(data: Data) -> list[Row]:
    """A row per network, processor and method."""
    rows = []
    for item in data["items"]:
        by_label = {method["method"]: method for method in item["methods"]}
        for label, method in by_label.items():
            bitops = method["bitops"] / by_label[BASE]["bitops"]
            ratios = (_ratio(method, by_label[base]) for base in (BASE, FLOAT))
            rows.append(Row(item, method, label, bitops, *ratios))
    return rows


def _ratio(method: Data, base: Data) -> Summary:
    pairs = zip(method["milliseconds"], base["milliseconds"], strict=True)
    return summarize_values(own / other for own, other in pairs)


def ratio_text(ratio: Summary) -> str:
    """A ratio with its interval, if it has one."""
    if ratio.low is None or ratio.high is None:
        return fixed(ratio.mean, 2)
    return f"{fixed(ratio.mean, 2)} ({fixed(ratio.low, 2)} to {fixed(ratio.high, 2)})"


def time_sentence(data: Data) -> str:
    """What CPT up to 8 bits took of the time of static 8/8 and of float32 on each processor."""
    top = _cyclic(rows_of(data))
    by_processor: dict[str, list[Row]] = {}
    for row in top:
        by_processor.setdefault(processor(row.item), []).append(row)
    of_static: list[str] = []
    for name, rows in by_processor.items():
        noise = f"{sum(map(_is_beyond_noise, rows))} of {len(rows)}"
        noise += "" if of_static else " beyond noise"
        of = "" if of_static else f" of {BASE}'s time"
        of_static.append(f"{_ends([row.of_static.mean for row in rows])}{of} with {name} ({noise})")
    of_float32 = [_ends([row.of_float32.mean for row in rows]) for rows in by_processor.values()]
    return (
        f"CPT up to 8 bits took {listed(of_static)}, and {listed(of_float32)} of {FLOAT}'s, with "
        f"{_ends([row.bitops for row in top])} of the bit operations "
        f"(n = {_ends([row.of_static.n for row in top], 0)})."
    )


def _is_beyond_noise(row: Row) -> bool:
    low, high = row.of_static.low, row.of_static.high
    return low is not None and high is not None and not low <= 1 <= high


def _cyclic(rows: Sequence[Row]) -> list[Row]:
    """The cyclic methods up to 8 bits, or all cyclic ones if there are none."""
    found = [row for row in rows if re.search(r"\d-\d", row.label)]
    if not found:
        studies = ", ".join(sorted({row.item["study"] for row in rows}))
        raise ValueError(f"no method of {studies} has a range of bits; time a study with CPT")
    return [row for row in found if row.label.endswith("-8/8")] or found


def run_times_page(data: Data) -> Page:
    """CPT up to 8 bits on every network and processor; all methods are in the details."""
    rows, items = rows_of(data), data["items"]
    cyclic = _cyclic(rows)
    headings = ["network", "processor", "method", f"BitOPs / {BASE}",
                f"time / {BASE} (95 % interval)", f"time / {FLOAT} (95 % interval)",
                "ms per step", "n"]  # fmt: skip
    least = min(row.method["cpu_share"] for row in rows)
    return Page(
        name="run-times",
        title="Time of training runs: what do fewer bit operations save on the clock?",
        answer=time_sentence(data),
        picture=(f"Time and BitOPs of a run over those of {BASE}", _picture(rows)),
        table=page.table(headings, [row.cells() for row in cyclic]),
        columns=f"Runs of {_ends([item['steps'] for item in items], 0)} steps: the training loop "
        "with its data, without evaluation, logging and checkpoints; the whole schedule, in "
        "cycles of 25 steps or more. Every round trains each method once, one step of each in "
        "turn; ratios are within a round, their mean and interval over n rounds. Ms: the lower "
        "quartile. Processor: the instructions of the native kernels."
        + " AVX2 only: one that has more, with every library limited to AVX2."
        * any(item["is_limited_to_avx2"] for item in items),
        commands=[*dict.fromkeys(map(_command, items)),
                  gather_files_command(" ".join(dict.fromkeys(map(_file, items))))],
        details=[
            page.table(
                [*headings, "schedule", "kernel"],
                [[*row.cells(), row.method["schedule"],
                  "" if row.label == FLOAT else row.method["kernel"]] for row in rows],
            ),
            f"The main thread had a processor for {100 * least:.0f} % of the time or more.",
            escape_markdown(page.machine_and_time(items)),
        ],
    )  # fmt: skip


def _ends(numbers: Sequence[float], decimals: int = 2) -> str:
    return " to ".join(dict.fromkeys(fixed(end(numbers), decimals) for end in (min, max)))


def _picture(rows: Sequence[Row]) -> str:
    """A group per network and method; the BitOPs of float32, about 16, are not drawn."""
    drawn = [row for row in rows if row.label != BASE]
    series = {"BitOPs": {row.name: row.bitops for row in drawn if row.label != FLOAT}}
    for row in drawn:
        series.setdefault(f"time, {processor(row.item)}", {})[row.name] = row.of_static.mean
    groups = list(dict.fromkeys(row.name for row in drawn))
    values = {name: [found.get(group) for group in groups] for name, found in series.items()}
    return bars(groups, values, f"{BASE} = 1 (left: less)")


def _file(item: Data) -> str:
    threads = f"-{item['threads']}-threads" if item["threads"] > 1 else ""
    return f"run-time-{item['study']}{'-avx2' * item['is_limited_to_avx2']}{threads}.json"


def _command(item: Data) -> str:
    words = ["python", "benchmarks/run_time.py", item["study"]]
    for key in ("steps", "repeats", "warmup", "threads"):
        words += [f"--{key}", str(item[key])]
    words += ["--avx2"] * item["is_limited_to_avx2"]
    return shlex.join([*words, "--json", _file(item), *item["overrides"]])
