"""Tables as plain text, Markdown, LaTeX or a colored terminal table.

`text_table` is for logs and `str()`. A `Table` has a title and a caption and is written in any
format.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # rich is not in the core installation; only `print_tables` needs it
    from rich.console import Console
    from rich.table import Table as RichTable

PIPE_WIDTH = 100
THE_MODEL = "(the model itself)"  # the name of a root module, which is empty


def text_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()
) -> str:
    """Aligned columns under a header with a rule; columns in `right` are right-aligned.

    >>> print(text_table(("name", "bits"), [("conv1", "3"), ("fc", "32")], right=[1]))
    name   bits
    -----  ----
    conv1     3
    fc       32
    """
    rows, numbers = [list(row) for row in rows], set(right)
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if i in numbers else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table whose cells are text.

    columns: (group heading, heading); adjacent columns with the same group heading share it.
    is_number: which columns are right-aligned. caption: what a reader needs to judge the numbers.
    """

    name: str
    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]
    is_number: tuple[bool, ...]
    caption: str = ""

    def __post_init__(self) -> None:
        widths = {len(self.columns), len(self.is_number), *map(len, self.rows)}
        assert len(widths) == 1, f"rows and headings of {self.name} differ in length: {widths}"

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings in one line.

        >>> table = Table(name="t", title="", columns=(("", "method"), ("CIFAR-10", "ours")),
        ...     rows=(), is_number=(False, True))
        >>> table.headings
        ('method', 'CIFAR-10: ours')
        """
        return tuple(f"{group}: {own}" if group else own for group, own in self.columns)


def without_empty_columns(table: Table) -> Table:
    """The table without columns that are empty in every row; other empty cells become "-"."""
    keep = [i for i in range(len(table.columns)) if any(row[i] for row in table.rows)]
    return replace(
        table,
        columns=tuple(table.columns[i] for i in keep),
        rows=tuple(tuple(row[i] or "-" for i in keep) for row in table.rows),
        is_number=tuple(table.is_number[i] for i in keep),
    )


def with_caption(table: Table, first: str, columns: Mapping[str, str]) -> Table:
    """The table with a caption: `first`, and the sentences of those columns that it has."""
    sentences = [columns[heading] for heading in table.headings if heading in columns]
    return replace(table, caption=" ".join(filter(None, [first, *sentences])))


def to_markdown(table: Table) -> str:
    """A Markdown section: the title as a heading, the table, the caption."""
    caption = f"\n\n{escape_markdown(table.caption)}" if table.caption else ""
    return f"## {escape_markdown(table.title)}\n\n{markdown_rows(table)}{caption}\n"


def markdown_rows(table: Table) -> str:
    """The table in Markdown, without title and caption."""
    rule = ["---:" if number else "---" for number in table.is_number]
    lines = [[escape_markdown(cell) for cell in table.headings], rule]
    lines += [[escape_markdown(cell) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape_markdown(text: str) -> str:
    """The text with Markdown and HTML characters escaped.

    >>> print(escape_markdown("a|b *c* <d> [e]"))
    a\\|b \\*c\\* &lt;d&gt; \\[e\\]
    """
    text = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text.replace("&", "&amp;"))
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")


def to_latex(table: Table) -> str:
    r"""A LaTeX `table` environment; needs \usepackage{booktabs}."""
    layout = "".join("r" if number else "l" for number in table.is_number)
    head = " & ".join(_latex(own) for _, own in table.columns) + r" \\"
    body = "\n".join(" & ".join(map(_latex_cell, row)) + r" \\" for row in table.rows)
    caption = ". ".join(_latex(part.rstrip(".")) for part in (table.title, table.caption) if part)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}.}}",
        rf"\label{{tab:{re.sub(r'[^A-Za-z0-9-]+', '-', table.name)}}}",
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
        *_latex_group_headings(table),
        head,
        r"\midrule",
        body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_group_headings(table: Table) -> list[str]:
    spans: list[tuple[str, int]] = []
    for group, _ in table.columns:
        if spans and spans[-1][0] == group:
            spans[-1] = (group, spans[-1][1] + 1)
        else:
            spans.append((group, 1))
    if not any(group for group, _ in spans):
        return []
    cells: list[str] = []
    rules: list[str] = []
    start = 1
    for group, width in spans:
        if group:
            cells.append(rf"\multicolumn{{{width}}}{{c}}{{{_latex(group)}}}")
            rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        else:
            cells += [""] * width
        start += width
    return [" & ".join(cells) + r" \\", " ".join(rules)]


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "<": r"$<$", ">": r"$>$", "|": r"$|$", "\n": " ",
}  # fmt: skip


def _latex_cell(text: str) -> str:
    return "--" if text == "-" else _latex(text)


def _latex(text: str) -> str:
    """The text with LaTeX characters escaped and minus signs in math mode.

    >>> print(_latex("50 % of a_b, -0.1 ± 0.2, CPT 3-8/8"))
    50 \\% of a\\_b, $-$0.1 $\\pm$ 0.2, CPT 3-8/8
    """
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w.\]})-])-(?=\d)", "$-$", escaped)


def print_tables(tables: Sequence[Table], console: Console | None = None) -> None:
    """Print tables with title and caption; cells that are too wide for the terminal are wrapped.

    A pipe or file is taken to have `PIPE_WIDTH` columns, unless COLUMNS is set.
    """
    from rich.console import Console
    from rich.text import Text

    if console is None:
        console = Console(highlight=False)
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = PIPE_WIDTH
    for table in tables:
        console.print(Text(table.title, style="bold"))
        console.print(_rich(table, console.width))
        if table.caption:
            console.print(Text(table.caption, style="dim"))
        console.print()


def _rich(table: Table, width: int) -> RichTable:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    widths = _widths(table, width - 2 * len(table.columns))
    for (group, own), number, own_width in zip(table.columns, table.is_number, widths, strict=True):
        shown.add_column(
            Text(f"{group}\n{own}" if group else own),
            justify="right" if number else "left",
            width=own_width,
            overflow="fold",
        )
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown


def _widths(table: Table, room: int) -> list[int]:
    """Column widths that fit: cells wrap between words, inside words only if they must."""
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
