"""Forward and backward of three layers with every kernel, against float32 and bfloat16 autocast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bitcycle.bits import PlainBits
from bitcycle.convert import quantize_model
from bitcycle.formats.catalogue import FORMATS
from bitcycle.kernels.base import AUTO, KERNELS
from bitcycle.kernels.choice import find_class
from bitcycle.kernels.scaled import kinds_on
from bitcycle.matmul import MatMul
from bitcycle.model_precision import set_precision
from bitcycle.role_schedules import quantizer_for
from bitcycle_lab.bench import tune
from bitcycle_lab.bench.result import Timing, time_interleaved
from bitcycle_lab.doctor.check import Check, Device
from bitcycle_lab.doctor.choices import precision_of

FLOAT, AUTOCAST = "float32", "bfloat16 autocast"
BITS = 8
REPEATS, BUDGET = 10, 0.8  # of each variant and layer; seconds


@dataclass(frozen=True)
class TimedLayer:
    """A layer whose steps are timed."""

    text: str
    build: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """The fastest seconds of one layer with one kernel; without seconds, `reason` says why."""

    layer: str
    kernel: str
    bits: str = ""
    seconds: float | None = None
    num_repeats: int = 0
    reason: str = ""


def timed_layers(device: torch.device) -> tuple[TimedLayer, ...]:
    """A linear layer, a convolution and a product of activations; larger on a GPU."""
    if device.type == "cuda":
        return linear(8192, 4096), convolution(64, 256, 32), heads(128, 1024, 64)
    return linear(1024, 1024), convolution(16, 64, 32), heads(32, 256, 64)


def linear(tokens: int, width: int) -> TimedLayer:
    """From `width` features to as many."""
    text = f"linear, {tokens} tokens, {width} to {width}"
    return TimedLayer(text, lambda: (nn.Linear(width, width), (torch.randn(tokens, width),)))


def convolution(batch: int, channels: int, side: int) -> TimedLayer:
    """3 x 3, channels last."""

    def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
        layer, last = nn.Conv2d(channels, channels, 3, padding=1), torch.channels_last
        maps = torch.randn(batch, channels, side, side).contiguous(memory_format=last)
        return layer.to(memory_format=last), (maps,)  # type: ignore[call-overload]

    text = f"convolution 3x3, batch {batch}, {channels} channels, {side}x{side}"
    return TimedLayer(text, build)


def heads(heads: int, tokens: int, width: int) -> TimedLayer:
    """Queries times keys."""
    sizes = (heads, tokens, width), (heads, width, tokens)
    text = f"matmul, {heads} heads, {tokens} tokens, width {width}"
    return TimedLayer(text, lambda: (MatMul(), tuple(torch.randn(size) for size in sizes)))


def measure_times(
    device: Device,
    layers: Sequence[TimedLayer],
    *,
    repeats: int = REPEATS,
    advance: Callable[[], None] = lambda: None,
) -> tuple[list[LayerTime], list[Check]]:
    """The times of all kernels that run on the device, in turn, and what failed.

    Too little memory is no failure.
    """
    found: list[LayerTime] = []
    failed: list[Check] = []

    def leave_out(layer: str, kernel: str, bits: str, error: Exception) -> None:
        check = device.fail(kernel, layer, bits, error)
        if check.outcome == "failed":
            failed.append(check)
        found.append(LayerTime(layer=layer, kernel=kernel, bits=bits, reason=check.reason))

    running = ["", ""]  # kernel and bits

    def prepare(name: str) -> None:
        running[:] = name.split("\n")

    for layer in layers:
        steps: dict[tuple[str, str], LayerStep] = {}
        for kernel, bits in _variants(device.torch):
            key = kernel, "" if bits is None else str(bits)
            try:
                steps[key] = LayerStep(layer, kernel, bits, device.torch)
                steps[key]()
            except Exception as error:
                steps.pop(key, None)
                leave_out(layer.text, *key, error)
            if device.lost_by:
                return found, failed
        timings: dict[str, Timing] = {}
        while steps and not timings:  # again without a kernel that raises
            named = {"\n".join(key): step for key, step in steps.items()}
            try:
                timings = time_interleaved(named, repeats=repeats, budget=BUDGET, prepare=prepare)
            except Exception as error:
                kernel, text = running
                del steps[kernel, text]
                leave_out(layer.text, kernel, text, error)
                if device.lost_by:
                    return found, failed
        for (kernel, text), timing in zip(steps, timings.values(), strict=True):
            found.append(
                LayerTime(
                    layer=layer.text,
                    kernel=kernel,
                    bits=text,
                    seconds=timing.fastest,
                    num_repeats=len(timing.seconds),
                )
            )
        advance()
    return found, failed


def _variants(device: torch.device) -> list[tuple[str, PlainBits]]:
    """Kernels and bits; a kernel of bfloat16 at the level bf16."""
    found: list[tuple[str, PlainBits]] = [(FLOAT, None), (AUTOCAST, None)]
    for name, kernel in KERNELS.items():
        if kernel.reason_against_device(device.type) is None:
            is_bf16 = kernel.takes_bf16 and not kernel.takes_codes
            found.append((name, FORMATS["bf16"] if is_bf16 else BITS))
    processor, _ = find_class(device.index or 0 if device.type == "cuda" else None)
    scaled = [("gpu", FORMATS[tune.FORMATS[kind]]) for kind in kinds_on(processor)]
    return [*found, *scaled, (AUTO, BITS)]


class LayerStep:
    """Forward and backward of one layer, with gradients of the input."""

    def __init__(
        self, layer: TimedLayer, kernel: str, bits: PlainBits, device: torch.device
    ) -> None:
        torch.manual_seed(0)
        module, inputs = layer.build()
        self._inputs, self._device = [x.to(device) for x in inputs], device
        self._model = nn.Sequential(module).to(device)
        if bits is not None:
            quantize_model(self._model, quantizer_for([bits]), kernel=kernel)
            set_precision(self._model, precision_of(bits))
        self._model.to(device)
        self.kernel = kernel
        self._is_autocast, self._error = kernel == AUTOCAST, torch.empty(0)

    def __call__(self) -> None:
        """One step, until the device has done it."""
        inputs = [x.detach().requires_grad_() for x in self._inputs]
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._is_autocast):
            output: Tensor = self._model[0](*inputs)
        if not self._error.numel():
            self._error = torch.randn_like(output)
        output.backward(self._error)  # type: ignore[no-untyped-call]
        self._model.zero_grad()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
