"""A study's tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bitcycle.study.table_text import Table


def print_tables(tables: Sequence[Table], console: Console | None = None) -> None:
    """Each with its title above and its caption below; wide cells are wrapped to the terminal."""
    console = console or Console(highlight=False)
    for table in tables:
        console.print(Text(table.title, style="bold"))
        console.print(_rich(table, console.width))
        if table.caption:
            console.print(Text(table.caption, style="dim"))
        console.print()


def _rich(table: Table, width: int) -> RichTable:
    shown = RichTable(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    widths = _widths(table, width - 2 * len(table.columns))
    for (above, own), number, own_width in zip(table.columns, table.is_number, widths, strict=True):
        shown.add_column(
            Text(f"{above}\n{own}" if above else own),
            justify="right" if number else "left",
            width=own_width,
            overflow="fold",
        )
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown


def _widths(table: Table, room: int) -> list[int]:
    """Columns that wrap between words, and inside them only where that is not enough."""
    columns = [
        [*heading, *cells] for heading, *cells in zip(table.columns, *table.rows, strict=True)
    ]
    widths = [max(map(len, texts)) for texts in columns]
    words = [max(len(word) for word in " ".join(texts).split()) for texts in columns]
    for least in (words, [1] * len(words)):
        while sum(widths) > room and any(w > m for w, m in zip(widths, least, strict=True)):
            slack = [w - m for w, m in zip(widths, least, strict=True)]
            widths[slack.index(max(slack))] -= 1
    return widths
