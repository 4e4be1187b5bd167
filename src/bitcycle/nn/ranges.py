"""Running activation ranges: observed in training, used in evaluation."""

from __future__ import annotations

import warnings
from typing import ClassVar

import torch
from torch import Tensor, nn

from bitcycle.nn.product import watch
from bitcycle.nn.seen import usable
from bitcycle.nn.settings import LayerSettings, ModelState, alone
from bitcycle.quantizers.base import Quantizer, Range
from bitcycle.warnings import BitcycleWarning

MOMENTUM = 0.1  # running ranges: 0.9 * old + 0.1 * new


class RangeKeeper(nn.Module):
    """The part of a converted layer that knows where its activations lie.

    `act_range` has a row [observations, minimum, range] per activation input.
    """

    num_act_inputs: ClassVar[int] = 1  # 0: keeps no running range

    settings: LayerSettings
    shared: ModelState
    quantized_roles: tuple[str, ...]
    health: Tensor
    act_range: Tensor
    _is_observed: bool
    _range_version: int | None

    def _act_range(self, x: Tensor, index: int) -> Range | None:
        """The range an activation is put on: the batch's in training, the running one otherwise."""
        quantizer = self.settings.quantizer
        is_calibrating = self.shared.is_calibrating
        if "act" not in self.quantized_roles and not is_calibrating:
            return None
        must_observe = (self.training or is_calibrating) and quantizer.observes
        if not must_observe and quantizer.observes and self.is_observed:
            row = self.act_range[index].clone()  # backward may read it after the next observation
            return row[1], row[1] + row[2]
        low, high = self._batch_range(x)
        watch(self.health, "act", (low, high))
        if must_observe and not is_recomputing() and x.numel() > 0:
            self._observe(index, low, high)
        elif not must_observe and quantizer.observes:
            self._warn_unobserved()
        return low, high

    @property
    def rules(self) -> Quantizer:
        """The quantizer; in evaluation it waits for no other process, which may not evaluate."""
        quantizer = self.settings.quantizer
        is_alone = not (self.training or self.shared.is_calibrating)
        return alone(quantizer) if is_alone else quantizer

    def _batch_range(self, x: Tensor) -> Range:
        quantizer, seen = self.rules, self.shared.last_seen
        if not usable():
            return quantizer.range_of("act", x.detach())
        known = seen.range_of(x, quantizer)
        if known is None:
            known = quantizer.range_of("act", x.detach())
            seen.keep_range(x, quantizer, known)
        return known

    def _observe(self, index: int, low: Tensor, high: Tensor) -> None:
        row = self.act_range[index]
        count = row[:1] + 1
        share = 1 / count if self.shared.takes_mean else torch.where(count > 1, MOMENTUM, 1.0)
        new = torch.stack([low, high - low]).to(row.dtype)
        updated = torch.cat([count, torch.lerp(row[1:], new, share)])
        # one bad batch must not spoil the ranges for good
        row.copy_(torch.where(torch.isfinite(new[1]), updated, row))
        self._is_observed = True
        if not torch.compiler.is_compiling():
            self._range_version = version(self.act_range)

    @property
    def is_observed(self) -> bool:
        """Whether every activation input has a range; read again when others wrote the buffer.

        Averaging (EMA, SWA), replication and loading write `act_range` without telling.
        """
        if self.num_act_inputs == 0:
            return True  # there is nothing to wait for
        if torch.compiler.is_compiling() or self.act_range.is_meta:
            return self._is_observed
        if version(self.act_range) != self._range_version:
            self._is_observed = bool((self.act_range[:, 0] > 0).all())
            self._range_version = version(self.act_range)
        return self._is_observed

    def _warn_unobserved(self) -> None:
        if torch.compiler.is_compiling() or self.shared.has_warned_unobserved:
            return
        self.shared.has_warned_unobserved = True
        warnings.warn(
            f"layer {self.settings.name!r} has never observed an activation range: evaluation uses "
            "each batch's own range. Train with quantization on, or run bitcycle.calibrate(model, "
            "batches); bitcycle.audit(model) lists the layers.",
            BitcycleWarning,
            stacklevel=5,
        )

    def reset_ranges(self) -> None:
        """Forget every observed activation range."""
        self._is_observed = False
        if not self.act_range.is_meta:
            self.act_range.zero_()
        self._range_version = version(self.act_range)


def version(x: Tensor) -> int:
    """How often the tensor was written to; tensors made in inference mode do not count."""
    return -1 if x.is_inference() else x._version


def is_recomputing() -> bool:
    """Whether this forward runs inside a backward pass: gradient checkpointing, not a new batch."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1
