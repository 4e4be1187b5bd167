"""Tables as plain text, Markdown, LaTeX, and on a terminal."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bitcycle.tables import (
    Table,
    print_tables,
    text_table,
    to_latex,
    to_markdown,
    without_empty_columns,
)

# -- plain text -----------------------------------------------------------------------------------


def test_columns_are_as_wide_as_their_widest_cell():
    table = text_table(("a", "long name"), [("wide cell", "1"), ("x", "22")], right=[1])
    assert table.splitlines() == [
        "a          long name",
        "---------  ---------",
        "wide cell          1",
        "x                 22",
    ]
    assert text_table(("a", "b"), []) == "a  b\n-  -"
    assert text_table(("a", "b"), [("x", "")]).splitlines()[-1] == "x"  # no spaces at the end


def test_a_row_of_the_wrong_length_is_an_error():
    with pytest.raises(ValueError, match="zip"):
        text_table(("a", "b"), [("only one",)])


# -- Markdown and LaTeX ---------------------------------------------------------------------------


TABLE = Table(
    name="t",
    title="A & B",
    columns=(("", "method"), ("CIFAR-10", "ours"), ("CIFAR-10", "published")),
    rows=(("a_b|c", "91.43 ± 0.21", "-"), ("100 % <x>", "-0.5", "92.57")),
    is_number=(False, True, True),
    caption="Cost: 50 % of *it*.",
)


def test_markdown():
    assert to_markdown(TABLE) == (
        "## A &amp; B\n\n"
        "| method | CIFAR-10: ours | CIFAR-10: published |\n"
        "| --- | ---: | ---: |\n"
        "| a\\_b\\|c | 91.43 ± 0.21 | - |\n"
        "| 100 % &lt;x&gt; | -0.5 | 92.57 |\n"
        "\nCost: 50 % of \\*it\\*.\n"
    )


def test_latex():
    assert to_latex(TABLE).splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{A \& B. Cost: 50 \% of *it*.}",
        r"\label{tab:t}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r" & \multicolumn{2}{c}{CIFAR-10} \\",
        r"\cmidrule(lr){2-3}",
        r"method & ours & published \\",
        r"\midrule",
        r"a\_b$|$c & 91.43 $\pm$ 0.21 & -- \\",
        r"100 \% $<$x$>$ & $-$0.5 & 92.57 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("-1.0 (-2 to -0.5)", "$-$1.0 ($-$2 to $-$0.5)"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("a^b~c#d$e", r"a\textasciicircum{}b\textasciitilde{}c\#d\$e"),
        ("two\nlines", "two lines"),
    ],
)
def test_latex_specials(text, latex):
    table = Table(name="", title="", columns=(("", "x"),), rows=((text,),), is_number=(False,))
    assert to_latex(table).splitlines()[-4] == rf"{latex} \\"
    assert len(to_markdown(table).splitlines()) == 5  # a line break does not break a row


def test_empty_columns_are_left_out_and_empty_cells_are_a_dash():
    table = Table(
        name="", title="", columns=(("", "a"), ("", "b"), ("", "c")),
        rows=(("1", "", ""), ("", "", "3")), is_number=(False, True, True),
    )  # fmt: skip
    slim = without_empty_columns(table)
    assert slim.headings == ("a", "c")
    assert slim.rows == (("1", "-"), ("-", "3"))
    assert slim.is_number == (False, True)


# -- terminal -------------------------------------------------------------------------------------


PRINTED = Table(
    name="t",
    title="Title [bold]as written[/bold]",
    columns=(("", "method"), ("CIFAR-10", "ours"), ("CIFAR-10", "published")),
    rows=(("a method of some words", "91.43 ± 0.21", "92.57"), ("b [red]", "-", "1.00")),
    is_number=(False, True, True),
    caption="What it means.",
)


def printed(width):
    file = io.StringIO()
    print_tables([PRINTED], Console(file=file, width=width))
    return file.getvalue()


def test_a_table_has_its_title_above_and_its_caption_below():
    lines = [line.strip() for line in printed(80).splitlines() if line.strip()]
    assert lines[0] == "Title [bold]as written[/bold]"
    assert lines[1].split() == ["CIFAR-10", "CIFAR-10"]
    assert lines[2].split() == ["method", "ours", "published"]
    assert lines[4].split() == ["a", "method", "of", "some", "words", "91.43", "±", "0.21", "92.57"]
    assert lines[5].split() == ["b", "[red]", "-", "1.00"]
    assert lines[-1] == "What it means."


@pytest.mark.parametrize(("columns", "width"), [(None, 100), ("60", 60)])
def test_a_pipe_has_a_hundred_columns_unless_the_environment_says_otherwise(
    monkeypatch, capsys, columns, width
):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    print_tables([replace(PRINTED, caption="word " * 100)])
    longest = max(map(len, capsys.readouterr().out.splitlines()))
    assert width - len("word ") <= longest <= width


@pytest.mark.parametrize("width", [38, 20])
def test_a_narrow_terminal_wraps_and_never_cuts_off(width):
    text = printed(width)
    assert max(map(len, text.splitlines())) <= width
    letters = "".join(text.split())
    assert all(sum(letters.count(c) for c in digit) for digit in ("9", "±", "7"))
    body = text.split("─")[-1]
    assert sorted("".join("".join(cell.split()) for row in PRINTED.rows for cell in row)) == sorted(
        "".join(body.partition("What")[0].split())
    )
