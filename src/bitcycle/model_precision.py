"""Giving bits to the layers of a model: set them, read them, set them for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from bitcycle.nn.layer import QuantizedLayer
from bitcycle.patterns import NamedModule, Pattern, check_mapping, last_match, named_modules
from bitcycle.precision import Precision

PrecisionLike = Precision | str
Assignment = PrecisionLike | Mapping[Pattern, PrecisionLike]


def quantized_layers(model: nn.Module) -> list[tuple[NamedModule, QuantizedLayer]]:
    """Every converted layer with its names; an error when there is none."""
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
    """Give every converted layer these bits, or each pattern's layers theirs (later ones win).

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
    """Which layer gets what; everything is checked before anything is written."""
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


def get_precision(model: nn.Module) -> Precision | dict[str, Precision]:
    """The precision of all converted layers, or a dict by name when they differ.

    `set_precision` takes either back.
    """
    layers = quantized_layers(model)
    distinct = {layer.precision for _, layer in layers}
    if len(distinct) == 1:
        return distinct.pop()
    return {entry.name: layer.precision for entry, layer in layers}


@contextmanager
def at_precision(model: nn.Module, precision: Assignment) -> Iterator[nn.Module]:
    """The model at other bits inside a `with`; every layer's own bits come back after it.

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
