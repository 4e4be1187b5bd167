"""Exported files: written whole or not at all, and what they say about themselves."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from bitcycle.files import sync
from bitcycle.model_precision import quantized_layers
from bitcycle.quantizers.base import QUANTIZERS, Quantizer
from bitcycle.train.evaluate import is_converted
from bitcycle.version import VERSION

FORMAT = 1


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file by another in one step; a crash leaves the old or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def about(model: nn.Module, source: dict[str, Any]) -> dict[str, Any]:
    """What every exported file tells: its format, its source, bits and rules of its layers."""
    facts: dict[str, Any] = {"format": FORMAT, "bitcycle": VERSION, **source}
    if is_converted(model):
        layers = [(entry.name, layer) for entry, layer in quantized_layers(model)]
        facts["precision"] = {
            name: str(layer.precision.replace(error=None, grad=None)) for name, layer in layers
        }
        rules = {layer.settings.quantizer for _, layer in layers}
        if len(rules) > 1:
            names = ", ".join(sorted(type(rule).__name__ for rule in rules))
            raise ValueError(f"the layers of an exported model have one quantizer, not {names}")
        facts["quantizer"] = describe(rules.pop())
    return facts


def describe(quantizer: Quantizer) -> dict[str, Any]:
    """Name and options of a rule."""
    names = [name for name in QUANTIZERS if QUANTIZERS[name] is type(quantizer)]
    return {"name": names[0] if names else type(quantizer).__name__, "options": asdict(quantizer)}


def check_format(facts: Any, path: Path) -> dict[str, Any]:
    """The facts of a file that this version can read."""
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        found = facts.get("format") if isinstance(facts, dict) else None
        raise ValueError(f"{path} is not an exported model of format {FORMAT} (found {found})")
    return facts
