"""Linear layers in FP8, MX and NVFP4 on tensor cores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import bitcycle as bc
from benchmarks import gpu_roofline
from bitcycle.gpu import driver
from bitcycle.kernels import choice, scaled
from bitcycle.kernels.choice import TABLE_SWITCH, TableRow, decide_kernel, table_text
from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.quantizers.blocks import FP8, MX, NVFP4

from .emulated import counted, is_emulated
from .models import assert_close, set_step, state_of

emulated_only = pytest.mark.skipif(not is_emulated(), reason="of the emulated device")

# quantizer, bits, the class of the GPU
CASES = {
    "fp8": (FP8(), "fp8", "sm_89"),
    "fp8, row": (FP8(granularity="row"), "fp8", "sm_90"),
    "fp8, block": (FP8(granularity="block"), "fp8", "sm_90"),
    "mxfp8": (MX(), "mxfp8", "sm_100"),
    "mxfp4, rceil": (MX(scale="rceil"), "mxfp4", "sm_120"),
    "mxfp6": (MX(error_rounding="stochastic"), "mxfp6_e3m2", "sm_100"),
    "nvfp4": (NVFP4(), "nvfp4", "sm_100"),
    "nvfp4, plain": (NVFP4(weight_tiles=False, hadamard=False), "nvfp4", "sm_103"),
}


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the device one of a class."""
    if not is_emulated():
        pytest.skip("a real device has a class")
    return lambda name: monkeypatch.setattr(driver, "device_class", lambda index: name)


def make(quantizer: Any, bits: str, kernel: str, tokens: tuple[int, ...] = (3, 15)) -> Any:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(72, 40), nn.ReLU(), nn.Linear(40, 24, bias=False))
        x = torch.randn(*tokens, 72)
    model = bc.quantize_model(model.cuda(), quantizer, kernel=kernel)
    bc.set_precision(model, bits)
    set_step(model, 3)
    return model, x.cuda().requires_grad_()


def steps(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    output = model(x)
    output.square().mean().backward()
    return {**state_of(model), "output": output.detach().cpu(), "input.grad": x.grad.cpu()}


@pytest.mark.parametrize("rounding", ["torch", "triton"], indirect=True)
@pytest.mark.parametrize("case", CASES)
def test_products_of_tensor_cores_are_those_of_values(case, on, monkeypatch, rounding):
    quantizer, name, device_class = CASES[case]
    on(device_class)
    bits = f"FW{name}/BW{name}"
    monkeypatch.setattr(driver, "is_ready", lambda: True)
    if rounding == "torch":
        monkeypatch.setattr(driver, "is_available", lambda *args: False)
    found = []
    for kernel in ("gpu", "simulate"):
        model, x = make(quantizer, bits, kernel)
        with counted() as counts:
            found.append(steps(model, x))
        assert counts.operations.get("scaled_mm", (0,))[0] == (6 if kernel == "gpu" else 0)
    assert_close(*found, 2**-10)  # an error that is rounded to another element counts


def linear(device_class: str, on: Any, monkeypatch: Any, quantizer: Any, bits: str) -> Any:
    """A model with kernel `gpu`, what the device did in its second step, and its state."""
    on(device_class)
    monkeypatch.setattr(driver, "is_ready", lambda: True)
    monkeypatch.setattr(driver, "is_available", lambda *args: False)
    model, x = make(quantizer, bits, "gpu")
    steps(model, x)
    with counted() as counts:
        model(x).square().mean().backward()
    return model, counts, state_of(model)


ALL = ("output", "grad_input", "grad_weight")
NO_ELEMENT = "an operand has no element of tensor cores"
NO_PAIR = "tensor cores do not multiply e5m2 by e5m2"
IN_BLOCKS, BY_ROW = FP8(granularity="block"), FP8(granularity="row")


@pytest.mark.parametrize(
    ("device_class", "quantizer", "bits", "matmuls", "why"),
    [
        ("sm_80", FP8(), "FWfp8/BWfp8", ALL, "FP8 needs compute capability 8.9"),
        (
            "sm_100",
            IN_BLOCKS,
            "FWfp8/BWfp8",
            ALL,
            "FP8 in blocks of 128 needs compute capability 9.0",
        ),
        ("sm_90", NVFP4(), "FWnvfp4/BWnvfp4", ALL, "NVFP4 needs compute capability 10.0"),
        ("gfx942", FP8(), "FWfp8/BWfp8", ALL, "FP8 needs a GPU of NVIDIA"),
        ("sm_100", MX(), "FWmxint8/BWmxint8", ALL, NO_ELEMENT),
        ("sm_100", MX(), "FWmxfp8/BWmxint8", ALL[1:], NO_ELEMENT),
        ("sm_100", MX(), "FWmxfp8/BWmxfp8_e5m2", ALL[1:], "MX takes no e5m2"),
        ("sm_90", IN_BLOCKS, "FWfp8/BWe5m2", ALL[1:], "FP8 in blocks of 128 takes no e5m2"),
        ("sm_90", FP8(), "FWfp8/BWe5m2", (), None),
        ("sm_90", FP8(), "FWe5m2/BWfp8", ALL[:1], NO_PAIR),
        ("sm_90", FP8(), "FWe5m2/BWe5m2", ALL, NO_PAIR),
        ("sm_90", BY_ROW, "FWfp8/BWe5m2", (), None),
        (
            "sm_90",
            BY_ROW,
            "FWe5m2/BWfp8",
            ALL[1:],
            "FP8 with a scale per row takes e5m2 as the first operand only",
        ),
    ],
)
def test_what_tensor_cores_do_not_multiply_is_float32_and_named(
    device_class, quantizer, bits, matmuls, why, on, monkeypatch
):
    model, counts, found = linear(device_class, on, monkeypatch, quantizer, bits)
    named = [each for each in ALL if f"{each} in float32: " in bc.audit(model)["0"].reason]
    refused = {*matmuls, *(["output"] if bits.startswith("FWe5m2") else [])}
    assert counts.operations.get("scaled_mm", (0,))[0] == 2 * (3 - len(refused))
    assert set(named) == refused
    kernel, reason = bc.audit(model)["0"].kernel, bc.audit(model)["0"].reason
    assert kernel == "gpu"
    assert all(f"{matmul} in float32: {why}" in reason for matmul in matmuls), reason
    other, x = make(quantizer, bits, "simulate")
    for _ in range(2):
        other(x).square().mean().backward()
    assert_close(found, state_of(other), 2**-10)
    assert not driver.failures()


@pytest.mark.parametrize(
    ("device", "why"),
    [("cuda", "Triton is not installed"), ("cpu", "its kernels are for GPUs, not for cpu")],
)
def test_without_kernels_the_audit_says_only_why_there_are_none(device, why, on, monkeypatch):
    on("sm_90")
    for name, value in (("is_ready", False), ("missing_reason", why)):
        monkeypatch.setattr(driver, name, lambda value=value: value)
    model = bc.quantize_model(nn.Sequential(nn.Linear(8, 8)).to(device), FP8(), kernel="gpu")
    bc.set_precision(model, "FWfp8/BWfp8")
    model(torch.ones(2, 8, device=device)).sum().backward()
    assert bc.audit(model)["0"].reason == f"asked for; float32 products: {why}"


@emulated_only
def test_a_step_uploads_and_reads_nothing(on, monkeypatch):
    for quantizer, bits in ((FP8(), "FWfp8/BWfp8"), (NVFP4(), "FWnvfp4/BWnvfp4")):
        _, counts, _ = linear("sm_100", on, monkeypatch, quantizer, bits)
        assert (counts.uploads, counts.reads, counts.waits) == (0, 0, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_inside_autocast_results_come_in_its_dtype_with_the_bias(dtype, on, monkeypatch):
    on("sm_100")
    monkeypatch.setattr(driver, "is_ready", lambda: True)
    monkeypatch.setattr(driver, "is_available", lambda *args: False)
    made = []
    for kernel in ("gpu", "simulate"):
        model, x = make(MX(), "FWmxfp8/BWmxfp8", kernel)
        with torch.autocast("cuda", dtype):
            output = model(x)
        assert output.dtype is dtype
        output.float().square().mean().backward()
        made.append({**state_of(model), "output": output.detach().float().cpu()})
    assert_close(*made, 2**-7)


def test_an_empty_batch_has_an_empty_output(on, monkeypatch):
    on("sm_90")
    monkeypatch.setattr(driver, "is_ready", lambda: True)
    model, _ = make(FP8(), "FWfp8/BWfp8", "gpu")
    empty = torch.zeros(0, 72, device="cuda", requires_grad=True)
    model(empty).sum().backward()
    assert empty.grad.shape == (0, 72)
    assert float(model[0].weight.grad.abs().sum()) == 0


def test_a_scaled_mm_that_fails_warns_once_and_values_are_multiplied(on, monkeypatch):
    on("sm_90")
    monkeypatch.setattr(driver, "is_ready", lambda: True)
    monkeypatch.setattr(driver, "is_available", lambda *args: False)

    def fail(*args, **kwargs):
        raise NotImplementedError("cuBLAS is too old")

    model, x = make(FP8(granularity="row"), "FWfp8/BWfp8", "gpu")
    monkeypatch.setattr(scaled.F, "scaled_mm", fail)
    with pytest.warns(bc.BitcycleWarning, match="scaled_mm: fp8_row failed: cuBLAS is too old"):
        found = steps(model, x)
    assert driver.failures() == {"scaled_mm: fp8_row": "cuBLAS is too old"}
    other, x = make(FP8(granularity="row"), "FWfp8/BWfp8", "simulate")
    assert_close(found, steps(other, x), 2**-10)


def test_a_scaled_mm_that_fails_in_a_graph_is_a_product_of_values(on, monkeypatch):
    on("sm_100")
    monkeypatch.setattr(driver, "is_ready", lambda: True)
    torch._dynamo.reset()

    def fail(*args, **kwargs):
        raise ValueError("no such configuration")

    monkeypatch.setattr(scaled.F, "scaled_mm", fail)
    model, x = make(NVFP4(), "FWnvfp4/BWnvfp4", "gpu")
    with pytest.warns(bc.BitcycleWarning, match="scaled_mm: nvfp4 failed: no such configuration"):
        torch.compile(model, backend="aot_eager")(x).square().mean().backward()
    other, x = make(NVFP4(), "FWnvfp4/BWnvfp4", "simulate")
    other(x).square().mean().backward()
    assert_close(state_of(model), state_of(other), 2**-10)


def test_collect_sees_the_values(on, monkeypatch):
    on("sm_100")
    monkeypatch.setattr(driver, "is_ready", lambda: True)
    noises = []
    for kernel in ("gpu", "simulate"):
        model, x = make(NVFP4(), "FWnvfp4/BWnvfp4", kernel)
        with bc.collect(model) as found:
            model(x)
        noises.append([found["0", role].sqnr_db for role in ("act", "weight")])
    assert noises[0] == noises[1]


def test_one_graph_serves_a_ladder_of_formats(on, monkeypatch):
    on("sm_100")
    monkeypatch.setattr(driver, "is_ready", lambda: True)
    torch._dynamo.reset()
    counters.clear()
    results = []
    for compiles in (True, False):
        model, x = make(MX(error_rounding="stochastic"), "FWmxfp8/BWmxfp8", "gpu")
        bits = bc.PrecisionScheduler(
            model, forward="CR:mxfp4,mxfp6,mxfp8:1", backward="mxfp8", total_steps=3
        )
        run = torch.compile(model, backend="aot_eager") if compiles else model
        for _ in range(3):
            with counted() as counts:
                run(x).square().mean().backward()
            assert counts.operations["scaled_mm"][0] == 6
            bits.step()
        results.append(state_of(model))
    assert_close(*results, 1e-4)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


HEALING = "stages:nvfp4@0.5,bf16"


def test_the_healing_schedule_multiplies_on_tensor_cores_throughout(on, monkeypatch):
    """Forward in NVFP4 and then in bfloat16, backward in NVFP4: as it is published."""
    on("sm_100")
    monkeypatch.setattr(driver, "is_ready", lambda: True)
    monkeypatch.setattr(driver, "is_available", lambda *args: False)
    products = []
    for kernel in ("gpu", "simulate"):
        model, x = make(NVFP4(), "fp32", kernel)
        bits = bc.PrecisionScheduler(
            model, forward=HEALING, backward="nvfp4", total_steps=4, backward_operands="backward"
        )
        for _ in range(4):
            with counted() as counts:
                output = model(x)
                output.square().mean().backward()
            products.append(counts.operations.get("scaled_mm", (0, 0))[0])
            bits.step()
    assert products == [6, 6, 4, 4] + [0] * 4


def test_auto_takes_tensor_cores_from_a_size_on(on, monkeypatch):
    monkeypatch.setattr(choice.driver, "missing_reason", lambda: None)
    small, large = ((tokens, 1024) for tokens in (64, 512))
    cases = (
        ("sm_100", large, "nvfp4", "gpu", "never measured"),
        ("sm_100", small, "nvfp4", "simulate", "too small to gain"),
        ("sm_90", large, "nvfp4", "simulate", "NVFP4 needs compute capability 10.0"),
        ("sm_90", large, "fp8_block", "gpu", "never measured"),
        ("sm_120", large, "mx", "simulate", "the table has no linear layers in mx for sm_120"),
    )
    w = torch.empty(1024, 1024, device="cuda")
    for device_class, shape, recipe, name, why in cases:
        on(device_class)
        a = torch.empty(shape, device="cuda")
        kernel, reason = decide_kernel(
            LinearGeometry(), a, w, tops=(None, None, None), recipe=recipe, has_scaled=True
        )
        assert (kernel.name, why in reason) == (name, True), reason


def test_auto_multiplies_the_level_bf16_on_tensor_cores(on, monkeypatch):
    on("sm_90")
    monkeypatch.setattr(choice.driver, "missing_reason", lambda: None)
    w = torch.empty(1024, 1024, device="cuda")
    both = {"tops": (None, None, None), "has_bf16": True}
    assert decide_kernel(LinearGeometry(), w, w, **both)[0].name == "bf16"
    on("sm_75")
    kernel, reason = decide_kernel(LinearGeometry(), w, w, **both)
    assert (kernel.name, reason) == ("simulate", "auto: no BF16 tensor cores on sm_75")


def test_auto_is_decided_by_the_formats_of_a_schedule(on, monkeypatch, tmp_path):
    on("sm_100")
    monkeypatch.setattr(driver, "is_ready", lambda: True)
    monkeypatch.setattr(choice.driver, "missing_reason", lambda: None)
    monkeypatch.setattr(driver, "is_available", lambda *args: False)
    row = TableRow(
        processor="sm_100", layer="linear", top="mx", macs_from=0, rows_from=0, kernel="gpu",
        ratio=0.5,
    )  # fmt: skip
    (tmp_path / "kernels.csv").write_text(table_text([row]))
    monkeypatch.setenv(TABLE_SWITCH, str(tmp_path / "kernels.csv"))
    model, x = make(MX(), "fp32", "auto")
    bc.PrecisionScheduler(model, forward="mxfp4", backward="mxfp8", total_steps=4)
    model(x).square().mean().backward()
    found = bc.audit(model)["0"]
    assert (found.kernel, "0.50 of simulate's time" in found.reason) == ("gpu", True)
    on_cpu = bc.quantize_model(nn.Sequential(nn.Linear(8, 8)), MX())
    bc.set_precision(on_cpu, "FWmxfp4/BWmxfp8")
    on_cpu(torch.ones(2, 8)).sum().backward()
    assert bc.audit(on_cpu)["0"].reason == "auto: mx has no integer codes"


@emulated_only
@pytest.mark.parametrize("kernel", ["simulate", "gpu"])
@pytest.mark.parametrize("kind", gpu_roofline.FORMATS)
@pytest.mark.parametrize("rounding", ["triton"], indirect=True)
def test_the_launches_of_the_roofline_are_those_of_a_step(kind, kernel, on, rounding):
    on("sm_100")
    quantizer, name = {"fp8": FP8(), "mx": MX(), "nvfp4": NVFP4()}[kind], {"mx": "mxfp8"}
    layer = bc.quantize_model(nn.Linear(64, 64), quantizer, kernel=kernel).cuda()
    bits = name.get(kind, kind)
    bc.set_precision(layer, f"FW{bits}/BW{bits}")
    x, error = (torch.zeros(2, 64, 64, device="cuda") for _ in range(2))
    for _ in range(2):
        for each in (x, *layer.parameters()):
            each.requires_grad_().grad = None
        with counted() as counts:
            layer(x).backward(error)
    size = gpu_roofline.linear(1, 1, 1)
    of = {"simulate": gpu_roofline.simulate_format, "gpu": gpu_roofline.scaled}[kernel]
    assert counts.launches == len(of(size, kind)), counts.operations
