"""At which bits a layer's operands are multiplied, and for how many steps and samples."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from bitcycle.cost.product import OPERANDS
from bitcycle.nn.base import QuantizedLayer
from bitcycle.precision import Precision, cost_bits

OperandBits = tuple[int, ...]  # of weight, act and error; float32 is 32
Usage = Mapping[OperandBits, tuple[int, int]]  # -> number of steps, number of samples in them


def operand_bits(module: nn.Module, precision: Precision) -> OperandBits:
    """The bits that a layer multiplies at when it is given this precision.

    A float layer stays at 32, and so do the roles that a converted layer has no rule for.

    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), skip=["1"])
    >>> [operand_bits(layer, Precision.parse("w3a4")) for layer in model]
    [(3, 4, 32), (32, 32, 32)]
    """
    roles = module.settings.quantizer.roles if isinstance(module, QuantizedLayer) else ()
    return tuple(
        cost_bits(getattr(precision, role) if role in roles else None) for role in OPERANDS
    )


def present_bits(module: nn.Module) -> OperandBits:
    """The bits that a layer multiplies at now."""
    now = module.precision if isinstance(module, QuantizedLayer) else Precision()
    return operand_bits(module, now)
