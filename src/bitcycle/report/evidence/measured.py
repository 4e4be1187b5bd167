"""Machine, threads and wall-clock of measurements, as their files have them and in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bitcycle.study.compare_table import duration
from bitcycle.study.publish.jsontext import rounded
from bitcycle.study.publish.page import machine_text
from bitcycle.train.measured import MACHINE

UNKNOWN = "not recorded"
Entry = Mapping[str, Any]


def take(found: Entry) -> dict[str, Any]:
    """What a file says of it; older files say nothing but versions."""
    said: dict[str, Any] = {}
    older = {**found.get("origin", {}), **found}
    machine = found.get("machine") or {k: older[k] for k in ("bitcycle", "torch") if k in older}
    if machine:
        said["machine"] = {key: machine[key] for key in MACHINE if key in machine}
    said |= {key: found[key] for key in ("threads", "jobs") if found.get(key)}
    if found.get("seconds") is not None:
        said["seconds"] = rounded(found["seconds"], 6)
    return said


def machine_line(entries: Sequence[Entry], *, each: str = "") -> str:
    """Where all of them were measured.

    >>> machine_line([{"machine": {"processor": "EPYC", "torch": "2.13.0"}, "threads": 1}])
    'Machine: EPYC, torch 2.13.0, 1 thread.'
    >>> machine_line([{}])
    'Machine: not recorded.'
    """
    made = "; ".join(dict.fromkeys(_text(e["machine"]) for e in entries if "machine" in e))
    lacks = sum("machine" not in entry for entry in entries)
    if made and lacks:
        made += f"; {UNKNOWN} for {lacks} of {len(entries)}"
    parts = [made or UNKNOWN, _counted(entries, "threads", "thread", each)]
    return f"Machine: {', '.join(filter(None, [*parts, _processes(entries)]))}."


def _text(machine: Mapping[str, Any]) -> str:
    return ", ".join([*([] if machine.get("processor") else [UNKNOWN]), machine_text(machine)])


def _counted(entries: Sequence[Entry], key: str, noun: str, each: str = "") -> str:
    numbers = sorted({entry[key] for entry in entries if entry.get(key)})
    if not numbers:
        return ""
    plural = "" if numbers == [1] else "es" if noun.endswith("s") else "s"
    return f"{' or '.join(map(str, numbers))} {noun}{plural}{f' {each}' if each else ''}"


def _processes(entries: Sequence[Entry]) -> str:
    return _counted(entries, "jobs", "process")


def wall_clock_line(entries: Sequence[Entry], noun: str) -> str:
    """Of all of them together, and of one.

    >>> wall_clock_line([{"seconds": 4.0}], "range test")
    'Wall-clock: 4.0 s.'
    >>> wall_clock_line([{"seconds": 4.0}, {"seconds": 75.0}, {}], "range test")
    'Wall-clock: 2 range tests, 1 min 19 s one after another, 4.0 s to 1 min 15 s each; ...'
    """
    seconds = [float(entry["seconds"]) for entry in entries if "seconds" in entry]
    if not seconds:
        return f"Wall-clock: {UNKNOWN}."
    if len(entries) == 1:
        return f"Wall-clock: {duration(seconds[0])}."
    shortest, longest = duration(min(seconds)), duration(max(seconds))
    one = shortest if shortest == longest else f"{shortest} to {longest}"
    number = f"{len(seconds)} {noun}{'' if len(seconds) == 1 else 's'}"
    lacks = len(entries) - len(seconds)
    rest = f"; {UNKNOWN} for {lacks} of {len(entries)}" if lacks else ""
    return f"Wall-clock: {number}, {duration(sum(seconds))} one after another, {one} each{rest}."
