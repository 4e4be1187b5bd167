"""What the sections of the page say."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bitcycle_lab.recipes import Published
from bitcycle_lab.report.figures import layers
from bitcycle_lab.report.page import sections
from bitcycle_lab.report.runs import method_logs
from bitcycle_lab.study.results import read_study, write_options
from bitcycle_lab.study.statistics import summarize_values
from bitcycle_lab.study.study import StudyOptions
from bitcycle_lab.study.summary import summarize
from bitcycle_lab.train.config_file import from_dict
from tests.bitcycle_lab.report.made_up import (
    BREAKOUT,
    SCRIPT,
    landscape,
    made_up_cost,
    range_test,
    study,
    write_study,
)


def table(made):
    return sections.results_table(summarize(made)[0])


def column(made, title):
    found = table(made)
    place = [name for name, _ in found.columns].index(title)
    return [row.cells[place].key for row in found.rows]


# -- results --------------------------------------------------------------------------------------


def test_columns_without_a_value_are_left_out(made):
    assert [title for title, _ in table(made).columns] == [
        "accuracy, %", "seeds", "against static 8/8", "p", "verdict",
        "cost, static 8/8 = 1", "training cost", "evaluated at", "time of a run",
    ]  # fmt: skip


def test_cells_carry_the_number_they_are_sorted_by(made):
    assert column(made, "accuracy, %") == [91, 93, 80, None]
    assert column(made, "seeds") == [2, 2, 1, None]
    assert column(made, "against static 8/8") == [None, 2.0, -10.0, None]  # paired: +3 and +1
    assert column(made, "training cost") == [1000, 600, 300, None]
    assert table(made).rows[0].cells[0].text == "91.0 ± 1.4"


def test_a_row_says_what_is_missing_and_what_is_on_the_front(made):
    rows = table(made).rows
    assert rows[2].badges == [("failed", "1 failed")]
    assert rows[3].badges == [("missing", "2 not begun")]
    assert [row.is_on_front for row in rows] == [False, True, True, False]


def test_published_numbers_of_the_metric_and_best_by_validation_get_columns(output):
    first, *others = study().methods
    number = Published(where="Table 2", metric="accuracy", value=72.35, unit="%")
    other = Published(where="Table 2", metric="cost", value=1.0, unit="GBitOPs")
    made = write_study(output, study(methods=(replace(first, published=(number, other)), *others)))
    result = read_study(made, output)
    run = result.methods[0].runs[0]
    best = replace(run, result=replace(run.result, best={"accuracy": 95.5}))
    result = replace(
        result, methods=(replace(result.methods[0], runs=(best,)), *result.methods[1:])
    )
    assert column(result, "published")[0] == "accuracy 72.35 % (Table 2)"
    assert column(result, "best by validation")[0] == 95.5


def test_unfinished_runs_are_listed_failed_ones_first_with_their_seeds(made, monkeypatch):
    found = sections.unfinished_runs(made)
    assert (found.num_runs, found.num_left_out) == (3, 0)
    assert [(row[0], row[3]) for row in found.rows] == [("failed", "1"), ("missing", "0, 1")]
    assert found.rows[0][4] == f"the loss is NaN {BREAKOUT}"
    monkeypatch.setitem(sections.MOST, "runs", 1)
    assert sections.unfinished_runs(made).num_left_out == 1
    assert sections.unfinished_runs(replace(made, methods=made.methods[:2])) is None


def test_only_a_study_that_varies_a_number_has_critical_periods(made, output):
    group = sections.group_section(summarize(made)[0], method_logs(made), limit=9)
    assert [card.title for card in group.cards][:2] == [
        "Accuracy against training cost", "Test accuracy, %",
    ]  # fmt: skip
    first, *others = study().methods
    varied = [replace(method, at=at) for method, at in zip(others, (0.5, 0.25, 0.75), strict=True)]
    periods = study(methods=(first, *varied), kind="critical-periods")
    result = read_study(periods, output)
    group = sections.group_section(summarize(result)[0], method_logs(result), limit=9)
    assert "Critical periods" in [card.title for card in group.cards]


def test_nothing_done_has_no_figure(made):
    later = replace(made.study, methods=made.study.methods[3:], baseline=None)
    later = replace(made, methods=made.methods[3:], study=later)
    group = sections.group_section(summarize(later)[0], method_logs(later), limit=9)
    assert group.cards == []


# -- figures --------------------------------------------------------------------------------------


def test_what_cannot_be_priced_is_said_and_only_so_many_methods_are_priced(made, monkeypatch):
    def refuse(method):
        raise ValueError("it adapts")

    monkeypatch.setattr(layers, "price_method", refuse)
    cards, problems = sections.layer_cards(method_logs(made))
    assert cards == []
    assert len(problems) == 3  # the fourth method has not begun
    assert all("it adapts" in problem for problem in problems)
    monkeypatch.setattr(layers, "price_method", lambda method: made_up_cost())
    monkeypatch.setitem(sections.MOST, "layers", 1)
    cards, problems = sections.layer_cards(method_logs(made))
    assert (len(cards), len(problems)) == (1, 1)
    assert "2 more methods" in problems[0]


def test_range_tests_of_a_run_of_the_folder_next_to_it_and_of_the_study_are_found(made, tmp_path):
    run = made.methods[0].runs[0]
    stored = {"test": range_test().to_dict()}
    tested = replace(run, result=replace(run.result, range_test=stored))
    methods = method_logs(replace(made, methods=(replace(made.methods[0], runs=(tested,)),)))
    beside = run.directory.with_name(f"{run.directory.name}-range-test")
    for folder, threshold in ((beside, 0.3), (tmp_path / "study", 0.9)):
        folder.mkdir()
        settings = replace(range_test().settings, threshold=threshold)
        report = {"name": BREAKOUT, "test": replace(range_test(), settings=settings).to_dict()}
        (folder / "range-test.json").write_text(json.dumps(report), encoding="utf-8")
    cards = sections.range_test_cards(methods, tmp_path / "study")
    # two of one run have one title: the first is shown
    assert [card.title for card in cards] == ["static 8/8, seed 0", BREAKOUT]
    (tmp_path / "range-test.json").write_text('{"test": {"bits": 3}}')
    assert sections.range_test_cards(methods[1:], tmp_path) == []


def test_landscapes_of_runs_and_of_the_study_share_their_levels(made, tmp_path):
    landscape().write(made.methods[0].runs[0].directory / "landscape.json")
    landscape(SCRIPT).write(tmp_path / "landscape.json")
    (tmp_path / "broken-landscape.json").write_text("{")
    cards = sections.landscape_cards(method_logs(made), tmp_path)
    assert [card.title for card in cards] == ["static 8/8, seed 0 at w8a8", f"{SCRIPT} at w8a8"]
    levels = [list(card.draw().axes[-1].get_yticks()) for card in cards]
    assert levels[0] == levels[1]


# -- how the runs were made -----------------------------------------------------------------------


def test_every_method_has_a_command_per_seed_its_configuration_and_its_digests(made):
    first, second, _, later = map(sections.reproduction, method_logs(made))
    assert first.commands.splitlines() == [
        "bitcycle train static.yaml --seed 0 --output again",
        "bitcycle train static.yaml --seed 1 --output again",
    ]
    assert first.config == (made.methods[0].runs[0].directory / "config.yaml").read_text()
    assert first.runs[0][2:] == ("0123456789abcdef", "simulate: 2 layers")
    assert second.commands.startswith("bitcycle train '<script>.yaml'")
    config = from_dict(yaml.safe_load(later.config))  # has not begun
    assert config.precision == made.methods[3].method.config.precision


def test_what_changed_when_a_run_was_resumed_is_told(made):
    changed, damaged = (run.directory / "env.json" for run in made.methods[0].runs[:2])
    entry = {
        "time": "2026-11-17", "resumed_at": 150, "warnings": ["other data"],
        "changes": {"optimizer.lr": [0.1, 0.02], "data.root": ["a", "b"]},
    }  # fmt: skip
    changed.write_text(json.dumps({"torch": "9.9", "history": [{"changes": 3}, entry]}))
    damaged.write_text(json.dumps({"torch": "9.9", "history": 4}))
    first, second, *_ = map(sections.reproduction, method_logs(made))
    assert first.changed == ["seed 0, from step 150 on: optimizer.lr: was 0.1, is 0.02; other data"]
    assert second.changed == []
    assert "history" not in dict(sections.environments(method_logs(made)).rows)


@pytest.mark.parametrize(
    ("name", "source", "word"), [("demo", None, "demo"), ("mine", "my file.yaml", "'my file.yaml'")]
)
def test_the_command_of_a_study_has_the_options_of_its_last_run(made, name, source, word):
    named = replace(made, study=replace(made.study, name=name))
    begin = f"bitcycle study run {word} --output {made.output}"
    assert sections.study_command(named, source) == begin
    options = StudyOptions(overrides=("--steps", "9"), seeds=(3, 4), default_threads=2)
    write_options(named.output, name, options)
    command = sections.study_command(named, source)
    assert command == f"{begin} --seeds 3 4 --threads 2 --steps 9"


def test_the_command_has_no_default_folder_and_needs_the_file_of_an_own_study(made):
    demo = replace(made, study=replace(made.study, name="demo"), output=Path("runs"))
    assert sections.study_command(demo) == "bitcycle study run demo"
    assert sections.study_command(made) is None


def test_a_machine_is_one_column_that_lists_what_differs_between_its_runs(made):
    folders = [run.directory for method in made.methods for run in method.runs]
    begun = [folder for folder in folders if (folder / "config.yaml").exists()]
    for number, folder in enumerate(begun):
        stored = {"torch": "9.9", "processor": "a", "git_revision": f"r{number % 2}", "git": None}
        (folder / "env.json").write_text(json.dumps({**stored, "config": {"name": str(number)}}))
    found = sections.environments(method_logs(made))
    assert found.counts == [len(begun)]
    assert dict(found.rows)["git revision"] == ["r0, r1"]
    assert "methods" not in dict(found.rows)
    (begun[0] / "env.json").write_text(json.dumps({"torch": "9.9", "processor": "b"}))
    found = sections.environments(method_logs(made))
    assert found.counts == [len(begun) - 1, 1]
    first = next(m.method.label for m in made.methods if m.runs[0].directory == begun[0])
    assert dict(found.rows)["methods"][1] == first


def test_many_values_of_a_machine_are_counted(made):
    folders = [run.directory for method in made.methods for run in method.runs]
    begun = [folder for folder in folders if (folder / "config.yaml").exists()]
    for number, folder in enumerate(begun):
        (folder / "env.json").write_text(json.dumps({"torch": "9.9", "git_revision": number}))
    found = sections.environments(method_logs(made))
    assert dict(found.rows)["git revision"] == [f"0, 1, 2, 3, and {len(begun) - 4} more"]


def test_notes_explain_only_what_is_shown(made):
    groups = summarize(made)
    shown = sections.results_table(groups[0])
    assert "paired" in shown.note
    alone = replace(groups[0], baseline=None, methods=tuple(
        replace(each, difference=None, relative_cost=None, is_on_front=False)
        for each in groups[0].methods))  # fmt: skip
    note = sections.results_table(alone).note
    assert not any(word in note for word in ("paired", "Pareto"))
    once = replace(alone, methods=tuple(
        replace(each, summary=summarize_values([90.0]) if each.summary else None)
        for each in alone.methods))  # fmt: skip
    assert "deviation" not in sections.results_table(once).note


def test_equal_environments_are_one_column_the_most_frequent_first(made):
    path = made.methods[0].runs[0].directory / "env.json"
    path.write_text(json.dumps({"torch": "8.8", "device": None, "gpus": 0}))
    found = sections.environments(method_logs(made))
    assert found.counts == [5, 1]
    assert dict(found.rows)["torch"] == ["9.9", "8.8"]
    assert (dict(found.rows)["device"], dict(found.rows)["gpus"]) == (["-", "-"], ["-", "0"])
    assert "command" not in dict(found.rows)
    assert sections.environments(method_logs(made)[3:]) is None
