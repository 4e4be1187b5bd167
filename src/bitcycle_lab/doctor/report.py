"""The report of an examination: text of 100 columns, and JSON without names of this machine."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bitcycle.files import to_plain
from bitcycle.tables import text_table
from bitcycle_lab.doctor.check import Check
from bitcycle_lab.doctor.choices import Choice
from bitcycle_lab.doctor.machine import machine_lines
from bitcycle_lab.doctor.times import FLOAT, LayerTime

WIDTH = 100
_BITS_WIDTH = 12  # of the column
_MAX_FAILURES = 20  # that the text lists


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the machine has, the choices of `auto`, the checks and the times."""

    device: str
    machine: Mapping[str, Any]
    choices: tuple[Choice, ...]
    checks: tuple[Check, ...]
    times: tuple[LayerTime, ...] = ()
    seconds: float = 0.0

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.outcome == "failed")

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the kernels and libraries that are wrong."""
        return tuple(dict.fromkeys(check.by for check in self.failures))

    def to_dict(self) -> dict[str, Any]:
        """JSON types, without folders and without the names of user and machine."""
        parts = {
            "kind": "doctor",
            "failed": self.failed,
            **asdict(self),
        }
        plain: dict[str, Any] = without_names(to_plain(parts))
        return plain

    def __str__(self) -> str:
        parts = [
            _machine_text(self.machine),
            f"kernels that auto chooses on {self.device}\n{_choices_text(self.choices)}",
            _checks_text(self.checks),
            *([_times_text(self.times)] if self.times else []),
            _verdict(self),
        ]
        text: str = without_names("\n\n".join(parts))
        return text


# -- parts ----------------------------------------------------------------------------------------


def _machine_text(machine: Mapping[str, Any]) -> str:
    return "\n".join(
        line for title, text in machine_lines(machine) for line in _wrap(text, title.ljust(11))
    )


def _wrap(text: str, title: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=title, subsequent_indent=" " * len(title))


def _choices_text(choices: Iterable[Choice]) -> str:
    """A row per layer and kernel; bits for which all layers agree have one row."""
    sizes: dict[tuple[str, int], dict[str, tuple[str, str]]] = {}
    for each in choices:
        own = sizes.setdefault((each.layer, each.macs), {})
        own |= dict.fromkeys(each.bits, (each.kernel, each.reason))
    every = list(next(iter(sizes.values())))
    common = {bits for bits in every if len({own[bits] for own in sizes.values()}) == 1}
    rows: list[tuple[str, ...]] = []
    for (layer, macs), own in sizes.items():
        rows += _rows_of(layer, f"{macs / 1e6:.2f}", {b: own[b] for b in every if b not in common})
    shared = next(iter(sizes.values()))
    rows += _rows_of("all", "", {bits: shared[bits] for bits in every if bits in common})
    header = ("layer", "MMAC", "bits", "kernel", "why")
    others = (max(len(row[column]) for row in [header, *rows]) for column in (0, 1, 3))
    left = WIDTH - sum(others) - _BITS_WIDTH - 2 * (len(header) - 1)
    lines = [line for row in rows for line in _wrapped(row, max(20, left))]
    legend = "MMAC: 10^6 multiply-accumulates of the forward product; the choice depends on them"
    return f"{text_table(header, lines, right=(1,))}\n{legend}"


def _rows_of(
    layer: str, size: str, by_bits: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[str, ...]]:
    grouped: dict[tuple[str, str], list[str]] = {}
    for bits, choice in by_bits.items():
        grouped.setdefault(choice, []).append(bits)
    for (kernel, reason), bits_of in grouped.items():
        yield layer, size, " ".join(bits_of), kernel, reason.removeprefix(f"{kernel}, ")
        layer = size = ""


def _wrapped(row: tuple[str, ...], width: int) -> Iterator[tuple[str, ...]]:
    """The lines of a row whose bits and reason are wrapped."""
    columns = [[row[0]], [row[1]], textwrap.wrap(row[2], _BITS_WIDTH), [row[3]]]
    columns.append(textwrap.wrap(row[4], width))
    yield from zip_longest(*columns, fillvalue="")


def _checks_text(checks: Iterable[Check]) -> str:
    """A row for each kernel and what it did: the number of checks, and the largest error."""
    grouped: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        grouped.setdefault((check.by, check.what), []).append(check)
    rows: list[tuple[str, ...]] = []
    idle: list[str] = []
    former = ""
    for (by, what), own in grouped.items():
        if all(check.outcome == "not run" for check in own):
            idle += _wrap(f"{by}, {what}: not run: {own[0].reason}", "")
            continue
        errors = [check.error for check in own if check.error is not None]
        counts = [sum(c.outcome == outcome for c in own) for outcome in ("passed", "failed")]
        worst = f"{max(errors):.3g}" if errors else "-"
        rows.append(("" if by == former else by, what, *map(str, counts), worst))
        former = by
    header = ("by", "what", "passed", "failed", "error/bound")
    table = text_table(header, rows, right=(2, 3, 4)) if rows else ""
    legend = (
        "Rounding to grids and formats must equal that of plain torch in every number. Products\n"
        "(output, grad_input, grad_weight) are compared with float64 on the CPU; error/bound is\n"
        "the largest error as a share of what the kernel may have (`Kernel.error_bound`)."
    )
    return "\n".join(part for part in ("self-test", table, *idle, legend) if part)


def _times_text(times: Iterable[LayerTime]) -> str:
    by_layer: dict[str, list[LayerTime]] = {}
    for each in times:
        by_layer.setdefault(each.layer, []).append(each)
    rows, notes = [], []
    for layer, own in by_layer.items():
        base = next((t.seconds for t in own if t.kernel == FLOAT and t.seconds), None)
        former = ""
        for each in own:
            if each.seconds is None:
                notes += _wrap(f"{layer}, {each.kernel}: not timed: {each.reason}", "")
                continue
            ratio = f"{each.seconds / base:.2f}" if base else "-"
            shown = "" if layer == former else layer
            measured = f"{1e3 * each.seconds:.2f}", str(each.num_repeats), ratio
            rows.append((shown, each.kernel, each.bits, *measured))
            former = layer
    table = text_table(("layer", "kernel", "bits", "ms", "of", "/ float32"), rows, right=(3, 4, 5))
    legend = (
        "ms: forward and backward of one layer with gradients of input and weight, the fastest\n"
        "of so many, kernels in turn; / float32: below 1 is faster. Other load makes them useless."
    )
    return "\n".join(["times", table, *notes, legend])


def _verdict(report: Report) -> str:
    lines: list[str] = []
    for check in report.failures[:_MAX_FAILURES]:
        name = " ".join(filter(None, (check.by, check.what, check.bits)))
        lines += _wrap(f"{name}: {check.reason}", "FAILED  ")
    more = len(report.failures) - _MAX_FAILURES
    lines += [f"FAILED  and {more} more"] if more > 0 else []
    count = sum(check.outcome != "not run" for check in report.checks)
    took = f"{report.seconds:.0f} s"
    if report.failed:
        lines.append(f"wrong here: {', '.join(report.failed)} ({took})")
    else:
        lines.append(f"all {count} checks passed ({took})")
    return "\n".join(lines)


# -- names ----------------------------------------------------------------------------------------

_FOLDERS = re.compile(r"(?<![\w.~…/])(?:~|\.{1,2})?/(?:[^\s'\"():;,=/]+/)+")


def without_names(value: Any) -> Any:
    """Texts, at any depth, without folders and without the names of the user and of the machine.

    >>> without_names({"why": ["cannot load /home/ada/bitcycle/lib.so: no such file"]})
    {'why': ['cannot load …/lib.so: no such file']}
    """
    if isinstance(value, Mapping):
        return {key: without_names(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_names(part) for part in value]
    if not isinstance(value, str):
        return value
    for folder in _known_folders():
        value = value.replace(f"{folder}/", "…/").replace(folder, "…")
    value = _FOLDERS.sub("…/", value)
    for name in _names():
        value = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "…", value)
    return value


def _known_folders() -> list[str]:
    """Folders whose names may have spaces, the longest first."""
    known = {str(Path.home()), os.getcwd(), tempfile.gettempdir(), str(Path(__file__).parents[2])}
    return sorted((each for each in known if len(each) > 1), key=len, reverse=True)


def _names() -> list[str]:
    names = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        names.add(getpass.getuser())
    found = (name for name in names if len(name) > 2 and name not in ("root", "localhost"))
    return sorted(found, key=len, reverse=True)  # the name of a domain begins with a host's
