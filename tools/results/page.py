"""A results page: its layout, Markdown tables, pictures and data files with stable bytes."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from bitcycle.analysis.numbers import duration_text
from bitcycle.report import plot
from bitcycle.tables import escape_markdown
from bitcycle.train.run_directory import MACHINE

RENDER = "python -m tools.results render results"
WIDTH = 160  # of a line of a data file
DIGITS = 12  # of a number there
PATH = re.compile(r'(?<= d=")[^"]*(?=")')
NUMBER = re.compile(r"$|(\*\*|≈ |< |about )?[-+]?\d[\d.,]*( |$|\*\*)")
LONG = re.compile(r"-?\d+\.\d{3,}")
DAMAGE = (KeyError, TypeError, IndexError, AttributeError, ValueError, ArithmeticError)

Data = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page: one sentence, one picture, one table, the commands, and folded details.

    answer: plain text, one sentence. table, details: Markdown. picture: (what it shows, SVG).
    """

    name: str
    title: str
    answer: str
    table: str
    columns: str
    commands: Sequence[str]
    picture: tuple[str, str] | None = None
    details: Sequence[str] = ()

    def files(self) -> dict[str, str]:
        """File name -> text."""
        picture = {} if self.picture is None else {f"{self.name}.svg": self.picture[1]}
        return {f"{self.name}.md": self._markdown(), **picture}

    def _markdown(self) -> str:
        source = f"data/{self.name}.json"
        parts = [
            f"<!-- made by tools/results from {source}; an edit here is lost -->",
            f"# {escape_markdown(self.title)}",
            f"**{escape_markdown(self.answer)}**",
            "" if self.picture is None else f"![{self.picture[0]}]({self.name}.svg)",
            self.table,
            escape_markdown(self.columns),
            "```text\n" + "\n".join(self.commands) + "\n```",
            '<details markdown="1"><summary>Details</summary>',
            *self.details,
            f"`{RENDER}` makes this page from [{source}]({source}).{placeholders(self.commands)}",
            "</details>",
        ]
        return "\n\n".join(filter(None, parts)) + "\n"


def placeholders(commands: Sequence[str]) -> str:
    """The meaning of the words in capitals.

    >>> placeholders(["bitcycle train a --data.root DATA --output RUNS"])
    ' DATA and RUNS are folders.'
    """
    found = sorted(set(re.findall(r"(?<![\w-])[A-Z]{4,}(?![\w-])", " ".join(commands))))
    if not found:
        return ""
    return f" {' and '.join(found)} {'are folders' if len(found) > 1 else 'is a folder'}."


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table without its empty columns; columns that hold numbers are set to the right.

    >>> print(table(["a", "b", "c"], [["x|y", "", "1"]]))
    | a | c |
    | --- | ---: |
    | x\\|y | 1 |
    """
    keep = [i for i in range(len(headings)) if any(row[i] for row in rows)]
    rule = ["---:" if all(NUMBER.match(row[i]) for row in rows) else "---" for i in keep]
    lines = [[escape_markdown(headings[i]) for i in keep], rule]
    lines += [[_cell(row[i]) for i in keep] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Escape a cell unless it is a link, bold or code already."""
    is_markdown = re.fullmatch(r"\[.*\]\(.*\)|\*\*.*\*\*|`.*`", text)
    return text if is_markdown else escape_markdown(text or "-")


def link(text: str, target: str) -> str:
    """A Markdown link."""
    return f"[{escape_markdown(text)}]({target})"


def sentence(text: str) -> str:
    """Text with a capital letter and a full stop.

    >>> sentence("on digits; 8 cycles")
    'On digits; 8 cycles.'
    """
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


# -- pictures -----------------------------------------------------------------------------------


@contextmanager
def default_style() -> Iterator[None]:
    """matplotlib's defaults whatever the user's settings are, and fixed names of SVG elements."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "bitcycle", "svg.fonttype": "path"})
        yield


def picture(obj: object, **options: Any) -> str:
    """`bitcycle.report.plot(obj)` as SVG."""
    with default_style():
        return svg(plot(obj, **options))


def svg(figure: Figure) -> str:
    """A figure as SVG: equal bytes for equal numbers and matplotlib. Call in `default_style`."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": creator()})
    text = "\n".join(line.rstrip() for line in buffer.getvalue().decode().splitlines()) + "\n"
    return PATH.sub(lambda path: LONG.sub(_short, path[0]), text)


def _short(number: re.Match[str]) -> str:
    return f"{round(float(number[0]), 2):g}"  # a hundredth of a point is enough


def creator() -> str:
    """The drawing version, on which the bytes of a picture depend."""
    return f"bitcycle, matplotlib {matplotlib.__version__}"


# -- machines -----------------------------------------------------------------------------------


def machine_text(machine: Data) -> str:
    """Processor and versions in one line."""
    cores = machine.get("num_cpus")
    device = machine.get("device")
    parts = [
        machine.get("processor", "processor not recorded"),
        f"{cores} cores" if cores else "",
        machine.get("cpu_capability"),
        "" if device == "cpu" else device,
        *(f"{name} {machine[name]}" for name in ("torch", "python", "bitcycle") if name in machine),
    ]
    return ", ".join(str(part) for part in parts if part)


def machine_and_time(entries: Sequence[Data]) -> str:
    """Machine, threads and wall-clock time of measurements.

    >>> machine_and_time([{"machine": {"processor": "EPYC"}, "threads": 1, "seconds": 75.0}])
    'Machine: EPYC, 1 thread. Wall-clock: 1 min 15 s.'
    """
    machines = "; ".join(
        dict.fromkeys(machine_text(e["machine"]) for e in entries if "machine" in e)
    )
    threads = sorted({entry["threads"] for entry in entries if entry.get("threads")})
    seconds = [float(entry["seconds"]) for entry in entries if "seconds" in entry]
    plural = "" if threads == [1] else "s"
    return (
        f"Machine: {machines or 'not recorded'}"
        + (f", {' or '.join(map(str, threads))} thread{plural}" if threads else "")
        + f". Wall-clock: {duration_text(sum(seconds)) if seconds else 'not recorded'}"
        + (" one after another." if len(seconds) > 1 else ".")
    )


def recorded_machine_and_time(found: Data) -> dict[str, Any]:
    """Machine, threads and seconds of a measurement's file, if it has them; for a data file."""
    kept: dict[str, Any] = {}
    if found.get("machine"):
        kept["machine"] = {key: found["machine"][key] for key in MACHINE if key in found["machine"]}
    kept |= {key: found[key] for key in ("threads", "jobs") if found.get(key)}
    if found.get("seconds") is not None:
        kept["seconds"] = rounded(found["seconds"], 6)
    return kept


# -- data files ---------------------------------------------------------------------------------


def read_data(path: Path) -> dict[str, Any]:
    """Read a data file; errors name it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); gather it again") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no mapping; gather it again")
    return data


@contextmanager
def name_file_in_errors(path: object) -> Iterator[None]:
    """Add the file to errors about its contents."""
    try:
        yield
    except DAMAGE as error:
        why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is damaged ({why}); gather it again") from None


def to_json(value: Any) -> str:
    """JSON with readable diffs: a value that fits a line stands on one.

    >>> print(to_json({"a": [1, 2.5], "b": "x"}), end="")
    {"a": [1, 2.5], "b": "x"}
    """
    return _json(value, "") + "\n"


def _json(value: Any, indent: str) -> str:
    short = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(indent) + len(short) <= WIDTH or not isinstance(value, dict | list) or not value:
        return short
    inner = f"{indent} "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_json(part, inner)}" for key, part in value.items()]
        return f"{{\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}}}"
    parts = [_json(part, inner) for part in value]
    return f"[\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}]"


def rounded(number: float, digits: int = DIGITS) -> float | str:
    """Round to significant digits; NaN and infinity become text.

    >>> rounded(98.88888888888889, 5), rounded(math.inf)
    (98.889, 'inf')
    """
    return float(f"{number:.{digits}g}") if math.isfinite(number) else str(number)
