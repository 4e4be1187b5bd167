"""The page of `bitcycle bench --json`: what a training step takes, and what is slower than float32.

A variant is faster or slower when its times and those of float32 keep apart: its fastest step above
float32's lower quartile, or its lower quartile below float32's fastest. All else is within noise.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bitcycle.report.evidence.measured import machine_line, take, wall_clock_line
from bitcycle.report.evidence.page import Page, again, block, exactly, made_from
from bitcycle.study.numbers import fixed
from bitcycle.study.publish.jsontext import rounded
from bitcycle.study.table_text import Table, escape_markdown, to_markdown

FLOAT = "float32"
FASTER, SLOWER, NOISE, ONCE = "faster", "slower", "within noise", "measured once"
Row = Mapping[str, Any]


def is_speed(data: Mapping[str, Any]) -> bool:
    """Whether a file is what `bitcycle bench --json` writes."""
    return {"processor", "sizes", "rows", "repeats"} <= data.keys()


def gather_speed(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One measurement, without the kernel of every single layer."""
    if len(files) != 1:
        raise ValueError(f"{len(files)} files of `bitcycle bench`: a page has one, with all of it")
    (found,) = files
    rows = [
        {
            "workload": row["workload"],
            "kernel": row["kernel"],
            "bits": row["bits"],
            "milliseconds": [rounded(1e3 * s, 5) for s in row["seconds"]],
            "is_once": row["is_once"],
            "base": None if row["base"] is None else rounded(1e3 * row["base"], 5),
            "kept_bytes": row["saved_bytes"],
            "products": _products(row["layers"]),
            "notes": list(row["notes"]),
        }
        for row in found["rows"]
    ]
    keys = ("processor", "sizes", "repeats", "is_quick")
    budget = {"budget": found["budget"]} if found.get("budget") else {}  # older files lack it
    return {
        "kind": "speed",
        **{key: found[key] for key in keys},
        **budget,
        **take(found),
        "rows": rows,
    }


def _products(layers: Mapping[str, Sequence[str]]) -> str:
    """How many products each kernel forms, three per layer."""
    counts: Counter[str] = Counter()
    for kernel, _ in layers.values():
        parts = kernel.split("/")
        counts.update(parts * (3 // len(parts)))
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def render_speed(name: str, data: Mapping[str, Any]) -> Page:
    """Tables by workload, and in words what is slower."""
    rows = [row for row in data["rows"] if row["milliseconds"]]
    title = "Speed of a training step"
    sentence = _count(rows)
    processor = data["processor"]
    threads = processor["num_threads"]
    features = {"VNNI": "has_vnni", "BF16": "has_bf16", "AMX": "has_amx"}
    has = ", ".join(f"{key} {'yes' if processor[k] else 'no'}" for key, k in features.items())
    notes = dict.fromkeys(note for row in data["rows"] for note in row["notes"])
    parts = [
        made_from(name),
        f"# {title}",
        f"**{escape_markdown(sentence)}**",
        escape_markdown(
            f"{processor['name']}, {threads} thread{'' if threads == 1 else 's'}, torch "
            f"{processor['torch_version']}, capability {processor['capability']}, {has}; int8 "
            f"products are exact up to {processor['exact_bits']} bits of both operands together. A "
            f"step is forward, backward and SGD; n = {data['repeats']} repeats of each, variants "
            "in turn."
        ),
        *(_workload(workload, size, rows) for workload, size in data["sizes"].items()),
        "## What the columns mean",
        "ms: the fastest of n steps; the lower quartile tells how busy the machine was. Ratio: ms "
        "over the ms of float32 in the same rounds; below 1 is faster. Verdict: slower when even "
        "the fastest step is above float32's lower quartile, faster when the lower quartile is "
        "below float32's fastest, otherwise within noise. Kept: what the forward pass keeps for "
        "the backward pass, 10^6 bytes. Products: three per converted layer.",
    ]
    if notes:
        parts += ["## Notes", "\n".join(f"- {escape_markdown(note)}" for note in notes)]
    if data["is_quick"]:
        parts.append("**Measured with --quick: too small to tell what is fast.**")
    parts += [
        "## How it was made",
        block(*_commands(data)),
        f"The first command measures, the second writes this page and its file. {again(name)}",
        escape_markdown(machine_line([data if "machine" in data else _old_machine(data)])),
        escape_markdown(wall_clock_line([data], "measurement")),
    ]
    return Page(
        title=title, file=f"{name}.md", sentence=sentence,
        files={f"{name}.md": "\n\n".join(parts) + "\n"},
    )  # fmt: skip


def _old_machine(data: Mapping[str, Any]) -> dict[str, Any]:
    """What files without a machine know of it."""
    keys = {"processor": "name", "cpu_capability": "capability", "torch": "torch_version"}
    known = {key: data["processor"][own] for key, own in keys.items()}
    return {"machine": known, "threads": data["processor"]["num_threads"]}


def verdict(row: Row, base: Row | None) -> str:
    """Of a row against float32's."""
    if base is None or row is base:
        return ""
    if row["is_once"] or base["is_once"]:
        return ONCE
    if min(row["milliseconds"]) > _quartile(base):
        return SLOWER
    return FASTER if _quartile(row) < min(base["milliseconds"]) else NOISE


def _quartile(row: Row) -> float:
    times = sorted(row["milliseconds"])
    return float(times[len(times) // 4])


def _base(rows: Sequence[Row], workload: str) -> Row | None:
    return next((r for r in rows if r["workload"] == workload and r["kernel"] == FLOAT), None)


def _ratio(row: Row) -> str:
    return fixed(min(row["milliseconds"]) / row["base"], 2) if row["base"] else "-"


def _count(rows: Sequence[Row]) -> str:
    """The page in a sentence."""
    verdicts = [verdict(row, _base(rows, row["workload"])) for row in rows]
    counts = Counter(word for word in verdicts if word)
    said = ", ".join(f"{counts[word]} {word}" for word in (FASTER, NOISE, SLOWER, ONCE)
                     if counts[word])  # fmt: skip
    fast = [row for row, word in zip(rows, verdicts, strict=True) if word == FASTER]
    if not counts:
        return "Nothing was measured against float32."
    text = f"Of {sum(counts.values())} measured variants against float32: {said}.{_noise(rows)}"
    if not fast:
        return f"{text} Nothing is faster than float32 on this machine."
    best = min(fast, key=lambda row: min(row["milliseconds"]) / (row["base"] or 1))
    return f"{text} The best: {_who(best)} on {best['workload']}, {_ratio(best)} of float32's time."


def _noise(rows: Sequence[Row]) -> str:
    """How far apart variants are that form the same products: the same work, measured twice."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row["products"] and not row["is_once"]:
            key = row["workload"], row["bits"], row["products"]
            groups.setdefault(key, []).append(min(row["milliseconds"]))
    twins = [times for times in groups.values() if len(times) > 1]
    if not twins:
        return ""
    apart = max(max(times) / min(times) for times in twins) - 1
    number = sum(len(times) - 1 for times in twins)
    return (
        f" {number} of them do the same work as another (the same products by the same kernels) "
        f"and are up to {100 * apart:.0f} % apart: so much is noise."
    )


def _who(row: Row) -> str:
    return f"{row['kernel']} {row['bits']}".strip()


def _workload(workload: str, size: str, rows: Sequence[Row]) -> str:
    own = [row for row in rows if row["workload"] == workload]
    if not own:
        return f"## {escape_markdown(workload)}\n\n{escape_markdown(size)}."
    base = _base(rows, workload)
    names = ("kernel", "bits", "ms", "lower quartile", "ratio", "n", "kept", "products by",
             "verdict")  # fmt: skip
    table = Table(
        name=workload,
        title=workload,
        columns=tuple(("", name) for name in names),
        rows=tuple(
            (
                row["kernel"],
                row["bits"] or "-",
                fixed(min(row["milliseconds"]), 1),
                fixed(_quartile(row), 1),
                _ratio(row),
                str(len(row["milliseconds"])),
                "-" if row["kept_bytes"] is None else fixed(row["kept_bytes"] / 1e6, 1),
                row["products"] or "-",
                verdict(row, base) or "-",
            )
            for row in own
        ),
        is_number=(False, False, True, True, True, True, True, False, False),
        caption=f"{size}. {_slower(own, base)}",
    )
    return to_markdown(table).rstrip("\n")


def _slower(rows: Sequence[Row], base: Row | None) -> str:
    verdicts = [verdict(row, base) for row in rows]
    slow = [f"{_who(row)} ({_ratio(row)})" for row, word in zip(rows, verdicts, strict=True)
            if word == SLOWER]  # fmt: skip
    if slow:
        return f"Slower than float32: {', '.join(slow)}."
    is_judged = any(verdicts) and ONCE not in verdicts
    return "Nothing is slower than float32." if is_judged else "Not judged against float32."


def _commands(data: Mapping[str, Any]) -> tuple[str, str]:
    words = ["bitcycle", "bench", "--threads", str(data["processor"]["num_threads"])]
    words += ["--repeats", str(data["repeats"])]
    words += ["--budget", exactly(data["budget"])] if "budget" in data else []
    for workload in dict.fromkeys(row["workload"] for row in data["rows"]):  # not those left out
        words += ["--workload", workload]
    kernels = dict.fromkeys(row["kernel"] for row in data["rows"] if row["kernel"] != FLOAT)
    bits = dict.fromkeys(row["bits"] for row in data["rows"] if row["bits"])
    words += ["--kernels", *kernels] if kernels else []
    words += ["--bits", *bits] if bits else []
    words += ["--quick"] if data["is_quick"] else []
    return (
        shlex.join([*words, "--json", "speed.json"]),
        "bitcycle study publish speed.json --to results",
    )
