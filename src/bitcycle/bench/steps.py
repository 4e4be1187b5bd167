"""The training step that is timed: in float32, with autocast, or with a kernel at some bits."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bitcycle.audit import audit
from bitcycle.bench.others import OTHERS, installed_others
from bitcycle.bench.workloads import Workload
from bitcycle.convert import quantize_model
from bitcycle.kernels import KERNELS
from bitcycle.memory import saved_bytes
from bitcycle.precision import Precision
from bitcycle.scheduler import PrecisionScheduler

FLOAT, AUTOCAST, AUTO = "float32", "bf16-autocast", "auto"
_ORDER = ("simulate", "dequantize", "bf16", "int8")
_TOTAL_STEPS = 100_000  # more than any benchmark takes; the bits are constant


def all_kernels() -> list[str]:
    """All kernels that can be timed here, in the order of the table.

    >>> all_kernels()[:7]
    ['float32', 'bf16-autocast', 'simulate', 'dequantize', 'bf16', 'int8', 'auto']
    """
    later = [name for name in KERNELS if name not in _ORDER]
    return [FLOAT, AUTOCAST, *_ORDER, *later, AUTO, *installed_others()]


@dataclass(frozen=True)
class Variant:
    """A kernel at some bits, or another way to train."""

    kernel: str
    bits: Precision | None = None

    def __str__(self) -> str:
        return f"{self.kernel} {self.bits_text}".strip()

    @property
    def bits_text(self) -> str:
        """The bits as text, without those of the weight gradient, which `sbm` does not quantize."""
        return "" if self.bits is None else str(self.bits.replace(grad=None))


def make_variants(kernels: list[str], bits: list[Precision]) -> list[Variant]:
    """bitcycle's kernels at each of the bits, the others once."""
    found = []
    for kernel in kernels:
        is_ours = kernel == AUTO or kernel in KERNELS
        found += [Variant(kernel, each) for each in bits] if is_ours else [Variant(kernel)]
    return found


class TrainStep:
    """Forward, backward, SGD with momentum, and a step of the precision scheduler."""

    def __init__(self, workload: Workload, variant: Variant) -> None:
        self._workload, self._variant = workload, variant
        self.model = _convert(workload, variant).train()
        self._scheduler: PrecisionScheduler | None = None
        if variant.bits is not None:
            bits = variant.bits
            self._scheduler = PrecisionScheduler(
                self.model,
                weight=bits.weight,
                act=bits.act,
                backward=bits.error,
                total_steps=_TOTAL_STEPS,
            )
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def __call__(self) -> None:
        """One step."""
        with self._autocast():
            loss = self._loss(self._inputs())
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._scheduler is not None:
            self._scheduler.step()

    def count_saved(self) -> int:
        """Bytes that the forward pass saves for backward, without inputs and parameters."""
        inputs = self._inputs()
        with self._autocast():
            saved = saved_bytes(self.model, lambda _: self._loss(inputs), exclude=inputs)
        return saved.num_bytes

    def layers(self) -> dict[str, tuple[str, str]]:
        """The kernel of each converted layer, and the reason for it."""
        if self._variant.bits is None:
            return {}
        rows = audit(self.model).converted_rows
        return {row.name: (row.kernel, row.reason) for row in rows}

    def float_layers(self) -> dict[str, str]:
        """The reason why each multiplying layer was not converted."""
        if self._variant.bits is None:
            return {}
        return {row.name: row.reason for row in audit(self.model).float_rows}

    def _inputs(self) -> tuple[Tensor, ...]:
        return tuple(x.detach().requires_grad_(x.requires_grad) for x in self._workload.inputs)

    def _loss(self, inputs: tuple[Tensor, ...]) -> Tensor:
        return self._workload.loss(self.model(*inputs))

    def _autocast(self) -> torch.autocast:
        is_on = self._variant.kernel == AUTOCAST
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on)


def _convert(workload: Workload, variant: Variant) -> nn.Module:
    if variant.bits is not None:
        return quantize_model(copy.deepcopy(workload.model), kernel=variant.kernel)
    model = copy.deepcopy(workload.float_model or workload.model)
    return OTHERS[variant.kernel](model) if variant.kernel in OTHERS else model
