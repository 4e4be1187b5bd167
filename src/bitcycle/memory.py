"""Measure the memory that a forward pass saves for the backward pass, by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bitcycle.calibrate import call_model
from bitcycle.cost.memory import find_saved_storages
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.patterns import named_modules
from bitcycle.tables import text_table

_CODES = (torch.uint8, torch.int8)


@dataclass(frozen=True, kw_only=True)
class SavedBytes:
    """Bytes of distinct storages, by the module that saved them first; `str()` is a table."""

    by_layer: dict[str, int]
    codes_by_layer: dict[str, int]  # the part of them that is codes of a converted layer
    by_function: dict[str, int]  # further bytes, attributes of custom autograd functions' ctx

    @property
    def num_bytes(self) -> int:
        """Of the whole model."""
        return sum(self.by_layer.values()) + sum(self.by_function.values())

    def __str__(self) -> str:
        rows = [
            (name or "(the model itself)", f"{n:,}", f"{self.codes_by_layer.get(name, 0):,}")
            for name, n in self.by_layer.items()
        ]
        rows += [(f"(ctx of {name})", f"{n:,}", "0") for name, n in self.by_function.items()]
        rows.append(("all", f"{self.num_bytes:,}", f"{sum(self.codes_by_layer.values()):,}"))
        return text_table(("layer", "bytes", "of these codes"), rows, right=(1, 2))


def saved_bytes(
    model: nn.Module,
    inputs: Any | Callable[[nn.Module], Any],
    *,
    exclude: Iterable[Tensor] = (),
) -> SavedBytes:
    """Run one forward pass at the current bits and add up what its graph keeps alive.

    inputs: a tensor, a tuple of arguments, a dict of keyword arguments, or a function of the model
    that returns the tensor to call backward on, such as a loss. Every storage counts once, with all
    its bytes. Parameters, buffers, the inputs and `exclude` (other tensors that a function uses) do
    not count.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> saved_bytes(model, torch.ones(16, 4)).by_layer  # ReLU's output, saved by two
    {'1': 512}
    """
    excluded = tuple(exclude)
    run = inputs
    if not callable(inputs):
        excluded += tuple(x for x in tree_leaves(inputs) if isinstance(x, Tensor))

        def run(inner: nn.Module) -> Any:
            return call_model(inner, inputs)

    converted = {e.name for e in named_modules(model) if isinstance(e.module, QuantizedLayer)}
    by_layer: dict[str, int] = {}
    codes: dict[str, int] = {}
    by_function: dict[str, int] = {}
    for kept in find_saved_storages(model, run, excluded):
        group = by_function if kept.is_attribute else by_layer
        group[kept.place] = group.get(kept.place, 0) + kept.num_bytes
        if kept.dtype in _CODES and kept.place in converted and not kept.is_attribute:
            codes[kept.place] = codes.get(kept.place, 0) + kept.num_bytes
    return SavedBytes(by_layer=by_layer, codes_by_layer=codes, by_function=by_function)
