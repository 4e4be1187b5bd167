"""A run in a folder of its own; and, killed anywhere and resumed, the same run to the last bit."""

import dataclasses
import sys

import pytest
import torch

from bitcycle.tasks import DataConfig, ModelConfig
from bitcycle.train import (
    CheckpointConfig,
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunResult,
    SwaConfig,
    TrackingConfig,
    resume,
    run,
)
from bitcycle.train.checkpoint import CheckpointError, Checkpoints
from bitcycle.train.run import resume_or_run
from bitcycle.warnings import BitcycleWarning
from tests.train.small import (
    Killed,
    convnet,
    files_below,
    float32,
    folder_of,
    kill_before_step,
    lstm,
    small,
    traces,
    write_words,
)

DIGITS = DataConfig(subset=160, batch_size=32, eval_batch_size=128, validation=40)
VARIANTS = {
    "convnet with momentum": lambda out, _: convnet(out),
    "averaged weights": lambda out, _: convnet(out, swa=SwaConfig(start=0.25, every=2)),
    "micro-batches": lambda out, _: small(out, accumulate=2),
    "best by validation": lambda out, _: small(out, data=DIGITS, eval=EvalConfig(every=2)),
    "plateau": lambda out, _: small(
        out, data=DIGITS, lr=LrConfig(policy="plateau", gamma=0.5), eval=EvalConfig(every=1)
    ),
    "adam, cosine and clipping": lambda out, _: small(
        out, optimizer=OptimizerConfig(name="adam", lr=0.01), lr=LrConfig(policy="cosine"),
        clip_norm=0.1,
    ),
    "warm restarts": lambda out, _: small(out, lr=LrConfig(policy="warm_restarts", period=4)),
    "float32": lambda out, _: small(out, precision=float32()),
    "bf16 autocast": lambda out, _: convnet(out, autocast="bf16"),
    "channels last": lambda out, _: convnet(out, channels_last=True),
    "batch norm": lambda out, _: small(
        out, model=ModelConfig(name="digits_resnet", options={"width": 2}),
        swa=SwaConfig(start=4, every=3),
    ),
    "nearest rounding of errors": lambda out, _: small(
        out, precision=PrecisionConfig(forward=4, backward=6,
                                       quantizer_options={"error_rounding": "nearest"}),
    ),
    "recurrent with dropout": lambda out, root: lstm(out, root),
    "recurrent, micro-batches, plateau": lambda out, root: lstm(
        out, root, accumulate=2, lr=LrConfig(policy="plateau", gamma=0.5), eval=EvalConfig(every=1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_dies_twice_ends_like_the_one_that_did_not(tmp_path, monkeypatch, variant):
    """Before step 5 (checkpoint of step 3) and before step 10 (of step 9)."""
    root = write_words(tmp_path / "text")
    whole = VARIANTS[variant](tmp_path / "whole", root)
    broken = VARIANTS[variant](tmp_path / "broken", root)
    run(whole)
    for i, step in enumerate((5, 10)):
        with monkeypatch.context() as patch:
            kill_before_step(patch, step)
            with pytest.raises(Killed):
                resume(folder_of(broken)) if i else run(broken)
        torch.manual_seed(step)  # another process would not have this one's generators
    resume(folder_of(broken))
    assert traces(folder_of(broken)) == traces(folder_of(whole))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder of a whole run of the small configuration with a validation split."""
    config = small(tmp_path_factory.mktemp("whole"), data=DIGITS)
    run(config)
    return folder_of(config)


@pytest.mark.parametrize("step", [0, 1, 3, 11])
def test_it_does_not_matter_at_which_step_a_run_dies(tmp_path, monkeypatch, uninterrupted, step):
    config = small(tmp_path, data=DIGITS)
    with monkeypatch.context() as patch:
        kill_before_step(patch, step)
        with pytest.raises(Killed):
            run(config)
    resume(folder_of(config))
    assert traces(folder_of(config)) == traces(uninterrupted)


def test_a_run_that_dies_between_its_best_and_the_next_checkpoint(
    tmp_path, monkeypatch, uninterrupted
):
    config = small(tmp_path, data=DIGITS)
    save_best = Checkpoints.save_best

    def dying(self, step, state):
        save_best(self, step, state)
        if step >= 8:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save_best", dying)
        with pytest.raises(Killed):
            run(config)
    resume(folder_of(config))
    assert traces(folder_of(config)) == traces(uninterrupted)


def test_a_run_that_dies_between_its_last_checkpoint_and_its_result(
    tmp_path, monkeypatch, uninterrupted
):
    def die(*_):
        raise Killed

    config = small(tmp_path, data=DIGITS)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[run.__module__], "write_json", die)
        with pytest.raises(Killed):
            run(config)
    assert not (folder_of(config) / "result.json").exists()
    resume(folder_of(config))
    assert traces(folder_of(config)) == traces(uninterrupted)


def test_a_damaged_newest_checkpoint_is_passed_over_loudly(tmp_path, monkeypatch, uninterrupted):
    config = small(tmp_path, data=DIGITS)
    with monkeypatch.context() as patch:
        kill_before_step(patch, 10)
        with pytest.raises(Killed):
            run(config)
    newest = folder_of(config) / "checkpoints" / "step-00000009" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(BitcycleWarning, match="step-00000009: model.*going on from step 6"):
        resume(folder_of(config))
    log = (folder_of(config) / "log.txt").read_text()
    assert "warning: damaged checkpoint passed over" in log
    assert "going on from step 6" in log
    assert traces(folder_of(config)) == traces(uninterrupted)


def test_with_all_checkpoints_damaged_a_run_is_not_silently_begun_anew(tmp_path, monkeypatch):
    config = small(tmp_path)
    with monkeypatch.context() as patch:
        kill_before_step(patch, 8)
        with pytest.raises(Killed):
            run(config)
    for step in (3, 6):
        (folder_of(config) / "checkpoints" / f"step-{step:08d}" / "manifest.json").unlink()
    before = files_below(folder_of(config) / "checkpoints")
    with pytest.raises(CheckpointError, match="no usable checkpoint.*another folder"):
        resume(folder_of(config))
    assert files_below(folder_of(config) / "checkpoints") == before
    assert "stopped: no usable checkpoint" in (folder_of(config) / "log.txt").read_text()


def test_a_run_is_not_overwritten(tmp_path):
    config = small(tmp_path, steps=1)
    run(config)
    before = files_below(folder_of(config))
    with pytest.raises(ValueError, match="exists and is not empty.*--resume auto"):
        run(config)
    assert files_below(folder_of(config)) == before


def test_resuming_a_finished_run_returns_its_result_and_writes_nothing(tmp_path):
    config = small(tmp_path, steps=2)
    result = run(config)
    before = files_below(folder_of(config))
    assert resume(folder_of(config)) == resume_or_run(config) == result
    assert files_below(folder_of(config)) == before
    assert RunResult.read(folder_of(config)) == result


def test_resume_or_run_begins_and_goes_on(tmp_path, monkeypatch, uninterrupted):
    config = small(tmp_path, data=DIGITS)
    with monkeypatch.context() as patch:
        kill_before_step(patch, 7)
        with pytest.raises(Killed):
            resume_or_run(config)
    resume_or_run(config)
    assert traces(folder_of(config)) == traces(uninterrupted)


def test_resume_or_run_with_other_settings_is_an_error_that_names_the_keys(tmp_path):
    config = small(tmp_path, steps=1)
    run(config)
    changed = dataclasses.replace(
        config,
        optimizer=OptimizerConfig(lr=0.7, momentum=0.9, weight_decay=1e-4),
        precision=PrecisionConfig(forward={"fc1": 4}, backward=6),
        accumulate=2,
    )
    with pytest.raises(ValueError, match="other settings") as caught:
        resume_or_run(changed)
    assert "(optimizer.lr, precision.forward, accumulate)" in str(caught.value)


def test_the_same_settings_in_other_words_are_the_same(tmp_path):
    """Bits as text come back from YAML as a number."""
    config = small(tmp_path, steps=1, precision=PrecisionConfig(forward="4", backward="8"))
    assert resume_or_run(config) == resume_or_run(config)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"precision": PrecisionConfig(forward={"fc9": 4})}, ValueError, "fc9"),
        ({"precision": PrecisionConfig(forward=8, max_bits=4)}, ValueError, "max_bits"),
        ({"lr": LrConfig(policy="plateau")}, ValueError, r"set data\.validation"),
        ({"swa": SwaConfig(start=13)}, ValueError, r"swa\.start \(13\) is beyond the run's 12"),
        ({"data": DataConfig(name="cifar10", root="nowhere")}, (ValueError, OSError), "cifar10"),
    ],
)
def test_a_mistake_is_found_before_anything_is_created(tmp_path, changes, kind, message):
    with pytest.raises(kind, match=message):
        run(small(tmp_path / "runs", **changes))
    assert not (tmp_path / "runs").exists()


def test_a_file_where_the_output_folder_should_be_is_an_error(tmp_path):
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(OSError, match="runs"):
        run(small(tmp_path / "runs"))


def test_what_the_caller_had_set_comes_back(tmp_path):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(False)
        run(small(tmp_path, steps=1, threads=1))
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(threads)


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
