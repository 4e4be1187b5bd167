"""Tests of building models by name and of registering new ones."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from bitcycle.models import MODELS, Model, build_model, register_model
from bitcycle.models.base import check_positive

PAPERS = {
    "cifar_resnet": {f"resnet{depth}" for depth in (8, 14, 20, 38, 74, 110, 152, 164)},
    "mobilenetv2": {"mobilenetv2"},
    "imagenet_resnet": {"imagenet_resnet18", "imagenet_resnet34", "imagenet_resnet50"},
    "lstm_lm": {"lstm_lm"},
    "transformer_lm": {"transformer_lm"},
    "graph": {"gcn", "graphsage"},
    "bert": {"bert"},
    "digits": {"digits_mlp", "digits_convnet", "digits_resnet"},
}


@pytest.mark.parametrize("family", PAPERS)
def test_every_model_of_the_papers_is_registered(family):
    assert {name for name, entry in MODELS.items() if entry.family == family} >= PAPERS[family]


def test_an_entry_says_its_family_options_description_and_extra():
    entry = MODELS["gcn"]
    assert (entry.name, entry.family, entry.extra) == ("gcn", "graph", "graph")
    assert entry.description == "Graph convolutional network: 128-512-512-40 (OGBN-Arxiv)."
    assert list(entry.options) == [
        "in_features",
        "hidden_dim",
        "num_classes",
        "num_layers",
        "dropout",
    ]
    assert MODELS["resnet8"].extra is None


def test_an_unknown_model_is_an_error_that_names_the_nearest():
    with pytest.raises(ValueError, match=r"unknown model 'resnet21'.*did you mean 'resnet20'\?"):
        build_model("resnet21")


def test_an_unknown_option_is_an_error_that_names_the_valid_ones():
    message = (
        r"unknown option of transformer_lm 'heads'; known: dim, dropout, ffn_dim, num_heads, "
        r"num_layers, tie, vocab_size"
    )
    with pytest.raises(ValueError, match=message):
        build_model("transformer_lm", heads=4)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "16"])
def test_a_size_that_is_not_a_positive_integer_is_an_error(size):
    with pytest.raises(ValueError, match="width must be an integer >= 1, got"):
        check_positive(width=size)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet20", {"num_classes": 0}),
        ("resnet20", {"width": -16}),
        ("mobilenetv2", {"in_channels": 0}),
        ("digits_mlp", {"width": 0}),
        ("lstm_lm", {"num_layers": 0}),
        ("transformer_lm", {"vocab_size": 0}),
        ("gcn", {"hidden_dim": 0}),
    ],
)
def test_models_check_their_sizes(name, options):
    option, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"{option} must be an integer >= 1, got {value}"):
        build_model(name, **options)


def test_options_must_be_keyword_only_with_defaults():
    with pytest.raises(ValueError, match="'width' of model 'positional' must be keyword-only"):

        @register_model()
        def positional(width: int = 1) -> Model:
            """Not accepted."""
            raise AssertionError

    with pytest.raises(ValueError, match="'width' of model 'required' must be keyword-only"):

        @register_model()
        def required(*, width: int) -> Model:
            """Not accepted."""
            raise AssertionError


def test_a_name_can_be_registered_once():
    assert "resnet20" in MODELS
    with pytest.raises(ValueError, match="model 'resnet20' is registered already"):

        @register_model()
        def resnet20() -> Model:
            """A second one."""
            raise AssertionError


def test_a_model_without_example_inputs_says_what_is_missing():
    class Bare(Model):
        pass

    with pytest.raises(NotImplementedError, match="Bare must define example_inputs"):
        Bare().example_inputs()


def test_finding_models_draws_no_random_numbers_and_imports_no_extra():
    program = """
import sys, torch
before = torch.get_rng_state()
import bitcycle.models
assert len(bitcycle.models.MODELS.names()) > 0
assert torch.equal(before, torch.get_rng_state())
assert not {"torch_geometric", "torchvision", "sklearn"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_extra_is_an_error_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    with pytest.raises(ImportError, match=r'pip install "bitcycle\[graph\]"'):
        build_model("gcn")


def test_example_inputs_follow_the_options():
    model = build_model("resnet8", in_channels=1)
    assert model.example_inputs(3)[0].shape == (3, 1, 32, 32)
    (tokens,) = build_model("lstm_lm", vocab_size=7, hidden_dim=8).example_inputs(4)
    assert tokens.shape == (4, 35)
    assert tokens.min() >= 0
    assert tokens.max() < 7


def test_example_inputs_are_made_on_the_cpu_and_moved():
    model = build_model("digits_mlp")
    with torch.device("meta"):
        (images,) = model.example_inputs()
    assert images.device.type == "cpu"
    assert model.example_inputs(device="meta")[0].device.type == "meta"
