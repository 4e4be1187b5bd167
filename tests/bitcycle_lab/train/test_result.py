"""The result: what the run ended with, the averaged weights, the best, each at explicit bits."""

import copy
import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.kernels import choice
from bitcycle.native.library import instruction_set
from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.tasks import DataConfig, ModelConfig
from bitcycle_lab.train import EvalConfig, RunResult, SwaConfig, loop, resume, run
from bitcycle_lab.train.checkpoint import read_state
from bitcycle_lab.train.final_evaluation import refresh_statistics, weights_digest
from bitcycle_lab.train.loop import train_step
from bitcycle_lab.train.session import build_session, preserve_torch_settings
from tests.bitcycle_lab.data.layouts import planetoid_parts, write_planetoid
from tests.bitcycle_lab.train.small import (
    Killed,
    convnet,
    float32,
    folder_of,
    kill_before_step,
    lstm,
    small,
    write_words,
)

RESNET = ModelConfig(name="digits_resnet", options={"width": 2})
VALIDATED = DataConfig(subset=160, batch_size=32, eval_batch_size=128, validation=40)


def test_averaged_weights_are_the_mean_of_the_chosen_steps(tmp_path, monkeypatch):
    """From step 4 on, every third: after 4, 7 and 10 steps."""
    seen = {}
    original = loop.train_step

    def watching(session, micro_batches):
        original(session, micro_batches)
        weights = {name: p.detach().clone() for name, p in session.model.named_parameters()}
        seen[session.step + 1] = weights

    monkeypatch.setattr(loop, "train_step", watching)
    config = convnet(tmp_path, swa=SwaConfig(start=4, every=3))
    run(config)
    stored = read_state(folder_of(config) / "checkpoints" / "step-00000012", "swa")
    assert int(stored["n_averaged"]) == 3
    for name in seen[12]:
        mean = (seen[4][name] + seen[7][name] + seen[10][name]) / 3
        torch.testing.assert_close(stored[f"module.{name}"], mean)


def test_averaged_weights_get_norms_and_ranges_of_plain_data_at_the_evaluation_bits(tmp_path):
    with preserve_torch_settings():
        session = build_session(small(tmp_path, model=RESNET, swa=SwaConfig(start=0, every=1)))
        session.model.train()
        for step in range(4):
            train_step(session, [session.batches.batch_at(step)])
            session.swa.update_parameters(session.model)
        averaged = session.swa.module
        batches = [batch.inputs for batch in session.task.eval_batches("train")]
        copied = copy.deepcopy(averaged).train()
        norm_name, norm = next(
            (n, m) for n, m in copied.named_modules() if isinstance(m, nn.BatchNorm2d)
        )
        means = []
        norm.register_forward_pre_hook(lambda _, args: means.append(args[0].mean((0, 2, 3))))
        with torch.no_grad(), bc.at_precision(copied, "w8a8"):
            for batch in batches:
                copied(batch)
        refresh_statistics(session, averaged, session.scheduler.top)
    found = averaged.get_submodule(norm_name).running_mean
    torch.testing.assert_close(found, torch.stack(means).mean(0))
    first = next(m for m in averaged.modules() if hasattr(m, "act_range"))
    low = torch.stack([batch.min() for batch in batches]).mean()
    high = torch.stack([batch.max() for batch in batches]).mean()
    expected = torch.tensor([[len(batches), low, high - low]])  # number, mean minimum, mean range
    torch.testing.assert_close(first.act_range, expected)


def test_the_result_of_averaged_weights_is_at_the_same_bits_and_leaves_the_last_ones_alone(
    tmp_path,
):
    plain = run(small(tmp_path / "a", model=RESNET))
    averaged = run(small(tmp_path / "b", model=RESNET, swa=SwaConfig(start=0.5, every=2)))
    assert plain.swa is None
    assert set(averaged.swa) == set(averaged.final)
    assert averaged.swa != averaged.final
    assert (averaged.final, averaged.weights_sha256) == (plain.final, plain.weights_sha256)


@pytest.mark.parametrize("kind", ["bf16", "recurrent", "graph"])
def test_averaging_works_for_every_kind_of_run(tmp_path, kind):
    swa = SwaConfig(start=0.5, every=2)
    if kind == "recurrent":
        config = lstm(tmp_path, write_words(tmp_path / "text"), swa=swa)
    elif kind == "graph":  # the model takes the edges as well
        pytest.importorskip("torch_geometric")
        root = write_planetoid(tmp_path / "cora", planetoid_parts())
        config = small(
            tmp_path, swa=swa, task="nodes", precision=float32(),
            model=ModelConfig(name="gcn", options={"hidden_dim": 4}),
            data=DataConfig(name="cora", root=str(root)),
        )  # fmt: skip
    else:
        config = small(tmp_path, model=RESNET, swa=swa, autocast="bf16")
    assert run(config).swa["loss"] > 0


def test_the_best_is_evaluated_with_its_own_weights(tmp_path):
    config = small(tmp_path, data=VALIDATED, eval=EvalConfig(every=1))
    result = run(config)
    assert 1 <= result.best["step"] <= 12
    if result.best["step"] == 12:
        assert result.best["loss"] == result.final["loss"]
    else:
        assert result.best["loss"] != result.final["loss"]


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_best_that_is_lost_does_not_cost_the_run_its_result(tmp_path, monkeypatch, how):
    config = small(tmp_path, data=VALIDATED, eval=EvalConfig(every=12))
    original = loop.Checkpoints.save_best

    def losing(self, step, state):
        if how == "damaged":
            original(self, step, state)
            (self.folder / "best" / "model.safetensors").write_bytes(b"")

    monkeypatch.setattr(loop.Checkpoints, "save_best", losing)
    with pytest.warns(BitcycleWarning, match="best"):
        result = run(config)
    assert result.best is None
    assert result.final["accuracy"] > 0


@pytest.mark.parametrize("bits", ["high", "full", "scheduled", "w4a4"])
def test_the_result_says_at_which_bits_it_was_evaluated(tmp_path, bits):
    result = run(small(tmp_path, eval=EvalConfig(precision=bits)))
    assert result.eval_precision == {
        "high": "w8a8", "full": "fp32", "scheduled": "w8a8", "w4a4": "w4a4",
    }[bits]  # fmt: skip


def test_the_cost_is_that_of_the_schedule(tmp_path):
    result = run(small(tmp_path))
    assert result.cost["convention"] == "exact"
    assert result.cost["static_top"] == "w8a8e6"
    assert 0 < result.cost["relative_to_static_top"] < 1
    assert sum(result.cost["by_matmul"].values()) == result.cost["bitops"]


def test_the_result_has_the_kernel_that_auto_chose_for_each_layer(tmp_path, monkeypatch):
    def decide(geometry, a, w, *rest):
        return ("native" if w.shape[0] == 10 else "simulate", "by the number of classes")

    monkeypatch.setattr(choice, "_decide", decide)
    config = small(tmp_path)
    assert config.precision.kernel == "auto"
    result = run(config)
    assert result.kernels == {"fc1": "simulate", "fc2": "simulate", "fc3": "native"}
    assert result.instruction_set == instruction_set()
    stored = json.loads((folder_of(config) / "result.json").read_text())
    assert stored["kernels"] == result.kernels
    assert stored["instruction_set"] == result.instruction_set
    assert RunResult.read(folder_of(config)) == result


def test_a_result_is_read_back_from_wherever_the_folder_was_moved(tmp_path):
    config = small(tmp_path, steps=1)
    result = run(config)
    moved = tmp_path / "moved"
    folder_of(config).rename(moved)
    assert "directory" not in json.loads((moved / "result.json").read_text())
    assert RunResult.read(moved).directory == str(moved)
    assert RunResult.read(moved).final == result.final
    assert result.value == result.final["accuracy"]


def test_a_run_without_a_result_is_not_finished(tmp_path, monkeypatch):
    config = small(tmp_path)
    kill_before_step(monkeypatch, 2)
    with pytest.raises(Killed):
        run(config)
    with pytest.raises(ValueError, match=r"result\.json"):
        RunResult.read(folder_of(config))


def test_a_damaged_result_is_an_error_and_is_made_again_when_it_is_deleted(tmp_path):
    config = small(tmp_path, steps=2)
    result = run(config)
    path = Path(result.directory) / "result.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ValueError, match=r"result\.json"):
        resume(folder_of(config))
    path.unlink()
    again = resume(folder_of(config))
    assert (again.final, again.weights_sha256) == (result.final, result.weights_sha256)


def test_the_digest_of_weights_changes_with_any_bit_and_with_nothing_else():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
        first = weights_digest(model)
        assert weights_digest(copy.deepcopy(model)) == first
        assert weights_digest(copy.deepcopy(model).to(memory_format=torch.channels_last)) == first
        with torch.no_grad():
            model[0].weight[0, 0, 0, 0] *= 1 + 2**-23
        assert weights_digest(model) != first
        weights_digest(model.bfloat16())
