"""What "auto" takes on a GPU, and the reason that the audit shows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

import bitcycle as bc
from benchmarks import gpu_roofline
from bitcycle.gpu import blocks, driver, grids, integers, maps
from bitcycle.kernels import choice
from bitcycle.kernels.choice import TABLE_SWITCH, TableRow, decide_kernel, table_text
from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.quantizers.base import QUANTIZERS
from bitcycle_lab.bench import tune

from .emulated import counted, is_emulated

emulated_only = pytest.mark.skipif(not is_emulated(), reason="a real device has kernels")
DEVICE = torch.device("cuda")
ROOFLINE = "auto: gpu, by a table from the roofline, never measured"


@pytest.fixture
def ready(monkeypatch):
    """A GPU of class sm_80 that "auto" holds for able to run kernels; products run without."""
    monkeypatch.setattr(choice.driver, "missing_reason", lambda: None)
    monkeypatch.setattr(driver, "is_ready", lambda: False)
    monkeypatch.setattr(driver, "device_class", lambda index: "sm_80")


@pytest.fixture
def table(monkeypatch, tmp_path):
    """A table with one row: `gpu` for linear layers on sm_80 from 2^12 multiply-accumulates on."""
    row = TableRow(
        processor="sm_80", layer="linear", top=8, macs_from=1 << 12, rows_from=0, kernel="gpu",
        ratio=0.25,
    )  # fmt: skip
    path = tmp_path / "kernels.csv"
    path.write_text(table_text([row]))
    monkeypatch.setenv(TABLE_SWITCH, str(path))


def decide(tokens: int, device: str = "cuda") -> tuple[str, str]:
    sizes = (tokens, 1024), (1024, 1024)
    a, w = (torch.empty(size, device=device) for size in sizes)
    kernel, reason = decide_kernel(LinearGeometry(), a, w, tops=(8, 8, 8))
    return kernel.name, reason


def converted(bits: str = "w8a8e8") -> nn.Module:
    model = bc.quantize_model(nn.Sequential(nn.Linear(16, 16)).cuda())
    bc.set_precision(model, bits)
    return model


def step(model: nn.Module, tokens: int = 64) -> None:
    model(torch.ones(tokens, 16, device="cuda")).sum().backward()


def audited(model: nn.Module) -> tuple[str, str]:
    found = bc.audit(model)["0"]
    return found.kernel, found.reason


@emulated_only
def test_without_kernels_the_audit_names_what_is_missing():
    model = converted()
    step(model)
    assert audited(model) == ("simulate", f"auto: {driver.missing_reason()}")
    assert driver.SWITCH in driver.missing_reason()


def test_the_size_decides_by_the_shipped_table(ready):
    assert decide(512) == ("gpu", ROOFLINE)  # 2^29 multiply-accumulates
    assert decide(64) == ("simulate", "auto: too small to gain")


def test_a_users_table_decides_and_evaluation_follows_training(ready, table):
    model = converted()
    step(model)
    chosen = "gpu", "auto: gpu, 0.25 of simulate's time in the table for sm_80"
    assert audited(model) == chosen
    with torch.no_grad():
        model.eval()(torch.ones(1, 16, device="cuda"))  # too small, had it to decide
    assert audited(model) == chosen
    few = converted()
    step(few, 8)
    assert audited(few) == ("simulate", "auto: too small to gain")


def test_an_evaluation_decides_where_nothing_was_trained(ready, table):
    model = converted()
    model.eval()
    with torch.no_grad(), pytest.warns(bc.BitcycleWarning):
        model(torch.ones(64, 16, device="cuda"))
    assert audited(model)[0] == "gpu"


def test_data_that_is_on_no_device_yet_decides_as_on_a_cpu(ready, monkeypatch):
    monkeypatch.setattr(choice, "instruction_set", lambda: "avx2")
    assert decide(512, "meta") == decide(512, "cpu")
    assert decide(512, "meta")[0] == "native"


@pytest.mark.parametrize(("bits", "why"), [("w9a8e8", "more than 8 bits"), ("a8e8", "float32")])
def test_what_codes_cannot_carry_is_simulated(ready, table, bits, why):
    model = converted(bits)
    step(model)
    kernel, reason = audited(model)
    assert kernel == "simulate"
    assert why in reason


def test_the_decision_is_traced_into_one_graph_that_serves_all_bits(ready, table):
    model, graphs = converted(), []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=keep, fullgraph=True)
    for bits in ("w8a8e8", "w7a8e8", "w8a8e8"):
        bc.set_precision(model, bits)
        step(compiled)
    assert len(graphs) == 1
    assert audited(model)[0] == "gpu"


@emulated_only
def test_a_decision_costs_later_steps_nothing(ready, table, monkeypatch):
    model = converted()
    step(model)
    monkeypatch.setattr("bitcycle.nn.layer.decide_kernel", None)
    with counted() as counts:
        step(model)
    assert (counts.uploads, counts.reads, counts.waits) == (0, 0, 0)


@emulated_only
def test_a_gpu_is_measured_as_its_class_and_waited_for(ready, monkeypatch, tmp_path):
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    before, lines = torch.get_rng_state(), []
    rows = tune.measure_table(DEVICE, is_quick=True, say=lines.append)
    assert {row.processor for row in rows} == {"sm_80"}
    assert {row.source for row in rows} == {"measured"}
    assert {row.kernel for row in rows} <= {"simulate", "gpu"}
    assert all("simulate " in line and "gpu " in line for line in lines)
    assert len(lines) == tune.count_cases(DEVICE, is_quick=True)
    assert waits == [DEVICE] * len(waits)
    assert len(waits) >= 4 * len(lines)  # two kernels, warmed up and timed
    assert torch.equal(torch.get_rng_state(), before)
    path = tmp_path / "kernels.csv"
    tune.write_table(path, rows, DEVICE)
    name = f"# sm_80: {torch.cuda.get_device_name(DEVICE)}, measured, torch {torch.__version__}"
    assert name in path.read_text().splitlines()


def test_the_ladder_of_a_gpu_goes_further():
    for layer in {case.layer for case in tune.cases()}:
        ours, cpu = (
            [case.macs for case in tune.cases(device) if case.layer == layer]
            for device in (DEVICE, tune.CPU)
        )
        assert ours == sorted(set(ours))
        assert set(ours) > set(cpu)
        assert ours[-1] > 8 * cpu[-1]


@emulated_only
@pytest.mark.parametrize("kernel", ["simulate", "gpu"])
@pytest.mark.parametrize(
    "kind", ["linear", "matmul", "convolution", "pointwise", "pointwise, channels last"]
)
def test_the_launches_of_the_roofline_are_those_of_a_step(kind, kernel, monkeypatch):
    made = []
    monkeypatch.setattr(driver, "is_ready", lambda: True)
    for module in (grids, blocks, integers, maps):
        monkeypatch.setattr(module, "launch", lambda *args, **constants: not made.append(args[0]))
    build, shape, size = {
        "linear": (lambda: nn.Linear(64, 64), (2, 64, 64), gpu_roofline.linear(1, 1, 1)),
        "matmul": (bc.MatMul, (2, 64, 64), gpu_roofline.matmul(1, 1, 1)),
        "convolution": (
            lambda: nn.Conv2d(8, 8, 3, padding=1, bias=False), (2, 8, 8, 8),
            gpu_roofline.convolution(1, 1, 1),
        ),
        "pointwise": (
            lambda: nn.Conv2d(8, 8, 1, bias=False), (2, 8, 8, 8), gpu_roofline.pointwise(1, 1, 1)
        ),
    }[kind.removesuffix(", channels last")]  # fmt: skip
    layer = bc.quantize_model(build(), kernel=kernel).cuda()
    bc.set_precision(layer, "w8a8e8")
    layout = torch.channels_last if "last" in kind else torch.contiguous_format
    error, *inputs = (
        torch.zeros(shape, device="cuda").contiguous(memory_format=layout)
        for _ in range(2 + (kind == "matmul"))
    )
    for _ in range(2):
        for x in (*inputs, *layer.parameters()):
            x.requires_grad_().grad = None
        made.clear()
        with counted() as counts:
            layer(*inputs).backward(error)
    torchs = {name: n for name, (n, _) in counts.operations.items()}
    assert len(made) + sum(torchs.values()) == len(gpu_roofline.STEPS[kernel](size)), torchs


@pytest.mark.parametrize(
    ("conv", "note"),
    [
        (lambda: nn.Conv2d(8, 8, 1, stride=2), ""),
        (lambda: nn.Conv2d(8, 8, 1, padding="same", dilation=3), ""),
        (lambda: nn.Conv1d(8, 8, 1), ""),
        (lambda: nn.Conv3d(8, 8, 1), ""),
        (lambda: nn.Conv2d(8, 8, 1, padding=1), "; bfloat16 products"),
        (lambda: nn.Conv2d(8, 8, 3), "; bfloat16 products"),
        (
            lambda: nn.Conv2d(8, 8, 1, groups=2),
            "; multiplies in float32: a convolution in groups",
        ),
        (
            lambda: nn.ConvTranspose2d(8, 8, 1),
            "; multiplies in float32: a transposed convolution",
        ),
    ],
)
def test_the_audit_says_which_convolutions_are_no_products_of_integers(
    conv, note, ready, monkeypatch
):
    model = bc.quantize_model(nn.Sequential(conv()).cuda(), kernel="gpu")
    assert audited(model) == ("gpu", "asked for" + note)
    moved = bc.quantize_model(nn.Sequential(conv()), kernel="gpu")
    assert "bfloat16" not in audited(moved)[1]  # float32 products on a CPU
    assert audited(moved.cuda()) == ("gpu", "asked for" + note)
    monkeypatch.setattr(driver, "is_ready", lambda: True)
    monkeypatch.setattr(driver, "is_available", lambda *args: False)
    for name, format_name in (("fp8", "fp8"), ("mx", "mxfp8")):
        model = bc.quantize_model(nn.Sequential(conv()).cuda(), QUANTIZERS[name](), kernel="gpu")
        bc.set_precision(model, format_name)
        model(torch.randn(2, 8, *(5,) * (model[0].weight.dim() - 2), device="cuda"))
        assert "output in float32: only linear layers do better" in audited(model)[1]


def test_auto_takes_another_row_of_the_table_for_1x1_convolutions(ready, monkeypatch, tmp_path):
    rows = [
        TableRow(
            processor="sm_80", layer=layer, top=8, macs_from=0, rows_from=0, kernel="gpu",
            ratio=ratio,
        )
        for layer, ratio in (("convolution", 0.5), ("pointwise", 0.25))
    ]  # fmt: skip
    path = tmp_path / "kernels.csv"
    path.write_text(table_text(rows))
    monkeypatch.setenv(TABLE_SWITCH, str(path))
    model = bc.quantize_model(nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3)).cuda())
    bc.set_precision(model, "w8a8e8")
    with pytest.warns(bc.BitcycleWarning):
        model.eval()(torch.ones(2, 4, 8, 8, device="cuda"))
    reasons = [bc.audit(model)[name].reason for name in "01"]
    assert reasons == [
        "auto: gpu, 0.25 of simulate's time in the table for sm_80",
        "auto: gpu, 0.50 of simulate's time in the table for sm_80; bfloat16 products",
    ]


def test_auto_decides_anew_on_another_device(ready):
    model = bc.quantize_model(nn.Sequential(nn.Linear(16, 16)))
    bc.set_precision(model, "w8a8e8")
    model(torch.ones(64, 16)).sum().backward()
    on_cpu = model[0].kernel_reason
    step(model.cuda())
    assert model[0].kernel.name == "simulate"
    assert model[0].kernel_reason not in ("", on_cpu)


@pytest.mark.parametrize("name", ["native", "gpu"])
def test_a_kernel_that_was_asked_for_gives_the_reason_of_its_device(name, ready):
    converted_there = bc.quantize_model(nn.Sequential(nn.Linear(4, 4)).cuda(), kernel=name)
    moved = bc.quantize_model(nn.Sequential(nn.Linear(4, 4)), kernel=name).cuda()
    assert moved[0].kernel_reason == converted_there[0].kernel_reason
    assert moved[0].settings.is_asked_for
