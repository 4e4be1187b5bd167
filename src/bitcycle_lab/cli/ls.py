"""`bitcycle ls KIND`: what there is to choose from, by name."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from bitcycle.registry import Registry

Row = dict[str, str]
KINDS: Registry[Callable[..., list[Row]]] = Registry("kind")


@KINDS.register("schedules")
def schedules() -> list[Row]:
    """Precision schedules and the text that stands for them."""
    from bitcycle.schedules import list_schedules

    return [
        {"name": i.name, "cost": i.tier or "-", "example": i.form, "what": i.summary}
        for i in list_schedules()
    ]


@KINDS.register("formats")
def formats() -> list[Row]:
    """Number formats that stand wherever bits do."""
    from bitcycle.formats.catalogue import list_formats

    return [
        {
            "name": each.name,
            "element": each.element,
            "bits": str(each.bits),
            "block": "-" if each.block is None else str(each.block),
            "largest": f"{each.max_value:g}",
            "what": each.describe().partition(", ")[2],  # the scale: columns have the elements
        }
        for each in list_formats()
    ]


@KINDS.register("quantizers")
def quantizers() -> list[Row]:
    """Rules that turn tensors into codes."""
    from bitcycle.quantizers import QUANTIZERS

    return [{"name": name, "what": first_line(entry)} for name, entry in QUANTIZERS.items()]


@KINDS.register("layers")
def layers() -> list[Row]:
    """Module types that can be converted, and what they become."""
    from bitcycle.nn import LAYERS

    return [
        {
            "float type": name,
            "converted": f"Quantized{name.rpartition('.')[2]}",
            "what": first_line(LAYERS[name])
            if LAYERS.is_imported(name)
            else f"Imported when a model of {name.partition('.')[0]} is converted",
        }
        for name in LAYERS
    ]


@KINDS.register("runs")
def runs(folder: str = "runs") -> list[Row]:
    """Runs below ./runs or the folder that follows, with their results."""
    from bitcycle_lab.train.run_directory import list_runs

    return list_runs(folder)


@KINDS.register("models")
def models() -> list[Row]:
    """Networks to train, and the kind of data they take."""
    from bitcycle_lab.models import MODELS
    from bitcycle_lab.tasks.base import model_kind

    return [
        {"name": name, "kind": model_kind(entry), "what": entry.description.rstrip(".")}
        for name, entry in MODELS.items()
    ]


@KINDS.register("datasets")
def datasets() -> list[Row]:
    """Data to train on, and the files expected below its root."""
    from bitcycle_lab.data import DATASETS

    return [
        {"name": name, "kind": info.kind, "what": f"{info.description}; files: {info.layout}"}
        for name, info in DATASETS.items()
    ]


@KINDS.register("recipes")
def recipes(*words: str) -> list[Row]:
    """Complete runs; the words that follow filter by name, table, model and dataset."""
    from bitcycle_lab.recipes import find_recipes

    return [
        {
            "name": info.name,
            "length": info.length,
            "data": info.needs_data or "built in",
            "table": ", ".join(cell.removeprefix("CPT ") for cell in info.cells) or "-",
            "published": ", ".join(dict.fromkeys(f"{p.value:g}" for p in info.results)) or "-",
            "forward / backward": info.bits,
            "note": "; ".join(info.notes),
        }
        for info in find_recipes(words)
    ]


def register(subparsers: Any) -> None:
    """Adds the command."""
    listing = "\n".join(f"  {name:<12}{first_line(kind)}" for name, kind in KINDS.items())
    parser = subparsers.add_parser(
        "ls",
        help="list what there is, by name",
        description="Lists everything of one kind, by name.",
        epilog=f"kinds:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS.names()))
    parser.add_argument(
        "words",
        metavar="WORD",
        nargs="*",
        default=[],  # without one, argparse calls it required
        help="for recipes: parts of a name, a table (table2), a model or a dataset, all of which "
        "must occur; for runs: the folder they are in",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.set_defaults(run=run, if_missing=f"give one of\n{listing}")


def run(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    kind, words = arguments.kind, arguments.words
    if kind == "runs" and len(words) > 1:
        raise ValueError(f"runs are listed below one folder, not {len(words)}: {', '.join(words)}")
    if words and kind not in ("recipes", "runs"):
        raise ValueError(
            f"only recipes and runs take words: {' '.join(words)!r} after {kind!r} means nothing"
        )
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    rows = KINDS[kind](*words)
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif rows:
        print(table(rows, width=width))
    else:
        print(f"no {kind}" + (f" below {words[0] if words else 'runs'}" if kind == "runs" else ""))
    return 0


def table(rows: list[Row], *, width: int | None = None) -> str:
    """Aligned columns; with a width, the last column is wrapped to it.

    >>> print(table([{"name": "sbm", "what": "ranges of a batch"}, {"name": "x", "what": "y"}]))
    name  what
    sbm   ranges of a batch
    x     y
    """
    *columns, last = rows[0]
    sizes = [max(len(text) for text in (c, *(row[c] for row in rows))) for c in columns]
    indent = sum(sizes) + 2 * len(sizes)
    lines = []
    for row in ({name: name for name in rows[0]}, *rows):
        start = "".join(f"{row[c]:<{size}}  " for c, size in zip(columns, sizes, strict=True))
        pieces = [row[last]]
        if width is not None and width - indent >= 20:
            pieces = textwrap.wrap(row[last], width - indent) or [""]
        lines.append(start + f"\n{'':<{indent}}".join(pieces))
    return "\n".join(line.rstrip() for line in lines)


def first_line(entry: object) -> str:
    """The first line of an entry's docstring."""
    return (getattr(entry, "__doc__", None) or "").strip().partition("\n")[0].rstrip(".")
