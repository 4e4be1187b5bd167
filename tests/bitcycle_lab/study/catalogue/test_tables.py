"""The tables of CPT: every printed number is in its study, once; and their small twins."""

from collections import Counter

import pytest

from bitcycle_lab.published import read_table
from bitcycle_lab.study.study import STUDIES

CSV = {
    "table1": "table1_lr_vs_precision",
    "table2": "table2_cifar",
    "table3": "table3_imagenet",
    "table4": "table4_imagenet_full_precision",
    "table5": "table5_language",
    "table6": "table6_schedule_shapes",
    "table7": "table7_delayed_start",
    "table8": "table8_gradient_cycling",
}
MODELS = {"transformer": "transformer_lm", "lstm2": "lstm_lm"}


def printed(row, table):
    """(model, dataset, the columns that tell the cell, metric, value) of each number of a row."""
    model = MODELS.get(row["model"], row["model"])
    model = f"imagenet_{model}" if table in ("table3", "table4") else model
    datasets = {"table2": ("cifar10", "cifar100"), "table3": ("imagenet",), "table4": ("imagenet",)}
    for dataset in datasets.get(table) or (row["dataset"].replace("wikitext103", "wikitext-103"),):
        for column, metric in (
            ("accuracy", "accuracy"),
            (f"{dataset}_accuracy", "accuracy"),
            ("perplexity", "perplexity"),
            ("gbitops", "cost"),
            ("latency_hours_zc706", "latency"),
        ):
            if column in row:
                yield model, dataset, metric, float(row[column])


@pytest.mark.parametrize("name", CSV)
def test_every_number_of_a_table_is_in_its_study_as_often_as_printed(name):
    expected = Counter(cell for row in read_table(CSV[name]) for cell in printed(row, name))
    found = Counter(
        (method.config.model.name, method.config.data.name, p.metric, p.value)
        for method in STUDIES[name]().methods
        for p in method.published
    )
    assert found == expected


@pytest.mark.parametrize("name", CSV)
def test_no_two_numbers_have_one_place_and_none_is_of_another_table(name):
    methods = STUDIES[name]().methods
    places = [method.place for method in methods]
    assert None not in places
    assert len(set(places)) == len(places)
    where = {p.where for method in methods for p in method.published}
    assert where == {f"CPT Table {name.removeprefix('table')}"}


@pytest.mark.parametrize(
    ("name", "group", "label", "place", "value"),
    [  # as the paper prints them
        ("table1", "ResNet-74, CIFAR-100, lr 0.03", "4 bits", ("ResNet-74, 4 bits", "lr 0.03"),
         68.26),
        ("table2", "ResNet-164, CIFAR-10", "WAGEUBN 6/6", ("ResNet-164, WAGEUBN 6/6", "CIFAR-10"),
         92.44),
        ("table3", "ResNet-50, ImageNet", "CPT 4-6/6", ("ResNet-50, CPT 4-6/6", "ImageNet"), 75.74),
        ("table4", "ResNet-34, ImageNet", "CPT 8-32/32", ("ResNet-34, CPT 8-32/32", "ImageNet"),
         74.14),
        ("table5", "LSTM, PTB", "static 6/8", ("LSTM, static 6/8", "PTB"), 97.47),
        ("table6", "ResNet-164, CIFAR-100, 3-6/6", "cosine annealing",
         ("cosine annealing", "ResNet-164, 3-6/6"), 72.03),
        ("table7", "ResNet-38, CIFAR-100, 3-8/8", "from epoch 80",
         ("ResNet-38, 3-8/8", "epoch 80"), 68.37),
        ("table8", "ResNet-74, CIFAR-100", "gradients cycled 6/6-12",
         ("forward 6", "backward 6-12"), 69.59),
    ],
)  # fmt: skip
def test_a_cell_is_where_the_paper_has_it(name, group, label, place, value):
    (method,) = [m for m in STUDIES[name]().of(group) if m.label == label]
    assert method.place == place
    assert method.published[0].value == value


def test_a_run_of_two_tables_is_one_run():
    def folder(name, label):
        runs = STUDIES[name]().runs("runs")
        return {
            run.config.run_name
            for run in runs
            if run.method.label == label
            and run.method.group.startswith("ResNet-74, CIFAR-100")
            and run.seed == 0
        }

    assert folder("table2", "static 6/6") == folder("table8", "static 6/6")
    assert folder("table2", "CPT 3-8/8") == folder("fig1", "CPT 3-8/8")


DIGITS = "small ResNet-8, digits"


@pytest.mark.parametrize("table", ["table1", "table2", "table6", "table7", "table8"])
def test_a_small_table_has_the_methods_of_resnet_74_on_digits(table):
    full, small = STUDIES[table](), STUDIES[f"{table}-small"]()
    of_resnet74 = {
        (method.group.removeprefix("ResNet-74, CIFAR-100"), method.label)
        for method in full.methods
        if method.group.startswith("ResNet-74, CIFAR-100")
    }
    on_digits = {
        (method.group.removeprefix(DIGITS), method.label)
        for method in small.methods
        if method.group.startswith(DIGITS)
    }
    assert on_digits == of_resnet74
    assert small.baseline == full.baseline
