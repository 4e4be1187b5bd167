"""`python -m tools.results gather`: run folders become a data file, in parts and with failures."""

import json
from dataclasses import replace

import pytest

from bitcycle_lab.recipes import Published
from bitcycle_lab.study.results import read_study, write_failures
from bitcycle_lab.study.study_file import find_study
from bitcycle_lab.study.summary import published_value, summarize
from tests.bitcycle_lab.study.made_up import result_of, write_run
from tools.results.__main__ import main
from tools.results.study_data import gather, merge, restore

STUDY = """
name: tiny
baseline: static
seeds: 3
base:
  model: {name: digits_mlp, options: {width: 16}}
  steps: 12
  threads: 1
  precision: {backward: 8}
methods:
  static: {precision.forward: 8}
  cycle: {precision.forward: "CR:3-8:1"}
"""
VALUES = {"static": (90.0, 91.0, 92.0), "cycle": (88.0, 89.1, float("nan"))}
LINES = [
    *({"step": step, "kind": "train", "accuracy": 5.0 * step} for step in range(1, 13)),
    *({"step": step, "kind": "eval", "split": "test", "accuracy": 10.0 * step} for step in (6, 12)),
]


@pytest.fixture
def study(tmp_path):
    (tmp_path / "tiny.yaml").write_text(STUDY)
    return find_study(str(tmp_path / "tiny.yaml"))


def write(study, output, seeds, failed=()):
    """The folders of these seeds; those in `failed` left only a message, with a path."""
    failures = {}
    for run in study.runs(str(output)):
        if (run.method.label, run.seed) in failed:
            failures[run.config.run_name] = f"OSError: no room in {output}/here (log: {output}/a)"
        elif run.seed in seeds:
            value = VALUES[run.method.label][run.seed]
            folder = write_run(run.config, result_of(run, output, value, 100.0), LINES)
            machine = {"processor": f"machine of seed {run.seed}", "host": "mine"}
            (folder / "env.json").write_text(json.dumps(machine))
    write_failures(output, failures)


def gathered(study, output):
    return json.loads(json.dumps(gather(read_study(study, output))))


def states(data):
    return {m["label"]: {run["seed"]: run["state"] for run in m["runs"]} for m in data["methods"]}


def test_a_study_comes_back_from_its_data_without_the_runs(study, tmp_path):
    write(study, tmp_path / "runs", (0, 1, 2))
    data = gathered(study, tmp_path / "runs")
    for own, other in zip(
        summarize(restore(data))[0].methods,
        summarize(read_study(study, tmp_path / "runs"))[0].methods,
        strict=True,
    ):
        assert repr(own.summary) == repr(other.summary)  # the mean of a diverged run is nan
        assert repr(own.difference) == repr(other.difference)
        assert own.relative_cost == other.relative_cost
        assert own.method.config.precision == other.method.config.precision
    [first, *_] = data["methods"][0]["runs"]
    assert first["curve"] == [[6, 60.0], [12, 120.0]]
    assert first["training"] == 60.0  # of step 12
    assert data["machines"][first["machine"]] == {"processor": "machine of seed 0"}


def test_published_values_and_the_margin_come_back_too(study, tmp_path):
    cells = {"static": 90.0, "cycle": 91.5}
    methods = tuple(
        replace(
            m, published=(Published(where="x", metric="accuracy", value=cells[m.label], unit="%"),)
        )
        for m in study.methods
    )
    study = replace(study, methods=methods, margin=0.25)
    [group] = summarize(restore(gathered(study, tmp_path / "nowhere")))
    assert group.margin == 0.25
    assert {m.label: published_value(m.method, "accuracy") for m in group.methods} == cells


def test_parts_of_a_study_are_added_by_configuration_and_seed(study, tmp_path):
    write(study, tmp_path / "one", (0,))
    write(study, tmp_path / "two", (1, 2))
    one, two = gathered(study, tmp_path / "one"), gathered(study, tmp_path / "two")
    whole = {"static": dict.fromkeys(range(3), "done"), "cycle": dict.fromkeys(range(3), "done")}
    for merged in (merge(one, two), merge(two, one)):
        assert states(merged) == whole
        for method in merged["methods"]:
            for run in method["runs"]:
                machine = merged["machines"][run["machine"]]
                assert machine["processor"] == f"machine of seed {run['seed']}"
    assert merge(two, two) == two


def test_a_failure_is_kept_and_never_replaces_a_result(study, tmp_path):
    write(study, tmp_path / "good", (0, 1))
    write(study, tmp_path / "bad", (0,), failed=[("cycle", 1)])
    good, bad = gathered(study, tmp_path / "good"), gathered(study, tmp_path / "bad")
    [failure] = [run for run in bad["methods"][1]["runs"] if run["state"] == "failed"]
    assert failure == {"seed": 1, "state": "failed", "error": "OSError: no room in here"}
    assert str(tmp_path) not in json.dumps(bad)
    assert states(merge(good, bad))["cycle"] == {0: "done", 1: "done", 2: "missing"}
    assert states(merge(bad, good))["cycle"] == {0: "done", 1: "done", 2: "missing"}
    empty = gathered(study, tmp_path / "nowhere")
    assert states(merge(bad, empty))["cycle"] == {0: "done", 1: "failed", 2: "missing"}


def test_a_method_with_other_settings_takes_no_runs_of_the_old_one(study, tmp_path):
    write(study, tmp_path / "runs", (0,))
    old = gathered(study, tmp_path / "runs")
    (tmp_path / "tiny.yaml").write_text(STUDY.replace("CR:3-8:1", "CR:4-8:1"))
    new = gathered(find_study(str(tmp_path / "tiny.yaml")), tmp_path / "nowhere")
    merged = states(merge(old, new))
    assert merged["static"][0] == "done"
    assert merged["cycle"][0] == "missing"


def test_what_only_the_old_data_have_stays(study, tmp_path):
    write(study, tmp_path / "runs", (0,))
    new = gathered(study, tmp_path / "runs")
    old = json.loads(json.dumps(new))
    old["commands"] = ["bitcycle study run tiny"]
    old["methods"][0]["published"] = {"value": 71.0}
    merged = merge(old, new)
    assert merged["commands"] == ["bitcycle study run tiny"]
    assert merged["methods"][0]["published"] == {"value": 71.0}


def test_the_command_adds_runs_to_the_data_file(study, tmp_path, capsys):
    path, words = tmp_path / "tiny.yaml", ["--data", str(tmp_path / "data")]
    for seeds, name in (((0,), "one"), ((1, 2), "two")):
        write(study, tmp_path / name, seeds)
        assert main(["gather", str(path), str(tmp_path / name), *words]) == 0
    file = tmp_path / "data" / "tiny.json"
    assert capsys.readouterr().out.split() == [str(file)] * 2
    assert states(json.loads(file.read_text()))["cycle"] == dict.fromkeys(range(3), "done")


def test_a_folder_without_runs_is_refused(study, tmp_path, capsys):
    assert main(["gather", str(tmp_path / "tiny.yaml"), str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data["methods"][0].pop("runs"),
        lambda data: data["methods"][0]["settings"].update(no_such_setting=1),
        lambda data: data["methods"][0]["runs"][0].update(state="finished"),
        lambda data: data["methods"][0]["runs"][0]["final"].clear(),
        lambda data: data.clear(),
    ],
)
def test_a_damaged_data_file_is_one_error_that_names_it_and_stays(study, tmp_path, capsys, damage):
    write(study, tmp_path / "runs", (0,))
    data = gathered(study, tmp_path / "runs")
    damage(data)
    file, page = tmp_path / "tiny.json", tmp_path / "page.md"
    file.write_text(json.dumps(data))
    page.write_text("<!-- table: tiny values -->\n<!-- end -->\n")
    assert main(["render", str(page), "--data", str(tmp_path)]) == 2
    assert str(file) in capsys.readouterr().err
    file.write_text("{")
    (tmp_path / "tiny.yaml").write_text(STUDY)
    words = ["gather", str(tmp_path / "tiny.yaml"), str(tmp_path / "runs")]
    assert main([*words, "--data", str(tmp_path)]) == 2
    assert str(file) in capsys.readouterr().err
    assert file.read_text() == "{"
