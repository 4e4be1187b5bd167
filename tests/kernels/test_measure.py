"""Measuring kernels on the shapes of a layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bitcycle.kernels import ConvGeometry, LinearGeometry, MatMulGeometry, measure
from bitcycle.kernels.measure import Case, Recurrence, output_macs, time_products

from .operands import counted

LINEAR = Case(
    geometry=LinearGeometry(),
    a_shape=(4, 5, 6),
    w_shape=(7, 6),
    is_channels_last=False,
    tops=(4, 4, 4),
    weight_grids=1,
    device="cpu",
    num_threads=1,
)
CONV = replace(
    LINEAR,
    geometry=ConvGeometry((2, 2), (1, 1), (1, 1), 2),
    a_shape=(3, 4, 8, 8),
    w_shape=(6, 2, 3, 3),
)
MATMUL = replace(LINEAR, geometry=MatMulGeometry(), a_shape=(2, 4, 5), w_shape=(5, 6))
TRANSPOSED = replace(
    CONV, geometry=ConvGeometry((2,), (0,), (1,), 2, transposed=True),
    a_shape=(3, 4, 8), w_shape=(4, 5, 3),
)  # fmt: skip


def test_multiplications_are_counted_from_the_shapes() -> None:
    for case, macs in (
        (LINEAR, 20 * 7 * 6),
        (CONV, 3 * 6 * 4 * 4 * 2 * 9),
        (MATMUL, 2 * 4 * 6 * 5),
        (TRANSPOSED, 3 * 4 * 8 * 5 * 3),
    ):
        assert output_macs(case) == macs


@pytest.mark.parametrize("case", [LINEAR, CONV, MATMUL, TRANSPOSED])
@pytest.mark.parametrize("bf16", [True, False])
def test_every_product_is_timed_for_every_kernel(case: Case, bf16: bool) -> None:
    before = torch.get_rng_state()
    times = time_products(case, bf16=bf16)
    names = {"simulate", "dequantize", "int8"} | ({"bf16"} if bf16 else set())
    assert [set(by_kernel) for by_kernel in times] == [names] * 3
    assert all(0 < seconds < 60 for by_kernel in times for seconds in by_kernel.values())
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_timed_is_the_integer_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "HOPELESS", float("inf"))
    with counted() as calls:
        time_products(LINEAR, bf16=False)
    runs = measure.REPEATS + 1
    # grad_input's scales lie on the axis it sums over
    assert calls == {"gemm": 2 * runs, "float": runs}
    with counted() as calls:
        time_products(replace(LINEAR, weight_grids=2), bf16=False)
    assert calls == {"gemm": 3 * runs}


def test_a_role_without_bits_is_timed_as_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "HOPELESS", float("inf"))
    with counted() as calls:
        time_products(replace(LINEAR, tops=(4, 4, None)), bf16=False)
    runs = measure.REPEATS + 1
    assert calls == {"gemm": runs, "float": 2 * runs}  # no error codes, no integer gradients


def test_operands_are_laid_out_as_the_layer_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "HOPELESS", float("inf"))
    seen = []
    geometry = CONV.geometry

    class Spy(ConvGeometry):
        def output(self, a, w, bias):
            if a.shape == CONV.a_shape and not a.is_meta:
                seen.append(a.is_contiguous(memory_format=torch.channels_last))
            return super().output(a, w, bias)

    spy = Spy(geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
    time_products(replace(CONV, geometry=spy, is_channels_last=True), bf16=False)
    assert seen == [True] * len(seen)
    assert len(seen) == 2 * (measure.REPEATS + 1)  # simulate and dequantize


def test_a_hopeless_kernel_is_tried_twice_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "HOPELESS", 0.0)
    with counted() as calls:
        time_products(LINEAR, bf16=False)
    assert calls == {"gemm": 2 * 2, "float": 2}


def test_large_batches_are_measured_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MAX_MACS", output_macs(LINEAR) // 2)
    assert output_macs(measure.capped(LINEAR)) <= measure.MAX_MACS
    assert measure.capped(MATMUL) == MATMUL


def test_of_many_outputs_a_part_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = replace(LINEAR, w_shape=(100, 6))
    monkeypatch.setattr(measure, "MAX_MACS", output_macs(wide) // 4)
    part = measure.capped(wide)
    assert (part.a_shape, part.w_shape, part.share) == (wide.a_shape, (25, 6), 0.25)


def test_modes_of_the_caller_do_not_see_the_measurement() -> None:
    with FlopCounterMode(display=False) as counter, torch.autocast("cpu", dtype=torch.bfloat16):
        time_products(LINEAR, bf16=False)
    assert counter.get_total_flops() == 0


RECURRENT = replace(LINEAR, a_shape=(20, 6), w_shape=(12, 6), recurrence=Recurrence(4, 5, (12, 3)))


@pytest.mark.parametrize("weight_grids", [1, 2])
def test_a_recurrence_is_timed_with_its_products(weight_grids: int, monkeypatch) -> None:
    monkeypatch.setattr(measure, "HOPELESS", float("inf"))
    case = replace(RECURRENT, weight_grids=weight_grids)
    with counted() as calls:
        times = time_products(case, bf16=True)
    assert [set(by_kernel) for by_kernel in times] == [
        {"simulate", "dequantize", "int8", "bf16"}
    ] * 3
    assert calls["gemm"] > 0


def test_every_time_step_counts_and_as_much_of_them_as_of_the_batch(monkeypatch) -> None:
    monkeypatch.setattr(measure, "_time", lambda product, names, device: dict.fromkeys(names, 1.0))
    times = time_products(RECURRENT, bf16=False)
    assert [by_kernel["int8"] for by_kernel in times] == [1 + 5, 1 + 5, 1 + 1]
    monkeypatch.setattr(measure, "MAX_MACS", output_macs(RECURRENT) // 2)
    times = time_products(measure.capped(RECURRENT), bf16=False)
    assert [by_kernel["int8"] for by_kernel in times] == [1 + 2.5, 1 + 2.5, 1 + 0.5]
