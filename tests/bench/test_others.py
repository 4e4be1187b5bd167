"""Packages of others; they are not installed here, so only what needs none of them is tested."""

from importlib.util import find_spec

from torch import nn

from bitcycle.bench.others import OTHERS, installed_others, replace_layers


def test_only_installed_packages_are_offered():
    expected = [
        name
        for name, module in (
            ("torchao", "torchao"), ("brevitas", "brevitas"), ("qpytorch", "qtorch")
        )
        if find_spec(module) is not None
    ]  # fmt: skip
    assert installed_others() == expected
    assert list(OTHERS) == ["torchao", "brevitas", "qpytorch"]


def test_layers_at_any_depth_are_replaced_once():
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Sequential(nn.Linear(1, 1), nn.ReLU()))
    replace_layers(model, lambda layer: nn.Sequential(layer, nn.Identity()))
    kinds = [type(module).__name__ for module in model.modules()]
    assert kinds.count("Conv2d") == kinds.count("Linear") == 1
    assert kinds.count("Identity") == 2
