"""torch.compile, torch.export and torch.jit: bits are data."""

import copy
import io
import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import bitcycle as bc

from .training import inputs, mlp


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def trained(kernel):
    model = mlp(kernel=kernel, max_bits=8)
    twin = copy.deepcopy(model)
    batches = inputs(12)
    graphs = []
    for each, run in ((model, torch.compile(model, backend="aot_eager")), (twin, twin)):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.05)
        bits = bc.PrecisionScheduler(each, forward="CR:3-8:2", backward=8, total_steps=12)
        for x in batches:
            run(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            bits.step()
            graphs.append(counters["stats"]["unique_graphs"])
    return model, twin, graphs


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["simulate", "native"])
def test_a_schedule_from_3_to_8_bits_is_one_graph_and_trains_as_eager_does(kernel):
    model, twin, graphs = trained(kernel)
    assert set(graphs) == {1}
    assert not counters["graph_break"]
    for one, two in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_a_model_compiled_before_it_is_converted_is_traced_again():
    model = torch.nn.Sequential(torch.nn.Linear(6, 4))
    compiled = torch.compile(model, backend="eager")
    x = inputs()[0]
    before = compiled(x)
    bc.quantize_model(model)
    assert torch.equal(compiled(x), before)
    bc.set_precision(model, "w2a2")
    assert not torch.equal(compiled(x), before)


def test_an_exported_program_computes_what_the_model_does():
    model = mlp(kernel="simulate")
    bc.calibrate(model, inputs())
    model.eval()
    x = inputs()[0]
    with torch.no_grad():
        program = torch.export.export(model, (x,))
        torch.testing.assert_close(program.module()(x), model(x))


def test_a_program_has_the_bits_it_was_saved_at_and_reads_those_of_its_model_until_then():
    model = mlp(kernel="simulate")
    bc.calibrate(model, inputs())
    model.eval()
    x = inputs()[0]
    with torch.no_grad():
        program, apart = (torch.export.export(m, (x,)) for m in (model, copy.deepcopy(model)))
        expected = model(x)
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        buffer.seek(0)
        bc.set_precision(model, "w2a2")
        for other in (torch.export.load(buffer), apart):
            torch.testing.assert_close(other.module()(x), expected)
        torch.testing.assert_close(program.module()(x), model(x))
        assert not torch.allclose(model(x), expected, rtol=1e-3)


def test_a_scripted_layer_stays_float_and_the_audit_says_what_to_do():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(torch.jit.script(nn.Linear(6, 8)), nn.Linear(8, 3))
    bc.quantize_model(model)
    assert "convert before torch.jit.script" in bc.audit(model)["0"].reason


def test_a_converted_model_cannot_be_scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((RuntimeError, ValueError)):
            torch.jit.script(mlp())


def test_a_trace_reads_the_bits_of_its_model_and_cannot_be_saved():
    model = mlp(kernel="simulate")
    bc.calibrate(model, inputs())
    model.eval()
    x = inputs()[0]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, x, check_trace=False)
        for bits in ("w4a4", "w2a2", "w8a8"):
            bc.set_precision(model, bits)
            torch.testing.assert_close(traced(x), model(x))
        with pytest.raises(RuntimeError, match="Could not export Python function"):
            torch.jit.save(traced, io.BytesIO())
