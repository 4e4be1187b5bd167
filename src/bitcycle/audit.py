"""What is quantized and what is not: one row per module that multiplies, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bitcycle.calibrate import call_model
from bitcycle.candidates import Candidate, find_candidates, find_ends, is_within, keeps_aggregation
from bitcycle.nn.base import QuantizedLayer
from bitcycle.nn.embedding import QuantizedLookup
from bitcycle.nn.norm import QuantizedNorm
from bitcycle.patterns import named_modules, unwrap
from bitcycle.precision import ROLES
from bitcycle.products import watch_products
from bitcycle.quantizers.base import Quantizer
from bitcycle.tables import text_table


@dataclass(frozen=True)
class AuditRow:
    """One module that multiplies, or a product that no module owns; or else see `multiplies`."""

    name: str
    type: str
    is_converted: bool
    reason: str  # why it stays float; for a converted layer, why this kernel
    bits: dict[str, str]  # by role: a number, "fp32", or "no rule"
    quantizer: str = ""
    kernel: str = ""
    is_observed: bool | None = None  # None: has no running activation range
    multiplies: bool = True  # False: a BatchNorm by a rule, a converted embedding


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
        products = [row for row in self.rows if row.multiplies]
        count = f"{sum(row.is_converted for row in products)} of {len(products)} products converted"
        return f"{text_table(header, body)}\n{count}"


def audit(model: nn.Module, example_inputs: Any = None) -> Audit:
    """List everything in the model that multiplies: its bits, quantizer, kernel, and why.

    With example_inputs (a tensor, a tuple of arguments, or a dict of keyword arguments) the model
    is run once, in evaluation mode and float32, and products that no module owns, such as
    `torch.matmul` or `F.scaled_dot_product_attention` in a forward, are listed too.

    >>> from bitcycle.convert import quantize_model
    >>> model = nn.ModuleList([nn.Linear(4, 8), nn.Bilinear(8, 8, 2)])
    >>> model = quantize_model(model, kernel="simulate")
    >>> [(row.name, row.is_converted, row.reason) for row in audit(model).rows]
    [('0', True, 'asked for'), ('1', False, 'no quantized layer for Bilinear')]
    """
    candidates = find_candidates(model)
    kept = _kept_float(candidates)
    rows = [_row(candidate, kept) for candidate in candidates] + _norm_rows(model, candidates)
    if example_inputs is not None:
        rows += _functional_rows(model, candidates, example_inputs)
    return Audit(tuple(rows))


def _rules(candidates: list[Candidate]) -> list[Quantizer]:
    layers = (c.module for c in candidates)
    return [layer.settings.quantizer for layer in layers if isinstance(layer, QuantizedLayer)]


def _kept_float(candidates: list[Candidate]) -> dict[int, str]:
    """Why aggregations, and the first and the last layer, stay float; by the modules' ids."""
    kept: dict[int, str] = {}
    for rules in _rules(candidates)[:1]:
        kept = {
            id(c.module): "sums along edges in float32 (aggregation='float32')"
            for c in candidates
            if keeps_aggregation(rules, c.module)
        }
    keeping = [rules for rules in _rules(candidates) if rules.first_last == "float32"]
    if not keeping:
        return kept
    ends, kind = find_ends(candidates), type(keeping[0]).__name__
    return kept | {
        id(c.module): f"{'first' if is_within(c, ends[:1]) else 'last'} layer: "
        f"{kind} leaves it float32 (first_last)"
        for c in candidates
        if is_within(c, ends)
    }


def _norm_rows(model: nn.Module, candidates: list[Candidate]) -> list[AuditRow]:
    """BatchNorms that follow a rule, those it was meant for and does not fit, and embeddings."""
    rule = next((r.norm_rule for r in _rules(candidates) if r.norm_rule), None)
    rows = []
    for entry in named_modules(model):
        norm = entry.module
        if isinstance(norm, (QuantizedNorm, QuantizedLookup)):
            rows.append(_row(Candidate(norm, entry.names, entry.parents), {}))
        elif rule and isinstance(norm, nn.modules.batchnorm._BatchNorm):
            reason = f"no {rule!r} rule for {type(norm).__name__}, or not chosen"
            rows.append(
                AuditRow(entry.name, type(norm).__name__, False, reason, {}, multiplies=False)
            )
    return rows


def _row(candidate: Candidate, kept: dict[int, str]) -> AuditRow:
    layer = candidate.module
    if not isinstance(layer, QuantizedLayer):
        reason = candidate.reason or kept.get(id(layer))
        reason = reason or "not chosen (skip, only, or never converted)"
        return AuditRow(candidate.name, type(layer).__name__, False, reason, {})
    quantizer = layer.settings.quantizer
    bits = {
        role: "no rule" if bits is not None and role not in quantizer.roles
        else "fp32" if bits is None else str(bits)
        for role, bits in layer.precision.items()
    }  # fmt: skip
    if isinstance(layer, QuantizedNorm):
        return AuditRow(
            name=candidate.name,
            type=layer.float_type.__name__,
            is_converted=True,
            reason=f"normalizes by the rule {layer.rule!r}",
            bits={role: text for role, text in bits.items() if role in layer.rule_roles},
            quantizer=type(quantizer).__name__,
            multiplies=False,
        )
    if isinstance(layer, QuantizedLookup):
        return AuditRow(
            name=candidate.name,
            type=layer.float_type.__name__,
            is_converted=True,
            reason="looks rows of its weight up",
            bits={"weight": bits["weight"]},
            quantizer=type(quantizer).__name__,
            multiplies=False,
        )
    return AuditRow(
        name=candidate.name,
        type=layer.float_type.__name__,
        is_converted=True,
        reason=layer.settings.kernel_reason,
        bits=bits,
        quantizer=type(quantizer).__name__,
        kernel=layer.settings.kernel.name,
        is_observed=layer.is_observed if quantizer.observes and layer.num_act_inputs else None,
    )


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
