"""Training steps, their times, the networks that are timed, packages of others."""

import math
import time
from importlib.util import find_spec

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.kernels import choice
from bitcycle.kernels.base import KERNELS
from bitcycle.precision import Precision
from bitcycle_lab.bench.others import OTHERS, installed_others, replace_layers
from bitcycle_lab.bench.result import Timing, time_interleaved
from bitcycle_lab.bench.steps import CycleBits, TrainStep, Variant, all_kernels, parse_bits
from bitcycle_lab.bench.workloads import WORKLOADS, Workload

BITS = Precision.parse("FW8/BW8")


def make_load():
    torch.manual_seed(0)
    return Workload(
        model=nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)),
        inputs=(torch.randn(8, 16),),
        loss=lambda out: out.square().mean(),
        size="tiny",
    )


def test_the_widths_of_a_cycle_are_those_of_the_cosine():
    bits = parse_bits("3-8/8")
    assert bits == CycleBits(3, 8, 8)
    assert Variant("auto", bits).widths == (3, 4, 5, 6, 7, 8)
    assert Variant("auto", BITS).widths == ()
    # 3 + 5 (1 - cos(pi p)) / 2 rounds to 3 below 3.5: p < acos(0.8) / pi
    assert bits.shares()[3] == pytest.approx(math.acos(0.8) / math.pi, abs=1e-3)
    assert bits.values()[0] == 3
    assert bits.values()[-1] == 8


def test_a_step_of_a_cycle_has_the_bits_of_its_width_and_the_top_of_the_cycle():
    step = TrainStep(make_load(), Variant("simulate", CycleBits(3, 8, 8)))
    for width in (8, 3, 5):
        step.set_width(width)
        assert str(bc.get_precision(step.model)) == f"w{width}a{width}e8"
        step()
        assert step.model[0].tops["weight"] == 8


def test_a_step_trains_its_own_copy():
    for kernel in ("float32", "bf16-autocast", "simulate", "native", "auto"):
        load = make_load()
        before = [parameter.clone() for parameter in load.model.parameters()]
        step = TrainStep(
            load, Variant(kernel, BITS if kernel in ("simulate", "native", "auto") else None)
        )
        step()
        assert all(torch.equal(p, b) for p, b in zip(load.model.parameters(), before, strict=True))
        trained = list(step.model.parameters())
        assert not any(torch.equal(p, b) for p, b in zip(trained, before, strict=True))


def test_codes_are_fewer_bytes_than_the_floats_of_the_simulation():
    load = make_load()
    kept = {}
    for kernel in ("simulate", "native"):
        step = TrainStep(load, Variant(kernel, BITS))
        step()
        kept[kernel] = step.count_saved()
    assert 0 < kept["native"] < kept["simulate"]


def test_the_layers_say_which_kernel_they_got_and_why(monkeypatch):
    assert set(KERNELS.names()) <= set(all_kernels())
    assert TrainStep(make_load(), Variant("float32")).layers() == {}
    monkeypatch.setattr(choice, "instruction_set", lambda: None)
    step = TrainStep(make_load(), Variant("auto", BITS))
    step()
    why = f"auto: {choice.missing_library()}"
    assert step.layers() == {"0": ("simulate", why), "2": ("simulate", why)}


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

    mixed = Workload(model=Both(), inputs=load.inputs, loss=load.loss, size="tiny")
    step = TrainStep(mixed, Variant("simulate", BITS))
    assert list(step.float_layers()) == ["last"]


def test_functions_are_called_in_turn_after_their_warm_up():
    calls = []
    timings = time_interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3
    )
    assert "".join(calls) == "aabb" + "ababab"
    assert [len(timing.seconds) for timing in timings.values()] == [3, 3]
    assert not any(timing.is_once for timing in timings.values())


def test_a_first_call_above_the_budget_is_the_only_one():
    calls = []

    def slow():
        calls.append("slow")
        time.sleep(0.02)

    timings = time_interleaved({"fast": lambda: None, "slow": slow}, repeats=4, budget=0.01)
    assert calls == ["slow"]
    assert timings["slow"].is_once
    assert len(timings["slow"].seconds) == 1
    assert list(timings) == ["fast", "slow"]
    assert len(timings["fast"].seconds) == 4


def test_a_slow_first_call_alone_does_not_condemn_a_function():
    calls = []

    def compiles_first():
        calls.append(1)
        time.sleep(0.1 if len(calls) == 1 else 0.0)

    timing = time_interleaved({"f": compiles_first}, repeats=3, budget=0.2)["f"]
    assert not timing.is_once
    assert len(calls) == 5


def test_a_function_gets_the_repeats_that_fit_its_budget():
    timing = time_interleaved({"f": lambda: time.sleep(0.02)}, repeats=100, budget=0.2)["f"]
    assert 3 <= len(timing.seconds) <= 10 or timing.is_once  # a stalled machine may allow no more


def test_every_call_is_prepared_and_ticks():
    calls = []
    time_interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")},
        repeats=1,
        tick=lambda: calls.append("."),
        prepare=lambda name: calls.append(name.upper()),
    )
    assert "".join(calls) == "Aa.Aa.Bb.Bb." + "Aa.Bb."


def test_the_fastest_and_the_lower_quartile_of_eight():
    timing = Timing((8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0))
    assert (timing.fastest, timing.lower_quartile) == (1.0, 3.0)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_has_a_finite_loss_and_gradients(name):
    load = WORKLOADS[name](True)
    loss = load.loss(load.model(*load.inputs))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in load.model.parameters())
    assert load.size


def test_the_faster_float_model_is_the_same_function():
    for name in ("transformer-d512", "transformer-d1024"):
        load = WORKLOADS[name](True)
        assert load.float_model is not None
        expected, found = load.model(*load.inputs), load.float_model(*load.inputs)
        assert not torch.equal(load.inputs[0], expected)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_convolutions_run_channels_last_which_is_their_fastest_layout():
    for name in ("resnet20-w16", "resnet20-w64", "bottleneck"):
        load = WORKLOADS[name](True)
        assert load.inputs[0].is_contiguous(memory_format=torch.channels_last)
        convs = [m for m in load.model.modules() if isinstance(m, torch.nn.Conv2d)]
        assert convs
        assert all(c.weight.is_contiguous(memory_format=torch.channels_last) for c in convs)


def test_only_installed_packages_are_offered():
    expected = [
        name
        for name, module in (
            ("torchao", "torchao"), ("brevitas", "brevitas"), ("qpytorch", "qtorch")
        )
        if find_spec(module) is not None
    ]  # fmt: skip
    assert installed_others() == expected
    assert list(OTHERS) == ["torchao", "brevitas", "qpytorch"]


def test_layers_at_any_depth_are_replaced_once():
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Sequential(nn.Linear(1, 1), nn.ReLU()))
    replace_layers(model, lambda layer: nn.Sequential(layer, nn.Identity()))
    kinds = [type(module).__name__ for module in model.modules()]
    assert kinds.count("Conv2d") == kinds.count("Linear") == 1
    assert kinds.count("Identity") == 2


def test_formats_are_written_forward_and_backward_and_choose_their_quantizer():
    for text, quantizer in (
        ("nvfp4/nvfp4", "nvfp4"), ("mxfp8/mxfp8", "mx"), ("fp8/e5m2", "fp8"), ("bf16/8", "sbm"),
    ):  # fmt: skip
        variant = Variant("auto", parse_bits(text))
        assert (variant.bits_text, variant.quantizer) == (text, quantizer)
    assert Variant("auto", parse_bits("w=nvfp4,a=bf16")).bits_text == "w=nvfp4,a=bf16"
    assert Variant("auto", BITS).quantizer == "sbm"
    with pytest.raises(ValueError, match="'8/8'"):
        parse_bits("8/8")


def test_a_step_at_a_format_has_it_at_every_role():
    step = TrainStep(make_load(), Variant("auto", parse_bits("mxfp8/mxfp8")))
    step()
    assert str(bc.get_precision(step.model)) == "w=mxfp8,a=mxfp8,e=mxfp8"
