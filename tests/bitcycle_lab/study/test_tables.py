"""The tables of a study: in the paper's shape, of the statistics, as Markdown, LaTeX and CSV."""

import csv
import io
import math
import re

import pytest

from bitcycle_lab.study.summary import summarize
from bitcycle_lab.study.tables import (
    budget_table,
    caption,
    differences_table,
    method_rows,
    paper_table,
    study_tables,
    to_csv,
    values_table,
    write_tables,
)
from bitcycle_lab.tasks import DataConfig, ModelConfig
from tests.bitcycle_lab.study.made_up import method, study_result

BASE = {0: 90.0, 1: 91.0, 2: 92.0}


def result(output, **changes):
    return study_result(
        [
            (method("static", 8, published={"accuracy": 92.57}), BASE, 2e12),
            (method("CPT_3-8", "CR:3-8:8", at=5), {0: 91.0, 1: 93.0, 2: 95.0}, 1e12),
        ],
        output=output,
        **{"baseline": "static", **changes},
    )


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("comparison", ["paper", "values", "differences", "budgets"]),
        ("suite", ["paper", "values", "differences", "relation", "budgets"]),
        ("critical-periods", ["values", "differences"]),
    ],
)
def test_each_kind_of_study_has_its_tables(tmp_path, kind, names):
    tables = study_tables(result(tmp_path, kind=kind))
    assert [table.name for table in tables] == [f"made-up-{name}" for name in names]
    assert "240 steps, 3 seeds" in tables[0].caption


def test_three_files_are_written_and_nothing_else(tmp_path):
    study = result(tmp_path)
    paths = write_tables(study)
    assert [path.name for path in paths] == ["table.md", "table.csv", "table.tex"]
    assert sorted(study.folder.iterdir()) == sorted(paths)
    markdown, csv, latex = (path.read_text(encoding="utf-8") for path in paths)
    assert markdown.startswith("# made-up\n\nNumbers of no training.\n\n## ")
    assert "| CPT\\_3-8 | 93.0 ± 2.0 |" in markdown
    assert csv.count("\n") == 3
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == 4
    assert r"CPT\_3-8 & 93.0 $\pm$ 2.0" in latex


def test_a_cell_that_a_spreadsheet_would_execute_begins_with_a_quote():
    hostile = '=HYPERLINK("http://x")'
    result = study_result(
        [
            (method(hostile, 8), {0: 90.0, 1: 91.0}, 2e12),
            (method("@low", 3), {0: 89.0, 1: 90.5}, 1e12),
        ],
        baseline=hostile,
    )
    base, low = csv.DictReader(to_csv(result).splitlines())
    assert base["method"] == low["baseline"] == f"'{hostile}"
    assert low["method"] == "'@low"
    assert low["difference"] == "-0.75"


def test_one_line_per_method_with_unrounded_numbers():
    result = study_result(
        [
            (method("static, 8/8", 8, published={"accuracy": 92.57, "cost": 267.0}),
             {0: 90.0, 1: 91.0, 2: 92.5}, 2e12),
            (method("CPT", "CR:3-8:8", place=("row", "column")), {0: 91.1, 1: None}, 1e12),
            (method("later", 4), {}, 1.0),
        ],
        baseline="static, 8/8",
    )  # fmt: skip
    base, cpt, later = csv.DictReader(to_csv(result).splitlines())
    assert (base["method"], base["n"], base["seeds"]) == ("static, 8/8", "3", "0 1 2")
    assert float(base["mean"]) == (90.0 + 91.0 + 92.5) / 3
    assert (base["published"], base["published_gbitops"]) == ("92.57", "267.0")
    assert (base["difference"], base["relative_cost"]) == ("", "1.0")
    assert (cpt["row"], cpt["column"], cpt["std"], cpt["low"]) == ("row", "column", "", "")
    assert float(cpt["difference"]) == 91.1 - 90.0
    assert (cpt["pairs"], cpt["p"], cpt["failed"], cpt["missing"]) == ("1", "", "1", "1")
    assert (cpt["is_on_front"], cpt["eval_precision"], cpt["steps"]) == ("True", "FW8/BW8", "240")
    assert (later["mean"], later["n"], later["bitops"], later["missing"]) == ("", "0", "", "3")


TEN, HUNDRED = "ResNet-74, CIFAR-10", "ResNet-74, CIFAR-100"


def cell(label, forward, group, column, accuracy, cost):
    return method(
        label,
        forward,
        group=group,
        place=(f"ResNet-74 {label}", column),
        published={"accuracy": accuracy, "cost": cost},
        changes={"steps": 100 if column == "CIFAR-10" else 200},
    )


def test_rows_and_columns_are_the_published_ones_with_our_values():
    result = study_result(
        [
            (cell("SBM", 8, TEN, "CIFAR-10", 92.57, 267.0), {0: 90.0, 1: 91.0, 2: 92.0}, 200.0),
            (cell("CPT", "CR:3-8:8", TEN, "CIFAR-10", 93.23, 168.0), {0: 91.0, 1: None}, 126.0),
            (cell("SBM", 8, HUNDRED, "CIFAR-100", 71.4, 267.0), {0: 70.0}, 200.0),
            (cell("CPT", "CR:3-8:8", HUNDRED, "CIFAR-100", 72.35, 168.0), {1: None}, 126.0),
        ],
        baseline="SBM",
    )
    table = paper_table(summarize(result))
    assert table.headings == (
        "method", "CIFAR-10: ours", "CIFAR-10: published", "CIFAR-100: ours",
        "CIFAR-100: published", "training cost: ours", "training cost: published",
    )  # fmt: skip
    assert table.rows == (
        ("ResNet-74 SBM", "91.0 ± 1.0", "92.57", "70.0 (1 of 3)", "71.40", "1.00", "1.00"),
        ("ResNet-74 CPT", "91.0 (1 of 3)", "93.23", "1 failed, 2 missing", "72.35", "0.63",
         "0.63"),
    )  # fmt: skip
    assert table.title == "Our values and the published ones"


def test_costs_that_differ_between_the_columns_are_both_shown():
    result = study_result(
        [
            (cell("SBM", 8, TEN, "CIFAR-10", 1.0, 4.0), {0: 1.0}, 100.0),
            (cell("CPT", "CR:3-8:8", TEN, "CIFAR-10", 1.0, 2.0), {0: 1.0}, 50.0),
            (cell("SBM", 8, HUNDRED, "CIFAR-100", 1.0, 4.0), {0: 1.0}, 100.0),
            (cell("CPT", "CR:3-8:8", HUNDRED, "CIFAR-100", 1.0, 3.0), {0: 1.0}, 60.0),
        ],
        baseline="SBM",
        seeds=(0,),
    )
    assert paper_table(summarize(result)).rows[1][-2:] == ("0.50, 0.60", "0.50, 0.75")


def groups(**changes):
    return summarize(
        study_result(
            [
                (method("static", 8, published={"accuracy": 92.57}), BASE, 2e12),
                (method("CPT", "CR:3-8:8", published={"accuracy": 93.23}),
                 {0: 91.0, 1: 93.0, 2: 95.0}, 1.26e12),
                (method("low", 3), {0: None, 1: 80.0}, 1e11),
                (method("later", 4), {}, 1e11),
            ],
            **{"baseline": "static", **changes},
        )
    )  # fmt: skip


def test_values_have_n_interval_cost_and_what_is_not_done():
    table = values_table(groups())
    assert table.headings == (
        "method", "accuracy, %", "n", "95 % interval", "cost", "BitOPs", "front", "not done",
    )  # fmt: skip
    assert table.rows == (
        # t(0.975, 2) / sqrt(3) = 2.4841 deviations
        ("static", "91.0 ± 1.0", "3", "88.5 to 93.5", "1.000", "2,000 G", "-", "-"),
        ("CPT", "93.0 ± 2.0", "3", "88.0 to 98.0", "0.630", "1,260 G", "yes", "-"),
        ("low", "80.0", "1", "-", "0.050", "100 G", "yes", "1 failed, 1 missing"),
        ("later", "-", "0", "-", "-", "-", "-", "3 missing"),
    )


def test_differences_have_pairs_p_and_the_published_difference():
    table = differences_table(groups())
    assert table.headings == (
        "method", "against", "difference (95 % interval)", "pairs", "p", "verdict",
        "published",
    )  # fmt: skip
    assert table.rows == (
        ("CPT", "static", "+2.0 (-0.5 to 4.5)", "3", "0.074", "undecided, needs 4 seeds", "+0.66"),
        ("low", "static", "-11.0", "1", "-", "undecided", "-"),
        ("later", "static", "-", "0", "-", "-", "-"),
    )
    assert differences_table(groups(baseline=None)).rows == ()


def test_numbers_of_a_column_have_equal_decimals():
    entries = [
        (method("static", 8), {0: 90.0, 1: 91.0, 2: 92.0}, 8.84e12),
        (method("CPT", "CR:3-8:8"), {0: 91.01, 1: 91.02, 2: 91.04}, 5.67e11),
        (method("low", 3), {0: 30.0, 1: 90.0, 2: 20.0}, 9.1e10),
        (method("once", 4), {0: 91.0}, 9e10),
    ]
    shown = summarize(study_result(entries, baseline="static"))
    for table in (values_table(shown), differences_table(shown), budget_table(shown)):
        for heading, *cells in zip(table.headings, *table.rows, strict=True):
            numbers = [n for cell in cells for n in re.findall(r"\d[\d,]*\.?\d*", cell)]
            decimals = {len(number.partition(".")[2]) for number in numbers}
            if heading not in ("method", "against", "verdict"):
                assert len(decimals) <= 1, (table.name, heading, cells)


def test_the_interval_of_a_percentage_ends_at_0_and_100():
    entries = [
        (method("good", 8), {0: 99.0, 1: 100.0}, 1.0),
        (method("bad", 3), {0: 0.0, 1: 1.0}, 1.0),
    ]
    result = study_result(entries, seeds=(0, 1))
    table = values_table(summarize(result))
    place = table.headings.index("95 % interval")
    assert [row[place] for row in table.rows] == ["93.1 to 100.0", "0.0 to 6.9"]
    assert [(row["low"], row["high"]) for row in method_rows(result)] == [
        (pytest.approx(93.147, abs=1e-3), 100.0), (0.0, pytest.approx(6.853, abs=1e-3)),
    ]  # fmt: skip


def test_a_perplexity_has_no_such_ends():
    words = {
        "task": "language", "model": ModelConfig(name="lstm_lm"), "data": DataConfig(name="ptb"),
    }  # fmt: skip
    entries = [(method("a", 8, changes=words), {0: 99.0, 1: 100.0}, 1.0)]
    (row,) = values_table(summarize(study_result(entries, seeds=(0, 1)))).rows
    assert "93.1 to 105.9" in row


def test_one_seed_has_no_interval_and_no_caption_of_one():
    entries = [(method("static", 8), {0: 90.0}, 1.0), (method("CPT", "CR:3-8:8"), {0: 90.5}, 1.0)]
    alone = summarize(study_result(entries, seeds=(0,), baseline="static"))
    values, differences = values_table(alone), differences_table(alone)
    assert "95 % interval" not in values.headings
    assert "interval" not in values.caption
    assert "deviation" not in values.caption
    assert "p" not in differences.headings
    assert "t-test" not in differences.caption


def test_captions_explain_the_columns_and_verdicts_that_are_shown():
    entries = [(method("static", 8), {0: 90.0}, 1.0), (method("CPT", "CR:3-8:8"), {0: 90.5}, 1.0)]
    alone = summarize(study_result(entries, seeds=(0,), baseline="static", margin=0.5))
    shown = differences_table(alone).caption
    assert "margin (0.5 points)" in shown
    assert not any(word in shown for word in ("Holm", "Not finite", "Published"))
    assert "Cost:" in values_table(alone).caption
    diverged = {0: 90.5, 1: math.nan}
    worse = {seed: value - 9 + seed / 10 for seed, value in BASE.items()}
    entries = [(method("static", 8), BASE, 1.0), (method("CPT", "CR:3-8:8"), diverged, 1.0),
               (method("low", 3), worse, 1.0)]  # fmt: skip
    shown = differences_table(summarize(study_result(entries, baseline="static"))).caption
    assert all(word in shown for word in ("p is", "Holm", "Not finite", "margin (1 point)"))


def test_budgets_are_those_where_the_best_changes_and_the_baselines():
    assert budget_table(groups()).rows == (
        ("100 GBitOPs", "0.050", "low", "80.0"),
        ("1,260 GBitOPs", "0.630", "CPT", "93.0 ± 2.0"),
        ("2,000 GBitOPs", "1.000", "CPT", "93.0 ± 2.0"),
    )


def test_the_caption_says_how_ours_differs_from_the_published_set_up():
    result = study_result(
        [
            (method("a", 8, published={"accuracy": 92.0}), {0: 1.0, 1: None}, 1.0),
            (
                method("b", 4, published={"accuracy": 91.0}, changes={"steps": 1200}),
                {0: 1.0, 1: 2.0, 2: 3.0},
                1.0,
            ),
        ],
        scale="small",
        notes=("published with 64,000 steps.",),
    )
    assert caption(result) == (
        "Ours: digits_mlp on digits, 240 or 1,200 steps, 3 seeds, evaluated at FW8/BW8 (reduced "
        "scale). Published: CPT Table 2, a larger set-up: compare differences. Published with "
        "64,000 steps. Of 6 runs 1 failed, 1 missing."
    )


def test_many_lengths_are_a_range():
    entries = [
        (method(f"{n}", 8, changes={"steps": n, "name": f"n{n}"}), {0: 1.0}, 1.0)
        for n in (10, 20, 30, 40)
    ]
    assert ", 10 to 40 steps, " in caption(study_result(entries, seeds=(0,)))


@pytest.mark.parametrize("cell", ["\n=1", "-1_000", "+inf", "-nan", "-1\n", "-\u0661"])
def test_a_csv_cell_that_is_no_plain_number_is_quoted(cell):
    entries = [(method(cell, 8), {0: 1.0}, 1.0)]
    text = to_csv(study_result(entries, seeds=(0,)))
    [line] = csv.DictReader(io.StringIO(text, newline=""))
    assert line["method"] == f"'{cell}"


@pytest.mark.parametrize("cell", ["-0.5", "+3", "-.5e-3", "-2."])
def test_a_csv_cell_that_is_a_number_stays_one(cell):
    text = to_csv(study_result([(method(cell, 8), {0: 1.0}, 1.0)], seeds=(0,)))
    [line] = csv.DictReader(io.StringIO(text, newline=""))
    assert line["method"] == cell


def test_differences_beyond_noise_are_corrected_for_their_number():
    base = {0: 90.0, 1: 91.0, 2: 92.0}
    found = {
        "clear": {0: 91.99, 1: 93.0, 2: 94.01},  # 1.99 2 2.01: p of t = 346 is 8e-6
        "close": {0: 90.6, 1: 92.0, 2: 93.4},  # 0.6 1 1.4: t = 4.33, p = 0.0494
        "noise": {0: 91.0, 1: 90.0, 2: 92.1},
    }
    entries = [(method(label, f"CR:{3 + n}-8:8"), values, 1e12)
               for n, (label, values) in enumerate(found.items())]  # fmt: skip
    result = study_result([(method("static", 8), base, 2e12), *entries], baseline="static")
    table = differences_table(summarize(result))
    column = table.headings.index("after Holm")
    assert [row[column] for row in table.rows] == ["yes", "no", "-"]
