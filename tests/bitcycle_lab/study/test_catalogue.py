"""The studies that come with the package: what all keep to, the tables, figures and suites."""

import re
from collections import Counter
from pathlib import Path

import pytest

from bitcycle.quantizers import QUANTIZERS
from bitcycle.schedules import parse_schedule
from bitcycle_lab.data import DATASETS
from bitcycle_lab.published import read_table
from bitcycle_lab.recipes import recipe
from bitcycle_lab.recipes.notation import CYCLES
from bitcycle_lab.study import study_file
from bitcycle_lab.study.study_file import find_study, read_study_file, study_names
from bitcycle_lab.train.config_id import config_id

NAMES = study_names()


@pytest.fixture(scope="module")
def studies():
    return {name: find_study(name) for name in NAMES}


def test_a_study_has_the_name_it_is_found_by_and_asks_a_question(studies):
    for name in NAMES:
        study = studies[name]
        assert study.name == name
        assert len(study.description) > 20


def test_no_two_methods_of_a_study_are_the_same_run(studies):
    for name in NAMES:
        ids = [config_id(method.config) for method in studies[name].methods]
        assert len(set(ids)) == len(ids)


def test_every_group_has_the_baseline(studies):
    for name in NAMES:
        study = studies[name]
        for group in study.groups:
            assert study.baseline in [method.label for method in study.of(group)], group


def test_every_name_in_a_study_is_known(studies):
    for name in NAMES:
        for method in studies[name].methods:
            method.config.check_names()


def test_a_study_of_the_package_is_read_as_a_file_of_a_user_would_be(studies):
    folder = Path(study_file.__file__).parent / "catalogue"
    files = {name: folder / f"{name}.yaml" for name in NAMES}
    plain = [name for name, path in files.items() if ": &" not in path.read_text()]
    assert len(plain) == len(NAMES) - 2  # two have aliases, which a user's file may not have
    for name in plain:
        assert read_study_file(files[name]) == studies[name]


def test_a_caller_who_changes_a_study_does_not_change_a_recipe():
    find_study("table5").methods[0].config.model.options["dropout"] = 0.99
    assert recipe("wikitext103-transformer").model.options["dropout"] == 0.1


def test_kernels_are_chosen_by_the_processor(studies):
    for name in NAMES:
        assert {method.config.precision.kernel for method in studies[name].methods} == {"auto"}


SMALL_STUDIES = ("demo", "digits", "lengths", "regime", "time-to-accuracy")


def test_a_small_study_says_so_and_its_runs_take_one_thread(studies):
    for name in NAMES:
        study = studies[name]
        is_small = name.endswith("-small") or name in SMALL_STUDIES
        assert study.scale == ("small" if is_small else "full")
        if is_small:
            assert {method.config.threads for method in study.methods} == {1}
            assert not any(method.published for method in study.methods)


def test_no_study_asks_for_files_by_a_path_of_its_own(studies):
    for name in NAMES:
        for method in studies[name].methods:
            assert method.config.data.root is None
            assert method.config.data.name in DATASETS


def test_the_schedules_of_a_study_fit_its_runs(studies):
    for name in NAMES:
        for method in studies[name].methods:
            total = method.config.steps or 50_000
            for text in method.config.precision.schedule_texts(auto=3).values():
                for inner in text.values() if isinstance(text, dict) else [text]:
                    schedule = parse_schedule(inner)
                    schedule(0, total)
                    schedule(total - 1, total)


def test_what_a_critical_periods_study_varies_is_on_its_methods(studies):
    for name in NAMES:
        study = studies[name]
        varied = [method.at for method in study.methods if method.label != study.baseline]
        if study.kind == "critical-periods":
            assert None not in varied
        else:
            assert set(varied) <= {None}


def test_every_table_of_cpt_has_a_study():
    assert {f"table{n}" for n in range(1, 9)} | {"fig5", "fig7", "fig8"} <= set(NAMES)


def test_every_quantizer_of_integers_is_compared(studies):
    used = {method.config.precision.quantizer for method in studies["quantizers-small"].methods}
    assert used == {name for name, kind in QUANTIZERS.items() if not kind.scales_by_product}


def test_every_study_is_documented_with_its_number_of_runs(studies):
    text = (Path(__file__).parents[3] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if re.match(r"\| \[?`", line)]
    documented = {re.findall(r"`(.*)`", row[0])[0]: int(row[3]) for row in rows if len(row) == 7}
    assert documented == {
        name: sum(1 for _ in study.runs("runs")) for name, study in studies.items()
    }


# -- CPT's tables --


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
        for method in find_study(name).methods
        for p in method.published
    )
    assert found == expected


@pytest.mark.parametrize("name", CSV)
def test_no_two_numbers_have_one_place_and_none_is_of_another_table(name):
    methods = find_study(name).methods
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
    (method,) = [m for m in find_study(name).of(group) if m.label == label]
    assert method.place == place
    assert method.published[0].value == value


def test_a_run_of_two_tables_is_one_run():
    def folder(name, label):
        return {
            run.config.run_name
            for run in find_study(name).runs("runs")
            if run.method.label == label
            and run.method.group.startswith("ResNet-74, CIFAR-100")
            and run.seed == 0
        }

    assert folder("table2", "static 6/6") == folder("table8", "static 6/6")
    assert folder("table2", "CPT 3-8/8") == folder("fig7", "CPT 3-8/8")


@pytest.mark.parametrize("table", ["table1", "table8"])
def test_a_small_table_has_the_methods_of_resnet_74_on_digits(table):
    def methods(study, where):
        return {
            (m.group.removeprefix(where), m.label): m
            for m in study.methods
            if m.group.startswith(where)
        }

    large = methods(find_study(table), "ResNet-74, CIFAR-100")
    small = methods(find_study(f"{table}-small"), "small ResNet-8, digits")
    assert set(small) == set(large)
    for key, method in small.items():
        one, other = method.config, large[key].config
        assert (one.optimizer, one.lr, one.steps) == (other.optimizer, other.lr, 240)
        assert one.precision.skip == other.precision.skip
        for role in ("forward", "backward"):
            small_text = str(getattr(one.precision, role))
            assert re.sub(r":8$", ":32", small_text) == str(getattr(other.precision, role))


# -- figures and suites --


def forwards(name, group):
    return [method.config.precision.forward for method in find_study(name).of(group)]


def test_the_ablations_vary_one_thing():
    for network in ("ResNet-38", "ResNet-74"):
        static, *tops = forwards("fig7", f"{network}, CIFAR-100")
        assert (static, tops) == (8, [f"CR:3-{high}:32" for high in (4, 5, 6, 7, 8, 12, 16)])
        static, *cycles = forwards("fig8", f"{network}, CIFAR-100")
        assert (static, cycles) == (8, [f"CR:3-8:{n}" for n in (2, 4, 8, 16, 32, 64)])
    for name in ("fig7", "fig8"):
        assert {method.config.precision.backward for method in find_study(name).methods} == {8}


def test_accuracy_against_cost_has_what_table_2_and_the_figure_print():
    methods = find_study("fig5").methods
    assert len(methods) == 34  # 5 ResNets x 6 + MobileNetV2 x 4
    where = [{p.where for p in method.published} for method in methods]
    assert where.count({"CPT Fig. 5"}) == 12
    assert where.count({"CPT Table 2"}) == 12  # 3 networks x 4 bits
    assert where.count(set()) == 10  # 4/6 and 3-4/6


FULL = {
    "ResNet-74, CIFAR-10, 3-8/8": 8,
    "ResNet-74, CIFAR-100, 3-8/8": 8,
    "GCN, OGBN-Arxiv, 3-8/8, FP-Agg": 8,
    "GCN, OGBN-Arxiv, 3-6/6, FP-Agg": 8,
    "GCN, OGBN-Arxiv, 3-8/8, Q-Agg": 8,
    "GCN, OGBN-Arxiv, 3-6/6, Q-Agg": 8,
    "LSTM, PTB, 5-8/8": 8,
    "LSTM, PTB, 5-6/6": 8,
    "BERT, XNLI, 5-8/8": 2,
}
SMALL = {
    "small ResNet-8, digits, 3-8/8": 8,
    "GCN, Cora, 3-8/8": 8,
}


@pytest.mark.parametrize(
    ("name", "groups"),
    [("schedule-suite", FULL), ("schedule-suite-small", SMALL)],
)
def test_every_domain_has_static_bits_and_the_ten_schedules(name, groups):
    study = find_study(name)
    assert study.kind == "suite"
    assert study.groups == tuple(groups)
    for where, cycles in groups.items():
        reach, backward = where.split(", ")[2].split("/")
        assert [method.label for method in study.of(where)] == ["static", *CYCLES[:10]]
        static, *cyclic = study.of(where)
        assert static.config.precision.forward == int(reach.partition("-")[2])
        for method in cyclic:
            assert method.config.precision.forward == f"{method.label}:{reach}:{cycles}"
        for method in study.of(where):
            assert method.config.precision.backward == int(backward)


def test_no_note_has_a_length_that_an_override_would_make_wrong(studies):
    for name in NAMES:
        own = {f"{m.config.steps:,}" for m in studies[name].methods if m.config.steps}
        for note in studies[name].notes:
            assert not own & set(re.findall(r"([\d,]+) steps", note)), (name, note)
