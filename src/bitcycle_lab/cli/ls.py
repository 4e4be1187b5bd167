"""`bitcycle ls KIND`: what there is to choose from, by name."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from bitcycle.registry import Registry, load_plugins
from bitcycle_lab.listing import Entry, read_entries
from bitcycle_lab.tasks.config import model_kind

Row = dict[str, str]
Describe = Callable[[str, Any], Entry]
KINDS: Registry[Callable[..., list[Row]]] = Registry("kind")


def entries(package: str, registry: str, decorator: str, describe: Describe) -> list[Entry]:
    """What a registry holds, without importing torch: what the package's files register.

    A plugin, or user code, that registers more has imported the package. `describe` says what its
    source would.
    """
    load_plugins()
    found = read_entries(package, decorator)
    module = sys.modules.get(package)
    if module is not None:
        added = getattr(module, registry)
        found = found | {n: describe(n, added[n]) for n in added.names() if n not in found}
    return [found[name] for name in sorted(found)]


def describe_item(name: str, item: object) -> Entry:
    """The entry of a registered class or function."""
    return Entry(name=name, summary=first_line(item))


def describe_model(name: str, entry: Any) -> Entry:
    """The entry of a `ModelEntry`."""
    return Entry(name=name, summary=entry.description, parameters=tuple(entry.options))


def describe_dataset(name: str, info: Any) -> Entry:
    """The entry of a `DatasetInfo`."""
    return Entry(name=name, arguments=vars(info))


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
    found = entries("bitcycle.quantizers", "QUANTIZERS", "QUANTIZERS.register", describe_item)
    return [{"name": each.name, "what": _what(each)} for each in found]


@KINDS.register("layers")
def layers() -> list[Row]:
    """Module types that can be converted, and what they become."""
    return [
        {
            "float type": each.name,
            "converted": f"Quantized{each.name.rpartition('.')[2]}",
            "what": _what(each),
        }
        for each in entries("bitcycle.nn", "LAYERS", "LAYERS.register", describe_item)
    ]


@KINDS.register("runs")
def runs(folder: str = "runs") -> list[Row]:
    """Runs below ./runs or the folder that follows, with their results."""
    from bitcycle_lab.train.run_directory import list_runs

    return list_runs(folder)


@KINDS.register("models")
def models() -> list[Row]:
    """Networks to train, and the kind of data they take."""
    found = entries("bitcycle_lab.models", "MODELS", "register_model", describe_model)
    return [
        {"name": each.name, "kind": model_kind(each.parameters), "what": _what(each)}
        for each in found
    ]


@KINDS.register("datasets")
def datasets() -> list[Row]:
    """Data to train on, and the files expected below its root."""
    found = entries("bitcycle_lab.data", "DATASETS", "dataset", describe_dataset)
    return [
        {
            "name": each.name,
            "kind": each.arguments["kind"],
            "what": f"{each.arguments['description']}; files: {each.arguments['layout']}",
        }
        for each in found
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


def _what(entry: Entry) -> str:
    return entry.summary.rstrip(".")


def first_line(entry: object) -> str:
    """The first line of an object's docstring."""
    return (getattr(entry, "__doc__", None) or "").strip().partition("\n")[0].rstrip(".")
