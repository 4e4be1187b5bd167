"""A run in a folder of its own, never over another; mistakes are found before it is made."""

import dataclasses
import errno
import json
import os
import random
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bitcycle.files import Appender
from bitcycle_lab.tasks import DataConfig
from bitcycle_lab.train import (
    CheckpointConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunResult,
    SwaConfig,
    TrackingConfig,
    resume,
    run,
)
from bitcycle_lab.train.checkpoint import CheckpointError, Checkpoints, read_state, write_state
from bitcycle_lab.train.distributed import on_main
from bitcycle_lab.train.run import resume_or_run
from bitcycle_lab.train.run_directory import (
    RunBusyError,
    RunDirectory,
    list_runs,
    machine,
    measurement_info,
)
from bitcycle_lab.train.session import (
    preserve_torch_settings,
    random_state,
    restore_random_state,
    seed_everything,
    seed_of_rank,
)
from bitcycle_lab.train.signals import Interrupted
from tests.bitcycle_lab.train.small import (
    Killed,
    files_below,
    folder_of,
    kill_before_step,
    small,
)

train_run = sys.modules["bitcycle_lab.train.run"]  # the package has a function of that name
DIGITS = DataConfig(subset=160, batch_size=32, eval_batch_size=128, validation=40)


def test_resuming_a_finished_run_returns_its_result_and_writes_nothing(tmp_path):
    config = small(tmp_path, steps=2)
    result = run(config)
    before = files_below(folder_of(config))
    assert resume(folder_of(config)) == resume_or_run(config) == result
    assert files_below(folder_of(config)) == before
    assert RunResult.read(folder_of(config)) == result


def test_resume_or_run_with_other_settings_is_an_error_that_names_the_keys(tmp_path):
    config = small(tmp_path, steps=1)
    run(config)
    changed = dataclasses.replace(
        config,
        optimizer=OptimizerConfig(lr=0.7, momentum=0.9, weight_decay=1e-4),
        precision=PrecisionConfig(forward={"fc1": 4}, backward=6),
        accumulate=2,
    )
    changes = ("lr: was 0.05, is 0.7", 'forward: was 4, is {"fc1": 4}', "accumulate: was 1, is 2")
    with pytest.raises(ValueError, match=".*".join(changes)):
        resume_or_run(changed)


def test_a_default_for_backward_is_the_bits_it_stands_for_in_the_folder(tmp_path):
    config = small(tmp_path, steps=2, precision=PrecisionConfig(forward=4))
    run(config)
    text = (folder_of(config) / "config.yaml").read_text(encoding="utf-8")
    assert "  backward: 8\n" in text
    assert resume_or_run(config) == resume_or_run(
        dataclasses.replace(config, precision=PrecisionConfig(forward=4, backward=8))
    )
    floats = PrecisionConfig(forward=4, backward="fp32")
    with pytest.raises(ValueError, match="backward: was 8, is fp32"):
        resume_or_run(dataclasses.replace(config, precision=floats))


def test_the_same_settings_in_other_words_are_the_same(tmp_path):
    """Bits as text come back from YAML as a number."""
    config = small(tmp_path, steps=1, precision=PrecisionConfig(forward="4", backward="8"))
    assert resume_or_run(config) == resume_or_run(config)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"precision": PrecisionConfig(forward={"fc9": 4})}, ValueError, "fc9"),
        ({"precision": PrecisionConfig(forward=8, max_bits=4)}, ValueError, "max_bits"),
        ({"lr": LrConfig(policy="plateau")}, ValueError, r"data\.validation"),
        ({"swa": SwaConfig(start=13)}, ValueError, r"swa\.start \(13\)"),
        ({"data": DataConfig(name="cifar10", root="nowhere")}, (ValueError, OSError), "cifar10"),
    ],
)
def test_a_mistake_is_found_before_anything_is_created(tmp_path, changes, kind, message):
    with pytest.raises(kind, match=message):
        run(small(tmp_path / "runs", **changes))
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_written_any_more_is_a_clear_error(tmp_path, monkeypatch):
    """Full or read-only: the log and the metrics are the first to notice."""
    config = small(tmp_path)

    def fail(self, line):
        if "step 8" in line:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        original(self, line)

    original = Appender.add
    with monkeypatch.context() as patch:
        patch.setattr(Appender, "add", fail)
        with pytest.raises(CheckpointError, match="step 8"):
            run(config)
    assert Checkpoints(folder_of(config) / "checkpoints").steps() == [3, 6]
    assert resume(folder_of(config)).steps == 12


def test_the_folder_holds_everything_the_documentation_names(tmp_path):
    config = small(tmp_path, steps=4, data=DIGITS, tracking=TrackingConfig(log_every=2),
                   checkpoint=CheckpointConfig(every=2, keep=1))  # fmt: skip
    run(config)
    names = sorted(path.name for path in folder_of(config).iterdir())
    assert names == [
        ".lock", "checkpoints", "config.yaml", "env.json", "events", "log.txt", "metrics.jsonl",
        "result.json",
    ]  # fmt: skip
    kept = sorted(path.name for path in (folder_of(config) / "checkpoints").iterdir())
    assert kept == ["best", "step-00000004"]
    assert any((folder_of(config) / "events").iterdir())
    log = (folder_of(config) / "log.txt").read_text()
    assert "step 4/4" in log
    assert "done: test accuracy" in log


def test_a_signal_during_the_final_evaluation_is_obeyed_after_the_result_is_written(
    tmp_path, monkeypatch
):
    make = train_run.make_result

    def make_and_be_told(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        return make(*args)

    monkeypatch.setattr(train_run, "make_result", make_and_be_told)
    config = small(tmp_path, steps=2)
    with pytest.raises(Interrupted) as stop:
        run(config)
    assert stop.value.exit_code == 143
    assert RunResult.read(folder_of(config)).steps == 2


ALONE = SimpleNamespace(is_main=True, world_size=1)


def test_the_main_process_acts_and_raises_what_it_raises():
    done = []
    on_main(ALONE, lambda: done.append(1))
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        on_main(ALONE, lambda: 1 / 0)


@pytest.mark.parametrize("failure", [None, ValueError("taken")])
def test_other_processes_do_not_act_and_share_its_failure(monkeypatch, failure):
    def broadcast(shared, src):
        shared[:] = [failure]

    monkeypatch.setattr("torch.distributed.broadcast_object_list", broadcast)
    other = SimpleNamespace(is_main=False, world_size=2)
    if failure is None:
        on_main(other, lambda: pytest.fail("acted"))
    else:
        with pytest.raises(ValueError, match="taken"):
            on_main(other, lambda: pytest.fail("acted"))


def test_it_is_plain_json():
    found = measurement_info(1.23456, threads=2)
    assert found == {"machine": machine(), "threads": 2, "seconds": 1.235}
    assert json.loads(json.dumps(found)) == found


def draw():
    return [torch.rand(2).tolist(), np.random.rand(2).tolist(), np.random.standard_normal(),
            random.random(), random.gauss(0, 1)]  # fmt: skip


def test_a_seed_decides_all_three_generators():
    for seed in (2**32 + 5, 3):  # the first is larger than numpy takes
        seed_everything(seed)
        first = draw()
        seed_everything(seed)
        assert draw() == first
    seed_everything(4)
    assert draw() != first


def test_every_process_draws_numbers_of_its_own():
    seeds = [seed_of_rank(seed, rank) for seed in (0, 1, 2**40) for rank in range(4)]
    assert seeds[::4] == [0, 1, 2**40]
    assert len(set(seeds)) == len(seeds)
    seed_everything(seeds[-1])  # each is one that the generators take


def test_generators_continue_from_a_saved_state(tmp_path):
    seed_everything(0)
    draw()  # an odd number of normal numbers: one is kept for the next call
    write_state(tmp_path, "random", random_state())
    expected = [draw(), draw()]
    seed_everything(1)
    restore_random_state(read_state(tmp_path, "random"))
    assert [draw(), draw()] == expected


def test_settings_come_back_also_after_an_error():
    threads = torch.get_num_threads()
    was_deterministic = torch.are_deterministic_algorithms_enabled()

    def change():
        with preserve_torch_settings():
            torch.set_num_threads(threads + 1)
            torch.use_deterministic_algorithms(not was_deterministic, warn_only=True)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        change()
    assert torch.get_num_threads() == threads
    assert torch.are_deterministic_algorithms_enabled() == was_deterministic


def test_every_run_below_a_folder_has_a_row(tmp_path, monkeypatch):
    finished = small(tmp_path / "a" / "deep", steps=2)
    result = run(finished)
    broken = small(tmp_path / "b")
    with monkeypatch.context() as patch:
        kill_before_step(patch, 5)
        with pytest.raises(Killed):
            run(broken)
    assert list_runs(tmp_path) == [
        {
            "run": str(folder_of(finished)),
            "state": "finished",
            "step": "2",
            "result": f"accuracy {result.value:.2f} at w4a4",
        },
        {"run": str(folder_of(broken)), "state": "not finished", "step": "3", "result": "-"},
    ]


def test_a_damaged_result_is_said_to_be_one(tmp_path):
    config = small(tmp_path, steps=1)
    run(config)
    for content in ("{", "[]", '{"metric": "accuracy"}'):
        (folder_of(config) / "result.json").write_text(content)
        assert list_runs(tmp_path)[0]["state"] == "result.json is damaged"


def test_a_file_where_the_output_folder_should_be_is_an_error(tmp_path):
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(OSError, match="runs"):
        run(small(tmp_path / "runs"))


# ---- several processes, a full disk, damage --------------------------------------------------


def test_a_run_that_another_process_trains_is_named_as_that(tmp_path):
    config = small(tmp_path, steps=2)
    directory = RunDirectory(folder_of(config))
    for start in (run, resume_or_run):
        with directory.locked(), pytest.raises(RunBusyError, match=str(directory.path)):
            start(config)  # before its folder has a configuration
    directory.create(config)
    before = files_below(directory.path)
    for start in (run, resume_or_run, lambda config: resume(directory.path)):
        with directory.locked(), pytest.raises(RunBusyError, match=str(directory.path)):
            start(config)
    assert files_below(directory.path) == before


def test_a_run_that_another_process_finished_meanwhile_returns_its_result(tmp_path, monkeypatch):
    config = small(tmp_path, steps=2)
    build = train_run.build_session
    first = []

    def overtaken(*args):
        monkeypatch.setattr(train_run, "build_session", build)
        first.append(run(config))
        return build(*args)

    monkeypatch.setattr(train_run, "build_session", overtaken)
    assert resume_or_run(config) == first[0]


def test_files_that_vanish_while_another_process_replaces_them_are_no_error_of_their_own(
    tmp_path, monkeypatch
):
    config = small(tmp_path, steps=4)
    with monkeypatch.context() as patched:
        kill_before_step(patched, 3)
        with pytest.raises(Killed):
            run(config)
    directory = RunDirectory(folder_of(config))
    locks = []

    def replaced(self, name):
        locks.append(directory.locked())
        locks[0].__enter__()
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(Checkpoints, "read_newest", replaced)
    with pytest.raises(RunBusyError):
        resume_or_run(config)
    locks[0].__exit__(None, None, None)


def test_a_disk_that_is_full_at_step_0_has_no_checkpoint_to_speak_of(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    config = small(tmp_path, steps=2)
    with monkeypatch.context() as patched:
        patched.setattr("bitcycle_lab.train.run_directory.write_json", full)
        with pytest.raises(CheckpointError, match="No space left") as caught:
            run(config)
    assert "intact" not in str(caught.value)
    assert "no checkpoint" in str(caught.value)
    assert run(config).steps == 2  # what is left is no obstacle


def test_metrics_of_random_bytes_are_noticed_on_resume(tmp_path, monkeypatch):
    config = small(tmp_path)
    with monkeypatch.context() as patched:
        kill_before_step(patched, 7)
        with pytest.raises(Killed):
            run(config)
    metrics = folder_of(config) / "metrics.jsonl"
    metrics.write_bytes(random.Random(0).randbytes(5000))
    with pytest.raises(ValueError, match=r"metrics\.jsonl"):
        resume(folder_of(config))
    metrics.unlink()
    assert resume(folder_of(config)).steps == 12
