"""Markdown and LaTeX of a table."""

import pytest

from bitcycle.study.table_text import (
    Table,
    to_latex,
    to_markdown,
    without_empty_columns,
)

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
        ("CPT 3-8/8", "CPT 3-8/8"),
        ("-1.0 (-2 to -0.5)", "$-$1.0 ($-$2 to $-$0.5)"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("a^b~c#d$e", r"a\textasciicircum{}b\textasciitilde{}c\#d\$e"),
        ("two\nlines", "two lines"),
    ],
)
def test_latex_specials(text, latex):
    table = Table(name="", title="", columns=(("", "x"),), rows=((text,),), is_number=(False,))
    assert to_latex(table).splitlines()[-4] == rf"{latex} \\"


def test_a_line_break_or_a_bar_does_not_break_a_markdown_row():
    table = Table(name="", title="", columns=(("", "x"),), rows=(("a\n|b",),), is_number=(False,))
    assert to_markdown(table).splitlines()[-1] == "| a \\|b |"


def test_empty_columns_are_left_out_and_empty_cells_are_a_dash():
    table = Table(
        name="", title="", columns=(("", "a"), ("", "b"), ("", "c")),
        rows=(("1", "", ""), ("", "", "3")), is_number=(False, True, True),
    )  # fmt: skip
    slim = without_empty_columns(table)
    assert slim.headings == ("a", "c")
    assert slim.rows == (("1", "-"), ("-", "3"))
    assert slim.is_number == (False, True)
