"""Re-observe activation ranges on data, in the manner of `torch.optim.swa_utils.update_bn`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from bitcycle.assign import quantized_layers


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call with a tensor, a tuple of arguments, or a dict of keyword arguments."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple):
        return model(*inputs)
    return model(inputs)


def calibrate(model: nn.Module, batches: Iterable[Any], *, reset: bool = True) -> nn.Module:
    """Run the batches and keep, per layer, the mean minimum and the mean range over them.

    For float checkpoints, and for averaged weights (SWA, EMA), whose ranges nobody observed. A
    batch is a tensor, a (input, target, ...) list or tuple of which the first is taken, or a dict
    of keyword arguments. Runs at the model's present bits, in evaluation mode, without gradients.
    reset=False continues the running average instead of starting anew.

    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Linear(2, 1))
    >>> _ = calibrate(model, [torch.tensor([[0.0, 1.0]]), torch.tensor([[-1.0, 2.0]])])
    >>> model.act_range  # observed, mean minimum, mean range
    tensor([[ 1.0000, -0.5000,  2.0000]])
    """
    layers = [layer for _, layer in quantized_layers(model)]
    states = list({id(layer.shared): layer.shared for layer in layers}.values())
    modes = {module: module.training for module in model.modules()}
    saved = [(layer, layer.act_range.clone(), layer.is_observed) for layer in layers]
    num_batches = 0
    try:
        if reset:
            for layer in layers:
                layer.reset_ranges()
        model.eval()
        with torch.no_grad():
            for batch in batches:
                for state in states:
                    state.calibration_batch = num_batches if reset else None
                    state.is_calibrating = True
                call_model(model, batch[0] if isinstance(batch, list | tuple) else batch)
                num_batches += 1
        if num_batches == 0:
            raise ValueError("calibrate was given no batch; the ranges are as they were")
    except BaseException:
        for layer, ranges, was_observed in saved:
            layer.act_range.copy_(ranges)
            layer.is_observed = was_observed
        raise
    finally:
        for state in states:
            state.is_calibrating, state.calibration_batch = False, None
        for module, mode in modes.items():
            module.training = mode
    return model
