"""The metadata of exported files: form, source, and the bits and quantizer of the layers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from bitcycle.files import FORM, check_form
from bitcycle.model_precision import is_converted, quantized_layers
from bitcycle.quantizers.base import QUANTIZERS, Quantizer
from bitcycle.version import VERSION


def about(model: nn.Module, source: dict[str, Any]) -> dict[str, Any]:
    """The metadata of a model: form, version, source, and its layers' bits and quantizer."""
    facts: dict[str, Any] = {"form": FORM, "bitcycle": VERSION, **source}
    if is_converted(model):
        layers = [(entry.name, layer) for entry, layer in quantized_layers(model)]
        facts["precision"] = {
            name: str(layer.precision.replace(error=None, grad=None)) for name, layer in layers
        }
        quantizers = {layer.settings.quantizer for _, layer in layers}
        if len(quantizers) > 1:
            names = ", ".join(sorted(type(each).__name__ for each in quantizers))
            raise ValueError(
                f"the layers of an exported model must have one quantizer, not {names}"
            )
        facts["quantizer"] = describe(quantizers.pop())
    return facts


def describe(quantizer: Quantizer) -> dict[str, Any]:
    """The name and the options of a quantizer."""
    names = [name for name in QUANTIZERS if QUANTIZERS[name] is type(quantizer)]
    return {"name": names[0] if names else type(quantizer).__name__, "options": asdict(quantizer)}


def check_about(facts: Any, path: Path) -> dict[str, Any]:
    """The metadata of an exported file; ValueError if it has none or another form."""
    if not isinstance(facts, dict):
        raise ValueError(f"{path} is not an exported model: it has no metadata")
    check_form(facts.get("form"), str(path))
    return facts
