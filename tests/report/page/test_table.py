"""The results table."""

import re
from dataclasses import replace

from bitcycle.recipes import Published
from bitcycle.report.page.table import results_card
from bitcycle.study.results import read_study
from bitcycle.study.summary import summarize

from .made_up import SCRIPT, Elements, study, write_study


def table(made):
    return results_card(summarize(made)[0])


def headings(markup):
    return re.findall(r'<th scope="col"[^>]*><button type="button">([^<]*)</button>', markup)


def test_every_heading_is_a_button_that_says_how_it_is_sorted(made):
    seen = Elements(table(made))
    heads = [a for name, a in seen.found if name == "th" and a.get("scope") == "col"]
    assert all(a["aria-sort"] == "none" for a in heads)
    assert seen.names().count("button") == len(heads)


def test_columns_without_a_value_are_left_out(made):
    assert headings(table(made)) == [
        "method", "accuracy, %", "seeds", "against static 8/8", "p", "cost, static 8/8 = 1",
        "training cost", "evaluated at", "time of a run",
    ]  # fmt: skip


def test_cells_carry_the_number_they_are_sorted_by(made):
    seen = Elements(table(made))
    values = [a["data-value"] for name, a in seen.found if name == "td" and "data-value" in a]
    # of the baseline: mean, seeds, cost, BitOPs, evaluated at, seconds
    assert values[:6] == ["91.0", "2", "1.0", "1000.0", "w8a8", "2.5"]
    assert "91.0 ± 1.4" in seen.text


def test_differences_are_paired_by_seed(made):
    seen = Elements(table(made))
    values = [a.get("data-value") for name, a in seen.found if name == "td"]
    # CPT, second row of eight cells after the name: +3 and +1
    assert values[8:11] == ["93.0", "2", "2.0"]


def test_a_row_says_what_is_missing_and_what_is_on_the_front(made):
    markup = table(made)
    assert '<span class="badge failed">1 failed</span>' in markup
    assert '<span class="badge missing">2 not begun</span>' in markup
    assert markup.count('title="on the Pareto front"') == 2


def test_names_are_text(made):
    seen = Elements(table(made))
    assert "script" not in seen.names()
    assert SCRIPT in "".join(seen.texts)


def test_published_numbers_of_the_metric_and_best_by_validation_get_columns(output):
    first, *others = study().methods
    number = Published(where="Table 2", metric="accuracy", value=72.35, unit="%")
    other = Published(where="Table 2", metric="cost", value=1.0, unit="GBitOPs")
    made = write_study(output, study(methods=(replace(first, published=(number, other)), *others)))
    result = read_study(made, output)
    markup = table(result)
    assert "published" in headings(markup)
    assert "accuracy 72.35 % (Table 2)" in markup
    assert "GBitOPs (Table 2)" not in markup
    run = result.methods[0].runs[0]
    best = replace(run, result=replace(run.result, best={"accuracy": 95.5}))
    methods = (replace(result.methods[0], runs=(best,)), *result.methods[1:])
    markup = table(replace(result, methods=methods))
    assert "best by validation" in headings(markup)
    assert "95.50" in markup
