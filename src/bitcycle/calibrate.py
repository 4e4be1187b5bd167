"""Observe activation ranges on data, as `torch.optim.swa_utils.update_bn` does statistics.

The layers keep and update the running ranges themselves, in training too: `nn/layer.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from bitcycle.model_precision import quantized_layers
from bitcycle.nonfinite import NonFiniteCheck


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call the model with a tensor, a tuple of arguments, or a dict of keyword arguments."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple):
        return model(*inputs)
    return model(inputs)


def calibrate(model: nn.Module, batches: Iterable[Any], *, reset: bool = True) -> nn.Module:
    """Run the batches and set each layer's activation range to the mean over them.

    Use it for float checkpoints and averaged weights (SWA, EMA), which have no observed ranges. A
    batch is a tensor, a list or tuple (input, target, ...) whose first item is used, or a dict of
    keyword arguments. The model runs at its current bits, in evaluation mode, without gradients.
    reset=False continues the running average instead. A NaN or infinity in the data raises an error
    and leaves the ranges unchanged.

    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Linear(2, 1))
    >>> _ = calibrate(model, [torch.tensor([[0.0, 1.0]]), torch.tensor([[-1.0, 2.0]])])
    >>> model.act_range  # observations, mean minimum, mean range
    tensor([[ 2.0000, -0.5000,  2.0000]])
    """
    named = quantized_layers(model)
    layers = [layer for _, layer in named]
    states = list({id(layer.shared): layer.shared for layer in layers}.values())
    modes = {module: module.training for module in model.modules()}
    saved = [layer.act_range.clone() for layer in layers]
    health = NonFiniteCheck([entry.name for entry, _ in named], layers)
    health.clear()
    num_batches = 0
    try:
        if reset:
            for layer in layers:
                layer.reset_ranges()
        for state in states:
            state.is_calibrating, state.takes_mean = True, reset
        model.eval()
        with torch.no_grad():
            for batch in batches:
                call_model(model, batch[0] if isinstance(batch, list | tuple) else batch)
                num_batches += 1
        if num_batches == 0:
            raise ValueError("calibrate got no batch; the ranges are unchanged")
        health.check(states[0].step, layers[0].precision, can_wait=True)
    except BaseException:
        for layer, ranges in zip(layers, saved, strict=True):
            layer.act_range.copy_(ranges)
        raise
    finally:
        for state in states:
            state.is_calibrating = state.takes_mean = False
        for module, mode in modes.items():
            module.training = mode
    return model
