"""`bitcycle ls KIND`: what there is to choose from, by name."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bitcycle.registry import Registry

if TYPE_CHECKING:
    from bitcycle.recipes.listing import RecipeGroup

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
    from bitcycle.train.run_directory import list_runs

    return list_runs(folder)


@KINDS.register("models")
def models() -> list[Row]:
    """Networks to train, and the kind of data they take."""
    from bitcycle.models import MODELS
    from bitcycle.tasks.base import model_kind

    return [
        {"name": name, "kind": model_kind(entry), "what": entry.description.rstrip(".")}
        for name, entry in MODELS.items()
    ]


@KINDS.register("datasets")
def datasets() -> list[Row]:
    """Data to train on, and the files expected below its root."""
    from bitcycle.data import DATASETS

    return [
        {"name": name, "kind": info.kind, "what": f"{info.description}; files: {info.layout}"}
        for name, info in DATASETS.items()
    ]


@KINDS.register("recipes")
def recipes(*words: str) -> list[Row]:
    """Complete runs: small ones, and the papers' tables; words that follow filter them."""
    from bitcycle.recipes.listing import find_recipes

    infos = {info.name: info for group in find_recipes(words) for info in group.recipes}
    return [
        {
            "name": info.name,
            "scale": info.scale,
            "cell of": ", ".join(cell.removeprefix("CPT ") for cell in info.cells) or "-",
            "published": ", ".join(f"{p.value:g}" for p in info.results) or "-",
            "needs data": info.needs_data or "-",
            "what": info.description,
        }
        for _, info in sorted(infos.items())
    ]


LINE = 98  # columns of an indented line, where the terminal's width is unknown
ABOUT_BASE = "(base): float32 until --precision.forward gives it bits"


def recipe_text(words: Sequence[str], *, is_all: bool = False, width: int | None = None) -> str:
    """What `bitcycle ls recipes` prints: the groups between what to know and how to train one.

    Without words, a paper's table is one line, unless `is_all` asks for every recipe.
    """
    from bitcycle.recipes.listing import example, find_bases, find_recipes

    groups = find_recipes(words)
    tables = [] if words or is_all else [group for group in groups if group.is_table]
    if tables:
        groups = [*(group for group in groups if not group.is_table), find_bases(tables)]
    shown = [info for group in groups for info in group.recipes]
    parts = [recipe_table(group, width=width) for group in groups]
    if tables:
        parts.append(overview(tables, width=width))
    if any(info.cycles is not None for info in shown):
        parts.insert(0, ABOUT_BASE)
    command = example(shown)
    if len(command) > LINE:
        command = command.replace(" --precision", " \\\n    --precision", 1)
    parts.append(f"Train a recipe (--print-config shows its settings):\n  {command}")
    return "\n\n".join(parts)


def recipe_table(group: RecipeGroup, *, width: int | None = None) -> str:
    """The recipes of a group; what all have in common is in the title.

    >>> from bitcycle.recipes.listing import find_recipes
    >>> print(recipe_table(*find_recipes(["table8", "gradcycle-6-6-1"])))
    CPT Table 8: cycled gradients (64,000 steps, cifar100)
      name                                published  forward / backward
      cifar100-resnet74-gradcycle-6-6-10  70.32 %    6 / CR:6-10:32
      cifar100-resnet74-gradcycle-6-6-12  69.59 %    6 / CR:6-12:32
      cifar100-resnet74-gradcycle-6-6-16  70.24 %    6 / CR:6-16:32
    """
    rows: list[Row] = [
        {
            "name": info.name,
            "length": info.length,
            "data": info.needs_data or "built-in data",
            "published": group.published(info),
            "forward / backward": info.bits if info.cycles is None else "float32 (base)",
            "note": group.note(info),
        }
        for info in group.recipes
    ]
    common = [key for key in ("length", "data") if len({row[key] for row in rows}) == 1]
    empty = [key for key in ("published", "note") if not any(row[key] for row in rows)]
    title = group.title
    if common:
        title += f" ({', '.join(rows[0][key] for key in common)})"
    for row in rows:
        for key in (*common, *empty):
            del row[key]
    return block(title, rows, group.notes, width=width)


def overview(tables: Sequence[RecipeGroup], *, width: int | None = None) -> str:
    """One line for each table of a paper."""
    rows = [
        {
            "table": group.name,
            "recipes": f"{len(group.recipes):>7}",
            "subject": group.subject,
            "list them with": f"bitcycle ls recipes {group.words}",
        }
        for group in tables
    ]
    return block("the papers' tables; --all lists every recipe", rows, width=width)


def block(
    title: str, rows: list[Row], notes: Sequence[str] = (), *, width: int | None = None
) -> str:
    """A title and an indented table, cut to a width after its names, with notes below."""
    lines = table(rows).splitlines()
    if width is not None:  # two columns are the indent, three the dots
        end = max(width - 5, *(len(next(iter(row.values()))) for row in rows))
        lines = [line if len(line) <= end + 3 else f"{line[:end]}..." for line in lines]
    for note in notes:
        lines += textwrap.wrap(f"({note})", LINE if width is None else width - 2)
    return "\n  ".join([title, *lines])


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
        help="for recipes: parts of a name, a table (table 2), a model or a dataset, all of which "
        "must occur; for runs: the folder they are in",
    )
    parser.add_argument(
        "--all", action="store_true", help="for recipes: those of the papers' tables too"
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
    if arguments.all and kind != "recipes":
        raise ValueError(f"--all is for recipes; {kind} are always listed completely")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if kind == "recipes" and not arguments.json:
        print(recipe_text(words, is_all=arguments.all, width=width))
        return 0
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
