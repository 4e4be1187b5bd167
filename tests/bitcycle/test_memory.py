"""Bytes kept for backward: distinct, alive at the end, and whose."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.cost import measure_saved
from bitcycle.memory import saved_bytes
from bitcycle.nn.control import CONTROL_SIZE
from bitcycle_lab.models import build_model
from tests.bitcycle import toys
from tests.bitcycle.toys import Attention, linears, net, randn

FLOAT = 4


def test_a_linear_layer_keeps_its_input() -> None:
    saved = measure_saved(nn.Linear(8, 3), torch.ones(5, 8))
    assert saved.by_layer == {"": 5 * 8 * FLOAT}
    assert saved.num_bytes == 160


def test_what_two_layers_keep_belongs_to_the_first() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    saved = measure_saved(model, torch.ones(5, 8))
    assert saved.by_layer == {"0": 160, "1": 160}
    assert str(saved).splitlines()[-1].split() == ["all", "320"]


def test_frozen_layers_below_keep_nothing() -> None:
    model = toys.linears(8, 8, 2)
    model[0].requires_grad_(False)
    assert measure_saved(model, torch.ones(5, 8)).by_layer == {"1": 5 * 8 * FLOAT}


def test_the_meta_device_gives_the_same_bytes() -> None:
    with torch.device("meta"):
        on_meta = build_model("resnet8")
    model = build_model("resnet8")
    assert measure_saved(on_meta, on_meta.example_inputs(2, device="meta")) == measure_saved(
        model, model.example_inputs(2)
    )


def test_the_model_and_the_random_state_are_left_as_they_were() -> None:
    model = bc.quantize_model(toys.net())
    bits = bc.PrecisionScheduler(model, forward=4, backward=8, total_steps=9)
    model(toys.randn(2, 2, 6, 6)).sum().backward()
    bits.step()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state = torch.get_rng_state()
    measure_saved(model, toys.randn(2, 2, 6, 6))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with pytest.raises(RuntimeError, match="expected"):
        measure_saved(model, toys.randn(2, 3, 6, 6))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_sparse_tensors_count_their_indices_and_values() -> None:
    class Aggregate(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            edges = torch.eye(2).to_sparse()
            return torch.sparse.mm(edges, x)

    saved = measure_saved(Aggregate(), torch.ones(2, 3, requires_grad=True)).num_bytes
    assert saved == 2 * 2 * 8 + 2 * FLOAT


def test_inputs_parameters_and_buffers_are_left_out() -> None:
    assert saved_bytes(nn.Linear(8, 3), randn(5, 8)).num_bytes == 0
    assert saved_bytes(nn.BatchNorm1d(8).eval(), (randn(5, 8),)).num_bytes == 0
    assert saved_bytes(nn.Linear(8, 3), {"input": randn(5, 8)}).num_bytes == 0


def test_a_storage_counts_once_and_whole() -> None:
    class Views(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x * 1
            return x[0] * x[1] + x[1] * x[2]  # rows of one storage of four

    assert saved_bytes(Views(), randn(4, 8).requires_grad_()).num_bytes == 4 * 8 * FLOAT


def test_what_is_let_go_before_the_end_does_not_count() -> None:
    class Discards(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            (x * 1).exp()  # keeps its output until nobody has it
            return x + 1

    assert saved_bytes(Discards(), randn(8).requires_grad_()).by_layer == {}


def test_a_tensor_hung_on_a_function_is_found() -> None:
    class Hides(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.pair = (x.exp(), 3)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    class Module(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Hides.apply(x)

    saved = saved_bytes(Module(), randn(8).requires_grad_())
    assert saved.by_layer == {}
    assert saved.by_function == {"HidesBackward": 8 * FLOAT}
    assert saved.num_bytes == 8 * FLOAT


def test_a_function_of_the_model_can_add_a_loss_and_exclude_its_tensors() -> None:
    model, x, y = linears(8, 3), randn(5, 8), torch.zeros(5, dtype=torch.long)

    def loss(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(x), y)

    with_all = saved_bytes(model, loss).num_bytes
    without = saved_bytes(model, loss, exclude=[x, y]).num_bytes
    assert with_all - without == 5 * 8 * FLOAT + 5 * 8
    assert without >= 5 * 3 * FLOAT  # log-probabilities


# behind the codes of a whole product: scale, offset, half and range; or scale and offset of each
# of 32 channels, and half
ACT_GRID = 5 * FLOAT
WEIGHT_GRID = (2 * 32 + 1) * FLOAT


@pytest.mark.parametrize("grids", ["shared", "per_input_channel"])
def test_codes_take_their_share_of_the_float_operands(grids: str) -> None:
    is_whole = grids == "shared"
    for bits in (8, 4):
        model = linears(64, 48, 32)
        rules = bc.quantizers.SBM(grad_input_weight=grids)
        bc.quantize_model(model, rules, kernel="native", max_bits=bits)
        bc.set_precision(model, f"w{bits}a{bits}e{bits}")
        saved = saved_bytes(model, randn(100, 64))
        elements = {"0": 100 * 64, "1": 100 * 48 + 48 * 32}  # the first needs no grad_input
        expected = {name: n * bits // 8 for name, n in elements.items()}
        if is_whole:
            expected["0"] += ACT_GRID
            expected["1"] += ACT_GRID + WEIGHT_GRID
        assert saved.codes_by_layer == expected
        codes = sum(expected.values())
        assert str(saved).splitlines()[-1].split() == ["all", f"{saved.num_bytes:,}", f"{codes:,}"]


def test_both_operands_of_a_product_of_activations_are_codes() -> None:
    model = bc.quantize_model(Attention(), kernel="native")
    bc.set_precision(model, "w8a8e8")
    codes = saved_bytes(model, randn(2, 6, 4)).codes_by_layer
    assert codes["scores"] == 2 * (2 * 6 * 4 + ACT_GRID)
    assert codes["mix"] == 2 * 6 * 6 + 2 * 6 * 4 + 2 * ACT_GRID


def test_no_function_of_ours_hides_more_than_a_clock() -> None:
    model = bc.quantize_model(net(), kernel="native")
    bc.set_precision(model, "w8a8e8")
    hidden = saved_bytes(model, randn(4, 2, 6, 6)).by_function
    assert sum(hidden.values()) <= 3 * 4 * CONTROL_SIZE  # a copy of each layer's control tensor


def test_a_converted_conv_bn_relu_net_keeps_less_than_seven_tenths() -> None:
    parts = [
        (nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        for _ in range(3)
    ]
    model = nn.Sequential(*(module for part in parts for module in part))
    x = randn(4, 16, 16, 16)
    before = saved_bytes(model, x).num_bytes
    bc.set_precision(bc.quantize_model(model, kernel="native"), "w8a8e8")
    saved = saved_bytes(model, x)
    assert saved.by_layer["2"] == x.numel() // 8
    assert saved.num_bytes <= 0.7 * before
