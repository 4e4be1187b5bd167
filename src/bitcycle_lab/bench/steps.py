"""The training step that is timed: in float32, with autocast, or with a kernel at some bits."""

from __future__ import annotations

import copy
import functools
import re
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bitcycle.audit import audit
from bitcycle.bits import Bits, has_format, order
from bitcycle.convert import quantize_model
from bitcycle.formats.catalogue import NAME_PATTERN
from bitcycle.kernels.base import KERNELS
from bitcycle.memory import saved_bytes
from bitcycle.precision import Precision
from bitcycle.role_schedules import quantizer_for
from bitcycle.scheduler import PrecisionScheduler
from bitcycle.schedules import Static
from bitcycle.schedules.cycle import schedule
from bitcycle_lab.bench.others import OTHERS, installed_others
from bitcycle_lab.bench.workloads import Workload

FLOAT, AUTOCAST, AUTO = "float32", "bf16-autocast", "auto"
INSIDE = "auto-in-autocast"  # `auto` inside bf16 autocast
_TOTAL_STEPS = 100_000  # more than any benchmark takes; the bits are constant
_CYCLE_STEPS = 10_000  # of a cycle whose steps are timed by width
_CYCLE = re.compile(r"(\d+)-(\d+)/(\d+)")
_FORMATS = re.compile(rf"(?:{NAME_PATTERN}|\d+)/(?:{NAME_PATTERN}|\d+)", re.IGNORECASE)


def all_kernels() -> list[str]:
    """All kernels that can be timed here, in the order of the table.

    >>> all_kernels()[:3]
    ['float32', 'bf16-autocast', 'simulate']
    """
    ours = sorted(KERNELS, key=lambda name: name != "simulate")
    return [FLOAT, AUTOCAST, *ours, AUTO, INSIDE, *installed_others()]


@dataclass(frozen=True)
class CycleBits:
    """Forward bits on a cosine cycle (CPT's CR) between two widths, constant backward bits.

    >>> bits = CycleBits(3, 8, 8)
    >>> str(bits), [f"{width}: {share:.2f}" for width, share in bits.shares().items()]
    ('3-8/8', ['3: 0.20', '4: 0.16', '5: 0.13', '6: 0.13', '7: 0.16', '8: 0.20'])
    """

    low: int
    high: int
    backward: int

    def __str__(self) -> str:
        return f"{self.low}-{self.high}/{self.backward}"

    @property
    def schedule(self) -> str:
        """The forward schedule: one cycle."""
        return f"CR:{self.low}-{self.high}:1"

    @functools.cache  # noqa: B019 (a few small values per process)
    def values(self) -> list[int]:
        """The forward bits of every step of the cycle."""
        cycle = schedule("CR", low=self.low, high=self.high, cycles=1)
        return list(map(order, cycle.values(_CYCLE_STEPS)))

    def shares(self) -> dict[int, float]:
        """How often each width occurs in the cycle."""
        counts = Counter(self.values())
        return {width: counts[width] / _CYCLE_STEPS for width in sorted(counts)}


VariantBits = Precision | CycleBits


def parse_bits(text: str | VariantBits) -> VariantBits:
    """Read the bits of a variant: those of `Precision.parse`, or a cycle such as 3-8/8.

    Formats may be written forward/backward, such as nvfp4/nvfp4.

    >>> str(parse_bits("3-8/8")), str(parse_bits("FW4/BW8"))
    ('3-8/8', 'w4a4e8g8')
    >>> str(parse_bits("nvfp4/bf16"))
    'w=nvfp4,a=nvfp4,e=bf16,g=bf16'
    """
    if isinstance(text, CycleBits):
        return text
    if isinstance(text, str) and (found := _CYCLE.fullmatch(text.strip())):
        low, high, backward = map(int, found.groups())
        for each in (low, high, backward):
            Bits.of(each)
        schedule("CR", low=low, high=high, cycles=1)  # low <= high
        return CycleBits(low, high, backward)
    if isinstance(text, str) and _FORMATS.fullmatch(text.strip()) and not _is_number(text):
        return Precision.parse("FW{}/BW{}".format(*text.strip().split("/")))
    return Precision.parse(text)


def _is_number(text: str) -> bool:
    return text.replace("/", "").strip().isdigit()


@dataclass(frozen=True)
class Variant:
    """A kernel at some bits, or another way to train."""

    kernel: str
    bits: VariantBits | None = None

    def __str__(self) -> str:
        return f"{self.kernel} {self.bits_text}".strip()

    @property
    def bits_text(self) -> str:
        """The bits as text, without those of the weight gradient, which `sbm` does not quantize."""
        if isinstance(self.bits, Precision):
            return _pair_text(self.bits) or str(self.bits.replace(grad=None))
        return "" if self.bits is None else str(self.bits)

    @property
    def quantizer(self) -> str:
        """The quantizer that rounds to the bits: that of their format, or "sbm"."""
        roles = self.bits.items() if isinstance(self.bits, Precision) else ()
        return quantizer_for(bits for _, bits in roles)

    @property
    def widths(self) -> tuple[int, ...]:
        """The forward bits that are timed one by one: those of a cycle."""
        return tuple(self.bits.shares()) if isinstance(self.bits, CycleBits) else ()


def _pair_text(bits: Precision) -> str | None:
    """'nvfp4/bf16' if a role has a format, and weights and activations have the same."""
    if not has_format(each for _, each in bits.items()) or bits.weight != bits.act:
        return None
    return f"{bits.bits['weight']}/{bits.bits['error']}"


def is_ours(kernel: str) -> bool:
    """Whether a kernel takes bits."""
    return kernel in (AUTO, INSIDE) or kernel in KERNELS


class TrainStep:
    """Forward, backward, SGD with momentum, and a step of the precision scheduler."""

    def __init__(self, workload: Workload, variant: Variant) -> None:
        self._workload, self._variant = workload, variant
        self.model = _convert(workload, variant).train()
        self._scheduler = _make_scheduler(self.model, variant.bits)
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

    def set_width(self, width: int) -> None:
        """Take the next step at a step of the cycle that has these forward bits."""
        assert self._scheduler is not None
        assert isinstance(self._variant.bits, CycleBits)
        self._scheduler.load_state_dict({"step_count": self._variant.bits.values().index(width)})

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
        return {row.name: row.reason for row in audit(self.model).float_rows if row.multiplies}

    def _inputs(self) -> tuple[Tensor, ...]:
        return tuple(x.detach().requires_grad_(x.requires_grad) for x in self._workload.inputs)

    def _loss(self, inputs: tuple[Tensor, ...]) -> Tensor:
        return self._workload.loss(self.model(*inputs))

    def _autocast(self) -> torch.autocast:
        is_on = self._variant.kernel in (AUTOCAST, INSIDE)
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on)


def _convert(workload: Workload, variant: Variant) -> nn.Module:
    if variant.bits is not None:
        kernel = AUTO if variant.kernel == INSIDE else variant.kernel
        model = copy.deepcopy(workload.model)
        return quantize_model(model, variant.quantizer, kernel=kernel, skip=workload.skip)
    model = copy.deepcopy(workload.float_model or workload.model)
    return OTHERS[variant.kernel](model) if variant.kernel in OTHERS else model


def _make_scheduler(model: nn.Module, bits: VariantBits | None) -> PrecisionScheduler | None:
    if bits is None:
        return None
    if isinstance(bits, CycleBits):
        return PrecisionScheduler(
            model, forward=bits.schedule, backward=bits.backward, total_steps=_CYCLE_STEPS
        )
    return PrecisionScheduler(
        model,
        weight=Static(bits.weight),
        act=Static(bits.act),
        backward=Static(bits.error),
        total_steps=_TOTAL_STEPS,
    )
