"""What surrounds a step on a device: schedules, ranges, states, contexts, the compiler."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import bitcycle as bc
from bitcycle.model_precision import kernel_state
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.quantizers.base import QUANTIZERS

from .emulated import counted
from .models import MODELS, assert_close, make, optimizer_of, set_step, state_of
from .models import train_step as train


def layers_of(model: nn.Module) -> list[QuantizedLayer]:
    return [each for each in model.modules() if isinstance(each, QuantizedLayer)]


def scheduled(name: str, device: str = "cuda") -> tuple[Any, ...]:
    model, x = make(name, device, kernel="auto")
    bits = bc.PrecisionScheduler(model, forward="CR:3-8:2", backward=8, total_steps=12)
    return model, x, optimizer_of(model), bits


@pytest.mark.parametrize("name", MODELS)
def test_a_schedule_uploads_once_per_layer_and_change_and_never_waits(name):
    model, x, optimizer, bits = scheduled(name)
    for step in range(12):
        train(model, optimizer, x)
        before = bc.get_precision(model)
        with counted() as counts:
            bits.step()
        changes = len(layers_of(model)) if bc.get_precision(model) != before else 0
        assert counts.uploads <= changes
        if step:  # the flags of the step before arrive by themselves
            assert counts.reads <= 1


@pytest.mark.parametrize("name", MODELS)
def test_a_scheduled_run_is_that_of_the_cpu(name):
    states = []
    for device in ("cuda", "cpu"):
        model, x, optimizer, bits = scheduled(name, device)
        for _ in range(3):
            train(model, optimizer, x)
            bits.step()
        states.append(state_of(model))
    assert_close(*states, 5e-2)  # a number that is rounded to another level counts


def test_a_nan_is_reported_one_step_later():
    model, x, optimizer, bits = scheduled("linear")
    train(model, optimizer, x * float("nan"))
    bits.step()
    train(model, optimizer, x)
    with pytest.raises(bc.NonFiniteError):
        bits.step()


def test_a_resumed_run_continues_bit_for_bit(tmp_path):
    model, x, optimizer, bits = scheduled("convolutions")
    for _ in range(3):
        train(model, optimizer, x)
        bits.step()
    parts = model, optimizer, bits
    torch.save([each.state_dict() for each in parts], tmp_path / "state.pt")
    again, _, its_optimizer, its_bits = scheduled("convolutions")
    for part, state in zip(
        (again, its_optimizer, its_bits), torch.load(tmp_path / "state.pt"), strict=True
    ):
        part.load_state_dict(state)
    for run, own, schedule in ((model, optimizer, bits), (again, its_optimizer, its_bits)):
        for _ in range(3):
            train(run, own, x)
            schedule.step()
    ours, theirs = state_of(again), state_of(model)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_a_loaded_state_evaluates_with_the_kernel_of_training(quantizer):
    outputs, states = [], []
    trained = None
    for _ in range(2):
        model, x = make("linear", "cuda", quantizer, "auto")
        bc.set_precision(model, "FW8/BW8")
        if trained is None:
            train(model, optimizer_of(model), x)
            trained = model.state_dict()
        model.load_state_dict(trained)
        with torch.no_grad():
            outputs.append(model.eval()(x))
        states.append(kernel_state(model))
    assert torch.equal(*outputs)
    assert states[0] == states[1]


def test_calibration_and_evaluation_are_those_of_the_cpu():
    results = []
    for device in ("cuda", "cpu"):
        model, x = make("convolutions", device)
        bc.set_precision(model, "FW4/BW8")
        bc.calibrate(model, [x, 2 * x])
        with torch.no_grad(), bc.at_precision(model, "FW6/BW8"):
            results.append({"output": model.eval()(x).cpu(), **state_of(model)})
        assert bc.get_precision(model).act == 4
    assert_close(*results, 1e-5)


def test_an_evaluation_reads_nothing_after_its_first_batch():
    model, x = make("convolutions", "cuda")
    bc.set_precision(model, "FW8/BW8")
    train(model, optimizer_of(model), x)
    with torch.no_grad():
        model.eval()(x)
        with counted() as counts:
            model(x)
    assert (counts.uploads, counts.reads) == (0, 0)


def test_collect_and_cost_take_a_model_on_the_device():
    costs, noises = [], []
    for device in ("cuda", "cpu"):
        model, x = make("convolutions", device)
        bc.set_precision(model, "FW4/BW8")
        with bc.collect(model) as statistics:
            model(x).square().mean().backward()
        noises.append(statistics.gradient_noise())
        cost = bc.training_cost(model, x, forward=4, backward=8, total_steps=2)
        costs.append(cost.bitops)
    assert costs[0] == costs[1]
    assert noises[0] == pytest.approx(noises[1], rel=1e-3)


def test_the_range_test_runs_and_restores_the_model():
    model, x = make("linear", "cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = state_of(model)
    found = bc.precision_range_test(
        model, lambda: train(model, optimizer, x), restore=[optimizer], low=3, high=5,
        steps_per_precision=8,
    )  # fmt: skip
    assert 3 <= found.low <= 5
    after = state_of(model)
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_unconverted_again_it_is_the_float_model():
    model, x = make("convolutions", "cuda")
    float_model = MODELS["convolutions"].model().cuda()
    float_model.load_state_dict(bc.float_state_dict(model))
    bc.unquantize_model(model)
    assert torch.equal(model.eval()(x), float_model.eval()(x))


@pytest.mark.parametrize("name", ["linear", "convolutions", "attention"])
def test_autocast_gives_bfloat16_and_float32_gradients(name):
    model, x = make(name, "cuda")
    bc.set_precision(model, "FW8/BW8")
    optimizer = optimizer_of(model)
    for step in range(2):
        set_step(model, step)
        with counted() as counts, torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(x)
        assert output.dtype == torch.bfloat16
        output.float().square().mean().backward()
        optimizer.step()
    assert (counts.uploads, counts.reads) == (0, 0)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("quantizer", "levels"),
    [
        ("sbm", [3, 8, 5]),
        ("fp8", ["fp8", "e5m2"]),
        ("mx", ["mxfp8", "mxfp4"]),
        ("nvfp4", ["nvfp4"]),
    ],
)
def test_one_graph_serves_all_bits(quantizer, levels):
    torch._dynamo.reset()
    counters.clear()
    rule = QUANTIZERS[quantizer]()
    model = bc.quantize_model(nn.Linear(32, 16).cuda(), rule, kernel="simulate")
    x, twin = torch.randn(20, 32).cuda(), copy.deepcopy(model)
    for each in (model, twin):
        for layer in layers_of(each):
            layer.expect_bits(dict.fromkeys(("weight", "act", "error", "grad"), 8))
    compiled = torch.compile(model, backend="aot_eager")
    for step, level in enumerate(levels):
        results = []
        for own, run in ((model, compiled), (twin, twin)):
            bc.set_precision(own, f"FW{level}/BW{levels[-1]}")
            set_step(own, step)
            own.zero_grad()
            run(x).square().mean().backward()
            results.append(state_of(own))
        assert_close(*results, 1e-4)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@pytest.mark.parametrize("name", ["linear", "convolutions", "attention"])
@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_a_model_on_the_meta_device_gives_shapes(quantizer, name):
    model, x = make(name, "meta", quantizer)
    bc.set_precision(model, "FW8/BW8")
    output = model(x)
    output.sum().backward()
    assert output.is_meta
    assert all(p.grad is not None for p in model.parameters())
