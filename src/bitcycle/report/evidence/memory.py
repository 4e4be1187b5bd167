"""The page of `benchmarks/saved_memory.py --json`: what training keeps for the backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bitcycle.report.evidence.measured import machine_line, take, wall_clock_line
from bitcycle.report.evidence.page import Page, again, block, made_from
from bitcycle.study.numbers import fixed
from bitcycle.study.publish.jsontext import rounded
from bitcycle.study.table_text import Table, escape_markdown, to_markdown, without_empty_columns


def is_memory(data: Mapping[str, Any]) -> bool:
    """Whether a file is what the benchmark writes."""
    return data.get("benchmark") == "saved_memory"


def gather_memory(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One table."""
    if len(files) != 1:
        raise ValueError(f"{len(files)} files of saved_memory.py: a page has one, with all of it")
    (found,) = files
    rows = [
        {
            key: rounded(value, 6) if isinstance(value, float) else value
            for key, value in row.items()
        }
        for row in found["rows"]
    ]
    more = {key: found[key] for key in ("only", "sizes") if found.get(key)}
    return {"kind": "memory", **take(found), **more, "rows": rows}


def render_memory(name: str, data: Mapping[str, Any]) -> Page:
    """One table, and the range in a sentence."""
    rows = data["rows"]
    title = "Memory kept for the backward pass"
    by_kernel = {row["kernel"]: [r["ratio"] for r in rows if r["kernel"] == row["kernel"]]
                 for row in rows}  # fmt: skip
    sentence = "; ".join(
        f"{kernel} keeps {_span(ratios)} of float32's bytes" for kernel, ratios in by_kernel.items()
    )
    over = [f"{r['model']} by {r['kernel']}" for r in rows if r["ratio"] >= 1]
    more = f" Not less than float32: {', '.join(over)}." if over else ""
    table = without_empty_columns(
        Table(
            name="memory",
            title="MiB kept by a training forward pass",
            columns=tuple(
                ("", heading)
                for heading in ("model", "kernel", "float32, MiB", "8 bits, MiB", "ratio",
                                "codes at 8 bits", "codes at 4 bits")
            ),
            rows=tuple(
                (
                    row["model"],
                    row["kernel"],
                    fixed(row["float32_bytes"] / 2**20, 1),
                    fixed(row["bytes"] / 2**20, 1),
                    fixed(row["ratio"], 3),
                    "" if row["codes_8"] is None else fixed(row["codes_8"], 3),
                    "" if row["codes_4"] is None else fixed(row["codes_4"], 3),
                )
                for row in rows
            ),
            is_number=(False, False, True, True, True, True, True),
            caption="Distinct storages that the graph keeps alive; parameters, buffers and inputs "
            "are left out. Codes: those of the converted layers over the float32 values of the "
            "same operands. Counted, not timed: every run gives the same bytes (n = 1, no spread).",
        )
    )  # fmt: skip
    parts = [
        made_from(name),
        f"# {title}",
        f"**{escape_markdown(f'{sentence[:1].upper()}{sentence[1:]}.{more}')}**",
        to_markdown(table).rstrip("\n"),
        *_sizes(data.get("sizes", {})),
        "## How it was made",
        block(
            "python benchmarks/saved_memory.py "
            + "".join(f"--only {model} " for model in data.get("only", ()))
            + "--json memory.json",
            "bitcycle study publish memory.json --to results",
        ),
        f"The first command counts, the second writes this page and its file. {again(name)}",
        escape_markdown(machine_line([data])),
        escape_markdown(wall_clock_line([data], "count")),
    ]
    return Page(
        title=title, file=f"{name}.md", sentence=f"{sentence}.{more}",
        files={f"{name}.md": "\n\n".join(parts) + "\n"},
    )  # fmt: skip


def _sizes(sizes: Mapping[str, str]) -> list[str]:
    """What each model is."""
    lines = [f"- {escape_markdown(f'{model}: {what}')}" for model, what in sizes.items()]
    return ["\n".join(lines)] if lines else []


def _span(ratios: Sequence[float]) -> str:
    low, high = fixed(min(ratios), 2), fixed(max(ratios), 2)
    return low if low == high else f"{low} to {high}"
