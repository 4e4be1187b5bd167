"""The dry run: exact costs, and times that are multiples of a measured step."""

import time
from dataclasses import replace

import pytest
import torch

from bitcycle_lab.cost import spec
from bitcycle_lab.recipes import recipe
from bitcycle_lab.study.dry_run import dry_run, measure_step, power_table, step_kind, study_power
from bitcycle_lab.study.results import read_study
from bitcycle_lab.study.runner import run_study, runs_to_train
from bitcycle_lab.study.study import Method
from tests.bitcycle_lab.study.made_up import method, study_result
from tests.bitcycle_lab.study.small_studies import Here, tiny, tiny_study

# -- dry run --------------------------------------------------------------------------------------


def plan(study, output, **options):
    before = read_study(study, output)
    options = {"num_jobs": 1, "measure": lambda config: (0.5, config.steps), **options}
    return dry_run(before, runs_to_train(before, retry_failed=False), **options)


def test_the_total_is_the_sum_of_what_the_runs_then_cost(tmp_path):
    cycled = Method(label="CPT", config=tiny("CR:3-8:2", steps=12))
    float32 = recipe("digits-float32").precision
    study = tiny_study(
        cycled, Method(label="8", config=tiny(8)),
        Method(label="float", config=tiny(precision=float32)), seeds=(0, 1),
    )  # fmt: skip
    planned = plan(study, tmp_path)
    result = run_study(study, tmp_path, engine=Here())
    costs = {row.method.label: row.results[0].cost["bitops"] for row in result.methods}
    assert {run.run.method.label: run.bitops for run in planned.runs} == costs
    assert planned.bitops == 2 * sum(costs.values())


def test_times_are_steps_times_the_measured_step_divided_by_the_jobs(tmp_path):
    study = tiny_study(seeds=(0, 1))
    assert [run.seconds for run in plan(study, tmp_path).runs] == [2.0] * 4
    assert plan(study, tmp_path).seconds == 8.0
    assert plan(study, tmp_path, num_jobs=2).seconds == 4.0
    assert plan(study, tmp_path, num_jobs=100).seconds == 2.0


def test_each_kind_of_step_is_measured_once(tmp_path):
    measured = []

    def measure(config):
        measured.append(config.precision.forward)
        return 1.0, 4

    wide = replace(tiny().model, options={"width": 32})
    study = tiny_study(
        Method(label="8", config=tiny(8)),
        Method(label="4", config=tiny(4)),
        Method(label="wide", config=tiny(5, model=wide)),
        seeds=(0, 1),
    )
    plan(study, tmp_path, measure=measure)
    assert measured == [8, 5]


def test_what_is_done_is_not_counted_and_tells_the_time_of_the_rest(tmp_path):
    result = run_study(tiny_study(), tmp_path, engine=Here())
    more = tiny_study(seeds=(0, 1))
    planned = plan(more, tmp_path, measure=None)
    assert planned.num_done == 2
    assert [run.run.seed for run in planned.runs] == [1, 1]
    assert [run.seconds for run in planned.runs] == [
        row.results[0].seconds for row in result.methods
    ]


def test_unknown_costs_and_times_are_notes(tmp_path, monkeypatch):
    monkeypatch.delitem(spec.NUM_SAMPLES, "digits")  # data of unknown size

    def fail(config):
        raise FileNotFoundError("cifar10: not found")

    epochs = Method(label="epochs", config=tiny(steps=None, epochs=1.0))
    auto = Method(label="auto", config=tiny("CR:auto-8:2", steps=12))
    planned = plan(tiny_study(epochs, auto, baseline=None), tmp_path, measure=fail)
    assert [run.bitops is None for run in planned.runs] == [True, False]
    assert [run.steps for run in planned.runs] == [None, 12]
    notes = "\n".join(planned.notes)
    assert "epochs: no BitOPs" in notes
    assert "auto: counted from 2 bits, the run finds its own lower end" in notes
    assert "a step could not be measured: cifar10: not found" in notes
    assert "(1 without BitOPs, 2 without time)" in str(planned)


# -- measured steps -------------------------------------------------------------------------------


def test_the_median_of_three_steps_after_two_is_given_with_the_length_of_the_run(
    tmp_path, monkeypatch
):
    ticks = iter([0, 100, 0, 100, 0, 3, 0, 5, 0, 4])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    before = torch.get_num_threads()
    # a fifth of 160 samples a batch: 5 steps an epoch
    config = replace(tiny(steps=None, epochs=2.0, threads=2), output=str(tmp_path / "no"))
    assert measure_step(config) == (4, 10)
    assert not (tmp_path / "no").exists()
    assert torch.get_num_threads() == before


def test_missing_data_is_the_error_of_the_run(tmp_path):
    data = replace(tiny().data, name="cifar10", root=str(tmp_path))
    model = replace(tiny().model, name="resnet8", options={})
    with pytest.raises(FileNotFoundError, match="cifar10"):
        measure_step(replace(tiny(), data=data, model=model))


def test_what_makes_a_step_longer_is_another_kind_and_bits_are_not():
    assert step_kind(tiny(8)) == step_kind(tiny("CR:3-8:1")) == step_kind(tiny(8, seed=3))
    others = [
        tiny("fp32", precision=replace(tiny().precision, forward="fp32", backward="fp32")),
        tiny(data=replace(tiny().data, batch_size=16)),
        tiny(precision=replace(tiny().precision, kernel="simulate")),
        tiny(threads=2),
    ]
    assert len({step_kind(config) for config in [tiny(8), *others]}) == 5


# -- power ----------------------------------------------------------------------------------------


def test_the_power_of_the_seeds_follows_from_the_deviation_in_finished_runs():
    base = {0: 90.0, 1: 91.0, 2: 92.0}
    entries = [
        (method("static", 8), base, 1.0),
        (method("a", "CR:3-8:8"), {0: 91.0, 1: 93.0, 2: 95.0}, 1.0),  # differences 1 2 3: 1
    ]
    [power] = study_power(study_result(entries, seeds=(0, 1, 2, 3), baseline="static"))
    # t(0.975, 3) / sqrt(4) = 3.1824 / 2 = 1.59; 1 point takes 7: 2.4469 / sqrt(7) = 0.92
    assert power.cells(1)[1:] == ("4", "1.0", "1.6", "1.0", "7")
    assert "  1.0  " in power_table([power])


def test_without_finished_runs_the_power_is_in_standard_deviations():
    entries = [(method("static", 8), {}, 1.0), (method("a", "CR:3-8:8"), {}, 1.0)]
    [power] = study_power(study_result(entries, baseline="static"))
    assert power.cells(1)[1:4] == ("3", "-", "2.5 deviations")  # 4.3027 / 1.732
    [power] = study_power(study_result(entries, seeds=(0,), baseline="static"))
    assert power.cells(1)[1:4] == ("1", "-", "-")
    assert study_power(study_result(entries)) == ()  # nothing to compare with
