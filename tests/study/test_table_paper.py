"""The table in the paper's shape."""

from bitcycle.study.summary import summarize
from bitcycle.study.table_paper import paper_table
from tests.study.made_up import method, study_result

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


def test_rows_and_columns_are_the_published_ones_with_ours_beside():
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
        ("ResNet-74 SBM", "91.0 ± 1.0", "92.57", "70.00 (1 of 3)", "71.40", "1.00", "1.00"),
        ("ResNet-74 CPT", "91.00 (1 of 3)", "93.23", "1 failed, 2 missing", "72.35", "0.630",
         "0.629"),
    )  # fmt: skip
    assert table.title == "Ours beside the published values"


def test_without_places_rows_are_methods_and_columns_groups():
    result = study_result(
        [
            (method("a", 8, group="one"), {0: 1.0}, 2.0),
            (method("b", 4, group="one"), {0: 2.0}, 1.0),
            (method("a", 8, group="two", changes={"steps": 9}), {0: 3.0}, 2.0),
        ],
        seeds=(0,),
    )
    table = paper_table(summarize(result))
    assert table.title == "Results"
    assert table.headings == ("method", "one: ours", "two: ours")
    assert table.rows == (("a", "1.00", "3.00"), ("b", "2.00", "-"))


def test_a_single_unnamed_group_is_headed_by_its_metric():
    table = paper_table(summarize(study_result([(method("a", 8), {0: 1.0}, 2.0)], seeds=(0,))))
    assert table.headings == ("method", "accuracy, %: ours")


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
    assert paper_table(summarize(result)).rows[1][-2:] == ("0.500, 0.600", "0.500, 0.750")
