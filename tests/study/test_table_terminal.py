"""Tables on the terminal."""

import io

import pytest
from rich.console import Console

from bitcycle.tables import Table, print_tables

TABLE = Table(
    name="t",
    title="Title [bold]as written[/bold]",
    columns=(("", "method"), ("CIFAR-10", "ours"), ("CIFAR-10", "published")),
    rows=(("a method of some words", "91.43 ± 0.21", "92.57"), ("b [red]", "-", "1.00")),
    is_number=(False, True, True),
    caption="What it means.",
)


def printed(width):
    file = io.StringIO()
    print_tables([TABLE], Console(file=file, width=width))
    return file.getvalue()


def test_a_table_has_its_title_above_and_its_caption_below():
    lines = [line.strip() for line in printed(80).splitlines() if line.strip()]
    assert lines[0] == "Title [bold]as written[/bold]"
    assert lines[1].split() == ["CIFAR-10", "CIFAR-10"]
    assert lines[2].split() == ["method", "ours", "published"]
    assert lines[4].split() == ["a", "method", "of", "some", "words", "91.43", "±", "0.21", "92.57"]
    assert lines[5].split() == ["b", "[red]", "-", "1.00"]
    assert lines[-1] == "What it means."


@pytest.mark.parametrize("width", [38, 20])
def test_a_narrow_terminal_wraps_and_never_cuts_off(width):
    text = printed(width)
    assert max(map(len, text.splitlines())) <= width
    letters = "".join(text.split())
    assert all(sum(letters.count(c) for c in digit) for digit in ("9", "±", "7"))
    body = text.split("─")[-1]
    assert sorted("".join("".join(cell.split()) for row in TABLE.rows for cell in row)) == sorted(
        "".join(body.partition("What")[0].split())
    )
