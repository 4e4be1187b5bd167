"""Which kernel a layer gets, and the reason that the audit shows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.kernels import (
    KERNELS,
    UNDECIDED,
    ConvGeometry,
    LinearGeometry,
    MatMulGeometry,
    choice,
    decide_kernel,
    make_kernel,
    requested_kernel,
)
from bitcycle.kernels.measure import Recurrence

from .operands import counted

LINEAR = LinearGeometry()
LARGE = torch.zeros(128, 128), torch.zeros(128, 128)  # 2^21 multiplications


def _decide(
    a: torch.Tensor = LARGE[0], w: torch.Tensor = LARGE[1], tops: tuple = (8, 8, 8), grids: int = 1
):
    return decide_kernel(LINEAR, a, w, tops=tops, weight_grids=grids)


@pytest.fixture
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(case: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(choice, "_by_measurement", fail)


@pytest.fixture(params=[True, False], ids=["bf16", "no bf16"])
def bf16(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A processor with and one without bfloat16 arithmetic."""
    monkeypatch.setattr(choice, "has_bf16", lambda device: request.param)
    return request.param


@pytest.fixture(params=[0, 15, 16])
def exact(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Processors without exact integer products, with some, with all."""
    monkeypatch.setattr(choice, "exact_bits", lambda device: request.param)
    return request.param


# -- asked for ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["simulate", "dequantize", "int8/dequantize/int8"])
def test_a_kernel_asked_for_by_name_is_taken(name: str) -> None:
    kernel, reason = requested_kernel(name, weight_grids=1, device_type="cpu")
    assert kernel == make_kernel(name)
    assert reason == "asked for"


def test_auto_waits_for_the_shapes() -> None:
    kernel, reason = requested_kernel("auto", weight_grids=1, device_type="cpu")
    assert kernel is UNDECIDED
    assert reason == "auto: decided at the first training step with bits"


def test_int8_takes_bf16_for_the_product_that_cannot_stay_integer(bf16: bool, exact: int) -> None:
    kernel, reason = requested_kernel("int8", weight_grids=1, device_type="cpu")
    if bf16:
        assert kernel.name == "int8/bf16/int8"
        assert reason.startswith("asked for; grad_input in bf16: the weight's scales lie on the")
    else:
        assert kernel is KERNELS["int8"]
        limit = f"asked for; exact here up to {exact} bits of both operands together, else float32"
        assert reason == (limit if exact < 16 else "asked for")


def test_int8_is_all_integer_where_grad_input_has_a_grid_of_its_own(bf16: bool, exact: int) -> None:
    kernel, reason = requested_kernel("int8", weight_grids=2, device_type="cpu")
    assert kernel is KERNELS["int8"]
    assert reason.startswith("asked for")
    assert ("exact here up to" in reason) == (exact < 16)


def test_bf16_on_a_processor_without_it_says_so(bf16: bool) -> None:
    kernel, reason = requested_kernel("bf16", weight_grids=1, device_type="cpu")
    assert kernel is KERNELS["bf16"]
    slow = "asked for; this processor has no bf16 arithmetic: expect it to be slow"
    assert reason == ("asked for" if bf16 else slow)


def test_unknown_kernels_are_refused_on_conversion() -> None:
    with pytest.raises(ValueError, match=r"unknown kernel 'int4'; known: .*int8"):
        bc.quantize_model(nn.Linear(2, 2), kernel="int4")
    with pytest.raises(ValueError, match="three that take codes"):
        bc.quantize_model(nn.Linear(2, 2), kernel="int8/int8")


@pytest.mark.parametrize("kernel", ["int8", "bf16", "dequantize", "int8/bf16/int8"])
def test_a_kernel_of_codes_refuses_more_than_8_bits(kernel: str) -> None:
    layer = bc.quantize_model(nn.Linear(4, 4), kernel=kernel)
    bc.set_precision(layer, "w8a8e8")
    with pytest.raises(ValueError, match=r"carries at most 8 bits .*convert with kernel='auto'"):
        bc.set_precision(layer, "w8a8e12")
    assert str(bc.get_precision(layer)) == "w8a8e8"
    bc.set_precision(layer, "w8a8e8g16")  # sbm has no rule for that role
    bc.set_precision(layer, "w8a8")  # float32 is no code at all
    with pytest.raises(ValueError, match="at most 8 bits"):
        bc.PrecisionScheduler(layer, forward="CR:4-16:2", backward=8, total_steps=64)


def test_a_kernel_that_auto_chose_takes_more_bits_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided = KERNELS["int8"], "auto: measured"
    monkeypatch.setattr("bitcycle.nn.layer.decide_kernel", lambda *args, **kwargs: decided)
    layer, x = bc.quantize_model(nn.Linear(4, 4)), torch.randn(3, 4)
    bc.set_precision(layer, "w4a4e4")
    with counted() as calls:
        layer(x).square().sum().backward()
    assert calls == {"gemm": 2}  # the input wants no gradient
    bc.set_precision(layer, "w16a16e16")
    with counted() as calls:
        output = layer(x)
        output.square().sum().backward()
    assert calls == {"float": 2}
    torch.testing.assert_close(
        output, nn.functional.linear(x, layer.weight, layer.bias), atol=1e-3, rtol=0
    )
    assert bc.audit(layer)[""].kernel == "int8"


# -- auto -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_no_clock")
def test_auto_simulates_what_codes_cannot_carry_or_gain() -> None:
    for a, w, tops, reason in (
        (LARGE[0].double(), LARGE[1].double(), (8, 8, 8), "float64"),
        (*LARGE, (None, 8, 8), "an operand is float32"),
        (*LARGE, (8, None, 8), "an operand is float32"),
        (*LARGE, (None, None, None), "an operand is float32"),
        (*LARGE, (9, 8, 8), "more than 8 bits"),
        (*LARGE, (8, 32, 8), "more than 8 bits"),
        (torch.zeros(127, 64), torch.zeros(128, 64), (4, 4, 4), "too small to gain"),
    ):
        kernel, why = _decide(a, w, tops)
        assert kernel is KERNELS["simulate"]
        assert why == f"auto: {reason}"


def test_a_recurrence_counts_with_its_time_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_by_measurement", lambda case: "measured")
    x, w = torch.zeros(35, 4), torch.zeros(256, 4)
    found = [
        decide_kernel(
            LINEAR, x, w, tops=(8, 8, 8), weight_grids=1, recurrence=Recurrence(1, steps, (256, 64))
        )
        for steps in (1, 64)  # 2^14 multiplications each
    ]
    assert found[0][1] == "auto: too small to gain"
    assert found[1] == "measured"


def test_large_products_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(choice, "_by_measurement", lambda case: seen.append(case) or "chosen")
    assert _decide(tops=(8, 7, None), grids=2) == "chosen"
    (case,) = seen
    assert case.a_shape == case.w_shape == (128, 128)
    assert case.tops == (8, 7, None)
    assert case.weight_grids == 2
    assert (case.device, case.is_channels_last) == ("cpu", False)
    assert case.num_threads == torch.get_num_threads()


def _times(**by_kernel: float) -> list[dict[str, float]]:
    base = {"simulate": 1.0, "dequantize": 1.5, "int8": 2.0}
    return [base | by_kernel for _ in range(3)]


def test_each_product_gets_its_fastest_kernel_if_that_beats_simulate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for times, name, reason in (
        (_times(int8=0.25), "int8", "auto: measured, products take 0.25 of simulate's time"),
        (_times(dequantize=1.05), "dequantize", "measured, products take 1.05 of simulate's"),
        (_times(dequantize=1.2), "simulate", "measured, dequantize/dequantize/dequantize products"),
        (
            [*_times(int8=0.5)[:1], *_times(bf16=0.4)[:1], *_times(int8=0.6, bf16=0.7)[:1]],
            "int8/bf16/int8",
            "auto: measured, products take 0.50 of simulate's time",
        ),
    ):
        monkeypatch.setattr(choice, "time_products", lambda case, bf16, t=times: t)
        choice._by_measurement.cache_clear()
        try:
            kernel, why = _decide()
        finally:
            choice._by_measurement.cache_clear()
        assert kernel == make_kernel(name)
        assert reason in why


def test_a_measurement_is_made_once_for_each_case(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def time_products(case: object, bf16: bool) -> list[dict[str, float]]:
        measured.append(case)
        return _times(int8=0.5 if len(measured) == 1 else 5.0)

    monkeypatch.setattr(choice, "time_products", time_products)
    choice._by_measurement.cache_clear()
    try:
        first, again = _decide()[0], _decide()[0]
        other = _decide(tops=(4, 4, 8))[0]
        turned = _decide(torch.zeros(256, 128))[0]
    finally:
        choice._by_measurement.cache_clear()
    assert first is again
    assert len(measured) == 3
    assert [kernel.name for kernel in (first, other, turned)] == ["int8", "simulate", "simulate"]


@pytest.mark.parametrize(
    ("geometry", "a", "w"),
    [
        (LINEAR, torch.zeros(96, 128), torch.zeros(96, 128)),
        (MatMulGeometry(), torch.zeros(2, 96, 64), torch.zeros(2, 64, 96)),
        (
            ConvGeometry((1, 1), (1, 1), (1, 1), 1),
            torch.zeros(2, 16, 16, 16).to(memory_format=torch.channels_last),
            torch.zeros(16, 16, 3, 3),
        ),
    ],
)
def test_a_real_measurement_gives_a_kernel_that_its_name_makes_again(geometry, a, w) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    kernel, reason = decide_kernel(geometry, a, w, tops=(8, 7, 8), weight_grids=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert make_kernel(kernel.name) == kernel
    assert reason.startswith("auto: measured, ")
    assert reason.endswith("of simulate's time")
    again, same_reason = decide_kernel(geometry, a, w, tops=(8, 7, 8), weight_grids=1)
    assert again is kernel
    assert same_reason == reason


@pytest.mark.usefixtures("_no_clock")
def test_processes_of_one_training_do_not_go_by_their_clocks(
    bf16: bool, exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    for tops, together in (((8, 8, 8), 16), ((8, 7, 7), 15), ((4, 4, None), 12)):
        kernel, reason = _decide(tops=tops)
        if together > exact:
            assert kernel is KERNELS["simulate"]
            assert reason == "auto: no exact int8 arithmetic for these bits"
        else:
            assert kernel.name == ("int8/bf16/int8" if bf16 else "int8")
            assert "not measured" in reason


# -- on a layer -----------------------------------------------------------------------------------


def _large_layer() -> nn.Module:
    return bc.quantize_model(nn.Linear(128, 128))


def test_a_layer_decides_in_its_first_training_step_with_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def decide(geometry, a, w, *, tops, weight_grids, recurrence):
        asked.append(tops)
        return KERNELS["dequantize"], "auto: said so"

    monkeypatch.setattr("bitcycle.nn.layer.decide_kernel", decide)
    layer, x = _large_layer(), torch.randn(128, 128)
    layer(x)  # no bits
    bc.set_precision(layer, "w3a5e6")
    with pytest.warns(bc.warnings.BitcycleWarning, match="never observed"):
        layer.eval()(x)
    layer.train()(x[:0])  # shapes of nothing
    assert asked == []
    assert bc.audit(layer)[""].kernel == "auto"
    layer(x)
    layer(x)
    assert asked == [(7, 4, 7)]  # act, weight, error: rounded up to what makes a difference
    row = bc.audit(layer)[""]
    assert (row.kernel, row.reason) == ("dequantize", "auto: said so")


def test_a_small_layer_is_simulated_and_the_audit_says_why() -> None:
    layer = bc.quantize_model(nn.Linear(8, 8))
    bc.set_precision(layer, "w4a4e4")
    layer(torch.randn(4, 8))
    row = bc.audit(layer)[""]
    assert (row.kernel, row.reason) == ("simulate", "auto: too small to gain")


@pytest.mark.usefixtures("_no_clock")
@pytest.mark.parametrize("kernel", ["int8", "bf16", "dequantize", "simulate"])
def test_a_forced_kernel_is_never_reconsidered(kernel: str) -> None:
    layer = bc.quantize_model(nn.Linear(128, 128), kernel=kernel)
    named = bc.audit(layer)[""].kernel
    bc.set_precision(layer, "w8a8e8")
    layer(torch.randn(128, 128)).sum().backward()
    assert bc.audit(layer)[""].kernel == named
    assert bc.audit(layer)[""].reason.startswith("asked for")
