"""A loss that is NaN or infinite stops the run with step, bits and layer; checkpoints stay good."""

import math

import pytest
import torch
from torch import nn

from bitcycle.nonfinite import NonFiniteError
from bitcycle_lab.tasks import DataConfig
from bitcycle_lab.train import (
    CheckpointConfig,
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    loop,
    resume,
    run,
)
from bitcycle_lab.train.checkpoint import Checkpoints
from bitcycle_lab.train.divergence import first_nonfinite_module
from tests.bitcycle_lab.train.small import float32, folder_of, small


def poison_after(patch, step, name="fc2"):
    """After this many steps a weight is infinite."""
    original = loop.train_step

    def poisoned(session, micro_batches):
        original(session, micro_batches)
        if session.step + 1 == step:
            with torch.no_grad():
                getattr(session.model, name).weight[0, 0] = math.inf

    patch.setattr(loop, "train_step", poisoned)


def test_a_huge_learning_rate_is_an_error_and_not_a_result(tmp_path):
    rate = OptimizerConfig(lr=1e30, momentum=0.9)
    config = small(tmp_path, optimizer=rate, lr=LrConfig(policy="constant"))
    with pytest.raises(NonFiniteError, match="step"):
        run(config)
    assert not (folder_of(config) / "result.json").exists()
    assert "stopped: " in (folder_of(config) / "log.txt").read_text()


@pytest.mark.parametrize("bits", ["fp32", "w7a7e6"])
def test_the_error_names_the_step_the_bits_and_the_layer(tmp_path, monkeypatch, bits):
    poison_after(monkeypatch, 4)
    changes = {"precision": float32()} if bits == "fp32" else {}
    config = small(tmp_path, eval=EvalConfig(every=0), **changes)
    with pytest.raises(NonFiniteError, match=f"step 4 .*{bits}.*'fc2'"):
        run(config)


def test_the_last_good_checkpoint_is_kept_and_can_be_resumed(tmp_path, monkeypatch):
    config = small(tmp_path)
    with monkeypatch.context() as patch:
        poison_after(patch, 8)
        with pytest.raises(NonFiniteError):
            run(config)
    assert Checkpoints(folder_of(config) / "checkpoints").load_newest()[0] == 6
    assert resume(folder_of(config)).steps == 12


@pytest.mark.parametrize("step", [6, 12])
def test_a_checkpoint_is_never_written_of_weights_that_are_not_finite(tmp_path, monkeypatch, step):
    """Neither in the middle nor at the end of the run."""
    config = small(tmp_path, precision=float32(), eval=EvalConfig(every=0),
                   checkpoint=CheckpointConfig(every=1))  # fmt: skip
    if step == 12:
        monkeypatch.setattr(loop, "_evaluate", lambda *_: None)
    with monkeypatch.context() as patch:
        poison_after(patch, step)
        with pytest.raises(NonFiniteError, match=rf"fc2\.weight .*step {step} "):
            run(config)
    assert Checkpoints(folder_of(config) / "checkpoints").load_newest()[0] == step - 1


def test_an_evaluation_that_is_not_finite_stops_the_run_too(tmp_path, monkeypatch):
    """A NaN would otherwise be the best of all: nothing is greater."""
    poison_after(monkeypatch, 4)
    data = DataConfig(subset=160, batch_size=32, validation=40)
    config = small(tmp_path, precision=float32(), data=data, eval=EvalConfig(every=4))
    with pytest.raises(NonFiniteError, match="validation loss .*step 4"):
        run(config)
    assert not (folder_of(config) / "checkpoints" / "best").exists()


def test_the_first_module_is_found_in_the_order_of_the_calls():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.late, self.early = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.late(self.early(x))

    model = Net()
    x = torch.ones(1, 2)
    assert first_nonfinite_module(model, lambda: model(x)) is None
    with torch.no_grad():
        model.early.bias[0] = math.nan
    assert first_nonfinite_module(model, lambda: model(x)) == "early"
    assert not any(module._forward_hooks for module in model.modules())
