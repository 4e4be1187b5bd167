"""What is quantized and what is not: one row per module that multiplies, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bitcycle.calibrate import call_model
from bitcycle.convert import Candidate, find_candidates
from bitcycle.nn.base import QuantizedLayer
from bitcycle.patterns import unwrap
from bitcycle.precision import ROLES
from bitcycle.products import watch_products
from bitcycle.tables import text_table


@dataclass(frozen=True)
class AuditRow:
    """One module that multiplies, or one functional product that no module owns."""

    name: str
    type: str
    is_converted: bool
    reason: str  # why it stays float; for a converted layer, why this kernel
    bits: dict[str, str]  # by role: a number, "fp32", or "no rule"
    quantizer: str = ""
    kernel: str = ""
    is_observed: bool | None = None  # None: has no running activation range


@dataclass(frozen=True)
class Audit:
    """The rows; `str()` is a table. `float_rows` are those that multiply in float32."""

    rows: tuple[AuditRow, ...]

    @property
    def converted_rows(self) -> tuple[AuditRow, ...]:
        """Rows of converted layers."""
        return tuple(row for row in self.rows if row.is_converted)

    @property
    def float_rows(self) -> tuple[AuditRow, ...]:
        """Rows that no bits apply to."""
        return tuple(row for row in self.rows if not row.is_converted)

    def __getitem__(self, name: str) -> AuditRow:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no row {name!r}; rows: {', '.join(row.name for row in self.rows)}")

    def __str__(self) -> str:
        header = ("name", "type", *ROLES, "quantizer", "kernel", "ranges", "why")
        body = [
            (
                row.name or "(the model itself)", row.type,
                *(row.bits.get(role, "float") for role in ROLES),
                row.quantizer or "-", row.kernel or "-",
                {None: "-", True: "observed", False: "unobserved"}[row.is_observed],
                row.reason,
            )
            for row in self.rows
        ]  # fmt: skip
        count = f"{len(self.converted_rows)} of {len(self.rows)} products converted"
        return f"{text_table(header, body)}\n{count}"


def audit(model: nn.Module, example_inputs: Any = None) -> Audit:
    """List everything in the model that multiplies: its bits, quantizer, kernel, and why.

    With example_inputs (a tensor, a tuple of arguments, or a dict of keyword arguments) the model
    is run once, in evaluation mode and float32, and products that no module owns, such as
    `torch.matmul` or `F.scaled_dot_product_attention` in a forward, are listed too.

    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Sequential(nn.Linear(4, 8), nn.LSTM(8, 2)))
    >>> [(row.name, row.is_converted, row.reason) for row in audit(model).rows]
    [('0', True, 'auto: the only kernel there is'), ('1', False, 'no quantized layer for LSTM')]
    """
    candidates = find_candidates(model)
    rows = [_row(candidate) for candidate in candidates]
    if example_inputs is not None:
        rows += _functional_rows(model, candidates, example_inputs)
    return Audit(tuple(rows))


def _row(candidate: Candidate) -> AuditRow:
    layer = candidate.module
    if not isinstance(layer, QuantizedLayer):
        reason = candidate.reason or "not chosen (skip, only, or never converted)"
        return AuditRow(candidate.name, type(layer).__name__, False, reason, {})
    quantizer = layer.settings.quantizer
    return AuditRow(
        name=candidate.name,
        type=layer.float_type.__name__,
        is_converted=True,
        reason=layer.settings.kernel_reason,
        bits={
            role: "no rule"
            if bits is not None and role not in quantizer.roles
            else "fp32" if bits is None else str(bits)
            for role, bits in layer.precision.items()
        },
        quantizer=type(quantizer).__name__,
        kernel=layer.settings.kernel.name,
        is_observed=layer.is_observed if quantizer.observes else None,
    )  # fmt: skip


def _functional_rows(
    model: nn.Module, candidates: list[Candidate], example_inputs: Any
) -> list[AuditRow]:
    with watch_products(model, candidates) as watch, torch.no_grad():
        call_model(unwrap(model), example_inputs)
    return [
        AuditRow(
            name=line,
            type="functional",
            is_converted=False,
            reason="no module owns this product; write it with bitcycle.MatMul to convert it",
            bits={},
        )
        for line in watch.lines()
    ]
