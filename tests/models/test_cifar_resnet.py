"""Tests of the CIFAR ResNets: sizes, costs, shapes."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from bitcycle.models import build_model

from .counting import count, millions, num_parameters, on_meta

# parameters for 10 and for 100 classes
PARAMETERS = [
    ("resnet38", 564_122, 569_972),
    ("resnet74", 1_147_418, 1_153_268),
    ("resnet110", 1_730_714, 1_736_564),
    ("resnet152", 2_411_226, 2_417_076),
    ("resnet164", 2_605_658, 2_611_508),
]

# MACs and K (MACs + 2 x batch-normalized elements) of one 32x32 image, 100 classes, in millions
COSTS = [
    ("resnet38", "83.286", "84.032"),
    ("resnet74", "168.221", "169.655"),
    ("resnet110", "253.156", "255.277"),
    ("resnet152", "352.246", "355.171"),
    ("resnet164", "380.558", "383.711"),
]


@pytest.mark.parametrize(("name", "ten", "hundred"), PARAMETERS)
def test_parameter_counts_are_the_published_ones(name, ten, hundred):
    assert num_parameters(on_meta(partial(build_model, name))) == ten
    assert num_parameters(on_meta(partial(build_model, name, num_classes=100))) == hundred


@pytest.mark.parametrize(("name", "macs", "cost"), COSTS)
def test_costs_are_the_published_ones(name, macs, cost):
    counts = count(on_meta(partial(build_model, name, num_classes=100)))
    assert (millions(counts.macs, 3), millions(counts.paper_cost, 3)) == (macs, cost)


@pytest.mark.parametrize("depth", [8, 14, 20, 38, 74, 110, 152, 164])
def test_the_depth_counts_the_layers_on_the_longest_path(depth):
    model = on_meta(partial(build_model, f"resnet{depth}"))
    names = [name for name, _ in model.named_modules()]
    convs = [name for name in names if name.rpartition(".")[2].startswith("conv")]
    assert len(convs) + 1 == depth  # and the FC; shortcuts run beside them


@pytest.mark.parametrize("depth", [8, 164])
def test_only_the_first_blocks_of_groups_2_and_3_have_a_projection(depth):
    model = on_meta(partial(build_model, f"resnet{depth}"))
    names = [name for name, _ in model.named_modules() if name.endswith("downsample")]
    assert names == ["layer2.0.downsample", "layer3.0.downsample"]


def test_the_groups_work_at_full_half_and_quarter_resolution():
    model = build_model("resnet8")
    shapes = []
    for group in (model.layer1, model.layer2, model.layer3):
        group.register_forward_hook(lambda module, args, out: shapes.append(tuple(out.shape)))
    model(*model.example_inputs(2))
    assert shapes == [(2, 16, 32, 32), (2, 32, 16, 16), (2, 64, 8, 8)]


def test_width_channels_and_classes_are_options():
    model = build_model("resnet8", width=4, in_channels=1, num_classes=7)
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 7)
    assert model.fc.in_features == 16
