"""Bytes kept for backward, measured and counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bitcycle as bc
from bitcycle.cost import measure_saved
from bitcycle.kernels import KERNELS
from bitcycle.models import build_model
from tests import toys

FLOAT = 4


def test_a_linear_layer_keeps_its_input() -> None:
    saved = measure_saved(nn.Linear(8, 3), torch.ones(5, 8))
    assert saved.by_layer == {"": 5 * 8 * FLOAT}
    assert saved.num_bytes == 160


def test_parameters_and_buffers_are_not_kept_for_backward() -> None:
    model = nn.BatchNorm1d(8).eval()  # keeps its running statistics and its weight, and the input
    assert measure_saved(model, torch.ones(5, 8)).num_bytes == 5 * 8 * FLOAT


def test_a_storage_counts_once_however_many_views_of_it_are_kept() -> None:
    class Views(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[0] * x[1] + x[1] * x[2]

    x = torch.ones(4, 8, requires_grad=True)
    assert measure_saved(Views(), x).num_bytes == 4 * 8 * FLOAT


def test_what_two_layers_keep_belongs_to_the_first() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    saved = measure_saved(model, torch.ones(5, 8))
    assert saved.by_layer == {"0": 160, "1": 160}
    assert str(saved).splitlines()[-1].split() == ["all", "320"]


def test_a_quantized_layer_keeps_what_its_kernel_keeps() -> None:
    """simulate keeps float32 values on the grid: the input, and the weight for grad_input."""
    model = bc.quantize_model(nn.Linear(64, 48), kernel="simulate")
    bc.set_precision(model, "FW4/BW8")
    x = torch.ones(5, 64, requires_grad=True)
    scales = 2 * (1 + 48) * FLOAT  # at most a scale and an offset of the input and of every row
    both, only_input = (5 * 64 + 64 * 48) * FLOAT, 5 * 64 * FLOAT
    assert both <= measure_saved(model, x).num_bytes <= both + scales
    x.requires_grad_(False)
    assert only_input <= measure_saved(model, x).num_bytes <= only_input + scales


def test_no_kernel_keeps_more_than_the_float_values() -> None:
    for kernel in KERNELS.names():
        model = bc.quantize_model(nn.Linear(64, 48), kernel=kernel)
        bc.set_precision(model, "FW4/BW8")
        saved = measure_saved(model, toys.randn(32, 64)).num_bytes
        elements = 32 * 64
        assert elements // 2 <= saved <= elements * FLOAT + 64  # half a byte is what 4 bits can be


def test_frozen_layers_below_keep_nothing() -> None:
    model = toys.linears(8, 8, 2)
    model[0].requires_grad_(False)
    assert measure_saved(model, torch.ones(5, 8)).by_layer == {"1": 5 * 8 * FLOAT}


def test_gradient_checkpointing_keeps_less() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.body, x, use_reentrant=False)

    x = torch.ones(5, 8, requires_grad=True)
    plain = measure_saved(Checkpointed().body, x).num_bytes
    assert measure_saved(Checkpointed(), x).num_bytes < plain


def test_the_meta_device_gives_the_same_bytes() -> None:
    with torch.device("meta"):
        on_meta = build_model("resnet8")
    model = build_model("resnet8")
    assert measure_saved(on_meta, on_meta.example_inputs(2, device="meta")) == measure_saved(
        model, model.example_inputs(2)
    )


def test_bytes_grow_by_the_same_amount_with_every_sample() -> None:
    model = bc.quantize_model(build_model("resnet8"), kernel="simulate")
    bc.set_precision(model, "FW4/BW8")
    two, four, nine = (measure_saved(model, model.example_inputs(n)).num_bytes for n in (2, 4, 9))
    assert nine == two + (four - two) // 2 * 7


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
