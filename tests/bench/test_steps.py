"""A training step as something to call."""

import pytest
import torch
from torch import nn

from bitcycle.bench.steps import TrainStep, Variant, all_kernels, make_variants
from bitcycle.bench.workloads import Load
from bitcycle.kernels import KERNELS
from bitcycle.precision import Precision

BITS = Precision.parse("FW8/BW8")


def make_load():
    torch.manual_seed(0)
    return Load(
        model=nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)),
        inputs=(torch.randn(8, 16),),
        loss=lambda out: out.square().mean(),
        size="tiny",
    )


def test_every_registered_kernel_can_be_timed():
    assert set(KERNELS.names()) <= set(all_kernels())


def test_our_kernels_come_at_each_bits_and_the_others_once():
    variants = make_variants(["float32", "int8"], [BITS, Precision.parse("FW7/BW8")])
    assert [str(variant) for variant in variants] == ["float32", "int8 w8a8e8", "int8 w7a7e8"]


@pytest.mark.parametrize("kernel", ["float32", "bf16-autocast", "simulate", "int8", "auto"])
def test_a_step_trains_its_own_copy(kernel):
    load = make_load()
    before = [parameter.clone() for parameter in load.model.parameters()]
    step = TrainStep(
        load, Variant(kernel, BITS if kernel in ("simulate", "int8", "auto") else None)
    )
    step()
    assert all(torch.equal(p, b) for p, b in zip(load.model.parameters(), before, strict=True))
    trained = list(step.model.parameters())
    assert not any(torch.equal(p, b) for p, b in zip(trained, before, strict=True))


def test_codes_are_fewer_bytes_than_the_floats_of_the_simulation():
    load = make_load()
    kept = {}
    for kernel in ("simulate", "dequantize"):
        step = TrainStep(load, Variant(kernel, BITS))
        step()
        kept[kernel] = step.count_saved()
    assert 0 < kept["dequantize"] < kept["simulate"]


def test_the_layers_of_a_float_step_have_no_kernel():
    assert TrainStep(make_load(), Variant("float32")).layers() == {}


def test_the_layers_say_which_kernel_they_got_and_why():
    step = TrainStep(make_load(), Variant("auto", BITS))
    step()
    assert step.layers() == {
        "0": ("simulate", "auto: too small to gain"),
        "2": ("simulate", "auto: too small to gain"),
    }


def test_layers_that_stay_float_are_named():
    load = make_load()
    bilinear = nn.Bilinear(4, 4, 2)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = load.model, bilinear

        def forward(self, x):
            x = self.first(x)
            return self.last(x, x)

    mixed = Load(model=Both(), inputs=load.inputs, loss=load.loss, size="tiny")
    step = TrainStep(mixed, Variant("simulate", BITS))
    assert list(step.float_layers()) == ["last"]
