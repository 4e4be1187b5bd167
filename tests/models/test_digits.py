"""Tests of the digits networks: sizes, independence of samples, that they learn."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from bitcycle.models import build_model

from .counting import count, num_parameters, on_meta


@pytest.mark.parametrize(
    ("name", "parameters", "macs"),
    [
        ("digits_mlp", 8_970, 8_832),  # 64 x 64 + 64 x 64 + 64 x 10
        ("digits_convnet", 15_338, 121_088),
        ("digits_resnet", 19_810, 193_344),
    ],
)
def test_sizes(name, parameters, macs):
    model = on_meta(partial(build_model, name))
    assert (num_parameters(model), count(model).macs) == (parameters, macs)


@pytest.mark.parametrize("name", ["digits_mlp", "digits_convnet"])
def test_nets_without_batch_statistics_treat_samples_alone(name):
    model = build_model(name)
    (images,) = model.example_inputs(4)
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model(images), alone)


@pytest.mark.parametrize("name", ["digits_mlp", "digits_convnet"])
@pytest.mark.parametrize("image_size", [7, 8, 28])
def test_other_image_sizes_are_an_option(name, image_size):
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
