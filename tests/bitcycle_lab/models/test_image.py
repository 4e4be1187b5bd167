"""Image classifiers: blocks, published sizes, shapes, that the small ones learn."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitcycle_lab.models import build_model
from bitcycle_lab.models.base import BasicBlock, global_average, init_convs, projection

from .counting import count_macs, num_parameters, on_meta


def test_convolutions_start_normal_with_variance_two_over_k_squared_out():
    for k, channels, groups in ((3, 64, 1), (1, 512, 1), (3, 512, 512)):
        torch.manual_seed(0)
        conv = torch.nn.Conv2d(channels, channels, k, groups=groups)
        init_convs(conv)
        expected = math.sqrt(2 / (k * k * channels))
        assert conv.weight.std().item() == pytest.approx(expected, rel=0.03)
        assert conv.weight.mean().item() == pytest.approx(0, abs=0.05 * expected)
        assert torch.count_nonzero(conv.bias) == 0


def test_a_shortcut_is_the_identity_unless_the_shape_changes():
    assert projection(16, 16, 1) is None
    assert projection(16, 32, 1) is not None
    assert projection(16, 16, 2) is not None


def test_a_block_whose_branch_is_silent_is_relu_of_its_input():
    block = BasicBlock(4, 4, 1)
    torch.nn.init.zeros_(block.bn2.weight)
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(block(x), x.relu())


def test_a_block_with_stride_halves_the_image():
    assert BasicBlock(4, 8, 2)(torch.randn(2, 4, 8, 8)).shape == (2, 8, 4, 4)


def test_the_global_average_is_over_space():
    assert torch.equal(global_average(torch.ones(2, 3, 4, 5)), torch.ones(2, 3))


# parameters for 10 classes; another class has 64 weights and a bias
PARAMETERS = {
    "resnet38": 564_122, "resnet74": 1_147_418, "resnet110": 1_730_714, "resnet152": 2_411_226,
    "resnet164": 2_605_658,
}  # fmt: skip


@pytest.mark.parametrize("depth", [8, 14, 20, 38, 74, 110, 152, 164])
def test_depth_projections_and_parameters_are_the_published_ones(depth):
    model = on_meta(partial(build_model, f"resnet{depth}", num_classes=100))
    names = [name for name, _ in model.named_modules()]
    convs = [name for name in names if name.rpartition(".")[2].startswith("conv")]
    assert len(convs) + 1 == depth  # and the FC; shortcuts run beside them
    assert [name for name in names if name.endswith("downsample")] == [
        "layer2.0.downsample", "layer3.0.downsample",
    ]  # fmt: skip
    if f"resnet{depth}" in PARAMETERS:
        assert num_parameters(model) == PARAMETERS[f"resnet{depth}"] + 90 * 65


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


# parameters, and entries of the state dict, of torchvision's models of the same depth
SIZES = [
    ("imagenet_resnet18", 11_689_512, 122),
    ("imagenet_resnet34", 21_797_672, 218),
    ("imagenet_resnet50", 25_557_032, 320),
]

BATCH_NORM = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]


def test_sizes_are_torchvisions():
    for name, parameters, entries in SIZES:
        model = on_meta(partial(build_model, name))
        assert num_parameters(model) == parameters
        assert len(model.state_dict()) == entries


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


def meta_model(num_classes: int = 100) -> nn.Module:
    return on_meta(partial(build_model, "mobilenetv2", num_classes=num_classes))


def test_the_convolutions_have_2249024_parameters():
    convs = [module for module in meta_model().modules() if isinstance(module, nn.Conv2d)]
    assert sum(num_parameters(conv) for conv in convs) == 2_249_024


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


@pytest.mark.parametrize(
    ("name", "parameters", "macs"),
    [
        ("digits_mlp", 8_970, 8_832),  # 64 x 64 + 64 x 64 + 64 x 10
        ("digits_convnet", 15_338, 121_088),
        ("digits_resnet", 19_810, 193_344),
    ],
)
def test_sizes_of_the_digits_nets(name, parameters, macs):
    model = on_meta(partial(build_model, name))
    assert (num_parameters(model), count_macs(model)) == (parameters, macs)


def test_nets_without_batch_statistics_treat_samples_alone():
    for name in ("digits_mlp", "digits_convnet"):
        model = build_model(name)
        (images,) = model.example_inputs(4)
        alone = torch.cat([model(image[None]) for image in images])
        torch.testing.assert_close(model(images), alone)


def test_other_image_sizes_are_an_option():
    for name in ("digits_mlp", "digits_convnet"):
        for image_size in (7, 8, 28):
            model = build_model(name, image_size=image_size, in_channels=3)
            assert model(*model.example_inputs(2)).shape == (2, 10)


@pytest.mark.parametrize(
    "name",
    ["digits_mlp", "digits_convnet", pytest.param("digits_resnet", marks=pytest.mark.slow)],
)
def test_five_epochs_of_real_digits_reach_90_percent(name):
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(digits.target)
    torch.manual_seed(0)
    order = torch.randperm(len(labels))
    train, test = order[:1400], order[1400:]
    model = build_model(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(5):
        for batch in train.split(64):
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        predictions = model.eval()(images[test]).argmax(dim=1)
    assert (predictions == labels[test]).float().mean().item() > 0.9
