"""The control tensor of a layer: what its arithmetic reads as data, so that nothing is retraced.

Slots of int32: level counts by role, the numbers of each role's format (`Bits.numbers`), and the
clock of the noise: [hash(seed, rank, layer), optimizer step, call within the step].
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bitcycle.nn.settings import LayerSettings, ModelState
from bitcycle.ops import state
from bitcycle.ops.noise import hash_ints
from bitcycle.precision import Precision

LEVELS = {"weight": 0, "act": 1, "error": 2, "grad": 3}
CLOCK = slice(16, 19)
STEP, CALL = 17, 18
CONTROL_SIZE = 19
_PRODUCT_NOISE = 0x5BD1E995  # odd: separates the noise of a layer's products


def number_slots(slot: int) -> slice:
    """The slots of the numbers of a format whose level count has this slot."""
    return slice(4 + 3 * slot, 7 + 3 * slot)


def control_for_product(control: Tensor, index: int) -> Tensor:
    """The control tensor for one of several products in a call, with separate noise."""
    if index == 0:
        return control
    control = control.clone()
    control[CLOCK.start] += torch.tensor(index, dtype=torch.int32) * _PRODUCT_NOISE
    return control


class Clock(nn.Module):
    """Mixed into layers: writes the control tensor and counts the calls of a step."""

    settings: LayerSettings
    shared: ModelState
    precision: Precision
    quantized_roles: tuple[str, ...]
    control: Tensor
    _written_version: int

    def write_control(self) -> None:
        """Write all slots but the last, the call within the step."""
        roles = self.precision.bits.values()
        levels = [bits.levels for bits in roles]
        numbers = [n for bits in roles for n in bits.numbers]
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        base = hash_ints(self.settings.seed, rank, zlib.crc32(self.settings.name.encode()))
        if not self.control.is_meta:
            values = torch.tensor([*levels, *numbers, base, self.shared.step], dtype=torch.int32)
            self.control[:CALL].copy_(values, non_blocking=True)
        self._written_version = version(self.control)

    def renew_control(self) -> None:
        """Write it again if it was averaged (EMA with buffers) or broadcast: `precision` counts."""
        if version(self.control) != self._written_version:
            self.write_control()

    def counts_call(self, *, is_first: bool = True) -> bool:
        """Whether this product counts a call of the layer, so that its noise is its own.

        The first product of a call does. A forward pass that is recomputed (gradient checkpointing)
        counts nothing, so that its noise repeats. Evaluation takes no noise and leaves the count of
        the training around it.
        """
        if not is_first or not (self.training or torch.is_grad_enabled()):
            return False
        takes_noise = "error" in self.quantized_roles or "grad" in self.quantized_roles
        return takes_noise and not is_recomputing()

    def next_control(self, *, is_first: bool = True) -> Tensor:
        """The control tensor of this call, with its own noise: a copy, for a later backward."""
        is_compiling = torch.compiler.is_compiling()
        if not is_compiling:
            self.renew_control()
        if not self.counts_call(is_first=is_first):
            return self.control.clone() if torch.is_grad_enabled() else self.control
        control = state.count_up(self.control, CALL)
        if not is_compiling:
            self._written_version = version(self.control)
        return control


def advance_clocks(layers: Iterable[Clock], step: int) -> None:
    """Set the optimizer step of the layers' noise and restart their count of calls."""
    clocks: dict[torch.device, Tensor] = {}
    for layer in layers:
        layer.shared.step = step
        if layer.control.is_meta:
            continue
        device = layer.control.device
        if device not in clocks:
            # filled on the device: a copy from the host would wait for it
            clocks[device] = torch.zeros(2, dtype=torch.int32, device=device)
            clocks[device][0].fill_(step)
        layer.renew_control()  # overwritten, or counted by a compiled forward pass
        layer.control[STEP:].copy_(clocks[device])
        layer._written_version = version(layer.control)


def version(x: Tensor) -> int:
    """How often the tensor was written to; -1 for inference tensors, which have no count."""
    return -1 if x.is_inference() else x._version


def is_recomputing() -> bool:
    """Whether this forward pass runs inside a backward pass (gradient checkpointing)."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1
