"""The ends of runs: `benchmarks/end_of_run.py` on tiny runs, and the page of what it writes."""

import json
from dataclasses import replace

import pytest
import torch

from benchmarks import end_of_run as benchmark
from bitcycle.model_precision import at_precision
from bitcycle.recipes import recipe
from bitcycle.recipes.base import with_bits
from bitcycle.study.results import RunStatus
from bitcycle.study.study import Method
from bitcycle.train.config import CheckpointConfig, EvalConfig, TrackingConfig
from bitcycle.train.result import RunResult, weights_digest
from bitcycle.train.run import run
from bitcycle.train.run_directory import RunDirectory
from tools.results.end_of_run import (
    end_of_run_page,
    gather_end_of_run,
    merge_end_of_run,
    runs_of,
)
from tools.results.page import to_json

# -- the benchmark --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Four cycles of six steps: (configuration, folder, result)."""
    config = replace(
        with_bits(recipe("digits"), "cpt", "3-8/8", 4),
        steps=24,
        eval=EvalConfig(every=0.25),
        checkpoint=CheckpointConfig(every=0.25, keep=4),
        tracking=TrackingConfig(tensorboard=False),
        output=str(tmp_path_factory.mktemp("runs")),
    )
    result = run(config)
    directory = RunDirectory(result.directory)
    return directory.read_config(), directory, result


def last_session(trained):
    config, directory, result = trained
    return benchmark.load_session(config, directory, result.steps)


@pytest.mark.parametrize(
    ("num_final", "start", "text"),
    [
        (1, 7750, "seq(CR:3-8:31@0.96875, 8)"),
        (4, 7000, "seq(CR:3-8:28@0.875, 8)"),
        (8, 6000, "seq(CR:3-8:24@0.75, 8)"),
    ],
)
def test_the_last_cycles_are_held_at_the_highest_bits(num_final, start, text):
    assert benchmark.hold_last_cycles("CR:3-8:32", num_final, 8000) == (start, text)


@pytest.mark.parametrize("forward", ["CR:3-8:1", "8"])
def test_a_schedule_without_a_cycle_before_the_last_is_refused(forward):
    with pytest.raises(ValueError, match="no 1 last cycles to replace"):
        benchmark.hold_last_cycles(forward, 1, 100)


def test_cycles_that_do_not_divide_the_run_are_refused():
    with pytest.raises(ValueError, match="32 cycles must divide 500 steps"):
        benchmark.hold_last_cycles("CR:3-8:32", 1, 500)


def test_the_last_cycle_trained_again_gives_the_run_exactly(trained):
    config, directory, result = trained
    ends = benchmark.repeat_end(config, directory)
    assert ends == {"run": result.value, "again": result.value}


def test_other_weights_than_those_of_the_run_are_an_error(trained, monkeypatch):
    config, directory, result = trained
    other = replace(result, weights_sha256="0" * 64)
    monkeypatch.setattr(RunResult, "read", lambda path: other)
    with pytest.raises(ValueError, match="trained again from step 18 ends with"):
        benchmark.repeat_end(config, directory)


def test_another_end_is_the_end_of_a_whole_run_with_that_schedule(trained):
    config, directory, result = trained
    start, forward = benchmark.hold_last_cycles(config.precision.forward, 1, 24)
    precision = replace(config.precision, forward=forward)
    held = replace(config, precision=precision, name="held")
    session = benchmark.train_to_end(held, directory, start)
    assert session.step == 24
    assert weights_digest(session.model) == run(held).weights_sha256 != result.weights_sha256


def test_test_and_training_images_are_evaluated_as_the_run_did(trained):
    metrics = benchmark.measure(last_session(trained), num_batches=2)
    assert metrics["test"] == {name: trained[2].final[name] for name in ("accuracy", "loss")}
    assert list(metrics) == ["test", "train", "augmented"]
    assert metrics["train"] != metrics["augmented"]


def test_new_statistics_are_means_over_batches_and_leave_the_ranges(trained):
    session = last_session(trained)
    model, means = session.model.eval(), []
    with torch.no_grad(), at_precision(model, benchmark.highest_bits(session)):
        for batch in benchmark.augmented_batches(session, 3):
            means.append(model.conv1(batch.inputs).mean(dim=(0, 2, 3)))
    ranges = model.conv1.act_range.clone()
    before = model.bn1.running_mean.clone()
    benchmark.renew_norms(session, 3)
    torch.testing.assert_close(model.bn1.running_mean, torch.stack(means).mean(0))
    assert not torch.equal(model.bn1.running_mean, before)
    assert torch.equal(model.conv1.act_range, ranges)
    assert (model.bn1.momentum, model.bn1.training) == (0.1, False)


def test_new_ranges_are_means_over_batches_and_leave_the_statistics(trained):
    session = last_session(trained)
    model, before = session.model, session.model.bn1.running_mean.clone()
    benchmark.renew_ranges(session, 3)
    images = [batch.inputs for batch in benchmark.augmented_batches(session, 3)]
    number, low, size = model.conv1.act_range[0].tolist()
    assert number == 3
    assert low == pytest.approx(sum(float(x.min()) for x in images) / 3)
    assert size == pytest.approx(sum(float(x.max() - x.min()) for x in images) / 3)
    assert torch.equal(model.bn1.running_mean, before)


def test_a_second_call_measures_what_is_missing(trained, monkeypatch, tmp_path):
    config, directory, result = trained
    method = Method(label="CPT 3-8/8, N = 32", config=config)
    status = RunStatus(
        method=method, config=config, directory=directory.path, state="done", result=result
    )
    monkeypatch.setattr(benchmark, "NUM_FINAL_CYCLES", (1,))
    path, saved = tmp_path / "end-of-run.json", []
    found = {**benchmark.read_found(path, 24), "num_batches": 2}
    benchmark.measure_run(status, found, (), lambda: saved.append(json.dumps(found)))
    [entry] = found["runs"]
    assert [step for step, _ in entry["curve"]] == [6, 12, 18, 24]
    assert entry["curve"][-1][1] == result.value
    assert list(entry["variants"]) == [
        "as trained", "new batch norm", "new batch norm and ranges", "8 bits in the last cycle"
    ]  # fmt: skip
    assert found["control"]["again"] == result.value
    assert len(saved) == 3  # the end, the control, another end
    path.write_text(saved[1])
    found = benchmark.read_found(path, 24)
    monkeypatch.setattr(benchmark, "measure_end", None)
    monkeypatch.setattr(benchmark, "repeat_end", None)
    benchmark.measure_run(status, found, (), lambda: None)
    assert found == json.loads(saved[2])


def test_a_run_that_was_trained_again_is_measured_again(trained):
    old = {"method": "CPT", "seed": 0, "weights_sha256": "old", "variants": {"as trained": {}}}
    found = {"control": {"seed": 0}, "runs": [old]}
    entry = benchmark.entry_of(found, "CPT", 0, trained[2])
    assert entry["variants"] == {}
    assert entry["weights_sha256"] == trained[2].weights_sha256
    assert (found["control"], len(found["runs"])) == (None, 1)


def test_a_file_of_runs_of_another_length_is_refused(tmp_path):
    path = tmp_path / "end-of-run.json"
    path.write_text(json.dumps(benchmark.read_found(path, 500)))
    with pytest.raises(ValueError, match="does not hold the ends of runs of 8000 steps"):
        benchmark.read_found(path, 8000)


# -- the page -------------------------------------------------------------------------------------

STATIC, CPT = "static 8/8", "CPT 3-8/8, N = 32"
ONE, EIGHT = "8 bits in the last cycle", "8 bits in the last 8 cycles"


def metrics(test, train):
    return {
        "test": {"accuracy": test, "loss": 0.5},
        "train": {"accuracy": train, "loss": 0.25},
        "augmented": {"accuracy": train - 2.0, "loss": 0.3},
    }


def measured(method, seed, end, **others):
    curve = [[2000, 60.0 + seed], [4000, 70.0], [6000, 84.0], [8000, end[0]]]
    variants = {"as trained": metrics(*end)}
    variants |= {name: metrics(*values) for name, values in others.items()}
    return {"method": method, "seed": seed, "weights_sha256": "0", "curve": curve,
            "variants": variants}  # fmt: skip


def file(*runs):
    return {
        "benchmark": "end_of_run", "study": "lengths", "group": "ResNet-8, CIFAR-10, 8,000 steps",
        "steps": 8000, "baseline": STATIC, "num_batches": 100, "threads": 1, "seconds": 75.0,
        "machine": {"processor": "EPYC", "host": "mine"},
        "control": {"method": CPT, "seed": 0, "run": 85.0, "again": 85.0}, "runs": list(runs),
    }  # fmt: skip


STATIC_RUNS = [measured(STATIC, seed, (86.0 + seed, 90.0 + seed)) for seed in range(3)]
CPT_RUNS = [
    measured(CPT, 0, (85.0, 87.0), **{ONE: (85.1, 87.0), EIGHT: (86.0, 89.0)}),
    measured(CPT, 1, (86.1, 88.0), **{ONE: (86.0, 88.0), EIGHT: (87.0, 90.0)}),
    measured(CPT, 2, (86.9, 89.1), **{ONE: (86.9, 89.0), EIGHT: (87.8, 91.0)}),
]


def page_of(*runs):
    return end_of_run_page(json.loads(to_json(gather_end_of_run([file(*runs)]))))


def lines_of(page):
    return page.files()["end-of-run.md"].splitlines()


def test_the_sentence_says_how_far_apart_the_ends_are_and_what_changes_them():
    """Differences -1.0, -0.9 and -1.1 on test images: t(0.975, 2) 0.1 / sqrt(3) = 0.25."""
    page = page_of(*CPT_RUNS, *STATIC_RUNS)
    assert page.answer == (
        "After 8,000 steps CPT 3-8/8 ended 1.00 points below static 8/8 on test images (95 "
        "% interval 0.75 to 1.25, n = 3) and 2.97 points below on training images (2.82 to 3.11, "
        "n = 3); 8 bits in the last 8 cycles added 0.93 points; no further end mattered beyond "
        "noise."
    )


def test_the_ends_of_other_cycles_are_compared_too():
    """Differences -0.4, -0.5 and -0.6."""
    ends = [(85.6, 88.0), (86.5, 89.0), (87.4, 90.0)]
    others = [measured("CPT 4-8/8, N = 32", seed, end) for seed, end in enumerate(ends)]
    cpt = [{**run, "variants": dict(list(run["variants"].items())[:2])} for run in CPT_RUNS]
    for runs in ((*cpt, *others), (*others, *cpt)):
        assert page_of(*runs, *STATIC_RUNS).answer == (
            "After 8,000 steps CPT 3-8/8 ended 1.00 points below static 8/8 on test images "
            "(95 % interval 0.75 to 1.25, n = 3) and 2.97 points below on training images (2.82 to "
            "3.11, n = 3); no other end mattered beyond noise; CPT 4-8/8 ended 0.50 points "
            "below (0.25 to 0.75, n = 3)."
        )
    shown = page_of(*CPT_RUNS, *others[1:], *STATIC_RUNS)
    assert "CPT 4-8/8, N = 32 (n = 2)" in shown.picture[1]
    assert "CPT 4-8/8 ended" not in shown.answer  # no room: another end changed the accuracy


def test_a_difference_within_noise_says_so():
    """Differences 0.5, -0.4 and -0.1: none; those of training images are 0.3 each."""
    ends = [(86.5, 90.3), (86.6, 91.3), (87.9, 92.3)]
    page = page_of(*STATIC_RUNS, *(measured(CPT, seed, end) for seed, end in enumerate(ends)))
    assert page.answer == (
        "After 8,000 steps CPT 3-8/8 ended 0.0 points from static 8/8 on test images (95 % "
        "interval -1.1 to 1.1, n = 3, within noise) and 0.30 points above on training images (n = "
        "3, no interval)."
    )


def test_the_table_has_a_row_per_variant_with_the_baseline_first():
    page = page_of(*CPT_RUNS, *STATIC_RUNS)
    lines = lines_of(page)
    first = next(i for i, line in enumerate(lines) if line.startswith("| static 8/8 |"))
    assert lines[first] == "| static 8/8 | 87.0 (84.5 to 89.5) | 91.00 | 4.00 | - | 3 |"
    assert lines[first + 1].startswith("| CPT 3-8/8, N = 32 | 86.0 (83.6 to 88.4) | 88.03 | 2.03 (")
    assert lines[first + 1].endswith("| -1.00 (-1.25 to -0.75) | 3 |")
    assert [line.split(" | ")[0] for line in lines[first + 2 : first + 4]] == [
        f"| {CPT}, {ONE}",
        f"| {CPT}, {EIGHT}",
    ]
    text = "\n".join(lines)
    assert "The gap of CPT 3-8/8, N = 32 minus that of static 8/8 is -1.97 (" in text
    assert "ends with the same weights and a test accuracy of 85.00; the run's is 85.00." in text
    assert "mine" not in to_json(gather_end_of_run([file(*CPT_RUNS)]))
    assert page.picture is not None


def test_one_seed_is_not_judged():
    page = page_of(STATIC_RUNS[0], CPT_RUNS[0])
    assert page.answer == (
        "After 8,000 steps CPT 3-8/8 ended 1.00 points below static 8/8 on test images (n "
        "= 1, no interval) and 3.00 points below on training images (n = 1, no interval)."
    )


@pytest.mark.parametrize("runs", [STATIC_RUNS, CPT_RUNS, [STATIC_RUNS[0], CPT_RUNS[1]]])
def test_without_a_pair_of_runs_nothing_is_compared(runs):
    page = page_of(*runs)
    assert page.answer == "No seed has a cyclic and a static run yet."
    assert page.picture is None


def test_seeds_of_several_files_are_added_and_a_repeated_one_replaces_its_own():
    old, new = file(STATIC_RUNS[0], CPT_RUNS[0]), file(*STATIC_RUNS[1:], *CPT_RUNS[1:])
    found = gather_end_of_run([{**old, "machine": {"processor": "Xeon"}}, {**new, "control": None}])
    assert [(run["method"], run["seed"]) for run in runs_of(found)] == [
        (STATIC, 0), (CPT, 0), (STATIC, 1), (STATIC, 2), (CPT, 1), (CPT, 2)
    ]  # fmt: skip
    page = end_of_run_page(found)
    assert page.answer == page_of(*STATIC_RUNS, *CPT_RUNS).answer
    assert "Xeon; EPYC, 1 thread. Wall-clock: 2 min 30 s one after another." in page.details[-1]
    assert page.details[-1].count("seed 0, trained again from its checkpoint") == 1
    assert merge_end_of_run(found, gather_end_of_run([{**new, "control": None}])) == found
    again = gather_end_of_run([{**file(measured(CPT, 0, (80.0, 81.0))), "control": None}])
    merged = merge_end_of_run(found, again)
    values = {(run["method"], run["seed"]): run["variants"] for run in runs_of(merged)}
    assert values[CPT, 0]["as trained"]["test"]["accuracy"] == 80.0
    assert len(values) == len(runs_of(merged)) == 6
    assert "trained again" not in end_of_run_page(merged).details[-1]  # that was another run


def test_runs_of_another_length_have_it_in_their_command():
    found = gather_end_of_run([{**file(*STATIC_RUNS, *CPT_RUNS), "steps": 500}])
    assert end_of_run_page(found).commands[1].endswith("--json end-of-run.json --steps 500")
    assert "--steps" not in page_of(*STATIC_RUNS, *CPT_RUNS).commands[1]


def test_ends_of_runs_of_several_lengths_are_not_mixed():
    with pytest.raises(ValueError, match="steps is 8000 and 500 do not go on one page"):
        gather_end_of_run([file(), {**file(), "steps": 500}])
