"""Other packages for 8-bit training, timed if they are installed.

Tried with torchao 0.18.0, brevitas 0.13.4 and qtorch 0.3.0. The tests do not install them; if an
interface has changed, its row in the table shows the error. None does the same work as bitcycle:

torchao     int8 mixed-precision training: the three products of nn.Linear, nothing else
brevitas    weights and inputs of nn.Linear and nn.Conv2d, simulated; errors stay float32
qpytorch    outputs and errors of nn.Linear and nn.Conv2d, simulated; weights stay float32
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import nn

BITS = 8
FRACTION = 6  # bits behind the point of a fixed-point number


def torchao(model: nn.Module) -> nn.Module:
    """Quantize the model in place."""
    training = import_module("torchao.prototype.quantized_training")
    quantize = import_module("torchao.quantization").quantize_
    # without the swap, torchao 0.18.0 multiplies in float32: its F.linear is never called
    quantize(model, training.int8_mixed_precision_training(module_swap=True))
    return model


def brevitas(model: nn.Module) -> nn.Module:
    """Replace every linear layer and convolution by brevitas's, with the same Parameters."""
    layers = import_module("brevitas.nn")
    act = import_module("brevitas.quant").Int8ActPerTensorFloat

    def convert(layer: nn.Linear | nn.Conv2d) -> nn.Module:
        options = {
            "bias": layer.bias is not None, "weight_bit_width": BITS, "input_quant": act,
        }  # fmt: skip
        new: Any
        if isinstance(layer, nn.Linear):
            new = layers.QuantLinear(layer.in_features, layer.out_features, **options)
        else:
            new = layers.QuantConv2d(
                layer.in_channels, layer.out_channels, layer.kernel_size, stride=layer.stride,
                padding=layer.padding, dilation=layer.dilation, groups=layer.groups, **options,
            )  # fmt: skip
        new.weight, new.bias = layer.weight, layer.bias
        converted: nn.Module = new
        return converted

    return replace_layers(model, convert)


def qpytorch(model: nn.Module) -> nn.Module:
    """Append a quantizer to every layer: nearest for its output, stochastic for its error."""
    number = import_module("qtorch").FixedPoint(wl=BITS, fl=FRACTION)
    quantizer = import_module("qtorch.quant").Quantizer

    def convert(layer: nn.Linear | nn.Conv2d) -> nn.Module:
        return nn.Sequential(
            layer,
            quantizer(
                forward_number=number, forward_rounding="nearest",
                backward_number=number, backward_rounding="stochastic",
            ),
        )  # fmt: skip

    return replace_layers(model, convert)


def replace_layers(
    model: nn.Module, convert: Callable[[nn.Linear | nn.Conv2d], nn.Module]
) -> nn.Module:
    """Replace every nn.Linear and nn.Conv2d by what `convert` returns, in place.

    >>> replace_layers(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), lambda layer: nn.Identity())
    Sequential(
      (0): Identity()
      (1): ReLU()
    )
    """
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear | nn.Conv2d)
    ]
    for parent, name, child in found:
        setattr(parent, name, convert(child))
    return model


_MODULES = {"torchao": "torchao", "brevitas": "brevitas", "qpytorch": "qtorch"}
OTHERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "torchao": torchao,
    "brevitas": brevitas,
    "qpytorch": qpytorch,
}


def installed_others() -> list[str]:
    """The names of installed packages."""
    return [name for name in OTHERS if find_spec(_MODULES[name]) is not None]
