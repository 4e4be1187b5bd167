"""The buffers of a layer when its model moves, loads a state, is copied or pickled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitcycle.nn.control import Clock, version
from bitcycle.nn.ranges import ActivationRanges

OWN_BUFFERS = ("control", "health", "act_range")  # what conversion adds


class OwnBuffers(ActivationRanges, Clock):
    """Mixed into layers: their own buffers stay as they are when those of the module change."""

    _plans: dict[Any, Any]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        own = {name: getattr(self, name) for name in OWN_BUFFERS}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in own.items():  # follow the device only: .half() would round the ranges
            device = getattr(self, name).device
            if buffer.is_meta and device.type != "meta":
                self._buffers[name] = torch.zeros_like(buffer, device=device)
                self._is_observed = False
            else:
                self._buffers[name] = buffer.to(device)
        self._range_version = None  # a new tensor, or a state that was loaded into the old one
        self._plans.clear()
        self.write_control()
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        key = prefix + "act_range"
        super()._load_from_state_dict(state_dict, prefix, *args)
        if self.control.is_meta:  # load_state_dict(assign=True) onto a model made on meta
            self._materialize()
        self._range_version = None
        if key in state_dict:
            return
        strict, missing_keys = args[1], args[2]
        if key in missing_keys:
            missing_keys.remove(key)
        weights = [prefix + name for name in self._parameters]
        if any(name in state_dict for name in weights) or (strict and not weights):
            self.reset_ranges()  # a float model's state: complete, and nothing was observed

    def _materialize(self) -> None:
        """Make the buffers where the parameters are, or on the CPU if there is none."""
        near: Tensor = next(self.parameters(recurse=False), self.act_range)
        is_unplaced = near is self.act_range and near.is_meta  # a MatMul, from a float state
        device = torch.device("cpu") if is_unplaced else near.device
        if device.type == "meta":
            return
        for name in OWN_BUFFERS:
            buffer = self._buffers[name]
            assert buffer is not None
            if buffer.is_meta:
                self._buffers[name] = torch.zeros_like(buffer, device=device)
        self._plans.clear()
        self.write_control()

    def _replicate_for_data_parallel(self) -> Any:
        replica = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        replica._plans = {}
        return replica

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._plans = {}  # they follow from the rest
        self._written_version = version(self.control)  # a copy's counts from 0
        self._range_version = None
