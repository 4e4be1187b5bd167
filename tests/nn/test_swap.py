"""Which class a float module becomes."""

from __future__ import annotations

import copy
import pickle

import torch
from torch import nn

from bitcycle.nn.swap import converted_type, qualified_name, registered_base

from .layers import convert


class _Named(nn.Linear):
    """A subclass that adds nothing to the arithmetic."""


def test_a_subclass_becomes_a_quantized_subclass() -> None:
    layer = convert(_Named(4, 3), "w4")
    assert isinstance(layer, _Named)
    assert type(layer).__name__ == "Quantized_Named"
    assert converted_type(_Named) is type(layer)
    assert registered_base(_Named) is nn.Linear
    assert registered_base(nn.ReLU) is None
    assert qualified_name(nn.Linear) == "torch.nn.modules.linear.Linear"


def test_a_type_made_on_demand_survives_copy_and_pickle() -> None:
    layer = convert(_Named(4, 3), "w4a4")
    x = torch.linspace(-1, 1, 8).view(2, 4)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):  # our own bytes
        assert type(again) is type(layer)
        assert torch.equal(again(x), layer(x))
