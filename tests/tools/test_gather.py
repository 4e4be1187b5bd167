"""`python -m tools.results gather`: run folders become a data file, in parts and with failures."""

import json
from dataclasses import replace

import pytest

from bitcycle_lab.study.results import read_study, write_failures
from bitcycle_lab.study.study import StudyOptions, adjust
from bitcycle_lab.study.study_file import find_study
from bitcycle_lab.study.summary import summarize
from bitcycle_lab.train.evaluate import evaluate_run
from bitcycle_lab.train.run import run as train
from tests.bitcycle_lab.study.made_up import result_of, write_run
from tools.results.__main__ import main
from tools.results.study_data import gather, merge, restore

VALUES = {"float32": (91.0, 90.5, 92.5), "static 8/8": (90.0, 91.0, 92.0),
          "CPT 4-8/8": (88.0, 89.1, float("nan"))}  # fmt: skip
LINES = [
    {"step": 6, "kind": "train", "accuracy": 30.0},
    *({"step": step, "kind": "eval", "split": "test", "accuracy": 10.0 * step} for step in (6, 12)),
]


@pytest.fixture
def study():
    return find_study("demo")


def write(study, output, seeds, *, failed=(), plus=0.0):
    """The folders of these seeds; those in `failed` left only a message. plus: to each value."""
    failures = {}
    for run in replace(study, seeds=tuple(seeds)).runs(str(output)):
        if (run.method.label, run.seed) in failed:
            failures[run.config.run_name] = f"OSError: no room in {output}/here"
            continue
        value = VALUES[run.method.label][run.seed] + plus
        folder = write_run(run.config, result_of(run, output, value, 100.0), LINES)
        machine = {"processor": f"machine of seed {run.seed}", "host": "mine"}
        (folder / "env.json").write_text(json.dumps(machine))
    write_failures(output, failures)


def gathered(study, output):
    return json.loads(json.dumps(gather(read_study(study, output))))


def states(data):
    return {m["label"]: {run["seed"]: run["state"] for run in m["runs"]} for m in data["methods"]}


ALL = dict.fromkeys(VALUES, dict.fromkeys(range(3), "done"))


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
    [first, *_] = data["methods"][0]["runs"]
    assert first["curve"] == [[6, 60.0], [12, 120.0]]
    assert data["machines"][first["machine"]] == {"processor": "machine of seed 0"}
    assert data["methods"][1]["settings"]["precision"] == {
        "skip": ["fc"], "forward": 8, "backward": 8
    }  # fmt: skip


def test_parts_of_a_study_are_added_by_method_and_seed(study, tmp_path):
    write(study, tmp_path / "one", (0,))
    write(study, tmp_path / "two", (1, 2))
    one, two = gathered(study, tmp_path / "one"), gathered(study, tmp_path / "two")
    for merged in (merge(one, two), merge(two, one)):
        assert states(merged) == ALL
        for method in merged["methods"]:
            for run in method["runs"]:
                machine = merged["machines"][run["machine"]]
                assert machine["processor"] == f"machine of seed {run['seed']}"
    assert merge(two, two) == two


def test_runs_with_another_kernel_or_other_threads_are_of_the_same_method(study, tmp_path):
    write(study, tmp_path / "one", (0,))
    other = adjust(study, StudyOptions(threads=2, overrides=("--precision.kernel", "simulate")))
    write(other, tmp_path / "two", (1, 2))
    merged = merge(gathered(study, tmp_path / "one"), gathered(other, tmp_path / "two"))
    assert states(merged) == ALL


def test_another_result_of_a_seed_is_an_error_unless_it_is_to_replace_the_old_one(study, tmp_path):
    write(study, tmp_path / "one", (0, 1))
    write(study, tmp_path / "two", (1, 2), plus=0.5)
    one, two = gathered(study, tmp_path / "one"), gathered(study, tmp_path / "two")
    with pytest.raises(ValueError, match="float32, seed 1"):
        merge(one, two)
    merged = merge(one, two, replaces=True)
    assert [run["final"]["accuracy"] for run in merged["methods"][0]["runs"]] == [91.0, 91.0, 93.0]


def test_a_failure_is_kept_and_never_replaces_a_result(study, tmp_path):
    write(study, tmp_path / "good", (0, 1))
    write(study, tmp_path / "bad", (0, 1), failed=[("CPT 4-8/8", 1)])
    good, bad = gathered(study, tmp_path / "good"), gathered(study, tmp_path / "bad")
    assert bad["methods"][2]["runs"][1] == {"seed": 1, "state": "failed"}
    for merged in (merge(good, bad), merge(bad, good), merge(good, bad, replaces=True)):
        assert states(merged)["CPT 4-8/8"] == {0: "done", 1: "done"}
    empty = gathered(study, tmp_path / "nowhere")
    assert states(merge(bad, empty))["CPT 4-8/8"] == {0: "done", 1: "failed"}


def test_a_method_with_other_settings_is_an_error_unless_its_runs_are_to_be_replaced(
    study, tmp_path
):
    write(study, tmp_path / "one", (0,))
    longer = adjust(study, StudyOptions(overrides=("--steps", "90")))
    write(longer, tmp_path / "two", (1,))
    one, two = gathered(study, tmp_path / "one"), gathered(longer, tmp_path / "two")
    with pytest.raises(ValueError, match="float32 had other settings"):
        merge(one, two)
    assert states(merge(one, two, replaces=True)) == dict.fromkeys(VALUES, {1: "done"})


def test_settings_that_follow_others_are_read_as_they_were(tmp_path):
    """float32 errors under forward bits of which they are not the default."""
    data = gathered(find_study("regime"), tmp_path / "nowhere")
    assert merge(data, data) == data


def test_what_only_the_old_data_have_stays(study, tmp_path):
    write(study, tmp_path / "runs", (0,))
    old = gathered(study, tmp_path / "runs")
    new = {**old, "methods": old["methods"][1:]}
    old["commands"] = ["bitcycle study run demo"]
    old["methods"][1]["published"] = {"value": 71.0}
    merged = merge(old, new)
    assert merged["commands"] == ["bitcycle study run demo"]
    assert merged["methods"][0]["published"] == {"value": 71.0}
    assert states(merged) == dict.fromkeys(VALUES, {0: "done"})


def test_published_values_are_compared_with_those_of_the_same_network(study, tmp_path):
    write(study, tmp_path / "runs", (0,))
    data = gathered(study, tmp_path / "runs")
    for method, value, network in zip(data["methods"], (90.0, 91.5, 60.0), "AAB", strict=True):
        method["published"] = {"value": value, "where": "CPT Table 2", "group": network}
    [group] = summarize(restore(data))
    found = {m.label: [p.value for p in m.method.published] for m in group.methods}
    assert found == {"float32": [90.0], "static 8/8": [91.5], "CPT 4-8/8": []}


def test_the_command_adds_all_runs_of_a_folder_to_the_data_file(study, tmp_path, capsys):
    for seeds, name in (((0,), "one"), ((1, 2), "two")):
        write(study, tmp_path / name, seeds)
        assert main(["gather", "demo", str(tmp_path / name), "--data", str(tmp_path / "data")]) == 0
    file = tmp_path / "data" / "demo.json"
    assert capsys.readouterr().out.split() == [str(file)] * 2
    assert states(json.loads(file.read_text())) == ALL
    write(study, tmp_path / "three", (2,), plus=1.0)
    words = ["gather", "demo", str(tmp_path / "three"), "--data", str(tmp_path / "data")]
    assert main(words) == 2
    assert "seed 2" in capsys.readouterr().err
    assert main([*words, "--replace"]) == 0


def test_runs_are_evaluated_on_their_training_data_too(tmp_path):
    file, output = tmp_path / "mine.yaml", tmp_path / "runs"
    file.write_text("base: digits\nsettings: {steps: 4}\nmethods: {static 8/8: static 8/8}\n")
    study = replace(find_study(str(file)), seeds=(0,))
    [own] = study.runs(str(output))
    trained = train(own.config)
    data = gather(read_study(study, output), with_train=True)
    found = data["methods"][0]["runs"][0]["train"]
    expected = evaluate_run(trained.directory, split="train")["metrics"]
    assert found == pytest.approx(expected, rel=1e-7)
    assert merge(data, gathered(study, output)) == data  # what was measured stays


def test_a_folder_without_runs_is_refused(tmp_path, capsys):
    assert main(["gather", "demo", str(tmp_path / "nowhere"), "--data", str(tmp_path)]) == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data["methods"][0].pop("runs"),
        lambda data: data["methods"][0].update(label="no such method"),
        lambda data: data["methods"][0]["runs"][0].update(state="finished"),
        lambda data: data["methods"][0]["runs"][0]["final"].clear(),
        lambda data: data.clear(),
    ],
)
def test_a_damaged_data_file_is_one_error_that_names_it_and_stays(study, tmp_path, capsys, damage):
    write(study, tmp_path / "runs", (0,))
    data = gathered(study, tmp_path / "runs")
    damage(data)
    file, page = tmp_path / "demo.json", tmp_path / "page.md"
    file.write_text(json.dumps(data))
    page.write_text("<!-- table: demo values -->\n<!-- end -->\n")
    assert main(["render", str(page), "--data", str(tmp_path)]) == 2
    assert str(file) in capsys.readouterr().err
    file.write_text("{")
    assert main(["gather", "demo", str(tmp_path / "runs"), "--data", str(tmp_path)]) == 2
    assert str(file) in capsys.readouterr().err
    assert file.read_text() == "{"
