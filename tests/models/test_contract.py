"""What holds for every registered model, whichever it is."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
import torch.nn.functional as F

from bitcycle.models import MODELS, Model, build_model


def build(name: str, *, seed: int = 0) -> Model:
    packages = {"graph": "torch_geometric", "transformers": "transformers"}
    if MODELS[name].extra is not None:
        pytest.importorskip(packages[MODELS[name].extra])
    torch.manual_seed(seed)
    return build_model(name)


def run(model: Model) -> torch.Tensor:
    """Logits on the example, in training mode (a deep net has no batch statistics yet)."""
    torch.manual_seed(0)  # dropout
    output = model.train()(*model.example_inputs())
    return output[0] if isinstance(output, tuple) else output


LARGE = ("imagenet_resnet34", "imagenet_resnet50")  # as imagenet_resnet18, but for their size
every_model = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in MODELS.names()],
)


@every_model
def test_builds_with_defaults_and_runs_on_its_example(name):
    model = build(name)
    assert isinstance(model, Model)
    logits = run(model)
    assert torch.isfinite(logits).all()
    assert logits.shape[0] == model.example_inputs()[0].shape[0]
    classes = MODELS[name].options.get("num_classes", MODELS[name].options.get("vocab_size"))
    assert logits.shape[-1] == classes


@every_model
def test_equal_seeds_give_equal_models_and_different_seeds_different_ones(name):
    logits = run(build(name))
    assert torch.equal(logits, run(build(name)))
    assert not torch.equal(logits, run(build(name, seed=1)))


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
def test_a_state_dict_carries_the_model_over(name):
    source, target = build(name), build(name, seed=1)
    target.load_state_dict(source.state_dict(), strict=True)
    assert torch.equal(run(source), run(target))


@every_model
def test_a_deep_copy_is_equal_and_independent(name):
    model = build(name)
    twin = copy.deepcopy(model)
    expected = run(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(run(twin), expected)
    assert len(list(twin.parameters())) == len(list(model.parameters()))  # ties stay ties


@every_model
def test_a_training_step_reaches_every_parameter(name):
    model = build(name)
    logits = run(model)
    targets = torch.zeros(logits.shape[:-1], dtype=torch.long)
    F.cross_entropy(logits.flatten(0, -2), targets.flatten()).backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert sum(moved) > 0.9 * len(moved)  # a key's bias has no effect: softmax is shift-invariant


@every_model
def test_its_options_are_the_builders_and_its_description_is_a_sentence(name):
    entry = MODELS[name]
    assert entry.name == name
    assert list(entry.options) == list(inspect.signature(entry.build).parameters)
    assert entry.description.endswith(".")
    assert len(entry.description) < 90
