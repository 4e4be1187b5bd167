"""Graph layers have one activation range per node and keep none."""

from __future__ import annotations

import torch
from torch import nn

import bitcycle as bc
from bitcycle.kernels import make_kernel
from bitcycle.nn import LayerSettings, ModelState
from bitcycle.nn.graph import PerNodeLayer
from bitcycle.quantizers import QUANTIZERS


class Plain(PerNodeLayer, nn.Identity):
    float_type = nn.Identity


def layer(quantizer="sbm", precision="a4"):
    made = Plain()
    settings = LayerSettings("l", QUANTIZERS[quantizer](), make_kernel("native"), "asked for", None)
    made.become_quantized(settings, ModelState())
    made.set_precision(bc.Precision.parse(precision))
    return made


def test_the_first_dimensions_number_the_nodes():
    for shape, num_dims in (((5, 3), 1), ((2, 5, 3), 2), ((5, 2, 3), 1)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        low, high = layer().node_range(x, num_dims)
        flat = x.flatten(num_dims)
        assert torch.equal(low.flatten(num_dims)[..., 0], flat.amin(-1))
        assert torch.equal(high.flatten(num_dims)[..., 0], flat.amax(-1))
        assert (low.dim(), low.shape[:num_dims]) == (x.dim(), x.shape[:num_dims])


def test_every_rule_gives_a_range_that_broadcasts():
    for quantizer in QUANTIZERS.names():
        low, high = layer(quantizer).node_range(torch.ones(5, 3), 1)
        assert torch.broadcast_shapes(low.shape, high.shape, (5, 3)) == (5, 3)


def test_no_range_is_kept_or_saved():
    made = layer()
    made.activation_range(torch.ones(5, 3), 0)
    assert made.act_range.shape == (0, 3)
    made.reset_ranges()
    assert made.is_observed
    assert not made.state_dict()


def test_without_bits_for_activations_there_is_no_range():
    assert layer(precision="w4").activation_range(torch.ones(5, 3), 0) is None
