"""Running a study: what is trained, resumed, retried and waited for."""

import os
import signal
from dataclasses import replace

import pytest

from bitcycle_lab.recipes import recipe
from bitcycle_lab.study import runner
from bitcycle_lab.study.engines.base import RunOutcome, run_directory
from bitcycle_lab.study.progress import Lines
from bitcycle_lab.study.results import read_failures, read_study
from bitcycle_lab.study.runner import check_data, run_study, runs_to_train
from bitcycle_lab.study.study import Method
from bitcycle_lab.train import run
from bitcycle_lab.train.run_directory import RunDirectory
from bitcycle_lab.train.signals import Interrupted
from tests.bitcycle_lab.study.small_studies import (
    Here,
    crashing,
    diverging,
    run_until,
    tiny,
    tiny_study,
)
from tests.bitcycle_lab.train.small import files_below, lstm, metrics_of, write_words


def labels(engine, study):
    by_name = {r.config.run_name: (r.method.label, r.seed) for r in study.runs("")}
    return [by_name[config.run_name] for config in engine.started]


def execute_study(study, output, **options):
    """(result, which runs were started, lines)"""
    engine, lines = Here(), []
    result = run_study(study, output, engine=engine, watcher=Lines(lines.append), **options)
    assert engine.was_killed
    return result, labels(engine, study), lines


def test_everything_is_run_seed_by_seed_and_then_nothing(tmp_path):
    study = tiny_study(seeds=(0, 1))
    result, started, lines = execute_study(study, tmp_path)
    assert started == [("8", 0), ("4", 0), ("8", 1), ("4", 1)]
    assert result.count("done") == 4
    assert lines[0] == "tiny: 4 runs: 4 to start; 1 at a time"
    assert [line[:5] for line in lines[1:]] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    before = files_below(tmp_path)
    again, started, _ = execute_study(study, tmp_path)
    assert (again, started) == (result, [])
    assert files_below(tmp_path) == before


def test_a_run_of_a_study_is_the_run_of_its_configuration_alone(tmp_path):
    result, _, _ = execute_study(tiny_study(), tmp_path / "study")
    for row in result.methods:
        alone = run(replace(row.method.config, output=str(tmp_path / row.method.label)))
        assert row.results[0].weights_sha256 == alone.weights_sha256
        assert row.results[0].final == alone.final


def test_a_changed_setting_a_new_method_and_a_new_seed_are_new_runs(tmp_path):
    first = Method(label="8", config=tiny(8))
    execute_study(tiny_study(first), tmp_path)
    longer = Method(label="longer", config=tiny(8, steps=5))
    study = tiny_study(first, longer, seeds=(0, 1))
    _, started, _ = execute_study(study, tmp_path)
    assert started == [("longer", 0), ("8", 1), ("longer", 1)]


def test_studies_share_runs_and_methods_of_one_study_do(tmp_path):
    execute_study(tiny_study(), tmp_path)
    twin = replace(tiny(4), tracking=replace(tiny(4).tracking, log_every=1))
    other = tiny_study(
        Method(label="8", config=tiny(8), group="one"),
        Method(label="8", config=tiny(8), group="two"),
        Method(label="4", config=twin, group="two"),
        name="other",
    )
    result, started, _ = execute_study(other, tmp_path)
    assert started == []
    assert result.count("done") == 3
    fresh, started, _ = execute_study(other, tmp_path / "fresh")
    assert len(started) == 2
    assert fresh.count("done") == 3


def test_a_crash_is_noted_and_the_others_go_on(tmp_path):
    study = tiny_study(crashing(), Method(label="8", config=tiny(8)), diverging())
    result, started, lines = execute_study(study, tmp_path)
    assert [label for label, _ in started] == ["crashing", "8", "diverging"]
    assert [row.runs[0].state for row in result.methods] == ["failed", "done", "failed"]
    assert result.methods[0].runs[0].error.startswith("ValueError: swa.start")
    assert len(read_failures(tmp_path)) == 2
    assert sum("FAILED" in line for line in lines) == 2
    assert run_directory(result.methods[2].runs[0].config).exists  # a failed run keeps its folder


def test_a_failed_run_is_retried_only_when_asked(tmp_path):
    config = lstm(tmp_path, tmp_path / "words")
    study = tiny_study(Method(label="8", config=config))
    result, started, _ = execute_study(study, tmp_path / "runs")
    assert (result.count("failed"), len(started)) == (1, 1)
    write_words(tmp_path / "words")
    result, started, lines = execute_study(study, tmp_path / "runs")
    assert (result.count("failed"), started) == (1, [])
    assert "1 failed before (--retry-failed tries them again)" in lines[0]
    result, started, _ = execute_study(study, tmp_path / "runs", retry_failed=True)
    assert (result.count("done"), len(started)) == (1, 1)
    assert read_failures(tmp_path / "runs") == {}


def test_an_interrupted_run_resumes(tmp_path):
    whole, _, _ = execute_study(tiny_study(), tmp_path / "whole")
    first = next(iter(tiny_study().runs(str(tmp_path / "cut"))))
    run_until(first.config, 3)
    result, _, lines = execute_study(tiny_study(), tmp_path / "cut")
    assert "1 to resume, 1 to start" in lines[0]
    log = run_directory(first.config).log_file.read_text(encoding="utf-8")
    assert "resumed at step 3" in log
    for ours, theirs in zip(result.methods, whole.methods, strict=True):
        assert ours.results[0].weights_sha256 == theirs.results[0].weights_sha256
        assert metrics_of(ours.runs[0].directory) == metrics_of(theirs.runs[0].directory)


class Signalled(Here):
    """A signal comes while the first run is at work."""

    def wait(self, seconds):
        if len(self.started) == 1 and not self.was_asked_to_stop:
            os.kill(os.getpid(), signal.SIGTERM)
            return []
        name = self.running[0]
        self._queue.clear()
        return [RunOutcome(name=name, state="stopped", message="stopped at step 2")]


def test_a_signal_stops_what_runs_starts_no_more_and_says_how_to_go_on(tmp_path):
    engine, lines = Signalled(), []
    with pytest.raises(Interrupted, match="0 of 2 runs") as caught:
        run_study(tiny_study(), tmp_path, engine=engine, watcher=Lines(lines.append))
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert engine.was_asked_to_stop
    assert len(engine.started) == 1
    assert engine.was_killed
    assert read_failures(tmp_path) == {}


def test_an_error_of_ours_leaves_no_run_behind(tmp_path):
    class Broken(Here):
        def wait(self, seconds):
            raise RuntimeError("odd")

    engine = Broken()
    with pytest.raises(RuntimeError, match="odd"):
        run_study(tiny_study(), tmp_path, engine=engine)
    assert engine.was_killed


def test_a_run_of_another_process_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.0)
    first = next(iter(tiny_study().runs(str(tmp_path))))
    answers = iter([True, True])

    def held(directory):
        return directory.path.name == first.config.run_name and next(answers, False)

    monkeypatch.setattr(RunDirectory, "is_locked", property(held))
    result, started, lines = execute_study(tiny_study(), tmp_path)
    assert result.count("done") == 2
    assert sum("another process trains it" in line for line in lines) == 1
    assert started == [("4", 0), ("8", 0)]


def test_a_run_that_another_study_finished_meanwhile_is_not_started(tmp_path):
    first, _ = tiny_study().runs(str(tmp_path))

    class Overtaken(Lines):
        def begin(self, *args, **options):
            run(first.config)

    engine = Here()
    run_study(tiny_study(), tmp_path, engine=engine, watcher=Overtaken(lambda line: None))
    assert labels(engine, tiny_study()) == [("4", 0)]


def test_an_outcome_without_a_result_is_a_failure(tmp_path):
    class Silent(Here):
        def wait(self, seconds):
            return (
                [RunOutcome(name=self._queue.pop(0).run_name, state="done")] if self._queue else []
            )

    run_study(tiny_study(), tmp_path, engine=Silent())
    assert set(read_failures(tmp_path).values()) == {"ended without a result"}


def test_what_is_to_do_is_what_has_no_result(tmp_path):
    study = tiny_study(crashing(), Method(label="8", config=tiny(8)), baseline=None)
    missing = runs_to_train(read_study(study, tmp_path), retry_failed=False)
    assert [status.method.label for status in missing] == ["crashing", "8"]
    result, _, _ = execute_study(study, tmp_path)
    assert runs_to_train(result, retry_failed=False) == []
    assert [s.method.label for s in runs_to_train(result, retry_failed=True)] == ["crashing"]


CIFAR = recipe("cifar10-resnet8-float32-small")


def test_data_without_a_root_or_whose_folder_is_not_there_is_an_error(tmp_path):
    check_data([tiny(), replace(CIFAR, data=replace(CIFAR.data, root=str(tmp_path)))])
    with pytest.raises(ValueError, match="'cifar10'.*root"):
        check_data([tiny(), CIFAR])
    nowhere = replace(CIFAR, data=replace(CIFAR.data, root=str(tmp_path / "no")))
    with pytest.raises(FileNotFoundError, match="cifar10"):
        check_data([nowhere])
