"""torch.compile: bits are data."""

import copy

import pytest
import torch
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
@pytest.mark.parametrize("kernel", ["simulate", "int8"])
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
