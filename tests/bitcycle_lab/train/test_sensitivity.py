"""The sensitivity of a run's layers: after some steps, on the batches that follow."""

import json

import pytest
import torch

from bitcycle.sensitivity import Sensitivity
from bitcycle_lab.train import PrecisionConfig, run
from bitcycle_lab.train.sensitivity import measure_sensitivity
from bitcycle_lab.train.session import build_session
from tests.bitcycle_lab.train.small import files_below, lstm, small, write_words


def test_it_measures_the_runs_layers_and_leaves_nothing(tmp_path):
    before = torch.get_num_threads()
    config = small(tmp_path, threads=1)
    lines = []
    found, report = measure_sensitivity(config, num_steps=3, num_batches=2, say=lines.append)
    assert files_below(tmp_path) == {}
    assert torch.get_num_threads() == before
    layers = {name for name, module in build_session(config).model.named_modules()
              if hasattr(module, "precision")}  # fmt: skip
    assert {row.name for row in found.rows} == layers
    assert found.num_batches == 2
    assert Sensitivity.from_dict(json.loads(json.dumps(report))["sensitivity"]) == found
    assert (report["steps"], report["seed"]) == (3, config.seed)
    assert len(lines) == len(layers) + 2
    again, _ = measure_sensitivity(config, num_steps=3, num_batches=2)
    assert again == found


def test_training_lowers_the_loss_that_it_starts_from(tmp_path):
    config = small(tmp_path, steps=200)
    losses = [measure_sensitivity(config, num_steps=steps)[0].loss for steps in (0, 100)]
    assert losses[1] < losses[0]


def test_a_recurrent_model_starts_every_batch_anew(tmp_path):
    config = lstm(tmp_path, write_words(tmp_path / "text"))
    found, _ = measure_sensitivity(config, num_steps=2, num_batches=2)
    assert all(row.gradient_change >= 0 for row in found.rows)


@pytest.mark.parametrize(
    ("forward", "settings", "named"),
    [("fp32", {}, "float32"), (8, {"num_steps": -1}, "-1"), (8, {"num_batches": 0}, "0")],
)
def test_what_cannot_be_measured_is_an_error(tmp_path, forward, settings, named):
    backward = "fp32" if forward == "fp32" else 8
    config = small(tmp_path, precision=PrecisionConfig(forward=forward, backward=backward))
    with pytest.raises(ValueError, match=named):
        measure_sensitivity(config, **settings)


def test_a_run_trains_at_the_patterns(tmp_path):
    config = small(tmp_path, steps=12)
    found, _ = measure_sensitivity(config, num_steps=2)
    patterns = found.patterns("CR:4-8:2", count=1)
    precision = PrecisionConfig(forward=patterns, backward=8)
    assert run(small(tmp_path, steps=12, precision=precision)).value > 0
