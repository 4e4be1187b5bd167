"""Products of codes in compiled graphs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import bitcycle as bc
from bitcycle.nn.layer import QuantizedLayer

from .models import assert_close, set_step, state_of

LAYERS = {
    "linear": (lambda: nn.Linear(32, 16), (20, 32)),
    "linear, bfloat16": (lambda: nn.Linear(32, 16).bfloat16(), (20, 32)),
    "convolution": (lambda: nn.Conv2d(6, 8, 3, padding=1), (2, 6, 5, 5)),
    "1x1 convolution": (lambda: nn.Conv2d(6, 8, 1), (2, 6, 5, 5)),
    "strided 1x1 convolution": (lambda: nn.Conv2d(6, 8, 1, 2), (2, 6, 5, 5)),
}
ROUNDED = ("linear, bfloat16", "convolution")  # their results, to bfloat16


@pytest.mark.parametrize("rounding", ["triton"], indirect=True)
@pytest.mark.parametrize("name", LAYERS)
def test_one_graph_serves_all_bits(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # a graph follows the setting
    torch._dynamo.reset()
    counters.clear()
    make, shape = LAYERS[name]
    model = bc.quantize_model(make(), kernel="gpu").cuda()
    x, twin = torch.randn(shape).to(next(model.parameters())), copy.deepcopy(model)
    for each in (model, twin):
        for layer in each.modules():
            if isinstance(layer, QuantizedLayer):
                layer.expect_bits(dict.fromkeys(("weight", "act", "error", "grad"), 8))
    compiled = torch.compile(model, backend="aot_eager")
    for step, level in enumerate((3, 8, 5)):
        results = []
        for own, run in ((model, compiled), (twin, twin)):
            bc.set_precision(own, f"FW{level}/BW8")
            set_step(own, step)
            own.zero_grad()
            inputs = x.clone().requires_grad_()
            run(inputs).square().mean().backward()
            results.append({**state_of(own), "input": inputs.grad.cpu()})
        assert_close(*results, 1e-2 if name in ROUNDED else 1e-4)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
