"""Plain-text tables for terminals, logs and `str()`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text


def text_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()
) -> str:
    """Aligned columns under a ruled header; the columns in `right` are right-aligned.

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
    """Cells as text, ready to print.

    columns: (heading above, heading); neighbours with one heading above share it. is_number: which
    columns are set to the right. caption: what a reader needs to judge the numbers.
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
        """One line of headings.

        >>> table = Table(name="t", title="", columns=(("", "method"), ("CIFAR-10", "ours")),
        ...     rows=(), is_number=(False, True))
        >>> table.headings
        ('method', 'CIFAR-10: ours')
        """
        return tuple(f"{above}: {own}" if above else own for above, own in self.columns)


def without_empty_columns(table: Table) -> Table:
    """Columns that have something to say; what is empty in them becomes "-"."""
    keep = [i for i in range(len(table.columns)) if any(row[i] for row in table.rows)]
    return replace(
        table,
        columns=tuple(table.columns[i] for i in keep),
        rows=tuple(tuple(row[i] or "-" for i in keep) for row in table.rows),
        is_number=tuple(table.is_number[i] for i in keep),
    )


def to_markdown(table: Table) -> str:
    """With the title as a heading and the caption below."""
    caption = f"\n\n{escape_markdown(table.caption)}" if table.caption else ""
    return f"## {escape_markdown(table.title)}\n\n{markdown_rows(table)}{caption}\n"


def markdown_rows(table: Table) -> str:
    """Headings and rows only."""
    rule = ["---:" if number else "---" for number in table.is_number]
    lines = [[escape_markdown(cell) for cell in table.headings], rule]
    lines += [[escape_markdown(cell) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape_markdown(text: str) -> str:
    """Specials escaped, so that a label shows as it is written.

    >>> print(escape_markdown("a|b *c* <d> [e]"))
    a\\|b \\*c\\* &lt;d&gt; \\[e\\]
    """
    text = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text.replace("&", "&amp;"))
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")


def to_latex(table: Table) -> str:
    r"""A `table` environment; needs \usepackage{booktabs}."""
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
        *_headings_above(table),
        head,
        r"\midrule",
        body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _headings_above(table: Table) -> list[str]:
    spans: list[tuple[str, int]] = []
    for above, _ in table.columns:
        if spans and spans[-1][0] == above:
            spans[-1] = (above, spans[-1][1] + 1)
        else:
            spans.append((above, 1))
    if not any(above for above, _ in spans):
        return []
    cells: list[str] = []
    rules: list[str] = []
    start = 1
    for above, width in spans:
        if above:
            cells.append(rf"\multicolumn{{{width}}}{{c}}{{{_latex(above)}}}")
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
    """Specials escaped, minus signs set as such.

    >>> print(_latex("50 % of a_b, -0.1 ± 0.2, CPT 3-8/8"))
    50 \\% of a\\_b, $-$0.1 $\\pm$ 0.2, CPT 3-8/8
    """
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w.\]})-])-(?=\d)", "$-$", escaped)


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
