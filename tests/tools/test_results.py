"""Gathering runs and measurements, restoring them from their files, making pages."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bitcycle.analysis.config_id import config_id
from bitcycle.analysis.statistics import Difference
from bitcycle.landscape import Landscape
from bitcycle.range_test import RangeCurve
from bitcycle.study.results import read_study
from bitcycle.study.runner import run_study
from bitcycle.study.study import StudyOptions
from bitcycle.study.study_file import find_study
from bitcycle.study.summary import summarize
from bitcycle.tasks import DataConfig, ModelConfig
from tests.study.made_up import method, study_result
from tests.study.small_studies import Here, tiny
from tools.results.__main__ import main
from tools.results.commands import portable
from tools.results.comparison import (
    compare,
    compare_at_cost,
    distinct,
    one_per_network,
    overall_answer,
    summarize_comparisons,
)
from tools.results.folder import add, fill, gather_files, render
from tools.results.page import picture, table, to_json
from tools.results.study_data import StudyData, from_settings, gather, restore, to_settings
from tools.results.study_page import study_page

MACHINE = {"bitcycle": "0.1.0", "torch": "2.13.0", "processor": "AMD EPYC", "device": "cpu"}
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
    return StudyData(result=result, command="", machines=(), threads=(), ids=ids, published={})


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


def test_only_a_short_interval_is_a_match():
    wide = {0: 89.0, 1: 93.0, 2: 91.5}
    for values, word in ((ALIKE, "matched"), (wide, "did not differ"), (WORSE, "was worse")):
        study = study_of((method("static 8"), BASE, 100.0), (method("c", "CR:3-8:8"), values, 60.0))
        assert word in summarize_comparisons(compare(study))


def test_lower_perplexity_is_better():
    model, data = ModelConfig(name="lstm_lm"), DataConfig(name="wikitext-2")
    changes = {"task": "language", "model": model, "data": data}
    study = study_of(
        (method("static 8", changes=changes), BASE, 100.0),
        (method("c", "CR:3-8:8", changes=changes), WORSE, 60.0),
    )
    assert [each.verdict for each in compare(study)] == ["better"]


def test_studies_that_share_runs_count_once_with_the_most_seeds():
    few = study_of((method("static 8"), BASE, 100.0), (method("c", "CR:3-8:8"), WORSE, 60.0))
    seeds = (0, 1, 2, 3)
    many = study_of(
        (method("static 8"), {**BASE, 3: 91.0}, 100.0),
        (method("c", "CR:3-8:8"), {**WORSE, 3: 89.0}, 60.0),
        name="many", seeds=seeds,
    )  # fmt: skip
    found = [*compare(few), *compare(many)]
    assert [each.study for each in distinct(found)] == ["many"]
    assert [each.study for each in one_per_network(found)] == ["many"]


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


def test_a_bound_of_zero_counts_and_a_missing_p_is_not_significant():
    study = study_of((method("static 8"), BASE, 100.0), (method("c", "CR:3-8:8"), WORSE, 60.0))
    [each] = compare(study)
    unsure = replace(each, difference=Difference(mean=1.0, low=0.0, high=2.0, p=0.05, n=3))
    untested = replace(each, difference=Difference(mean=-1.0, low=-2.0, high=-0.5, p=None, n=3))
    answer = overall_answer([unsure, untested])
    assert "1 of 2 intervals" in answer
    assert "0 better and 0 worse remain" in answer


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
        row("float32", [0.010, 0.011, 0.012, 0.013], bits="", layers={}),
        row("bf16-autocast", [0.5], bits="", layers={}, is_once=True),
        row("simulate", [0.030, 0.031, 0.032, 0.033]),
        row("auto", [0.0105, 0.012, 0.012, 0.013]),
        row("auto", [0.005, 0.006, 0.006, 0.006], bits="w4a4e8"),
        row("auto", [0.008, 0.009, 0.009, 0.009], bits="3-8/8", by_width={"3": 0.007, "8": 0.01}),
        row("auto", [], base=None, bits="w2a2e8"),
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


def older_bench_file():
    """As files were before there was a row for a cycle."""
    new = bench_file()
    rows = [
        {k: v for k, v in row.items() if k != "by_width"}
        for row in new["rows"]
        if row["kernel"] in ("float32", "simulate")
    ]
    processor = {k: v for k, v in new["processor"].items() if k != "instruction_set"}
    gone = ("kernels", "bits", "keeps_freed_memory")
    return {k: v for k, v in new.items() if k not in gone} | {"rows": rows, "processor": processor}


def write_files(folder, *contents):
    paths = [folder / f"{k}.json" for k in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(json.dumps(content))
    return [str(path) for path in paths]


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
    assert "cyclic ended in a minimum that is wider" in page
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
        "| forward/backward bits | lstm |",
        "| --- | ---: |",
        "| float32, ms | 10.0 |",
        "| bf16-autocast | 50.00 (once) |",
        "| simulate 8/8 | 3.00 |",
        "| auto 8/8 | ≈ 1.05 |",
        "| auto 4/8 | **0.50** |",
        "| auto 3-8/8 | **0.80** |",
    ]
    assert lines[4] == (
        "**On EPYC (AVX2, 1 threads) a training step takes, of float32's time, 1.05 at 8 bits, "
        "0.80 over a CPT cycle from 3 to 8, 0.50 at 4.**"
    )
    assert "bitcycle bench --threads 1 --repeats 4 --workload lstm --json speed.json" in lines
    stored = json.loads((tmp_path / "data" / "speed.json").read_text())
    assert stored["rows"][5]["by_width"] == {"3": 7.0, "8": 10.0}
    assert any("native library avx2, freed memory kept" in line for line in lines)


def test_an_older_file_of_speed_is_still_shown(tmp_path):
    lines = speed_lines(tmp_path, older_bench_file())
    assert "| simulate 8/8 | 3.00 |" in lines
    assert "1 of 1 quantized variants of a training step take longer" in lines[4]
    assert any("--kernels simulate --bits w8a8e8" in line for line in lines)


def test_a_document_gets_the_speed_at_three_bits(tmp_path):
    speed_lines(tmp_path, bench_file())
    document = tmp_path / "README.md"
    text = fill("<!-- made: speed -->\n<!-- end -->\n", tmp_path, document)
    assert "| network | float32, ms | 8/8 | 3-8/8 | 4/8 |" in text
    assert "| lstm | 10.0 | ≈ 1.05 | **0.80** | **0.50** |" in text
    assert "[All bits](./speed.md)" in text


def test_files_of_no_kind_or_of_several_are_refused(tmp_path, capsys):
    for contents, word in (([{"a": 1}], "is none of"), ([range_file(), bench_file()], "several")):
        assert main(["gather", *write_files(tmp_path, *contents), "--to", str(tmp_path)]) == 2
        assert word in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


# -- pages --------------------------------------------------------------------------------------


def test_a_made_part_must_have_a_known_name_and_an_end(tmp_path, trained):
    add(tmp_path, gather(trained, StudyOptions()))
    document = tmp_path / "README.md"
    text = "a\n<!-- made: answer -->\nold\n<!-- end -->\nb\n"
    assert "old" not in fill(text, tmp_path, document)
    with pytest.raises(ValueError, match="no part 'nothing'"):
        fill(text.replace("answer", "nothing"), tmp_path, document)
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
