"""At which bits a layer's operands are multiplied, and for how many steps and samples."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from bitcycle.cost.product import OPERANDS
from bitcycle.nn.base import QuantizedLayer
from bitcycle.precision import Precision, cost_bits, is_float

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


def grad_weight_error_bits(module: nn.Module, bits: OperandBits) -> int:
    """The error's bits in grad_weight: others than in grad_input where a rule makes two errors.

    >>> from bitcycle.convert import quantize_model
    >>> layer = quantize_model(nn.Linear(4, 8), "sbm_full")
    >>> grad_weight_error_bits(layer, (8, 8, 8)), grad_weight_error_bits(nn.Linear(2, 2), (8, 8, 8))
    (32, 8)
    """
    error = bits[OPERANDS.index("error")]
    if not isinstance(module, QuantizedLayer) or is_float(error):
        return error
    return cost_bits(module.settings.quantizer.grad_weight_bits(error))


def present_bits(module: nn.Module) -> OperandBits:
    """The bits that a layer multiplies at now."""
    now = module.precision if isinstance(module, QuantizedLayer) else Precision()
    return operand_bits(module, now)
