"""Tests of MobileNetV2 for CIFAR: sizes, cost, shortcuts."""

from __future__ import annotations

from functools import partial

from torch import nn

from bitcycle.models import build_model

from .counting import count, millions, num_parameters, on_meta


def meta_model(num_classes: int = 100) -> nn.Module:
    return on_meta(partial(build_model, "mobilenetv2", num_classes=num_classes))


def test_the_convolutions_have_2249024_parameters():
    convs = [module for module in meta_model().modules() if isinstance(module, nn.Conv2d)]
    assert sum(num_parameters(conv) for conv in convs) == 2_249_024


def test_the_cost_is_the_published_one():
    counts = count(meta_model())
    assert (millions(counts.macs, 3), millions(counts.paper_cost, 3)) == ("91.270", "94.720")


def test_shortcuts_exist_at_stride_1_and_project_where_channels_differ():
    blocks = list(meta_model().blocks)
    assert len(blocks) == 17
    assert [i for i, block in enumerate(blocks) if not block.has_shortcut] == [3, 6, 13]
    projected = [i for i, block in enumerate(blocks) if block.downsample is not None]
    assert projected == [0, 1, 10, 16]  # the first 16, 24, 96 and 320 channels


def test_the_first_block_keeps_its_expansion():
    first = meta_model().blocks[0].conv1
    assert (first.in_channels, first.out_channels, first.kernel_size) == (32, 32, (1, 1))


def test_the_last_features_are_4_by_4():
    model = build_model("mobilenetv2")
    shapes = []
    model.bn2.register_forward_hook(lambda module, args, out: shapes.append(tuple(out.shape)))
    model(*model.example_inputs(2))
    assert shapes == [(2, 1280, 4, 4)]
