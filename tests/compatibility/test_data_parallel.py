"""nn.DataParallel: replicas are new in every step, and what they learn is lost with them."""

import torch
from torch import nn

from .training import inputs, mlp


def replica_of(layer):
    """As `torch.nn.parallel.replicate` makes one, on one device."""
    replica = layer._replicate_for_data_parallel()
    for name, parameter in layer._parameters.items():
        setattr(replica, name, parameter.clone() if parameter is not None else None)
        replica._parameters[name] = None
    for name, buffer in layer._buffers.items():
        replica._buffers[name] = buffer
    return replica


def test_it_computes_and_learns_quantized():
    model = mlp()
    wrapped = nn.DataParallel(model)
    x = inputs()[0]
    twin = mlp()
    assert torch.equal(wrapped(x), twin(x))
    wrapped(x).square().mean().backward()
    assert model[0].weight.grad.isfinite().all()


def test_a_replica_computes_what_its_layer_does_and_its_gradients_reach_it():
    layer, twin = mlp(kernel="simulate")[0], mlp(kernel="simulate")[0]
    x = inputs()[0]
    outputs = [each(x) for each in (replica_of(layer), twin)]
    for output in outputs:
        output.square().mean().backward()
    assert torch.equal(*outputs)
    assert torch.equal(layer.weight.grad, twin.weight.grad)
    assert torch.equal(layer.bias.grad, twin.bias.grad)


def test_what_auto_comes_to_on_a_replica_is_not_kept_so_a_kernel_is_named():
    undecided, named = mlp(kernel="auto")[0], mlp(kernel="int8")[0]
    for layer in (undecided, named):
        replica_of(layer)(inputs()[0])
    assert undecided.settings.kernel.name == "auto"
    assert named.settings.kernel.name == "int8"
