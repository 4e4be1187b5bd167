"""NaN and infinity in quantized tensors: recorded on the device, read once per optimizer step."""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from torch import Tensor

from bitcycle.nn.base import QuantizedLayer
from bitcycle.nn.product import LEVELS
from bitcycle.precision import Precision
from bitcycle.warnings import BitcycleWarning


class NonFiniteError(ArithmeticError):
    """A NaN or an infinity reached a tensor that was to be quantized."""


class HealthCheck:
    """Reads the `health` buffers of some layers and clears them.

    On the CPU a reading is current. On other devices it is copied without waiting and looked at
    by the next call, so that no step ever waits for the device.
    """

    def __init__(self, layers: list[QuantizedLayer]) -> None:
        self._layers = layers
        self._pending: tuple[Tensor, torch.Event, int, object] | None = None

    def check(
        self,
        step: int,
        precision: Precision | dict[str, Precision],
        *,
        action: Literal["raise", "warn"] = "raise",
    ) -> None:
        """Report operands that were not finite since the last call."""
        buffers = [layer.health for layer in self._layers]
        device = buffers[0].device
        if device.type == "meta":
            return
        table = torch.stack([buffer.to(device) for buffer in buffers])  # (layers, roles)
        if device.type == "cpu":
            self._report(table, step, precision, action)
            return
        self._look_at_pending(action)
        host = table.to("cpu", non_blocking=True)
        event = torch.Event(device)
        event.record()
        self._pending = (host, event, step, precision)

    def _look_at_pending(self, action: Literal["raise", "warn"]) -> None:
        if self._pending is not None and self._pending[1].query():
            host, _, step, precision = self._pending
            self._pending = None
            self._report(host, step, precision, action)

    def _report(self, table: Tensor, step: int, precision: object, action: str) -> None:
        if bool(torch.isfinite(table).all()):
            return
        with torch.no_grad():
            for layer in self._layers:
                layer.health.zero_()
        sick = describe_sick(self._layers, table)
        message = (
            f"NaN or infinity at step {step} (bits {precision}) in {sick}. The learning rate or "
            "the bits may be too aggressive; bitcycle.collect(model) shows the layers' statistics"
        )
        if action == "raise":
            raise NonFiniteError(message)
        warnings.warn(message, BitcycleWarning, stacklevel=4)


def describe_sick(layers: list[QuantizedLayer], table: Tensor) -> str:
    """Names the operands that were not finite, in the order in which they would be reached."""
    sick = ~torch.isfinite(table)
    found: list[str] = []
    for role in ("weight", "act", "error"):
        order = range(len(layers)) if role != "error" else reversed(range(len(layers)))
        found += [
            f"{layers[i].settings.name!r} ({role})" for i in order if bool(sick[i, LEVELS[role]])
        ]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more
