"""nn.DataParallel, pickle, torch.save and other processes."""

import torch
import torch.multiprocessing as mp
from torch import nn

import bitcycle as bc

from .training import inputs, mlp, train


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
    undecided, named = mlp(kernel="auto")[0], mlp(kernel="native")[0]
    for layer in (undecided, named):
        replica_of(layer)(inputs()[0])
    assert undecided.decision is None
    assert undecided.kernel.name == "auto"
    assert named.kernel.name == "native"
    undecided(inputs()[0])  # not by what a replica left behind
    assert undecided.decision.is_final


def trained():
    model = mlp()
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), inputs())
    bc.set_precision(model, "w4a4e8")
    return model


def evaluate(model, x, queue):
    queue.put(model.eval()(x).tolist())


def test_a_model_in_shared_memory_evaluates_in_a_process_of_its_own():
    context = mp.get_context("fork")
    model = trained().share_memory()
    queue = context.SimpleQueue()
    process = context.Process(target=evaluate, args=(model, inputs()[0], queue))
    process.start()
    found = queue.get()
    process.join()
    assert found == model.eval()(inputs()[0]).tolist()
