"""A table of text cells, and how it is written in Markdown and LaTeX."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


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
