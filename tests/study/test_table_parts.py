"""The tables of the statistics."""

from bitcycle.study.summary import summarize
from bitcycle.study.table_parts import (
    budget_table,
    differences_table,
    relation_table,
    values_table,
    variance_table,
)
from bitcycle.tasks import DataConfig, ModelConfig
from tests.study.made_up import method, study_result

BASE = {0: 90.0, 1: 91.0, 2: 92.0}


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
        ("static", "91.0 ± 1.0", "3", "88.5 to 93.5", "1.00", "2.00 T", "-", "-"),
        ("CPT", "93.0 ± 2.0", "3", "88.0 to 98.0", "0.630", "1.26 T", "yes", "-"),
        ("low", "80.00", "1", "-", "0.0500", "100 G", "yes", "1 failed, 1 missing"),
        ("later", "-", "0", "-", "-", "-", "-", "3 missing"),
    )


def test_differences_have_pairs_p_and_the_published_difference():
    table = differences_table(groups())
    assert table.headings == (
        "method", "against", "difference (95 % interval)", "pairs", "p", "published",
    )  # fmt: skip
    assert table.rows == (
        ("CPT", "static", "+2.0 (-0.5 to 4.5)", "3", "0.074", "+0.66"),
        ("low", "static", "-11.00", "1", "-", "-"),
        ("later", "static", "-", "0", "-", "-"),
    )
    assert differences_table(groups(baseline=None)).rows == ()


def test_budgets_are_those_where_the_best_changes_and_the_baselines():
    assert budget_table(groups()).rows == (
        ("100 GBitOPs", "0.0500", "low", "80.00"),
        ("1.26 TBitOPs", "0.630", "CPT", "93.0 ± 2.0"),
        ("2.00 TBitOPs", "1.00", "CPT", "93.0 ± 2.0"),
    )


def test_spread_is_shown_beside_the_baselines():
    [row] = variance_table(groups()).rows
    # distances (1, 0, 1) and (2, 0, 2): between 0.6667, within 3.3333 / 4: F = 0.80
    assert row[:4] == ("CPT", "2.0", "1.0 (static)", "0.80")


def test_the_relation_names_the_front():
    [row] = relation_table(groups()).rows
    assert row == ("1", "-", "low, CPT")


def test_groups_of_two_metrics_name_the_metric_of_each_row():
    words = {
        "task": "language",
        "model": ModelConfig(name="lstm_lm"),
        "data": DataConfig(name="ptb", root="x"),
    }
    result = study_result(
        [
            (method("a", 8, group="images"), {0: 90.0}, 1.0),
            (method("a", 8, group="text", changes=words), {0: 97.0}, 1.0),
        ],
        seeds=(0,),
    )
    table = values_table(summarize(result))
    assert table.headings[:4] == ("group", "method", "metric", "value")
    assert [row[2] for row in table.rows] == ["accuracy, %", "perplexity"]
