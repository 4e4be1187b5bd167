"""Gathering runs and measurements, restoring them from their files, making pages."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bitcycle.analysis.config_id import config_id
from bitcycle.landscape import Landscape
from bitcycle.range_curves import PrecisionRun, RangeCurve, RelativeCurve
from bitcycle.study.results import read_study
from bitcycle.study.runner import run_study
from bitcycle.study.study import StudyOptions
from bitcycle.study.study_file import find_study
from bitcycle.study.summary import summarize
from bitcycle.tasks import DataConfig, ModelConfig
from tests.study.made_up import method, study_result
from tests.study.small_studies import Here, tiny
from tools.results import pictures
from tools.results.__main__ import main
from tools.results.commands import portable
from tools.results.comparison import compare, compare_at_cost
from tools.results.folder import add, fill, gather_files, read_studies, render, summary_lines
from tools.results.page import picture, table, to_json
from tools.results.sentences import bit_operations_sentence, study_sentence
from tools.results.study_data import (
    StudyData,
    from_settings,
    gather,
    merge,
    restore,
    thin_curve,
    to_settings,
)
from tools.results.study_page import study_page

MACHINE = {"bitcycle": "0.1.0", "torch": "2.13.0", "processor": "AMD EPYC", "device": "cpu"}
RESULTS = Path(__file__).parents[2] / "results"
MADE = {"machine": MACHINE, "threads": 1, "seconds": 75.25}


# -- a real study -------------------------------------------------------------------------------


STUDY = """
name: tiny
baseline: static
seeds: 2
base:
  model: {name: digits_mlp, options: {width: 16}}
  data: {subset: 160, batch_size: 32}
  steps: 12
  threads: 1
  precision: {backward: 8}
  tracking: {tensorboard: false}
methods:
  static: {precision.forward: 8}
  cycle: {precision.forward: "CR:3-8:1"}
  crashing: {precision.forward: 6, swa.start: 100}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study in a file, and its runs."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "tiny.yaml").write_text(STUDY)
    run_study(find_study(str(folder / "tiny.yaml")), folder / "runs", engine=Here())
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    return read_study(find_study(str(folder / "tiny.yaml")), folder / "runs")


def test_gathered_and_restored_a_study_says_the_same(trained):
    data = json.loads(to_json(gather(trained, StudyOptions())))
    study = restore(data)
    for own, other in zip(summarize(study.result), summarize(trained), strict=True):
        for row, known in zip(own.methods, other.methods, strict=True):
            assert row.label == known.label
            for name in ("mean", "std", "n", "low", "high") if known.summary else ():
                assert getattr(row.summary, name) == pytest.approx(getattr(known.summary, name))
            assert row.relative_cost == known.relative_cost
            assert row.is_on_front == known.is_on_front
    assert [row.method.config.precision for row in study.result.methods] == [
        row.method.config.precision for row in trained.methods
    ]
    assert study.result.count("failed") == 2
    assert str(trained.output) not in to_json(data)


def test_a_study_becomes_a_page_and_is_made_again_without_its_runs(folder, tmp_path, capsys):
    words = [str(folder / "tiny.yaml"), "--output", str(folder / "runs"), "--to", str(tmp_path)]
    assert main(["gather", *words]) == 0
    before = (tmp_path / "tiny.md").read_bytes()
    assert b"cycle" in before
    assert b"crashing" in before
    (tmp_path / "tiny.md").unlink()
    capsys.readouterr()
    assert main(["render", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "tiny.md")]
    assert (tmp_path / "tiny.md").read_bytes() == before


def test_gather_finds_the_runs_of_a_shipped_study(tmp_path, capsys):
    assert main(["gather", "digits", "--output", str(tmp_path), "--to", str(tmp_path)]) == 2
    assert "no run of digits is done" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data["methods"][0].pop("runs"),
        lambda data: data["methods"][0]["settings"].update(no_such_setting=1),
        lambda data: data["methods"][0]["runs"][0].update(state="finished"),
        lambda data: data["methods"][0]["runs"][0]["final"].clear(),
        lambda data: data.update(name="another"),
    ],
)
def test_a_damaged_file_is_one_error_that_names_it(trained, tmp_path, capsys, damage):
    path = add(tmp_path, gather(trained, StudyOptions()))
    data = json.loads(path.read_text())
    damage(data)
    path.write_text(json.dumps(data))
    assert main(["render", str(tmp_path)]) == 2
    assert str(path) in capsys.readouterr().err
    path.write_text("{")
    assert main(["render", str(tmp_path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_settings_come_back():
    config = replace(tiny("CR:3-8:2"), name="a")
    restored = from_settings(json.loads(json.dumps(to_settings(config))))
    assert replace(restored, output=config.output, tracking=config.tracking,
                   checkpoint=config.checkpoint) == config  # fmt: skip


# -- comparisons --------------------------------------------------------------------------------

BASE = {0: 90.0, 1: 91.0, 2: 92.0}
WORSE = {0: 88.0, 1: 89.1, 2: 89.9}
ALIKE = {0: 90.1, 1: 90.9, 2: 92.0}


def study_of(*entries, name="made-up", **changes):
    result = study_result(entries, name=name, baseline="static 8", **changes)
    ids = {row.method.key: config_id(row.method.config) for row in result.methods}
    return StudyData(
        result=result, command="", machines=(), threads=(), ids=ids, published={},
        curves=dict.fromkeys(ids, {}), curve_split="test",
    )  # fmt: skip


def test_a_cycle_is_compared_with_static_bits_of_its_top_precision():
    study = study_of(
        (method("static 8"), BASE, 100.0),
        (method("static 6", 6), BASE, 50.0),
        (method("3-8", "CR:3-8:8"), WORSE, 60.0),
        (method("3-6", "CR:3-6:8"), ALIKE, 40.0),
        (method("ramp", "ramp:3-8"), ALIKE, 60.0),
    )
    found = [(each.cyclic.label, each.static.label, each.verdict) for each in compare(study)]
    assert found == [("3-8", "static 8", "worse"), ("3-6", "static 6", "within noise")]
    assert [each.cost for each in compare(study)] == [0.6, 0.8]
    at_cost = [(each.cyclic.label, each.static.label) for each in compare_at_cost(study)]
    assert at_cost == [("3-8", "static 6")]


def test_a_run_of_another_length_or_quantizer_is_no_partner():
    study = study_of(
        (method("static 8"), BASE, 100.0),
        (method("longer", "CR:3-8:8", changes={"steps": 300}), WORSE, 60.0),
    )
    assert compare(study) == []


# t(0.975, 2) = 4.303. Worse: -2, -1.9, -2.1, half of the interval 4.303 * 0.1 / sqrt(3) = 0.25.
# Alike: 0.1, -0.1, 0, so 0.25 again. Better: 2, 1.9, 2.1.
@pytest.mark.parametrize(
    ("values", "words"),
    [
        (WORSE, "with c lost 2.00 points of accuracy compared to static 8 (n = 3, 95 % interval "
                "1.75 to 2.25) and used 40 % fewer bit operations."),
        ({0: 92.0, 1: 92.9, 2: 94.1}, "with c gained 2.00 points of accuracy compared to static 8 "
                "(n = 3, 95 % interval 1.75 to 2.25) and used 40 % fewer bit operations."),
        (ALIKE, "with c ended within noise of static 8 (n = 3, 95 % interval within ±0.25 points) "
                "and used 40 % fewer bit operations."),
        ({0: 89.0}, "ended at accuracy 89.00 % with c and 90.00 % with static 8, which one seed "
                "cannot tell from noise, and used 40 % fewer bit operations."),
        ({0: 89.0, 1: 90.0, 2: 91.0}, "ended at accuracy 90.00 % with c and 91.00 % with static 8, "
                "which 3 seeds without spread cannot tell from noise, and used 40 % fewer bit "
                "operations."),
        ({0: 89.0, 1: math.nan, 2: 91.0}, "trained for 240 steps diverged with c."),
    ],
)  # fmt: skip
def test_a_sentence_claims_what_n_and_the_interval_carry(values, words):
    study = study_of((method("static 8"), BASE, 100.0), (method("c", "CR:3-8:8"), values, 60.0))
    assert study_sentence(study).endswith(f" {words}")


def cases(*values):
    """A study of ranges of bits, each with these values."""
    entries = [(method("static 8"), BASE, 100.0)]
    for k, own in enumerate(values):
        entries.append((method(f"{k + 2}-8", f"CR:{k + 2}-8:8"), own, 60.0))
    return study_of(*entries, name="fig6-small")


def test_several_cases_are_counted_and_the_one_beyond_noise_is_named():
    study = cases(ALIKE, WORSE, ALIKE)
    assert (
        "within noise of static 8 with 2 of 3 ranges of bits (n = 3) and lost 2.00 points of "
        "accuracy with 3-8 (95 % interval 1.75 to 2.25) and used"
    ) in study_sentence(study)
    assert study_page(study).columns.endswith(
        " exclude differences of more than 0.25 points. Corrected for 3 comparisons (Holm), the "
        "difference beyond noise stays."
    )


def test_a_difference_that_goes_when_corrected_is_said_to():
    # -1, -0.5, -0.6: mean -0.7, half of the interval 4.303 * 0.2646 / sqrt(3) = 0.66, p = 0.044
    said = study_sentence(cases(ALIKE, ALIKE, {0: 89.0, 1: 90.5, 2: 91.4}))
    assert said.endswith(
        "lost 0.70 points of accuracy with 4-8 (95 % interval 0.04 to 1.36), which is within noise "
        "when corrected for 3 comparisons."
    )


def test_runs_without_an_interval_and_runs_that_diverged_are_counted():
    said = study_sentence(cases(ALIKE, {0: 89.0}, {**ALIKE, 2: math.nan}, {**ALIKE, 1: math.inf}))
    assert "with 2-8 (n = 1 to 3), ended without an interval in 1 and " in said
    assert said.endswith(" diverged in 2.")


def test_two_networks_that_end_differently_have_a_clause_each():
    changes = {"task": "language", "model": ModelConfig(name="lstm_lm"),
               "data": DataConfig(name="wikitext-2")}  # fmt: skip
    entries = []
    for group, values in (("LSTM, WikiText-2", ALIKE), ("Transformer, WikiText-2", WORSE)):
        made = {"changes": changes, "group": group}
        higher = {seed: 2 * BASE[seed] - value for seed, value in values.items()}
        entries += [(method("static 8", **made), BASE, 100.0),
                    (method("c", "CR:3-8:8", **made), higher, 60.0)]  # fmt: skip
    assert study_sentence(study_of(*entries)) == (
        "On WikiText-2 an LSTM trained for 240 steps with c ended within noise of static 8 (n = 3, "
        "95 % interval within ±0.25 in perplexity), while a Transformer trained for 240 steps with "
        "c ended with a perplexity 2.00 higher (95 % interval 1.75 to 2.25) and used 40 % fewer "
        "bit operations."
    )


def lengths(*entries, **changes):
    """A study of runs of several lengths: (steps, values of static bits, values of the cycle).

    A fourth one has the values of cheaper static bits.
    """
    made = []
    for steps, static, cyclic, *cheaper in entries:
        where = {"group": f"ResNet-8, CIFAR-10, {steps:,} steps", "changes": {"steps": steps}}
        made += [(method("static 8", **where), static, 100.0),
                 (method("c, N = 8", "CR:3-8:8", **where), cyclic, 60.0)]  # fmt: skip
        made += [(method("static 6", 6, **where), values, 50.0) for values in cheaper]
    return study_of(*made, name="lengths", **changes)


def test_the_longest_runs_are_told_and_cheaper_static_bits_with_them():
    better = {0: 92.0, 1: 92.9, 2: 94.1}
    study = lengths((240, BASE, WORSE), (1_000, BASE, ALIKE), (4_000, BASE, better, WORSE))
    assert study_sentence(study) == (
        "After 4,000 steps on CIFAR-10 a ResNet-8 ended 2.00 points above static 8 (95 % interval "
        "1.75 to 2.25, n = 3) with c and 2.00 points below (1.75 to 2.25, n = 3) with static 6."
    )


def test_the_longest_runs_with_three_seeds_are_told():
    study = lengths((240, BASE, ALIKE), (1_000, BASE, {0: 88.0}))
    assert study_sentence(study) == (
        "After 240 steps on CIFAR-10 a ResNet-8 ended 0.00 points from static 8 (95 % interval "
        "-0.25 to 0.25, n = 3, within noise) with c."
    )
    study = lengths((240, BASE, {0: 88.0}), (1_000, BASE, {0: 88.0}))
    assert study_sentence(study).endswith("2.00 points below static 8 (n = 1, no interval) with c.")


def test_a_method_without_an_interval_is_not_told_beside_others():
    study = lengths((240, BASE, ALIKE), (4_000, BASE, WORSE, {0: 88.0}))
    assert "static 6" not in study_sentence(study)


def test_cycles_of_several_numbers_keep_their_marks():
    where = {"group": "ResNet-8, CIFAR-10, 240 steps", "changes": {"steps": 240}}
    other = {"group": "ResNet-8, CIFAR-10, 480 steps", "changes": {"steps": 480}}
    study = study_of(
        *((method("static 8", **own), BASE, 100.0) for own in (where, other)),
        (method("c, N = 8", "CR:3-8:8", **where), WORSE, 60.0),
        (method("c, N = 2", "CR:3-8:2", **other), WORSE, 60.0),
        (method("d, N = 4", "CR:4-8:4", **other), ALIKE, 70.0),
    )
    assert study_sentence(study) == (
        "After 480 steps on CIFAR-10 a ResNet-8 ended 2.00 points below static 8 (95 % interval "
        "1.75 to 2.25, n = 3) with c (N = 2) and 0.00 points away (-0.25 to 0.25, n = 3, within "
        "noise) with d (N = 4)."
    )


def test_a_difference_that_does_not_stay_is_said_where_it_is():
    """Differences -1, -0.5 and -1 have p = 0.038: below 0.05, not below 0.05 / 2."""
    weaker, alike = {0: 89.0, 1: 90.5, 2: 91.0}, {0: 90.1, 1: 90.9, 2: 92.1}
    study = lengths((240, BASE, ALIKE), (4_000, BASE, weaker))
    assert "(95 % interval 0.12 to 1.55, n = 3) with c." in study_sentence(study)
    study = lengths((240, BASE, ALIKE), (4_000, BASE, weaker, alike))
    assert "0.12 to 1.55, n = 3, within noise when corrected) with c and" in study_sentence(study)


def test_runs_that_diverged_are_said_to_be_whatever_their_length():
    gone = {**ALIKE, 1: math.nan}
    study = lengths((240, BASE, gone), (500, BASE, gone), (4_000, BASE, WORSE))
    assert study_sentence(study).endswith(
        "n = 3) with c; runs of 240 steps with c (N = 8) and 500 steps with c (N = 8) diverged."
    )
    study = lengths((240, BASE, WORSE), (1_000, {**BASE, 1: math.nan}, ALIKE))
    assert study_sentence(study).endswith("with c; runs of 1,000 steps with static 8 diverged.")
    study = lengths((240, BASE, WORSE), (1_000, BASE, WORSE, gone))
    assert study_sentence(study).endswith("with c; runs of 1,000 steps with static 6 diverged.")
    study = lengths((240, BASE, gone), (1_000, BASE, gone))
    assert study_sentence(study) == (
        "On CIFAR-10 a ResNet-8 diverged in 240 steps with c (N = 8) and 1,000 steps with c (N = "
        "8)."
    )


def test_the_picture_of_lengths_has_the_published_difference():
    study = lengths((240, BASE, WORSE), (1_000, BASE, ALIKE), (4_000, BASE, ALIKE))
    cell = {"group": "ResNet-74, CIFAR-10", "training": "64,000 steps of 128", "where": "Table 2"}
    group = "ResNet-8, CIFAR-10, 240 steps"
    published = {f"{group}: static 8": {**cell, "value": 93.0},
                 f"{group}: c, N = 8": {**cell, "value": 93.5}}  # fmt: skip
    title, drawing = study_page(replace(study, published=published)).picture
    assert title == "The difference to static bits against the length of the run"
    assert "published: c, ResNet-74, no interval" in drawing
    assert "64,000" in drawing
    assert "published" not in study_page(study).picture[1]


def test_a_long_table_of_lengths_shows_the_longest_runs():
    steps = (240, 500, 1_000, 2_000, 4_000, 8_000)
    page = study_page(lengths(*((number, BASE, WORSE, ALIKE) for number in steps)))
    rows = [line for line in page.table.splitlines() if " steps |" in line]
    assert len(rows) == 3
    assert all("8,000 steps" in line for line in rows)
    assert "Shown: the longest runs; the details have all methods." in page.columns
    assert "240 steps" in page.details[1]


def test_a_curve_is_of_the_data_that_were_evaluated_most():
    lines = [
        {"step": step, "kind": "eval", "split": split, "perplexity": 100.0 / step}
        for step, split in ((1, "validation"), (2, "validation"), (2, "test"), (3, "validation"))
    ]
    curve = thin_curve(lines, "perplexity")
    assert curve == {"curve": [[1, 100.0], [2, 50.0], [3, 33.333]], "curve_split": "validation"}
    assert thin_curve(lines[1:3], "perplexity") == {"curve": [[2, 50.0]]}
    assert thin_curve([], "perplexity") == {"curve": []}


def test_perplexity_is_drawn_against_steps_for_every_network(monkeypatch):
    drawn, draw = [], pictures.draw_curve

    def recorded(axes, curves, look):
        drawn.append((curves, look["color"]))
        draw(axes, curves, look)

    monkeypatch.setattr(pictures, "draw_curve", recorded)
    model, data = ModelConfig(name="lstm_lm"), DataConfig(name="wikitext-2")
    changes = {"task": "language", "model": model, "data": data}
    entries, curves = [], {}
    for network in ("LSTM", "Transformer"):
        group = f"{network}, WikiText-2"
        entries += [
            (method("static 8", group=group, changes=changes), BASE, 100.0),
            (method("c", "CR:3-8:8", group=group, changes=changes), WORSE, 60.0),
        ]
        curves[f"{group}: static 8"] = {0: {10: 70.0, 20: 60.0}, 1: {10: 71.0, 20: 61.0}}
        curves[f"{group}: c"] = {0: {10: 72.0, 20: 61.5}}
    study = replace(study_of(*entries), curves=curves, curve_split="validation")
    title, svg = study_page(study).picture
    assert title == "Validation perplexity against steps, and its difference to static 8"
    for text in ("validation perplexity", "minus that of static 8",
                 "LSTM, WikiText-2 (n = 1 to 2, 95 %)", "Transformer, WikiText-2 (n = 1 to 2, 95 %)"
                 ):  # fmt: skip
        assert text in svg
    own, apart = [{10: 72.0, 20: 61.5}], [{10: 2.0, 20: 1.5}]
    base = list(curves["LSTM, WikiText-2: static 8"].values())
    assert [found for found, _ in drawn] == 2 * [base, own, apart]
    colors = [color for _, color in drawn]
    drawn.clear()
    study.curves["LSTM, WikiText-2: static 8"].clear()  # not drawn there: no differences
    study_page(study)
    assert [found for found, _ in drawn] == [own, base, own, apart]
    assert {color for _, color in drawn} == set(colors)
    assert [drawn[k][1] for k in (0, 2, 3)] == 3 * [drawn[0][1]] != [drawn[1][1]] * 3


def test_lower_perplexity_is_better():
    model, data = ModelConfig(name="lstm_lm"), DataConfig(name="wikitext-2")
    changes = {"task": "language", "model": model, "data": data}
    study = study_of(
        (method("static 8", changes=changes), BASE, 100.0),
        (method("c", "CR:3-8:8", changes=changes), WORSE, 60.0),
    )
    assert [each.verdict for each in compare(study)] == ["better"]


def test_the_details_list_the_cheaper_static_bits_of_any_study():
    own = study_of(
        (method("static 8"), BASE, 100.0),
        (method("static 4", 4), WORSE, 40.0),
        (method("c", "CR:3-8:8"), WORSE, 60.0),
    )
    other = study_of((method("static 8"), BASE, 100.0), (method("static 6", 6), BASE, 50.0),
                     name="other")  # fmt: skip
    [counted] = compare_at_cost(own, [own, other])
    assert (counted.study, counted.static_study) == ("made-up", "other")
    assert any("[static 6 of other](other.md)" in d for d in study_page(own, [own, other]).details)
    assert any("| c | static 4 |" in part for part in study_page(own).details)


def test_the_first_page_says_what_each_range_of_bits_uses():
    study = study_of(
        (method("static 8"), BASE, 100.0),
        (method("CPT 3-8", "CR:3-8:8"), WORSE, 60.0),
        (method("CPT 4-8", "CR:4-8:8"), ALIKE, 80.0),
        (method("static 6", 6), ALIKE, 50.0),
    )
    assert bit_operations_sentence(compare(study)) == (
        "CPT 3-8 uses 40 % fewer than static 8, CPT 4-8 20 % fewer and static 6 50 % fewer: a "
        "count, not a time."
    )
    assert bit_operations_sentence([]) == ""


def part(data, *, kept, machine):
    """The data of a machine that has only the runs (label, seed) -> state."""
    data = json.loads(to_json(data))
    for entry in data["methods"]:
        done = entry["runs"][0]
        entry["runs"] = [
            {**done, "seed": seed, "state": state} if state == "done"
            else {"seed": seed, "state": state}
            for (label, seed), state in kept.items() if label == entry["label"]
        ]  # fmt: skip
    data["seeds"] = sorted({seed for _, seed in kept})
    data["machines"] = [{"processor": machine}]
    return data


def test_a_study_that_is_gathered_in_parts_keeps_the_runs_of_both(trained):
    data = gather(trained, StudyOptions())
    old = part(data, machine="old", kept={
        ("static", 0): "done", ("static", 1): "done", ("cycle", 0): "failed", ("cycle", 1): "done",
    })  # fmt: skip
    new = part(data, machine="new", kept={
        ("static", 0): "missing", ("static", 2): "done", ("cycle", 0): "started",
        ("cycle", 1): "failed",
    })  # fmt: skip
    both = merge(old, new)
    assert both["seeds"] == [0, 1, 2]
    assert both["machines"] == [{"processor": "new"}, {"processor": "old"}]
    found = {
        (entry["label"], run["seed"]): (run["state"], run.get("machine"))
        for entry in both["methods"] for run in entry["runs"]
    }  # fmt: skip
    assert found == {
        ("static", 0): ("done", 1),
        ("static", 1): ("done", 1),
        ("static", 2): ("done", 0),
        ("cycle", 0): ("failed", None),  # a failure is a result, too
        ("cycle", 1): ("failed", None),  # the newer one
    }
    assert restore(both).result.count("done") == 3


def test_the_study_of_other_settings_is_not_added_to(trained):
    data = gather(trained, StudyOptions())
    changed = json.loads(to_json(data))
    for entry in changed["methods"]:
        entry["id"] = "another"
    assert merge(changed, data)["methods"] == data["methods"]


# -- measurements -------------------------------------------------------------------------------


def range_file(seed=0, gain=60.0):
    curve = RangeCurve(
        bits=(2,) * 4 + (3,) * 4, metric=(10.0, 11.0, 10.0, 12.0, 12.0, 30.0, 50.0, 12.0 + gain),
        window=1, threshold=20.0, name="accuracy",
    )  # fmt: skip
    plan = {"low": 2, "high": 3, "steps_per_precision": 4, "window": 1, "threshold": 20.0,
            "metric": "accuracy", "reset": False}  # fmt: skip
    return {
        "name": "digits-cpt-3-8-8", "seed": seed, "model": "digits_resnet", "data": "digits",
        "plan": plan, "low": 3, "high": 3, "forward": "3", "bitops": 1200,
        "curve": curve.to_dict(), **MADE, "overrides": ["--data.root", "/home/me/data"],
    }  # fmt: skip


def landscape_file(name, seed, steepness):
    grid = (-1.0, -0.5, 0.0, 0.5, 1.0)
    return Landscape(
        alphas=grid, betas=grid, precision="w8a8", num_samples=10, seed=0, ranges="batch",
        losses=tuple(tuple(0.1 + steepness * (a * a + b * b) for b in grid) for a in grid),
        label=f"/home/me/{name}-0123456789-seed{seed}", origin={"shapes": "abc"}, made=MADE,
    ).to_dict()  # fmt: skip


def bench_file(**changes):
    def row(kernel, seconds, **changes):
        return {"workload": "lstm", "kernel": kernel, "bits": "w8a8e8", "seconds": seconds,
                "is_once": False, "base": 0.01, "saved_bytes": 1, "notes": [],
                "layers": {"a": [f"{kernel}/bf16/{kernel}", "asked for"]}, **changes}  # fmt: skip

    rows = [
        row("float32", [0.010, 0.0101, 0.0102, 0.013], bits="", layers={}),
        row("bf16-autocast", [0.5], bits="", layers={}, is_once=True),
        row("simulate", [0.030, 0.031, 0.032, 0.033]),
        row("auto", [0.0105, 0.012, 0.012, 0.013]),
        row("auto", [0.005, 0.006, 0.006, 0.006], bits="w4a4e8"),
        row("auto", [0.008, 0.009, 0.009, 0.009], bits="3-8/8", by_width={"3": 0.007, "8": 0.01}),
        row("torchao", [], base=None, bits="", notes=["lstm: torchao not timed: no such module"]),
    ]
    processor = {
        "name": "EPYC",
        "capability": "AVX2",
        "num_threads": 1,
        "has_vnni": False,
        "has_bf16": False,
        "has_amx": False,
        "instruction_set": "avx2",
    }
    return {"processor": processor, "sizes": {"lstm": "2 layers"}, "rows": rows, "repeats": 4,
            "is_quick": False, "kernels": [], "bits": [], "keeps_freed_memory": True, **MADE,
            **changes}  # fmt: skip


def write_files(folder, *contents):
    paths = [folder / f"{k}.json" for k in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(json.dumps(content))
    return [str(path) for path in paths]


def relative_file(seed=0, end=2.5, noise=0.0):
    """8 bits fall from 4 to 2, 3 bits to `end` -+ noise, 2 bits to 3.5."""
    ends = {8: (2.0, 2.0), 3: (end - noise, end + noise), 2: (3.5, 3.5)}
    runs = [PrecisionRun(0, bits, (4.0, 4.0, *last)) for bits, last in ends.items()]
    curve = RelativeCurve(runs=tuple(runs), window=2)
    plan = {"criterion": "relative", "low": 2, "high": 8, "steps_per_precision": 4, "window": 2,
            "share": 0.5, "repeats": 1, "threshold": None, "metric": "loss",
            "reset": True}  # fmt: skip
    cost = {"steps": 12, "bitops": 600, "run_steps": 1200, "run_bitops": 120_000}
    return {**range_file(seed), "plan": plan, "cost": cost, "curve": curve.to_dict()}


def test_both_criteria_of_a_network_share_a_row(tmp_path):
    """Shares of the drop of 2: 0.75 and 0.65 at 3 bits, 0.25 at 2; only the most, 8, have 0.9."""
    to = tmp_path / "out"
    files = [range_file(0), relative_file(0), relative_file(1, end=2.7)]
    assert main(["gather", *write_files(tmp_path, *files), "--to", str(to)]) == 0
    page = (to / "range-tests.md").read_text()
    row = next(
        line for line in page.splitlines() if line.startswith("| small ResNet-8 on digits |")
    )
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:] == ["3", "0.70 (0.65 to 0.75)", "0.25", "none below 8", "2", "3", "1"]
    assert (
        "**Of 1 network the range test with a share of 0.5 found a lower bound of 3 bits for 1.**"
        in page
    )
    assert "| 12 | 1,200 | 1.0 % | 0.5 % |" in page
    assert "--share 0.5 --repeats 1" in page
    assert "--threshold 20" in page


def test_a_bound_within_noise_says_so_in_the_table(tmp_path):
    """2.9 -+ 0.9 has a standard error of 0.9 and is 0.1 from 3, half of the drop."""
    to = tmp_path / "out"
    files = [relative_file(0), relative_file(1, end=2.9, noise=0.9)]
    assert main(["gather", *write_files(tmp_path, *files), "--to", str(to)]) == 0
    page = (to / "range-tests.md").read_text()
    assert "| small ResNet-8 on digits | 3, within noise | 0.65 (0.55 to 0.75) |" in page


def test_range_tests_are_added_to_earlier_ones(tmp_path):
    to = tmp_path / "out"
    for content in (range_file(0), range_file(1), range_file(1, gain=5.0)):
        assert main(["gather", *write_files(tmp_path, content), "--to", str(to)]) == 0
    tests = json.loads((to / "data" / "range-tests.json").read_text())["tests"]
    assert [(test["seed"], test["metric"][-1]) for test in tests] == [(0, 72.0), (1, 17.0)]
    page = (to / "range-tests.md").read_text()
    assert "3 (1 of 2 seeds), none (1 of 2 seeds)" in page
    assert "+32.5" in page  # the mean of gains of 60 and 5
    assert "/home" not in page + json.dumps(tests)


def test_landscapes_compare_methods_over_seeds(tmp_path):
    files = [landscape_file("static", seed, 4.0 + seed / 10) for seed in range(3)]
    files += [landscape_file("cyclic", seed, 2.0 + seed / 5) for seed in range(3)]
    add(tmp_path, gather_files([tmp_path / p for p in write_files(tmp_path, *files)]))
    page = render(tmp_path)["landscapes.md"]
    assert re.search(
        r"the loss rose [\d.]+ less with me/cyclic than with me/static \(95 % interval [\d.]+ less "
        r"to [\d.]+ less, n = 3\), a wider minimum\.", page,
    )  # fmt: skip
    rises = [Landscape.from_dict(file).sharpness.rises[-1] for file in files]
    assert f"{sum(rises[3:]) / 3 - sum(rises[:3]) / 3:+.2f} (" in page
    assert "/home" not in page
    other = {**files[0], "origin": {"shapes": "another network"}}
    before = (tmp_path / "data" / "landscapes.json").read_bytes()
    with pytest.raises(ValueError, match="cannot be compared"):
        add(tmp_path, gather_files([Path(p) for p in write_files(tmp_path, other)]))
    assert (tmp_path / "data" / "landscapes.json").read_bytes() == before


def speed_lines(tmp_path, content):
    add(tmp_path, gather_files([tmp_path / p for p in write_files(tmp_path, content)]))
    return render(tmp_path)["speed.md"].splitlines()


def test_speed_is_shown_against_bits_and_judged_by_times_that_keep_apart(tmp_path):
    lines = speed_lines(tmp_path, bench_file())
    table = [line for line in lines if line.startswith("| ")]
    assert table == [
        "| network | float32, ms | 8/8 | 3-8/8 | 4/8 | torchao |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
        "| lstm | 10.0 | ≈ 1.05 | **0.80** | **0.50** | error |",
        "| forward/backward bits | lstm |",
        "| --- | --- |",
        "| float32, ms | 10.0 |",
        "| bf16-autocast | 50.00 (once) |",
        "| simulate 8/8 | 3.00 |",
        "| auto 8/8 | ≈ 1.05 |",
        "| auto 4/8 | **0.50** |",
        "| auto 3-8/8 | **0.80** |",
        "| torchao | error |",
    ]
    assert "- lstm: torchao not timed: no such module" in lines
    assert lines[4] == (
        "**On an EPYC with AVX2 (1 thread) a training step at 8/8 took, of float32's time, 1.05 "
        "(lstm).**"
    )
    assert "bitcycle bench --threads 1 --repeats 4 --workload lstm --json speed.json" in lines
    stored = json.loads((tmp_path / "data" / "speed.json").read_text())
    assert stored["rows"][5]["by_width"] == {"3": 7.0, "8": 10.0}
    assert any("native library avx2, freed memory kept" in line for line in lines)


def test_times_within_five_percent_of_float32_are_within_noise(tmp_path):
    content = bench_file()
    content["rows"][3]["seconds"] = [0.0107, 0.0108, 0.0109, 0.011]
    content["rows"][4]["seconds"] = [0.0096, 0.0097, 0.0098, 0.0099]
    assert "| lstm | 10.0 | 1.07 | **0.80** | ≈ 0.96 | error |" in speed_lines(tmp_path, content)


def test_a_document_gets_the_speed_at_three_bits(tmp_path):
    speed_lines(tmp_path, bench_file())
    document = tmp_path / "README.md"
    text = fill("<!-- made: speed -->\n<!-- end -->\n", tmp_path, document)
    assert "| network | float32, ms | 8/8 | 3-8/8 | 4/8 |" in text
    assert "| lstm | 10.0 | ≈ 1.05 | **0.80** | **0.50** |" in text
    assert "[All bits](./speed.md)" in text


def test_the_comparison_with_other_packages_has_its_numbers(tmp_path):
    speed_lines(tmp_path, bench_file())
    document = tmp_path / "README.md"
    part = fill("<!-- made: others -->\n<!-- end -->", tmp_path, document).split("\n")
    assert "| bitcycle 8/8 | ≈ 1.05 |" in part
    assert "| torchao | error |" in part


def test_the_lines_on_where_cycling_pays_are_those_of_the_first_pages_studies(tmp_path):
    study = lengths((240, BASE, WORSE), (1_000, BASE, ALIKE))
    assert summary_lines([study], tmp_path, "results/") == (
        "- **Bit operations.** c uses 40 % fewer than static 8: a count, not a time.\n"
        "- **[Images](results/lengths.md).** After 1,000 steps on CIFAR-10 a ResNet-8 ended 0.00 "
        "points from static 8 (95 % interval -0.25 to 0.25, n = 3, within noise) with c."
    )
    assert summary_lines([], tmp_path) == ""
    single = lengths((240, BASE, {0: 88.0}), (1_000, BASE, {0: 88.0}))
    assert "Images" not in summary_lines([single], tmp_path)
    assert "- **[Time](run-times.md).** CPT " in summary_lines(read_studies(RESULTS), RESULTS)


def test_files_of_no_kind_or_of_several_are_refused(tmp_path, capsys):
    for contents, word in (([{"a": 1}], "is none of"), ([range_file(), bench_file()], "several")):
        assert main(["gather", *write_files(tmp_path, *contents), "--to", str(tmp_path)]) == 2
        assert word in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


# -- pages --------------------------------------------------------------------------------------


def test_a_made_part_must_have_a_known_name_and_an_end(tmp_path, trained):
    add(tmp_path, gather(trained, StudyOptions()))
    document = tmp_path / "README.md"
    text = "a\n<!-- made: summary -->\nold\n<!-- end -->\nb\n"
    assert "old" not in fill(text, tmp_path, document)
    with pytest.raises(ValueError, match="no part 'nothing'"):
        fill(text.replace("summary", "nothing"), tmp_path, document)
    with pytest.raises(ValueError, match="end"):
        fill(text.replace("<!-- end -->", ""), tmp_path, document)


def test_equal_numbers_give_equal_pictures(trained):
    assert picture(trained) == picture(trained)


def test_numbers_are_set_to_the_right_and_words_escaped():
    lines = table(["a", "b"], [["x|y", "-0.5 (0 to 1)"], ["*z*", ""]]).splitlines()
    assert lines[1:] == ["| --- | ---: |", r"| x\|y | -0.5 (0 to 1) |", r"| \*z\* | - |"]


def test_no_folder_of_a_machine_stays_in_a_command():
    words = ["run", "/home/me/a.yaml", "--retry-failed", "--data.root=/data", "--seeds", "0", "1"]
    assert portable(words) == ["run", "a.yaml", "--retry-failed", "--data.root", "DATA",
                               "--seeds", "0", "1"]  # fmt: skip
