"""A training step of a workload as something to call: float32, autocast, or a kernel at bits."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bitcycle.audit import audit
from bitcycle.bench.others import OTHERS, installed_others
from bitcycle.bench.workloads import Load
from bitcycle.convert import quantize_model
from bitcycle.kernels import KERNELS
from bitcycle.memory import saved_bytes
from bitcycle.precision import Precision
from bitcycle.scheduler import PrecisionScheduler

FLOAT, AUTOCAST, AUTO = "float32", "bf16-autocast", "auto"
_ORDER = ("simulate", "dequantize", "bf16", "int8")
_MANY = 100_000  # steps; the bits are constant


def all_kernels() -> list[str]:
    """Everything that can be timed here, in the order of the table.

    >>> all_kernels()[:7]
    ['float32', 'bf16-autocast', 'simulate', 'dequantize', 'bf16', 'int8', 'auto']
    """
    later = [name for name in KERNELS if name not in _ORDER]
    return [FLOAT, AUTOCAST, *_ORDER, *later, AUTO, *installed_others()]


@dataclass(frozen=True)
class Variant:
    """A kernel, or another way to train, and the bits if they are ours to choose."""

    kernel: str
    bits: Precision | None = None

    def __str__(self) -> str:
        return f"{self.kernel} {self.bits_text}".strip()

    @property
    def bits_text(self) -> str:
        """Short; without the weight gradient's, for which `sbm` has no rule."""
        return "" if self.bits is None else str(self.bits.replace(grad=None))


def make_variants(kernels: list[str], bits: list[Precision]) -> list[Variant]:
    """Our kernels at each of the bits, the others once."""
    found = []
    for kernel in kernels:
        is_ours = kernel == AUTO or kernel in KERNELS
        found += [Variant(kernel, each) for each in bits] if is_ours else [Variant(kernel)]
    return found


class TrainStep:
    """Forward, backward, SGD with momentum and, where there are bits, their scheduler."""

    def __init__(self, load: Load, variant: Variant) -> None:
        self._load, self._variant = load, variant
        self.model = _convert(load, variant).train()
        self._bits: PrecisionScheduler | None = None
        if variant.bits is not None:
            bits = variant.bits
            self._bits = PrecisionScheduler(
                self.model,
                weight=bits.weight,
                act=bits.act,
                backward=bits.error,
                total_steps=_MANY,
            )
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def __call__(self) -> None:
        """One step."""
        with self._autocast():
            loss = self._loss(self._inputs())
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._bits is not None:
            self._bits.step()

    def count_saved(self) -> int:
        """Bytes that a forward pass keeps for the backward pass, beside inputs and parameters."""
        inputs = self._inputs()
        with self._autocast():
            saved = saved_bytes(self.model, lambda _: self._loss(inputs), exclude=inputs)
        return saved.num_bytes

    def layers(self) -> dict[str, tuple[str, str]]:
        """Of each converted layer: its kernel, and why."""
        if self._variant.bits is None:
            return {}
        rows = audit(self.model).converted_rows
        return {row.name: (row.kernel, row.reason) for row in rows}

    def float_layers(self) -> dict[str, str]:
        """Of each layer that multiplies and was not converted: why."""
        if self._variant.bits is None:
            return {}
        return {row.name: row.reason for row in audit(self.model).float_rows}

    def _inputs(self) -> tuple[Tensor, ...]:
        return tuple(x.detach().requires_grad_(x.requires_grad) for x in self._load.inputs)

    def _loss(self, inputs: tuple[Tensor, ...]) -> Tensor:
        return self._load.loss(self.model(*inputs))

    def _autocast(self) -> torch.autocast:
        is_on = self._variant.kernel == AUTOCAST
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on)


def _convert(load: Load, variant: Variant) -> nn.Module:
    if variant.bits is not None:
        return quantize_model(copy.deepcopy(load.model), kernel=variant.kernel)
    model = copy.deepcopy(load.float_model or load.model)
    return OTHERS[variant.kernel](model) if variant.kernel in OTHERS else model
