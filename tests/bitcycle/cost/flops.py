"""torch's own flop counter as a second opinion on MACs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import bitcycle.cost as cost
from bitcycle.calibrate import call_model


def measured_macs(model: nn.Module, inputs: Any) -> int:
    """Half the flops of a forward and a backward pass (one MAC is two flops)."""
    with FlopCounterMode(display=False) as counter:
        output = call_model(model, inputs)
        tensors = output if isinstance(output, tuple) else (output,)
        sum(t.sum() for t in tensors if isinstance(t, torch.Tensor)).backward()
    assert counter.get_total_flops() % 2 == 0
    return counter.get_total_flops() // 2


def counted_macs(model: nn.Module, inputs: Any) -> int:
    """Our count of the same step, which must have left nothing out."""
    trace = cost.count_macs(model, inputs, batch_size=1)
    assert trace.uncounted == ()
    return sum(trace.macs.values())
