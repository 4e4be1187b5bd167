"""Detect NaN and infinity in quantized tensors, once per optimizer step.

Layers record them on the device (`ops.state.flag_nonfinite`), so that no step waits for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from bitcycle.model_precision import (
    ModelPrecision,
    bits_in_force,
    describe_bits,
    rounded_roles,
)
from bitcycle.nn.control import LEVELS
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.tables import THE_MODEL
from bitcycle.warnings import BitcycleWarning

_Precision = ModelPrecision | Callable[[], ModelPrecision]


class NonFiniteError(ArithmeticError):
    """A NaN or an infinity reached a tensor that was to be quantized."""


class NonFiniteCheck:
    """Reads the `health` buffers of layers and clears them.

    On the CPU it reports at once. On other devices it copies the buffers without waiting and
    reports in the next call.
    """

    def __init__(self, names: list[str], layers: list[QuantizedLayer]) -> None:
        self._names, self._layers = names, layers
        self._pending: tuple[Tensor, torch.Event, int, _Precision] | None = None

    def clear(self) -> None:
        """Discard what was recorded earlier, by another run."""
        self._pending = None
        with torch.no_grad():
            for layer in self._layers:
                if not layer.health.is_meta:
                    layer.health.zero_()

    def check(
        self,
        step: int,
        precision: _Precision,
        *,
        action: Literal["raise", "warn"] = "raise",
        can_wait: bool = False,
    ) -> None:
        """Report operands that were not finite since the last call.

        can_wait: wait for the device and report at once.
        """
        device = self._layers[0].health.device
        if device.type == "meta":
            return
        self._report_pending(action)
        table = torch.stack([layer.health.to(device) for layer in self._layers])  # (layers, roles)
        if device.type == "cpu" or can_wait:
            self._report(table.cpu(), step, precision, action)
            return
        host = table.to("cpu", non_blocking=True)
        event = torch.Event(device)
        event.record()
        self._pending = (host, event, step, precision)

    def _report_pending(self, action: Literal["raise", "warn"]) -> None:
        if self._pending is not None and self._pending[1].query():
            host, _, step, precision = self._pending
            self._pending = None
            self._report(host, step, precision, action)

    def _report(self, table: Tensor, step: int, precision: _Precision, action: str) -> None:
        if bool(torch.isfinite(table).all()):
            return
        self.clear()
        precision = precision() if callable(precision) else precision
        precision = bits_in_force(precision, rounded_roles(self._layers))
        where = describe_nonfinite(self._names, table)
        message = (
            f"NaN or infinity at step {step} in {where}; bits: {describe_bits(precision)}. If such "
            "steps are expected and skipped (a GradScaler), pass nonfinite='warn' or 'ignore' to "
            "the scheduler"
        )
        if action == "raise":
            raise NonFiniteError(message)
        warnings.warn(message, BitcycleWarning, stacklevel=4)


def describe_nonfinite(names: list[str], table: Tensor) -> str:
    """The operands that were not finite, in the order of the forward and backward pass."""
    is_nonfinite = ~torch.isfinite(table)
    found: list[str] = []
    for role in ("weight", "act", "error"):
        order = range(len(names)) if role != "error" else reversed(range(len(names)))
        found += [
            f"layer {names[i] or THE_MODEL} ({role})"
            for i in order
            if bool(is_nonfinite[i, LEVELS[role]])
        ]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more
