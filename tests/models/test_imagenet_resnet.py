"""Tests of the ImageNet ResNets: torchvision's keys, sizes and costs."""

from __future__ import annotations

from functools import partial

import pytest

from bitcycle.models import build_model

from .counting import count, millions, num_parameters, on_meta

# parameters, and entries of the state dict, of torchvision's models of the same depth
SIZES = [
    ("imagenet_resnet18", 11_689_512, 122),
    ("imagenet_resnet34", 21_797_672, 218),
    ("imagenet_resnet50", 25_557_032, 320),
]

# MACs and K (MACs + 2 x batch-normalized elements) of one 224x224 image, in millions
COSTS = [
    ("imagenet_resnet18", "1814.07", "1819.04"),
    ("imagenet_resnet34", "3663.76", "3671.24"),
    ("imagenet_resnet50", "4089.18", "4111.41"),
]

BATCH_NORM = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]


@pytest.mark.parametrize(("name", "parameters", "entries"), SIZES)
def test_sizes_are_torchvisions(name, parameters, entries):
    model = on_meta(partial(build_model, name))
    assert num_parameters(model) == parameters
    assert len(model.state_dict()) == entries


@pytest.mark.parametrize(("name", "macs", "cost"), COSTS)
def test_costs_are_the_published_ones(name, macs, cost):
    counts = count(on_meta(partial(build_model, name)))
    assert (millions(counts.macs, 2), millions(counts.paper_cost, 2)) == (macs, cost)


def test_the_keys_of_resnet18_are_torchvisions_in_its_order():
    expected = ["conv1.weight", *[f"bn1.{key}" for key in BATCH_NORM]]
    for group in (1, 2, 3, 4):
        for block in (0, 1):
            parts = ["conv1", "bn1", "conv2", "bn2"]
            if group > 1 and block == 0:
                parts += ["downsample.0", "downsample.1"]
            for part in parts:
                is_conv = "conv" in part or part.endswith(".0")
                for key in ["weight"] if is_conv else BATCH_NORM:
                    expected.append(f"layer{group}.{block}.{part}.{key}")
    expected += ["fc.weight", "fc.bias"]
    assert list(on_meta(partial(build_model, "imagenet_resnet18")).state_dict()) == expected


def test_shapes_of_resnet50_are_torchvisions():
    state = on_meta(partial(build_model, "imagenet_resnet50")).state_dict()
    expected = {
        "conv1.weight": (64, 3, 7, 7),
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.0.conv2.weight": (64, 64, 3, 3),
        "layer1.0.conv3.weight": (256, 64, 1, 1),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer1.0.downsample.1.running_var": (256,),
        "layer1.1.conv1.weight": (64, 256, 1, 1),
        "layer2.0.downsample.0.weight": (512, 256, 1, 1),
        "layer3.5.bn3.num_batches_tracked": (),
        "layer4.2.conv3.weight": (2048, 512, 1, 1),
        "fc.weight": (1000, 2048),
        "fc.bias": (1000,),
    }
    assert {key: tuple(state[key].shape) for key in expected} == expected


def test_the_stride_of_a_bottleneck_is_on_its_3x3():
    block = on_meta(partial(build_model, "imagenet_resnet50")).layer2[0]
    assert [conv.stride for conv in (block.conv1, block.conv2, block.conv3)] == [
        (1, 1),
        (2, 2),
        (1, 1),
    ]
