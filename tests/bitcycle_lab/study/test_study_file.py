"""Studies as YAML files."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bitcycle_lab.recipes import recipe
from bitcycle_lab.study import study_file
from bitcycle_lab.study.study_file import find_study, read_study_file, study_from_dict
from bitcycle_lab.train.config_file import from_dict

BASE = {"model": {"name": "digits_mlp", "options": {"width": 16}}, "steps": 10, "threads": 1}


def study(**changes):
    settings = {"name": "x", "base": BASE, "methods": {"a": {}, "b": {"steps": 20}}}
    return study_from_dict({**settings, **changes})


def configs(found):
    return {method.key: method.config for method in found.methods}


def test_a_file_with_everything_in_it(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        """
name: cycles
description: How many cycles?
baseline: static
margin: 0.5
seeds: [4, 5]
base: digits-static-8-8
group: digits
methods:
  static: {}
  two: {precision.forward: "CR:3-8:2"}
  float: digits-float32
notes: [the last layer stays float32]
""",
        encoding="utf-8",
    )
    found = read_study_file(path)
    assert (found.name, found.description) == ("cycles", "How many cycles?")
    assert (found.seeds, found.baseline, found.margin) == ((4, 5), "static", 0.5)
    assert found.notes == ("the last layer stays float32",)
    by_key = configs(found)
    assert list(by_key) == ["digits: static", "digits: two", "digits: float"]
    assert by_key["digits: static"] == recipe("digits-static-8-8")
    assert by_key["digits: float"] == recipe("digits-float32")
    assert by_key["digits: two"].precision.forward == "CR:3-8:2"
    assert by_key["digits: two"].precision.skip == ("fc",)


def test_changes_may_be_dotted_or_nested_and_leave_the_rest():
    dotted = {"optimizer.lr": 0.5, "model.options.width": 8}
    nested = {"optimizer": {"lr": 0.5}, "model": {"options": {"width": 8}}}
    found = configs(study(methods={"a": dotted, "b": nested, "c": {}}))
    assert found["a"] == found["b"]
    assert (found["a"].optimizer.lr, found["a"].model.options) == (0.5, {"width": 8})
    assert found["a"].model.name == "digits_mlp"
    assert found["c"] == from_dict(BASE)  # changes of one method do not reach another


def test_a_method_may_have_its_own_base_and_group():
    method = {"base": "digits-float32", "group": "other", "steps": 3}
    found = configs(study(group="one", methods={"a": {}, "b": method}))
    assert list(found) == ["one: a", "other: b"]
    assert (found["other: b"].name, found["other: b"].steps) == ("digits-float32", 3)


def test_a_grid_crosses_every_method_and_each_point_is_a_group():
    grid = {"optimizer.lr": [0.1, 0.2], "data.batch_size": [32]}
    found = study(grid=grid, baseline="a")
    assert found.groups == ("lr 0.1, batch_size 32", "lr 0.2, batch_size 32")
    assert [method.label for method in found.methods] == ["a", "b"] * 2
    values = [(m.config.optimizer.lr, m.config.data.batch_size, m.config.steps)
              for m in found.methods]  # fmt: skip
    assert values == [(0.1, 32, 10), (0.1, 32, 20), (0.2, 32, 10), (0.2, 32, 20)]


def test_without_methods_the_points_of_the_grid_are_the_methods():
    found = study(methods=None, grid={"precision.forward": [8, "CR:3-8:2"]}, baseline="forward 8")
    assert [method.label for method in found.methods] == ["forward 8", "forward CR:3-8:2"]
    assert found.groups == ("",)


@pytest.mark.parametrize(("given", "seeds"), [(2, (0, 1)), ([7, 3], (7, 3))])
def test_seeds_are_a_number_or_a_list(given, seeds):
    assert study(seeds=given).seeds == seeds


def test_a_method_may_have_fewer_seeds():
    found = study(seeds=3, methods={"a": {"num_seeds": 1}, "b": {"steps": 20}})
    assert [(run.method.label, run.seed) for run in found.runs("out")] == [
        ("a", 0), ("b", 0), ("b", 1), ("b", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metods": {}}, "'metods'; did you mean 'methods'"),
        ({"name": 3}, "name .* 3"),
        ({"methods": None}, "methods .* grid"),
        ({"methods": ["a"]}, "method 'a': recipe, or method with bits .* 'a'"),
        ({"methods": ["CPT 3-8/8", "CPT 3-8/8"]}, "'CPT 3-8/8' twice"),
        ({"methods": {True: {}}}, "a label of methods .* True"),
        ({"methods": {"a": {"cycles": 3}}}, r"'a': cycles \(3\)"),
        ({"methods": {"a": {"bits": "static 8/8", "cycles": 3}}}, "'static 8/8' has no cycles"),
        ({"methods": {"a": {"bits": "CPT 3-8/8", "cycles": 0}}}, r"cycles \(0\)"),
        ({"cycles": "eight"}, "cycles .'eight'"),
        ({"base": "digits-dorefa-8-8", "methods": ["static 8/8"]}, "base recipe 'digits-dorefa"),
        ({"base": {**BASE, "precision": {"forward": 4}}, "methods": ["static 8/8"]}, "has bits"),
        ({"base": []}, "base .* at least one"),
        ({"base": None}, "base .*recipe's name.* None"),
        ({"table": "CPT Table 2"}, "key 'methods'"),
        ({"network": "x"}, "key 'network'"),
        ({"settings": {"seed": 1}}, "settings sets seed"),
        ({"settings": {"precision": 3}, "methods": {"a": {"precision.skip": ["fc"]}}}, "a group"),
        ({"published": ["CPT Table 99"]}, "'CPT Table 99'"),
        ({"published": 3}, "published .* 3"),
        ({"methods": 3}, "methods .* mapping"),
        ({"methods": ["CTP 3-8/8"]}, "'CTP'; did you mean 'C"),
        ({"methods": ["CPT 3-8/8"]}, "needs a number of cycles"),
        ({"methods": {"a": {"bits": "CPT 3-8/8", "cycles": 1.5}}}, r"cycles \(1.5\)"),
        ({"base": ["digits-float32"]}, "base recipe 'digits-float32'"),
        ({"settings": 3}, "settings .* 3"),
        ({"groups": 3}, "groups .* 3"),
        ({"groups": [{"method": {}}]}, "group 1: .*'method'; did you mean 'methods'"),
        ({"kind": "contest"}, "kind 'contest'"),
        ({"base": 3}, "base .* 3"),
        ({"methods": {"a": 3}}, "'a' .* 3"),
        ({"methods": {"a": "digits-flot32"}}, "'digits-flot32'; did you mean 'digits-float32'"),
        ({"methods": {"a": {"optimiser.lr": 1}}}, "'optimiser.* in method 'a'.*optimizer"),
        ({"methods": {"a": {"optimizer.lr": "fast"}}}, "method 'a': .*optimizer.lr"),
        ({"methods": {"a": {"seed": 3}}}, "seed: .* seeds"),
        ({"base": {**BASE, "output": "x"}}, "output: .*--output"),
        ({"grid": {"steps": 3}}, "grid.steps .* list"),
        ({"grid": {1: [3]}}, "grid .* 1"),
        ({"notes": 3}, "notes .* 3"),
        ({"methods": {"a": {"optimizer": 3}}}, "'optimizer' in method 'a'.*'optimizer.name'"),
        ({"methods": {"a": {"num_seeds": 1.5}}}, r"num_seeds of method 'a' \(1.5\)"),
        ({"seeds": 0}, r"seeds \(0\)"),
        ({"methods": {"a": {"lr": 0.1}}}, "'lr' in method 'a' .*did you mean 'optimizer.lr'"),
        ({"base": {}}, "method 'a': .*steps"),
        ({"margin": "much"}, "margin .'much'."),
        ({"margin": -1}, "margin .-1.0."),
        ({"baseline": "c"}, "'c' .*a, b"),
        ({"baseline": 8}, "baseline .* 8"),
    ],
)
def test_a_wrong_entry_is_an_error_that_names_it(changes, message):
    with pytest.raises(ValueError, match=f"^study: .*{message}"):
        study(**changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "mapping"),
        ("!!python/object/apply:os.getcwd []", "getcwd"),
    ],
)
def test_a_file_that_is_no_study_is_an_error_with_its_path(text, message, tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"s\.yaml.*{message}"):
        read_study_file(path)


PERIODS = {"base": "digits", "low": 2, "deficits": [60], "window": 60, "starts": [0]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"table": "CPT Table 9"}, "'CPT Table 9'"),
        ({"table": ["CPT Table 2"]}, "table must be text"),
        ({"table": "CPT Table 8", "network": "resnet74"}, "'resnet74'.*cifar100-resnet74"),
        ({"table": "CPT Table 8", "base": "digit"}, "'digit'; did you mean 'digits'"),
        ({"periods": [{**PERIODS, "low": "x"}]}, r"entry 1 of periods: low \('x'\)"),
        ({"periods": [{**PERIODS, "low": 9}]}, r"low \(9\)"),
        ({"periods": [{**PERIODS, "deficits": [-1]}]}, r"deficits \(\[-1\]\)"),
        ({"periods": [{**PERIODS, "base": None}]}, r"base \(None\)"),
        ({"periods": [{**PERIODS, "starts": [900]}]}, "entry 1 of periods: .*step 900"),
        ({"periods": [{**PERIODS, "base": "ptb-lstm"}]}, "ptb-lstm has a length in epochs"),
        ({"periods": [{**PERIODS, "lows": 2}]}, "'lows'; did you mean 'low'"),
    ],
)
def test_a_wrong_table_or_period_is_an_error_that_names_it(settings, message):
    with pytest.raises(ValueError, match=f"^study: .*{message}"):
        study_from_dict({"name": "x", **settings})


def test_a_list_of_bases_is_a_group_of_each():
    found = study(base=["cora-gcn", "cora-sage"], methods=["float32", "CPT 3-8/8"])
    assert found.groups == ("GCN, Cora", "GraphSAGE, Cora")
    by_key = configs(found)
    assert by_key["GraphSAGE, Cora: CPT 3-8/8"] == recipe("cora-sage-cpt-3-8-8")
    assert by_key["GCN, Cora: float32"] == recipe("cora-gcn-float32")
    alike = study(base=["ptb-lstm", "ptb-lstm800"], methods=["static 8/8"])
    assert alike.groups == ("ptb-lstm", "ptb-lstm800")


def test_bits_come_after_the_settings_and_before_changes_of_the_precision():
    found = configs(
        study(
            base="digits",
            cycles=4,
            settings={"steps": 60, "precision.skip": ["fc", "conv1"]},
            methods={
                "cycled": "CPT 3-8/8",
                "more": {"bits": "CPT 3-8/8", "cycles": 8, "steps": 64},
                "static": "static 8/8",
                "long": {"bits": "WAGEUBN 8/8", "steps": 90},
                "kept": {"bits": "static 8/8", "precision.max_bits": 8},
            },
        )
    )
    forward = {label: config.precision.forward for label, config in found.items()}
    assert (forward["cycled"], forward["more"], forward["static"]) == ("CR:3-8:4", "CR:3-8:8", 8)
    assert {label: c.steps for label, c in found.items()} == {
        "cycled": 60, "more": 64, "static": 60, "long": 90, "kept": 60,
    }  # fmt: skip
    assert found["long"].precision.quantizer_options == {"total_steps": 90}
    assert found["kept"].precision.max_bits == 8
    assert {c.precision.skip for c in found.values()} == {("fc", "conv1")}
    assert found["cycled"].name == "digits-cpt-3-8-8-n4"
    assert found["static"].name == "digits-static-8-8"


def test_groups_have_the_settings_of_the_file_and_their_own():
    parts = [{"group": "one"}, {"group": "two", "settings": {"eval": {"precision": "full"}}}]
    shared = {"eval": {"every": 0}, "threads": 2}
    found = configs(study(settings=shared, methods={"a": {}}, groups=parts))
    assert [c.eval.every for c in found.values()] == [0, 0]
    assert [c.eval.precision for c in found.values()] == ["high", "full"]
    assert [c.threads for c in found.values()] == [2, 2]


def test_a_table_with_other_settings_is_not_the_published_one():
    plain = study_from_dict({"name": "x", "table": "CPT Table 1"})
    other = study_from_dict({"name": "x", "table": "CPT Table 1", "settings": {"lr.gamma": 0.2}})
    assert all(method.published for method in plain.methods)
    assert not any(method.published for method in other.methods)
    for one, two in zip(plain.methods, other.methods, strict=True):
        assert two.config == replace(one.config, lr=replace(one.config.lr, gamma=0.2))


def test_published_values_are_those_of_the_same_settings():
    def values(**changes):
        found = study(
            base=["cifar100-resnet164"], methods=["CPT 3-8/8"], published=["CPT Table 2"], **changes
        )
        return [p.value for method in found.methods for p in method.published]

    assert values() == [72.9, 3.8e8, 80.5]
    assert values(settings={"steps": 100}) == []


def test_a_file_has_the_name_of_its_study_unless_it_says_another(tmp_path):
    shipped = Path(study_file.__file__).parent / "catalogue" / "fig8.yaml"
    (tmp_path / "mine.yaml").write_text(shipped.read_text())
    assert read_study_file(tmp_path / "mine.yaml").name == "mine"


def test_the_example_of_the_documentation_is_the_study_it_says(tmp_path):
    text = (Path(__file__).parents[3] / "docs" / "studies.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "s.yaml").write_text(example, encoding="utf-8")
    found = read_study_file(tmp_path / "s.yaml")
    assert len(found.methods) * len(found.seeds) == 24
    assert found.groups == ("lr 0.05", "lr 0.1")


def test_a_file_that_is_not_there_and_an_unknown_name_are_errors():
    with pytest.raises(ValueError, match=r"no\.yaml"):
        find_study("no.yaml")
    with pytest.raises(ValueError, match="'dmo'.*did you mean 'demo'"):
        find_study("dmo")
