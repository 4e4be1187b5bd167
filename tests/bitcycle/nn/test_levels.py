"""Schedules over levels of different kinds: each level has its own fast way, chosen once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import bitcycle as bc
from bitcycle.kernels import choice
from bitcycle.kernels.base import KERNELS
from bitcycle.model_precision import kernel_state, restore_kernels
from bitcycle.native.library import library

from .layers import library_calls, use_small_table

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")
CYCLES = {"CR:8,fp32:1": "fp32", "CR:8,bf16:1": "bf16"}
every_cycle = pytest.mark.parametrize("text", CYCLES)


@pytest.fixture(autouse=True)
def _processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A processor that gains from native and from bfloat16 at small sizes."""
    use_small_table(monkeypatch, tmp_path)
    monkeypatch.setattr(choice.bf16, "has_instructions", lambda: True)
    monkeypatch.setattr(choice, "MIN_BF16_MACS", 1 << 12)
    monkeypatch.setitem(
        KERNELS._entries, "native", choice.replace(KERNELS["native"], takes_bf16=True)
    )


def build(kernel: str = "auto") -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(8 * 36, 16),
    )  # fmt: skip
    bc.quantize_model(model, kernel=kernel)
    return model, torch.randn(8, 4, 8, 8)


def schedule(model: nn.Module, text: str, total: int = 4) -> bc.PrecisionScheduler:
    return bc.PrecisionScheduler(model, forward=text, backward=text, total_steps=total)


def train(model: nn.Module, x: Tensor, bits: bc.PrecisionScheduler, steps: int) -> list[Tensor]:
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        bits.step()
        losses.append(loss.detach())
    return losses


@every_cycle
def test_steps_at_8_bits_are_those_of_static_8_bits(text) -> None:
    model, x = build()
    bits = schedule(model, text)
    assert [str(bits.precision_at(i)) for i in (0, 3)] == [
        "w8a8e8", "fp32" if "fp32" in text else "w=bf16,a=bf16,e=bf16"
    ]  # fmt: skip
    static, _ = build()
    with library_calls() as calls:
        losses = train(model, x, bits, 2)
    assert set(calls) >= {"bitcycle_forward", "bitcycle_backward"}
    assert "bitcycle_quantize" not in calls
    assert torch.stack(losses).equal(torch.stack(train(static, x, schedule(static, "8"), 2)))
    assert {layer.kernel.name for layer in layers(model)} == {"native"}
    assert all(row.kernel == "native" for row in bc.audit(model).converted_rows)


def layers(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "kernel_reason")]


def test_steps_at_float32_are_the_float_model_and_call_nothing_of_the_library() -> None:
    model, x = build()
    bits = schedule(model, "CR:8,fp32:1")
    train(model, x, bits, 3)
    assert str(bits.precision) == "fp32"
    plain = bc.unquantize_model(copy.deepcopy(model))
    with library_calls() as calls:
        y = model(x)
        y.square().mean().backward()
    assert calls == []
    expected = plain(x)
    expected.square().mean().backward()
    assert torch.equal(y, expected)
    for ours, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, other.grad)
    # ReLU keeps what the float module does
    assert type(model[1](model[0](x)).grad_fn).__name__ == "ReluBackward0"


def test_steps_at_bf16_multiply_in_bfloat16() -> None:
    model, x = build()
    bits = schedule(model, "CR:8,bf16:1")
    train(model, x, bits, 3)
    plain = bc.unquantize_model(copy.deepcopy(model))
    twin = bc.quantize_model(plain, kernel="bf16")
    bc.set_precision(twin, "bf16")
    assert torch.equal(model(x), twin(x))
    for layer in layers(model):
        assert layer.kernel.name == "native"
        for plan in layer._plans.values():
            assert plan.whole is None
            assert plan.output.first.as_bf16
            assert plan.grad_input.first.as_bf16


def test_a_schedule_of_bf16_alone_takes_the_kernel_bf16() -> None:
    model, x = build()
    train(model, x, schedule(model, "bf16"), 1)
    assert {layer.kernel.name for layer in layers(model)} == {"bf16"}
    assert {row.kernel for row in bc.audit(model).converted_rows} == {"bf16"}
    assert set(kernel_state(model)["kernels"].values()) == {"bf16"}


def test_integers_above_8_bits_leave_bf16_its_products() -> None:
    model, x = build()
    train(model, x, schedule(model, "CR:12,bf16:1"), 1)  # at 12 bits, with bf16 to come
    assert {layer.kernel.name for layer in layers(model)} == {"bf16"}


def test_bits_set_by_hand_choose_anew_when_another_kind_comes() -> None:
    model, x = build()
    for precision, name in (("bf16", "bf16"), ("w8a8e8", "native"), ("bf16", "native")):
        bc.set_precision(model, precision)
        model(x)
        assert {layer.kernel.name for layer in layers(model)} == {name}


@pytest.mark.parametrize("text", [*CYCLES, "CR:12,bf16:1", "stages:bf16@0.5,8"])
@pytest.mark.parametrize("at", [1, 3])
def test_a_resumed_run_multiplies_as_the_one_that_was_not_interrupted(
    text, at, monkeypatch
) -> None:
    whole, x = build()
    expected = train(whole, x, schedule(whole, text), 4)
    first, _ = build()
    bits = schedule(first, text)
    losses = train(first, x, bits, at)
    state = first.state_dict(), bits.state_dict(), kernel_state(first)
    # the other processor has neither row: what was recorded counts
    monkeypatch.setattr(choice.bf16, "has_instructions", lambda: False)
    plain = choice.replace(KERNELS["native"], takes_bf16=False)
    monkeypatch.setitem(KERNELS._entries, "native", plain)
    second, _ = build()
    restore_kernels(second, state[2])
    later = schedule(second, text)
    second.load_state_dict(state[0])
    later.load_state_dict(state[1])
    losses += train(second, x, later, 4 - at)
    assert torch.stack(losses).equal(torch.stack(expected))
    assert kernel_state(second) == state[2]


@pytest.mark.slow
@every_cycle
def test_a_cycle_over_two_kinds_compiles_two_graphs(text) -> None:
    torch._dynamo.reset()
    counters.clear()
    model, x = build()
    compiled = torch.compile(model, backend="aot_eager")
    bits = schedule(model, f"{text[:-1]}3", total=24)
    kinds = set()
    for _ in range(24):
        compiled(x).square().mean().backward()
        kinds.add(str(bits.precision))
        bits.step()
    assert len(kinds) == 2
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
