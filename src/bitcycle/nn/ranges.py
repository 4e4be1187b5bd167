"""The running activation ranges of a layer: observed in training, used in evaluation."""

from __future__ import annotations

import warnings
from typing import ClassVar

import torch
from torch import Tensor, nn

from bitcycle.nn.control import LEVELS, is_recomputing, version
from bitcycle.nn.settings import LayerSettings, ModelState, without_sync
from bitcycle.ops import state
from bitcycle.ops.affine import value_range
from bitcycle.ops.state import flag_nonfinite
from bitcycle.quantizers.base import Quantizer, Range
from bitcycle.warnings import BitcycleWarning


class ActivationRanges(nn.Module):
    """Mixed into layers; `act_range` has a row [observations, minimum, range] per input."""

    settings: LayerSettings
    shared: ModelState
    quantized_roles: tuple[str, ...]
    num_act_inputs: ClassVar[int]
    health: Tensor
    act_range: Tensor
    _is_observed: bool
    _range_version: int | None

    @property
    def grid_roles(self) -> tuple[str, ...]:
        """The roles that have a range or blocks now."""
        raise NotImplementedError

    @property
    def current_quantizer(self) -> Quantizer:
        """The quantizer; in evaluation without synchronization, as other ranks may not evaluate."""
        quantizer = self.settings.quantizer
        must_sync = self.training or self.shared.is_calibrating
        return quantizer if must_sync else without_sync(quantizer)

    @property
    def must_observe(self) -> bool:
        """Whether an activation's range is the batch's, which moves the running one."""
        return (self.training or self.shared.is_calibrating) and self.settings.quantizer.observes

    @property
    def range_momentum(self) -> float | None:
        """The weight of a new range; None while `calibrate` takes the mean."""
        return None if self.shared.takes_mean else self.settings.quantizer.range_momentum

    def activation_range(self, x: Tensor, index: int) -> Range | None:
        """The range of an activation: the batch's in training, the running one in evaluation."""
        observes, must_observe = self.settings.quantizer.observes, self.must_observe
        if "act" not in self.grid_roles and not self.shared.is_calibrating:
            if "act" in self.quantized_roles:  # bf16 or fp16
                flag_nonfinite(self.health, LEVELS["act"], *value_range(x.detach()))
            return None
        if observes and not must_observe and self.is_observed:
            row = self.act_range[index].clone()  # backward may read it after the next observation
            return row[1], row[1] + row[2]
        low, high = self.batch_range(x)
        if must_observe and not is_recomputing() and x.numel() > 0:
            self.observe(index, low, high)
            return low, high
        flag_nonfinite(self.health, LEVELS["act"], low, high)
        if observes and not must_observe:
            self.warn_unobserved()
        return low, high

    def batch_range(self, x: Tensor) -> Range:
        """The quantizer's range of this tensor, computed once for all layers that read it."""
        quantizer, cache = self.current_quantizer, self.shared.input_cache
        if torch.compiler.is_compiling():  # which finds common work by itself
            return quantizer.range_of("act", x.detach())
        within = cache.range_of(x, quantizer)
        if within is None:
            within = quantizer.range_of("act", x.detach())
            cache.keep_range(x, quantizer, within)
        return within

    def observe(self, index: int, low: Tensor, high: Tensor) -> None:
        """Move a running range towards a new one, and flag one that is not finite."""
        slot = LEVELS["act"]
        state.observe(self.act_range, index, low, high, self.range_momentum, self.health, slot)
        self.note_observation()

    def note_observation(self) -> None:
        """Remember that a range was observed; the native library counts no version."""
        if torch.compiler.is_compiling():
            self._is_observed = True  # not read: a graph would depend on it
            return
        if not self._is_observed:  # setting an attribute of a module takes a microsecond
            self._is_observed = True
        self._range_version = version(self.act_range)

    @property
    def is_observed(self) -> bool:
        """Whether every activation input has a range.

        Averaging (EMA, SWA), replication and loading write `act_range` directly, so it is read
        again when its version changed.
        """
        if self.num_act_inputs == 0:
            return True
        if torch.compiler.is_compiling() or self.act_range.is_meta:
            return self._is_observed
        if version(self.act_range) != self._range_version:
            self._is_observed = bool((self.act_range[:, 0] > 0).all())
            self._range_version = version(self.act_range)
        return self._is_observed

    def warn_unobserved(self) -> None:
        """Warn, once per model, that evaluation has no running range to use."""
        if torch.compiler.is_compiling() or self.shared.has_warned_unobserved:
            return
        self.shared.has_warned_unobserved = True
        warnings.warn(
            f"layer {self.settings.name!r} has never observed an activation range: evaluation uses "
            "each batch's own range; train, or use bitcycle.calibrate(model, batches)",
            BitcycleWarning,
            stacklevel=5,
        )

    def reset_ranges(self) -> None:
        """Forget every observed activation range."""
        self._is_observed = False
        if not self.act_range.is_meta:
            self.act_range.zero_()
        self._range_version = version(self.act_range)
