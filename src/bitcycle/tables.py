"""Plain-text tables for terminals, logs and `str()`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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
