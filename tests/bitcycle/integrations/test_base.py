"""What the callbacks share, without a trainer."""

from __future__ import annotations

import json
import sys

import pytest
import torch

import bitcycle as bc
from bitcycle.extras import MissingExtraError
from bitcycle.integrations.base import PrecisionRun, Settings, agree_on_total
from bitcycle.kernels import choice
from tests.bitcycle.toys import linears, randn


def make_run(total: int = 4, **options) -> PrecisionRun:
    settings = Settings(**({"forward": "CR:3-5:1", "backward": 8} | options))
    return PrecisionRun(settings, bc.quantize_model(linears(4, 8, 2)), total)


@pytest.mark.parametrize("trainer", [float("inf"), -1])
def test_a_total_that_nobody_knows_is_an_error(trainer):
    assert agree_on_total(7, trainer, "max_steps") == 7
    with pytest.raises(ValueError, match="max_steps"):
        agree_on_total(None, trainer, "max_steps")


def test_an_unknown_evaluation_precision_is_an_error_at_once():
    with pytest.raises(ValueError, match="'hihg'"):
        Settings(forward=4, eval_precision="hihg")


def test_metrics_are_those_of_the_step_that_was_taken():
    run = make_run(forward={"*": "stages:4@0.25,8", "1": None}, backward=8)
    run.start_meter(randn(2, 4))
    run.add_samples([randn(3, 4), torch.zeros(3)])
    run.step()
    # 3 samples; 0: 32 MACs x (4 x 4 + 8 x 4), at the top 8 x 8 + 8 x 8;
    # 1: 16 MACs x (32 x 32 + 2 x 8 x 32)
    cost, most = 3 * (32 * 48 + 16 * 1536), 3 * (32 * 128 + 16 * 1536)
    assert run.metrics() == {
        "bits/forward": 18, "bits/backward": 8, "bits/forward/*": 4, "bits/forward/1": 32,
        "cost/bitops": cost, "cost/saved": pytest.approx(1 - cost / most),
    }  # fmt: skip


def test_backward_has_the_default_of_the_scheduler():
    run = PrecisionRun(Settings(forward=4), bc.quantize_model(linears(4, 8, 2)), 4)
    assert run.metrics() == {"bits/forward": 4, "bits/backward": 8}
    run = PrecisionRun(Settings(forward=4, backward=None), bc.quantize_model(linears(4, 8, 2)), 4)
    assert run.metrics()["bits/backward"] == 32
    with pytest.raises(ValueError, match="backward .*16"):
        PrecisionRun(Settings(forward=16), bc.quantize_model(linears(4, 8, 2)), 4)


def test_samples_of_all_micro_batches_and_processes_belong_to_one_step():
    run = make_run()
    run.start_meter(randn(2, 4))
    for _ in range(2):
        run.add_samples({"x": randn(3, 4)}, num_processes=2)
    run.step()
    assert (run.meter.num_steps, run.meter.num_samples) == (1, 12)


def test_the_state_is_json_and_brings_back_bits_cost_and_kernels():
    run = make_run()
    run.start_meter(randn(2, 4))
    for _ in range(3):
        run.step()
    state = json.loads(json.dumps(run.state_dict()))
    state["kernels"]["0"] = "simulate"
    other = make_run()
    other.resume_at(3, state)
    assert other.scheduler.step_count == 3
    assert other._model[0].kernel.name == "simulate"
    assert other._model[0].precision == run._model[0].precision
    assert other.state_dict()["meter"] == state["meter"]  # also before there is a meter
    other.start_meter(randn(2, 4))
    assert other.metrics() == run.metrics()


def test_a_run_with_the_native_library_does_not_resume_without_it(monkeypatch):
    run = make_run()
    state = run.state_dict()
    state["kernels"]["0"], state["has_native_library"] = "native", True
    monkeypatch.setattr(choice, "instruction_set", lambda: None)
    with pytest.raises(ValueError, match="'native'"):
        run.resume_at(0, state)


def test_evaluation_started_twice_still_comes_back_to_the_training_bits():
    run = make_run(eval_precision="full")
    run.start_evaluation()
    run.start_evaluation()
    assert str(bc.get_precision(run._model)) == "fp32"
    run.end_evaluation()
    run.end_evaluation()
    assert str(bc.get_precision(run._model)) == "w3a3e8"


def test_evaluation_bits_that_a_layer_cannot_take_are_an_error_before_the_first_step():
    model = bc.quantize_model(linears(4, 8, 2), max_bits=5)
    with pytest.raises(ValueError, match="max_bits=5 .*w8a8"):
        PrecisionRun(Settings(forward=4, backward=5, eval_precision="w8a8"), model, 4)


def test_a_checkpoint_from_after_the_last_step_is_an_error():
    with pytest.raises(ValueError, match="4.*got 9"):
        make_run().resume_at(9, None)


@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_a_missing_package_is_an_error_with_the_install_command(monkeypatch, name):
    for loaded in [m for m in sys.modules if m.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.delitem(sys.modules, f"bitcycle.integrations.{name}", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Absent(name), *sys.meta_path])
    with pytest.raises(MissingExtraError, match=rf'pip install "\.\[{name}\]"'):
        __import__(f"bitcycle.integrations.{name}")


class Absent:
    """A finder for which a package is not there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == self.name:
            raise ModuleNotFoundError(f"No module named {self.name!r}", name=self.name)
