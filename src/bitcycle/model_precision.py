"""The bits and kernels of a model's layers: set them, read them, change them for a `with` block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from bitcycle.kernels.choice import recorded_kernel
from bitcycle.native.library import instruction_set
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.patterns import NamedModule, Pattern, check_mapping, last_match, named_modules
from bitcycle.precision import Precision

PrecisionLike = Precision | str
ModelPrecision = Precision | dict[str, Precision]  # of all layers, or by the layer's name
Assignment = PrecisionLike | Mapping[Pattern, PrecisionLike]


def quantized_layers(model: nn.Module) -> list[tuple[NamedModule, QuantizedLayer]]:
    """Every converted layer with its names; a ValueError if there is none."""
    layers = [
        (entry, entry.module)
        for entry in named_modules(model)
        if isinstance(entry.module, QuantizedLayer)
    ]
    if not layers:
        raise ValueError(
            "the model has no quantized layer; convert it first: bitcycle.quantize_model(model)"
        )
    return layers


def set_precision(model: nn.Module, precision: Assignment) -> None:
    """Set the bits of every converted layer, or of the layers that patterns select.

    Of several patterns that select a layer, the last one counts.

    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))
    >>> set_precision(model, {"*": "w8a8e8", "1": "w4a4e8"})
    >>> [str(layer.precision) for layer in model]
    ['w8a8e8', 'w4a4e8']
    """
    layers = quantized_layers(model)
    for layer, bits in _resolve(layers, precision):
        layer.set_precision(bits)


def _resolve(
    layers: list[tuple[NamedModule, QuantizedLayer]], precision: Assignment
) -> list[tuple[QuantizedLayer, Precision]]:
    """The bits of each layer; checks all of them before any is written."""
    if not isinstance(precision, Mapping):
        bits = Precision.parse(precision)
        resolved = [(layer, bits) for _, layer in layers]
    else:
        check_mapping(precision, [entry for entry, _ in layers], "set_precision")
        parsed = {pattern: Precision.parse(text) for pattern, text in precision.items()}
        picked = [(layer, last_match(parsed, entry)) for entry, layer in layers]
        resolved = [(layer, bits) for layer, bits in picked if bits is not None]
    for layer, bits in resolved:
        layer.check_precision(bits)
    return resolved


def get_precision(model: nn.Module) -> ModelPrecision:
    """The bits of all converted layers, or a dict by layer name if they differ.

    `set_precision` accepts both.
    """
    layers = quantized_layers(model)
    distinct = {layer.precision for _, layer in layers}
    if len(distinct) == 1:
        return distinct.pop()
    return {entry.name: layer.precision for entry, layer in layers}


def describe_bits(precision: ModelPrecision) -> str:
    """The bits of all layers as text, or the distinct ones if layers differ.

    >>> describe_bits({"0": Precision(weight=4), "1": Precision()})
    'fp32 / w4 by layer'
    """
    if isinstance(precision, Precision):
        return str(precision)
    return " / ".join(sorted({str(bits) for bits in precision.values()})) + " by layer"


@contextmanager
def at_precision(model: nn.Module, precision: Assignment) -> Iterator[nn.Module]:
    """Set other bits inside a `with` block; every layer's own bits are restored after it.

    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Linear(4, 2))
    >>> with at_precision(model, "FW4/BW8"):
    ...     print(get_precision(model))
    w4a4e8g8
    >>> print(get_precision(model))
    fp32
    """
    before = [(layer, layer.precision) for _, layer in quantized_layers(model)]
    set_precision(model, precision)
    try:
        yield model
    finally:
        for layer, bits in before:
            layer.set_precision(bits)


def kernels_by_layer(model: nn.Module) -> dict[str, str]:
    """The name of each converted layer's kernel."""
    layers = [module for module in model.modules() if isinstance(module, QuantizedLayer)]
    return {layer.settings.name: layer.settings.kernel.name for layer in layers}


def kernel_state(model: nn.Module) -> dict[str, Any]:
    """What `restore_kernels` needs: part of a run's state, in JSON types."""
    has_library = instruction_set() is not None
    return {"kernels": kernels_by_layer(model), "has_native_library": has_library}


def restore_kernels(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Use the kernels of `kernel_state`, whatever "auto" would choose now.

    Raises ValueError where a kernel is missing.
    """
    has_library = bool(state.get("has_native_library", True))
    for layer in model.modules():
        if not isinstance(layer, QuantizedLayer):
            continue
        name = state["kernels"].get(layer.settings.name, layer.settings.kernel.name)
        kernel = recorded_kernel(name, has_library=has_library)
        if kernel.name != layer.settings.kernel.name:
            layer.settings = replace(
                layer.settings, kernel=kernel, kernel_reason="as the run began"
            )
