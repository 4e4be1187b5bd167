"""A run that died anywhere and is resumed is the same run, to the last bit."""

import shutil
import sys

import pytest
import torch

from bitcycle.kernels import KERNELS, choice
from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.tasks import DataConfig, ModelConfig
from bitcycle_lab.train import (
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunResult,
    SwaConfig,
    resume,
    run,
)
from bitcycle_lab.train.checkpoint import CheckpointError, Checkpoints
from bitcycle_lab.train.run import resume_or_run
from tests.bitcycle_lab.train.small import (
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
    "float32, adam, cosine and clipping": lambda out, _: small(
        out, optimizer=OptimizerConfig(name="adam", lr=0.01), lr=LrConfig(policy="cosine"),
        clip_norm=0.1, precision=float32(),
    ),
    "warm restarts": lambda out, _: small(out, lr=LrConfig(policy="warm_restarts", period=4)),
    "channels last": lambda out, _: convnet(out, channels_last=True),
    "nearest rounding of errors": lambda out, _: small(
        out, precision=PrecisionConfig(forward=4, backward=6,
                                       quantizer_options={"error_rounding": "nearest"}),
    ),
    "bf16 autocast": lambda out, _: convnet(out, autocast="bf16"),
    "batch norm": lambda out, _: small(
        out, model=ModelConfig(name="digits_resnet", options={"width": 2}),
        swa=SwaConfig(start=4, every=3),
    ),
    "loss-driven stages": lambda out, _: small(
        out, precision=PrecisionConfig(forward="pfq:3,4,6:window=1:eps=9",
                                       backward="pfq:6,6,8:window=1:eps=9"),
    ),
    "bits on a plateau of the loss": lambda out, _: small(
        out, accumulate=2,
        precision=PrecisionConfig(forward="plateau:3-6:window=2:patience=0:threshold=0.9",
                                  backward=6),
    ),
    "bits on a plateau of the validation": lambda out, _: small(
        out, data=DIGITS, eval=EvalConfig(every=3),  # as often as checkpoints: one is on its way
        precision=PrecisionConfig(forward="plateau:3-6:patience=0:threshold=0.5:on=validation",
                                  backward=6),
    ),
    "gradient-noise switch": lambda out, _: convnet(
        out, precision=PrecisionConfig(forward=8, backward="noise:1,3,5,8:every=2:factor=3"),
    ),
    "recurrent with dropout": lambda out, root: lstm(out, root),
    "recurrent, micro-batches, plateau": lambda out, root: lstm(
        out, root, accumulate=2, lr=LrConfig(policy="plateau", gamma=0.5), eval=EvalConfig(every=1)
    ),
} | {
    f"kernel {kernel}": lambda out, _, kernel=kernel: convnet(
        out, precision=PrecisionConfig(forward="CR:3-7:2", backward=8, kernel=kernel),
        swa=SwaConfig(start=0.25, every=2),
    )
    for kernel in KERNELS.names()
}  # fmt: skip


OFTEN = {  # every kind of state once: the others combine or repeat them
    "batch norm", "loss-driven stages", "gradient-noise switch",
    "recurrent, micro-batches, plateau", "float32, adam, cosine and clipping",
}  # fmt: skip


@pytest.mark.parametrize(
    "variant",
    [v if v in OFTEN else pytest.param(v, marks=pytest.mark.slow) for v in VARIANTS],
)
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


def test_what_auto_decided_is_restored_and_not_decided_again(tmp_path, monkeypatch):
    monkeypatch.setattr(choice, "_decide", lambda *shapes: ("native", "this"))
    precision = PrecisionConfig(forward="CR:3-7:2", backward=8)
    whole, broken = (convnet(tmp_path / name, precision=precision) for name in ("whole", "broken"))
    run(whole)
    with monkeypatch.context() as patch:
        kill_before_step(patch, 5)
        with pytest.raises(Killed):
            run(broken)
    monkeypatch.setattr(choice, "_decide", lambda *shapes: ("simulate", "that"))
    resumed = resume(folder_of(broken))
    assert set(resumed.kernels.values()) == {"native"}
    assert resumed.kernels == RunResult.read(folder_of(whole)).kernels
    assert traces(folder_of(broken)) == traces(folder_of(whole))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder of a whole run of the small configuration with a validation split."""
    config = small(tmp_path_factory.mktemp("whole"), data=DIGITS)
    run(config)
    return folder_of(config)


def test_the_traces_that_are_compared_see_a_single_changed_bit(tmp_path, uninterrupted):
    """Else nothing here and among the killed processes could fail."""
    expected = traces(uninterrupted)
    changed = {name.split("/")[1] for name in expected if name.startswith("step-")}
    assert {"model.safetensors", "optimizer.safetensors"} <= changed
    files = [f"checkpoints/step-00000012/{name}" for name in sorted(changed)]
    for file in [*files, "checkpoints/best/model.safetensors", "metrics.jsonl"]:
        copy = shutil.copytree(uninterrupted, tmp_path / file.replace("/", "-"))
        content = bytearray((copy / file).read_bytes())
        assert traces(copy) == expected
        at = content.index(b'"loss": ') + 10 if file == "metrics.jsonl" else len(content) - 1
        content[at] ^= 1
        (copy / file).write_bytes(content)
        assert traces(copy) != expected, file


@pytest.mark.parametrize("step", [0, 1, 11])
def test_it_does_not_matter_at_which_step_a_run_dies(tmp_path, monkeypatch, uninterrupted, step):
    config = small(tmp_path, data=DIGITS)
    with monkeypatch.context() as patch:
        kill_before_step(patch, step)
        with pytest.raises(Killed):
            resume_or_run(config)
    resume_or_run(config)
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
    with pytest.warns(BitcycleWarning, match="step-00000009: model.*step 6"):
        resume(folder_of(config))
    assert "resumed at step 6" in (folder_of(config) / "log.txt").read_text()
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
    with pytest.raises(CheckpointError, match="step-00000006"):
        resume(folder_of(config))
    assert files_below(folder_of(config) / "checkpoints") == before
    assert "stopped: " in (folder_of(config) / "log.txt").read_text()
