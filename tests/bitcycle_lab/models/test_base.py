"""Building models by name, registering new ones, and what holds for every registered model."""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from bitcycle_lab.models import MODELS, Model, build_model, register_model
from bitcycle_lab.models.base import check_positive

SMALL = {
    "transformer_lm": {"vocab_size": 50, "dim": 16, "ffn_dim": 32, "num_layers": 2},
    "lstm_lm": {"vocab_size": 50, "embedding_dim": 16, "hidden_dim": 16},
}
# another depth of a model that is tried
DEEPER = {"resnet14", "resnet74", "resnet110", "resnet152", "resnet164", "imagenet_resnet34"}
every_model = pytest.mark.parametrize("name", [n for n in MODELS.names() if n not in DEEPER])


def build(name: str, *, seed: int = 0) -> Model:
    packages = {"graph": "torch_geometric", "transformers": "transformers"}
    if MODELS[name].extra is not None:
        pytest.importorskip(packages[MODELS[name].extra])
    torch.manual_seed(seed)
    return build_model(name, **SMALL.get(name, {}))


def run(model: Model) -> torch.Tensor:
    """Logits on the example, in training mode (a deep net has no batch statistics yet)."""
    torch.manual_seed(0)  # dropout
    first, *others = model.example_inputs()
    if first.shape[-1] == 224:
        first = first[..., :64, :64]  # photographs, as small as the strides allow
    output = model.train()(first, *others)
    return output[0] if isinstance(output, tuple) else output


@every_model
def test_its_logits_are_finite_and_a_function_of_the_seed(name):
    model, other = build(name), build(name, seed=1)
    logits = run(model)
    assert isinstance(model, Model)
    assert torch.isfinite(logits).all()
    assert logits.shape[0] == model.example_inputs()[0].shape[0]
    options = {**MODELS[name].options, **SMALL.get(name, {})}
    assert logits.shape[-1] == options.get("num_classes", options.get("vocab_size"))
    assert torch.equal(logits, run(build(name)))
    assert not torch.equal(logits, run(other))
    other.load_state_dict(build(name).state_dict(), strict=True)
    assert torch.equal(run(other), logits)


@every_model
def test_example_inputs_depend_on_the_seed_alone(name):
    model = build(name)
    state = torch.get_rng_state()
    first, second = model.example_inputs(seed=3), model.example_inputs(seed=3)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], model.example_inputs(seed=4)[0])
    assert model.example_inputs(5)[0].shape[0] == 5


@every_model
def test_a_training_step_reaches_every_parameter_and_none_of_a_copys(name):
    model = build(name)
    twin, logits = copy.deepcopy(model), run(model)
    targets = torch.zeros(logits.shape[:-1], dtype=torch.long)
    F.cross_entropy(logits.flatten(0, -2), targets.flatten()).backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert sum(moved) > 0.9 * len(moved)  # a key's bias has no effect: softmax is shift-invariant
    assert torch.equal(run(twin), logits)
    assert len(list(twin.parameters())) == len(before)  # ties stay ties


def test_its_options_are_the_builders():
    for name in MODELS.names():
        entry = MODELS[name]
        assert entry.name == name
        assert list(entry.options) == list(inspect.signature(entry.build).parameters)


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


def test_every_model_of_the_papers_is_registered():
    for family in PAPERS:
        assert {name for name, entry in MODELS.items() if entry.family == family} >= PAPERS[family]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet21", {}, r"'resnet21'.*did you mean 'resnet20'\?"),
        ("transformer_lm", {"heads": 4}, r"'heads'.*did you mean 'num_heads'\?"),
        ("resnet20", {"num_classes": 0}, "num_classes .* 0"),
        ("resnet20", {"width": -16}, "width .* -16"),
        ("mobilenetv2", {"in_channels": 0}, "in_channels .* 0"),
        ("digits_mlp", {"width": 0}, "width .* 0"),
        ("lstm_lm", {"num_layers": 0}, "num_layers .* 0"),
        ("lstm_lm", {"embedding_dim": 6, "hidden_dim": 8, "tie": True}, r"\(6\).*\(8\)"),
        ("transformer_lm", {"vocab_size": 0}, "vocab_size .* 0"),
        ("transformer_lm", {"dim": 18, "num_heads": 4}, r"dim \(18\)"),
        ("transformer_lm", {"dim": 15, "num_heads": 3}, r"dim \(15\)"),
        ("gcn", {"hidden_dim": 0}, "hidden_dim .* 0"),
    ],
)
def test_a_model_that_cannot_be_is_an_error(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_model(name, **options)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "16"])
def test_a_size_that_is_not_a_positive_integer_is_an_error(size):
    with pytest.raises(ValueError, match=f"width .*{size!r}"):
        check_positive(width=size)


def test_options_must_be_keyword_only_with_defaults():
    def positional(width: int = 1) -> Model:
        raise AssertionError

    def required(*, width: int) -> Model:
        raise AssertionError

    for build in (positional, required):
        with pytest.raises(ValueError, match=f"'width' of model '{build.__name__}'"):
            register_model()(build)


def test_a_model_without_example_inputs_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="example_inputs"):
        type("Bare", (Model,), {})().example_inputs()


def test_finding_models_draws_no_random_numbers_and_imports_no_extra():
    program = """
import sys, torch
before = torch.get_rng_state()
import bitcycle_lab.models
assert len(bitcycle_lab.models.MODELS.names()) > 0
assert torch.equal(before, torch.get_rng_state())
assert not {"torch_geometric", "torchvision", "sklearn"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_extra_is_an_error_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    with pytest.raises(ImportError, match=r"\[graph\]"):
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
