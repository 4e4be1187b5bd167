"""A folder whose config.yaml changed between stop and resume: refused, accepted, written down."""

import json
import re
import shutil
from dataclasses import replace

import pytest

from bitcycle.files import FORM, write_text
from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.cli.main import main
from bitcycle_lab.tasks import DataConfig, images
from bitcycle_lab.train import LrConfig, OptimizerConfig, resume, run
from bitcycle_lab.train.checkpoint import (
    CheckpointError,
    Checkpoints,
    manifest_digest,
    read_state,
)
from bitcycle_lab.train.config_file import to_yaml
from bitcycle_lab.train.data_fingerprint import data_fingerprint
from bitcycle_lab.train.run import resume_or_run
from bitcycle_lab.train.run_directory import RunDirectory
from bitcycle_lab.train.session import build_session
from tests.bitcycle_lab.train.small import (
    Killed,
    files_below,
    folder_of,
    kill_before_step,
    lstm,
    metrics_of,
    small,
    write_words,
)

STEP_OF_CHECKPOINT = 6
SGD = OptimizerConfig(lr=0.05, momentum=0.9, weight_decay=1e-4)


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    """A run of 12 steps that died after the checkpoint of step 6."""
    config = small(tmp_path_factory.mktemp("stopped"))
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, 7)
        with pytest.raises(Killed):
            run(config)
    return config


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """The configuration of a copy of that run, at the same place."""
    kept = tmp_path / "kept"
    shutil.copytree(folder_of(stopped_once), kept)
    yield stopped_once
    shutil.rmtree(folder_of(stopped_once))
    shutil.copytree(kept, folder_of(stopped_once))


def edit(config, **changes):
    """Write another config.yaml into the run's folder."""
    edited = replace(config, **changes)
    write_text(folder_of(config) / "config.yaml", to_yaml(edited))
    return edited


def history_of(config):
    return json.loads((folder_of(config) / "env.json").read_text()).get("history", [])


def log_of(config):
    return (folder_of(config) / "log.txt").read_text()


def test_an_edited_configuration_is_refused_with_what_it_was_and_is(stopped, capsys):
    edit(stopped, optimizer=replace(SGD, lr=0.5), threads=2)
    before = files_below(folder_of(stopped))
    assert main(["resume", str(folder_of(stopped))]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:3] == ["  optimizer.lr: was 0.05, is 0.5", "  threads: was 1, is 2"]
    assert "--accept-changes" in lines[3]
    assert files_below(folder_of(stopped)) == before


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"seed": 1}, "seed"),
        ({"steps": 24}, "steps"),
        ({"data": DataConfig(subset=128, batch_size=32, eval_batch_size=128)}, "data.subset"),
        ({"optimizer": replace(SGD, name="adamw", lr=0.5)}, "optimizer.name"),
        ({"lr": LrConfig(policy="cosine", milestones=(0.5,))}, "lr.policy"),
    ],
)
def test_settings_that_define_the_run_are_refused_even_when_accepted(stopped, changes, keys):
    edit(stopped, **changes)
    with pytest.raises(ValueError, match=f"keeps its {keys}:"):
        resume(folder_of(stopped), accept_changes=True)


def test_accepted_settings_act_from_the_checkpoint_on_and_are_written_down(stopped):
    """From step 6 on the rate is a tenth: the milestone is at half of the run."""
    edit(stopped, optimizer=replace(SGD, lr=0.5, weight_decay=0.0), clip_norm=1.0)
    resume(folder_of(stopped), accept_changes=True)
    rates = {line["step"]: line["lr"] for line in metrics_of(folder_of(stopped)) if "lr" in line}
    assert rates[4] == 0.05
    assert rates[8] == pytest.approx(0.05)
    state = read_state(folder_of(stopped) / "checkpoints" / "step-00000012", "optimizer")
    assert state["param_groups"][0]["initial_lr"] == 0.5
    assert state["param_groups"][0]["weight_decay"] == 0.0
    [entry] = history_of(stopped)
    assert entry["resumed_at"] == STEP_OF_CHECKPOINT
    assert entry["changes"] == {
        "optimizer.lr": [0.05, 0.5], "optimizer.weight_decay": [1e-4, 0.0],
        "clip_norm": [None, 1.0],
    }  # fmt: skip
    assert "changed since the checkpoint: clip_norm: was null, is 1.0" in log_of(stopped)
    assert resume(folder_of(stopped)).steps == 12  # a finished run with its own settings


def test_a_constant_rate_changes_at_once(tmp_path, monkeypatch):
    config = small(tmp_path, lr=LrConfig(policy="constant"))
    with monkeypatch.context() as patch:
        kill_before_step(patch, 7)
        with pytest.raises(Killed):
            run(config)
    edit(config, optimizer=replace(SGD, lr=0.02))
    resume(folder_of(config), accept_changes=True)
    rates = {line["step"]: line["lr"] for line in metrics_of(folder_of(config)) if "lr" in line}
    assert rates == {2: 0.05, 4: 0.05, 6: 0.05, 8: 0.02, 10: 0.02, 12: 0.02}


def test_rates_that_torch_keeps_in_its_scheduler_cannot_change(tmp_path, monkeypatch):
    config = small(tmp_path, lr=LrConfig(policy="warm_restarts", period=4))
    with monkeypatch.context() as patch:
        kill_before_step(patch, 7)
        with pytest.raises(Killed):
            run(config)
    edit(config, lr=LrConfig(policy="warm_restarts", period=6))
    with pytest.raises(ValueError, match=r"keeps its lr\.period"):
        resume(folder_of(config), accept_changes=True)


def test_an_accepted_change_is_accepted_once(stopped, monkeypatch):
    """The checkpoint of step 6 then holds it: dying before the next one asks no second time."""
    edit(stopped, optimizer=replace(SGD, lr=0.5))
    with monkeypatch.context() as patch:
        kill_before_step(patch, 7)
        with pytest.raises(Killed):
            resume(folder_of(stopped), accept_changes=True)
    assert Checkpoints(folder_of(stopped) / "checkpoints").steps() == [3, 6]
    assert resume(folder_of(stopped)).steps == 12
    assert len(history_of(stopped)) == 1


def test_places_and_logs_may_change_and_are_written_down(stopped):
    edit(stopped, tracking=replace(stopped.tracking, log_every=3))
    resume(folder_of(stopped))
    steps = [line["step"] for line in metrics_of(folder_of(stopped)) if line["kind"] == "train"]
    assert steps == [2, 4, 6, 9, 12]
    assert history_of(stopped)[0]["changes"] == {"tracking.log_every": [2, 3]}


def test_an_edit_before_the_first_checkpoint_is_refused_or_written_down(tmp_path, monkeypatch):
    config = small(tmp_path)
    with monkeypatch.context() as patch:
        kill_before_step(patch, 1)
        with pytest.raises(Killed):
            run(config)
    edit(config, seed=5)
    with pytest.raises(ValueError, match="seed: was 0, is 5"):
        resume(folder_of(config), accept_changes=True)
    edit(config, clip_norm=1.0)
    with pytest.raises(ValueError, match="--accept-changes"):
        resume(folder_of(config))
    resume(folder_of(config), accept_changes=True)
    (entry,) = history_of(config)
    assert (entry["resumed_at"], entry["changes"]) == (0, {"clip_norm": [None, 1.0]})


def test_resume_or_run_takes_other_places_and_logs_and_writes_them(stopped):
    checkpoint = replace(stopped.checkpoint, keep=9)
    moved = replace(stopped, checkpoint=checkpoint, data=replace(stopped.data, num_workers=1))
    resume_or_run(moved)
    assert RunDirectory(folder_of(stopped)).read_config() == moved
    changes = {"data.num_workers": [stopped.data.num_workers, 1], "checkpoint.keep": [2, 9]}
    assert history_of(stopped)[0]["changes"] == changes


def test_a_finished_run_with_another_configuration_is_no_result_of_it(tmp_path):
    config = small(tmp_path, steps=2)
    run(config)
    edit(config, optimizer=replace(SGD, lr=0.5))
    with pytest.raises(ValueError, match="lr: was 0.05, is 0.5"):
        resume(folder_of(config), accept_changes=True)


def test_an_untouched_run_has_no_history(stopped):
    resume(folder_of(stopped))
    assert history_of(stopped) == []


def test_another_optimizer_is_called_by_its_name(stopped):
    edited = edit(stopped, optimizer=replace(SGD, name="adamw"))
    session = build_session(edited)
    _, state = Checkpoints(folder_of(stopped) / "checkpoints").load_newest()
    with pytest.raises(ValueError, match="SGD, this run has AdamW"):
        session.load_state_dict(state)


def test_other_data_are_warned_of_and_written_down(stopped, monkeypatch):
    load = images.load_images

    def changed(*args, **options):
        splits = load(*args, **options)
        test = replace(splits.test, pixels=splits.test.pixels[:200],
                       targets=splits.test.targets[:200])  # fmt: skip
        return replace(splits, train=replace(splits.train, pixels=16 - splits.train.pixels),
                       test=test)  # fmt: skip

    monkeypatch.setattr(images, "load_images", changed)
    words = "train has other contents, test has 200 samples and had 360"
    with pytest.warns(BitcycleWarning, match=words):
        resume(folder_of(stopped))
    [entry] = history_of(stopped)
    assert entry["changes"] == {}
    assert words in entry["warnings"][0]
    assert f"warning: the data are not those of the checkpoint: {words}" in log_of(stopped)


def test_the_fingerprint_sees_another_text_and_not_another_place_or_seed(tmp_path):
    def fingerprint(folder, *, text, seed=0):
        root = write_words(tmp_path / folder, seed=text)
        return data_fingerprint(build_session(lstm(tmp_path, root, seed=seed)).task)

    first = fingerprint("a", text=0)
    assert {split: each["of"] for split, each in first.items()} == {
        "train": "steps per epoch", "validation": "targets", "test": "targets",
    }  # fmt: skip
    assert first["test"]["count"] == 60 + 6 - 1  # words and ends of lines, but the first
    assert fingerprint("b", text=0, seed=3) == first
    other = fingerprint("c", text=1)
    assert all(other[split]["sha256"] != first[split]["sha256"] for split in first)
    assert all(other[split]["count"] == first[split]["count"] for split in first)


def test_a_checkpoint_whose_file_is_a_link_is_refused(stopped, tmp_path):
    inside = folder_of(stopped) / "checkpoints" / "step-00000006"
    shutil.rmtree(inside.with_name("step-00000003"))
    outside = shutil.move(inside / "model.json", tmp_path / "model.json")
    (inside / "model.json").symlink_to(outside)
    with pytest.raises(CheckpointError, match=r"'model\.json'"):
        resume(folder_of(stopped))


@pytest.mark.parametrize("name", ["../kept.json", "/etc/hostname", "sub/../run.json"])
def test_a_manifest_with_a_path_is_refused_before_the_file_is_read(stopped, name, monkeypatch):
    path = folder_of(stopped) / "checkpoints" / "step-00000006"
    shutil.rmtree(path.with_name("step-00000003"))
    sums = {name: "0" * 64}
    content = {"form": FORM, "step": 6, "sha256": sums, "manifest": manifest_digest(6, sums)}
    (path / "manifest.json").write_text(json.dumps(content))
    monkeypatch.setattr(
        "bitcycle_lab.train.checkpoint.file_digest", lambda file: pytest.fail("read")
    )
    with pytest.raises(CheckpointError, match=re.escape(name)):
        resume(folder_of(stopped))
