"""FP8, MX and NVFP4 with torch.compile, copies, files, autocast, checkpointing and export."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import bitcycle as bc
from bitcycle.export import export_model
from tests.bitcycle.toys import Attention, linears, randn

from .training import assert_equal

# quantizer and precision; nvfp4 rounds errors stochastically
FORMATS = {
    "fp8": ("fp8", "FWfp8/BWe5m2"),
    "mxfp8": ("mx", "FWmxfp8/BWmxfp8"),
    "mxfp4": ("mx", "FWmxfp4/BWmxfp4"),
    "nvfp4": ("nvfp4", "FWnvfp4/BWnvfp4"),
}
each_format = pytest.mark.parametrize("name", FORMATS)
HEALING = {"forward": "stages:nvfp4@0.5,bf16", "backward": "nvfp4"}


def make(name="nvfp4"):
    """(N, 48) -> (N, 16) at a format; 40 tokens and 48 features leave shorter last blocks."""
    quantizer, precision = FORMATS[name]
    model = bc.quantize_model(linears(48, 48, 16), quantizer, kernel="simulate")
    bc.set_precision(model, precision)
    return model


def gradients(model, x=None, run=None):
    """Of the input and of all parameters."""
    x = (randn(40, 48) if x is None else x).clone().requires_grad_()
    model.zero_grad()
    (run or model)(x).float().square().mean().backward()
    return [x.grad, *(parameter.grad.clone() for parameter in model.parameters())]


def train(model, steps, schedule, start=None):
    """Steps of SGD; `start` is the state of a scheduler to go on from."""
    bits = bc.PrecisionScheduler(model, total_steps=8, **schedule)
    if start is not None:
        bits.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(randn(40, 48, seed=bits.step_count)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        bits.step()
    return bits


# -- copies and files -----------------------------------------------------------------------------

COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": lambda model: torch.load(saved(model), weights_only=False),
}


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file


@each_format
@pytest.mark.parametrize("way", COPIES)
def test_a_copy_has_the_formats_and_the_same_gradients(name, way):
    model = make(name)
    twin = COPIES[way](model)
    assert str(bc.get_precision(twin)) == str(bc.get_precision(model))
    for ours, theirs in zip(gradients(model), gradients(twin), strict=True):
        assert torch.equal(ours, theirs)


@each_format
def test_a_state_dict_restores_what_a_model_computes(name):
    model, other = make(name), make(name)
    nn.init.normal_(other[0].weight)
    other.load_state_dict(model.state_dict())
    for ours, theirs in zip(gradients(model), gradients(other), strict=True):
        assert torch.equal(ours, theirs)


def test_a_copy_in_the_middle_of_healing_ends_as_the_model_does():
    model = make()
    bits = train(model, 3, HEALING)
    twin, state = copy.deepcopy(model), bits.state_dict()
    for each in (model, twin):
        train(each, 5, HEALING, start=state)
    assert_equal(model, twin)
    assert str(bc.get_precision(twin)) == "w=bf16,a=bf16,e=nvfp4"


# -- loops ----------------------------------------------------------------------------------------


@each_format
@pytest.mark.parametrize("is_reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(name, is_reentrant):
    model, twin = make(name), make(name)

    def recomputed(x):
        return checkpoint(twin, x, use_reentrant=is_reentrant)

    for ours, theirs in zip(gradients(model), gradients(twin, run=recomputed), strict=True):
        assert torch.equal(ours, theirs)


@each_format
def test_a_layer_at_a_format_rounds_its_output_to_that_of_autocast(name):
    model, x = make(name)[0], randn(40, 48)
    expected = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(x)
    assert torch.equal(output, expected.bfloat16())


@each_format
def test_a_bfloat16_model_computes_and_learns(name):
    model = make(name).to(torch.bfloat16)
    x = randn(40, 48).to(torch.bfloat16)
    for gradient in gradients(model, x):
        assert gradient.dtype == torch.bfloat16
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0


def test_stochastic_errors_differ_from_step_to_step_and_not_from_run_to_run():
    def two_steps():
        model = make()
        return gradients(model)[1], gradients(model)[1]

    first, second = two_steps()
    assert not torch.equal(first, second)
    again, _ = two_steps()
    assert torch.equal(first, again)


# -- torch.compile --------------------------------------------------------------------------------


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    counters.clear()
    yield counters["stats"]
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantizer", "schedule", "graphs"),
    [  # a graph for blocks and one for plain floats; mxfp4 and mxfp8 share theirs
        ("mx", {"forward": "stages:mxfp4@0.3,mxfp8@0.6,bf16", "backward": "mxfp8"}, 2),
        ("mx", {"forward": "CR:mxfp4,mxfp6,mxfp8:2", "backward": "mxfp8"}, 1),
        ("nvfp4", HEALING, 2),
        ("fp8", {"forward": "stages:e5m2@0.5,e4m3", "backward": "e5m2"}, 1),
    ],
)
def test_a_schedule_needs_one_graph_per_kind_of_format(compiler, quantizer, schedule, graphs):
    eager = bc.quantize_model(linears(32, 32, 32), quantizer, kernel="simulate")
    model = copy.deepcopy(eager)
    compiled = torch.compile(model, backend="aot_eager")
    steps, seen = 10, []
    for each, run in ((model, compiled), (eager, eager)):
        bits = bc.PrecisionScheduler(each, total_steps=steps, **schedule)
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for step in range(steps):
            run(randn(32, 32, seed=step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            bits.step()
            seen.append(compiler["unique_graphs"])
    assert seen[0] == 1
    assert seen[-1] == graphs
    assert not counters["graph_break"]
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantizer", "precisions", "graphs"),
    [
        ("mx", ("mxfp8", "mxfp4", "mxfp6"), 1),
        ("nvfp4", ("FW8/BW8", "FW6/BW8", "FW4/BW8"), 1),
        ("nvfp4", ("bf16", "fp16"), 1),
        ("nvfp4", ("nvfp4", "bf16"), 2),
    ],
)
def test_attention_needs_one_graph_per_kind_of_format(compiler, quantizer, precisions, graphs):
    model = bc.quantize_model(Attention(), quantizer, kernel="simulate")
    compiled = torch.compile(model, backend="aot_eager")
    for precision in precisions:
        bc.set_precision(model, precision)
        compiled(randn(2, 5, 4)).sum().backward()
    assert compiler["unique_graphs"] == graphs


# -- export ---------------------------------------------------------------------------------------


@each_format
def test_files_of_integers_refuse_every_format_and_say_what_to_do(name, tmp_path):
    model = make(name).eval()
    with pytest.raises(ValueError, match="integers"):
        export_model(model, randn(2, 48), to="onnx", path=tmp_path / "model.onnx")
    export_model(model, randn(2, 48), to="safetensors", path=tmp_path / "model.safetensors")


def test_a_torch_exported_program_computes_at_the_format_of_its_model():
    model = make("mxfp8").eval()
    with torch.no_grad():
        program = torch.export.export(model, (randn(4, 48),))
        torch.testing.assert_close(program.module()(randn(4, 48)), model(randn(4, 48)))
