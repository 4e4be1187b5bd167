"""What a step launches with Triton kernels, in literal numbers; a real device counts nothing."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.formats.rounding import round_elements
from bitcycle.nn.control import LEVELS
from bitcycle.quantizers.base import QUANTIZERS, OperandView

from .emulated import Counts, counted, is_emulated

pytestmark = [
    pytest.mark.skipif(not is_emulated(), reason="a real device counts nothing"),
    pytest.mark.parametrize("rounding", ["triton"], indirect=True),
]

PRECISIONS = {
    "sbm": ("sbm", "FW8/BW8"),
    "fp8": ("fp8", "FWfp8/BWe5m2"),
    "mxfp8": ("mx", "FWmxfp8/BWmxfp8"),
    "nvfp4": ("nvfp4", "FWnvfp4/BWnvfp4"),
}


def linear(
    name: str, kernel: str, dtype: torch.dtype = torch.float32
) -> tuple[nn.Module, Tensor, Tensor]:
    """A layer after its first step, an input and an error."""
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(64, 32, device="cuda", dtype=dtype)
    if name != "float":
        quantizer, precision = PRECISIONS[name]
        bc.quantize_model(layer, QUANTIZERS[quantizer](), kernel=kernel)
        bc.set_precision(layer, precision)
    x = torch.randn(48, 64, generator=generator).to("cuda", dtype).requires_grad_()
    error = torch.randn(48, 32, generator=generator).to("cuda", dtype)
    step(layer, x, error)
    return layer, x, error


def step(layer: nn.Module, x: Tensor, error: Tensor) -> tuple[Tensor, Counts]:
    x.grad = None
    layer.zero_grad()
    with counted() as counts:
        output = layer(x)
        output.backward(error)
    return output.detach(), counts


def launches_of(counts: Counts) -> dict[str, int]:
    """Launches by operator or kernel."""
    return {name.removeprefix("triton::"): n for name, (n, _) in counts.operations.items()}


FLOAT = {"addmm": 1, "mm": 2, "sum": 1}  # the sum: of the bias
SBM = {"aminmax": 1, "range": 2, "encode": 3, "count_up": 1, "observe": 1, "flag_nonfinite": 2}
FP8 = {"amax": 6, "round_in_blocks": 6, "count_up": 1}
MXFP8 = {"round_in_blocks": 6, "count_up": 1}
# copy_, add: the clock of a second noise, for the error that is rounded twice
NVFP4 = {
    "amax": 4, "amax_of_transform": 2, "round_in_blocks": 6, "count_up": 1, "copy_": 1, "add": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "total", "expected"),
    [
        ("float", 4, FLOAT),
        ("sbm", 14, FLOAT | SBM),
        ("fp8", 17, FLOAT | FP8),
        ("mxfp8", 11, FLOAT | MXFP8),
        ("nvfp4", 19, FLOAT | NVFP4),
    ],
)
def test_a_step_of_a_linear_layer_with_float_products(name, total, expected):
    _, counts = step(*linear(name, "simulate"))
    assert launches_of(counts) == expected
    assert counts.launches == total
    assert (counts.uploads, counts.reads, counts.waits) == (0, 0, 0)


def test_a_step_of_a_linear_layer_with_products_of_codes():
    layer, x, error = linear("sbm", "gpu")
    output, counts = step(layer, x, error)
    launches = launches_of(counts)
    assert not {"addmm", "mm"} & launches.keys()
    assert {each: launches[each] for each in SBM} == SBM
    assert (launches["multiply"], launches["multiply_folded"]) == (2, 1)
    assert counts.launches == 17
    assert (counts.uploads, counts.reads, counts.waits) == (0, 0, 0)
    gradients = layer.weight.grad, x.grad
    reference, x, error = linear("sbm", "simulate")
    reference.load_state_dict(layer.state_dict())
    expected, _ = step(reference, x, error)
    for ours, theirs in zip(
        (output, *gradients), (expected, reference.weight.grad, x.grad), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_products_of_codes_write_bfloat16_without_a_launch_more():
    layer, x, error = linear("sbm", "gpu", torch.bfloat16)
    output, counts = step(layer, x, error)
    launches = launches_of(counts)
    assert (launches["multiply"], launches["multiply_folded"]) == (2, 1)
    # to float32: three operands and both ends of a range; to bfloat16: the gradient of the bias
    assert launches["copy_"] == 6
    assert counts.launches == 17 + 6
    for each in (output, layer.weight.grad, x.grad):
        assert each.dtype == torch.bfloat16


def test_an_evaluation_copies_no_control():
    layer, x, _ = linear("sbm", "simulate")
    layer.eval()
    with torch.no_grad():
        layer(x)
        with counted() as counts:
            layer(x)
    assert launches_of(counts) == {
        "range": 1, "encode": 2, "flag_nonfinite": 1, "addmm": 1, "copy_": 1, "add": 1,
    }  # fmt: skip


@pytest.mark.parametrize("role", ["weight", "error"])
def test_rounding_an_operand_to_integers_is_two_launches(role):
    x, levels = torch.randn(96, 160, device="cuda"), torch.tensor(255, dtype=torch.int32).cuda()
    keep, key = ((0,), None) if role == "weight" else ((), torch.zeros(3, dtype=torch.int32).cuda())
    with counted() as counts:
        QUANTIZERS["sbm"]().quantize(role, x, levels, keep, key, as_codes=True)
    assert launches_of(counts) == {"range": 1, "encode": 1}
    # both read the tensor, one writes codes; the rest are ranges and grids
    assert counts.bytes / x.numel() == pytest.approx(4 + 4 + 1, rel=0.05)


@pytest.mark.parametrize(("name", "launches"), [("fp8", 2), ("mx", 1), ("nvfp4", 2)])
def test_rounding_an_operand_to_blocks(name, launches):
    x = torch.randn(48, 64, device="cuda")
    rule, flag = QUANTIZERS[name](), torch.zeros((), device="cuda")
    numbers = torch.tensor(bc.bits.Bits.of({"mx": "mxfp8"}.get(name, name)).numbers).int().cuda()
    with counted() as counts:
        rule.round_in_blocks(x, numbers, OperandView("output", x.shape, 1), flag=flag)
    assert counts.launches == launches
    assert not flag.isnan()


@pytest.mark.parametrize(
    ("name", "value"), [*((name, math.inf) for name in (*PRECISIONS, "fp16")), ("sbm", math.nan)]
)
@pytest.mark.parametrize("role", ["act", "weight", "error"])
def test_what_is_not_finite_is_flagged(role, name, value):
    layer, x, error = linear("sbm" if name == "fp16" else name, "simulate")
    if name == "fp16":
        bc.set_precision(layer, "FWfp16/BWfp16")
    step(layer, x, error)
    assert not layer.health.isnan().any()
    spoiled = {"act": x, "weight": layer.weight, "error": error}[role]
    with torch.no_grad():
        spoiled[3, 5] = value
    step(layer, x, error)
    assert layer.health[LEVELS[role]].isnan()
    if role == "error":
        assert layer.health.isnan().sum() == 1


def test_rounding_to_fp16_is_one_launch():
    x, flag = torch.randn(48, 64, device="cuda"), torch.zeros((), device="cuda")
    numbers = torch.tensor(bc.bits.Bits.of("fp16").numbers, dtype=torch.int32).cuda()
    with counted() as counts:
        round_elements(x, numbers, flag=flag)
    assert counts.launches == 1
