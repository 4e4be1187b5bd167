"""Steps that are measured."""

from dataclasses import replace

import pytest
import torch

from bitcycle.study import dry_run as step_time
from bitcycle.study.dry_run import measure_step, step_kind
from tests.study.small_studies import tiny


def test_the_median_of_three_steps_after_two_is_given_with_the_length_of_the_run(
    tmp_path, monkeypatch
):
    ticks = iter([0, 100, 0, 100, 0, 3, 0, 5, 0, 4])
    monkeypatch.setattr(step_time.time, "perf_counter", lambda: next(ticks))
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
