"""What of a model is quantized, and why the rest is not: one row per module that multiplies.

With example inputs the model runs once, and products that no module owns are listed too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bitcycle.calibrate import call_model
from bitcycle.convert import Candidate, find_candidates, find_ends, is_within, keeps_aggregation
from bitcycle.model_precision import at_precision
from bitcycle.native.library import describe
from bitcycle.nn.embedding import QuantizedLookup
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.nn.norm import QuantizedNorm
from bitcycle.patterns import named_modules, unwrap
from bitcycle.precision import ROLES
from bitcycle.quantizers.base import Quantizer
from bitcycle.tables import text_table


@dataclass(frozen=True)
class AuditRow:
    """One module that multiplies, a product that no module owns, or see `multiplies`."""

    name: str
    type: str
    is_converted: bool
    reason: str  # why it stays float; for a converted layer, why this kernel
    bits: dict[str, str]  # by role: a number, "fp32", or "no rule" in the quantizer
    quantizer: str = ""
    kernel: str = ""
    is_observed: bool | None = None  # None: keeps no running activation range
    multiplies: bool = True  # False: a quantized BatchNorm or embedding


@dataclass(frozen=True)
class Audit:
    """The rows of an audit; `str()` is a table, with the state of the native library below."""

    rows: tuple[AuditRow, ...]

    @property
    def converted_rows(self) -> tuple[AuditRow, ...]:
        """The rows of converted layers."""
        return tuple(row for row in self.rows if row.is_converted)

    @property
    def float_rows(self) -> tuple[AuditRow, ...]:
        """The rows of what stays float32."""
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
        lines = [text_table(header, body), count]
        if self.converted_rows:
            lines.append(describe())
        return "\n".join(lines)


def audit(model: nn.Module, example_inputs: Any = None) -> Audit:
    """List everything in the model that multiplies, with its bits, quantizer and kernel.

    A row says why a layer stays float, or why it has its kernel. With example_inputs (a tensor, a
    tuple of arguments, or a dict of keyword arguments) the model runs once, in evaluation mode and
    float32. Products that no module owns, such as `torch.matmul` or
    `F.scaled_dot_product_attention` in a forward, are then listed too.

    >>> from bitcycle.convert import quantize_model
    >>> model = nn.ModuleList([nn.Linear(4, 8), nn.Bilinear(8, 8, 2)])
    >>> model = quantize_model(model, kernel="simulate")
    >>> [(row.name, row.is_converted, row.reason) for row in audit(model).rows]
    [('0', True, 'asked for'), ('1', False, 'no quantized layer for Bilinear')]
    """
    candidates = find_candidates(model)
    kept = _kept_float(candidates)
    rows = [_row(candidate, kept) for candidate in candidates] + _other_rows(model, candidates)
    if example_inputs is not None:
        rows += _functional_rows(model, candidates, example_inputs)
    return Audit(tuple(rows))


def _quantizers(candidates: list[Candidate]) -> list[Quantizer]:
    layers = (c.module for c in candidates)
    return [layer.settings.quantizer for layer in layers if isinstance(layer, QuantizedLayer)]


def _kept_float(candidates: list[Candidate]) -> dict[int, str]:
    """Why aggregations, and the first and the last layer, stay float; by the modules' ids."""
    kept: dict[int, str] = {}
    for rules in _quantizers(candidates)[:1]:
        kept = {
            id(c.module): "sums along edges in float32 (aggregation='float32')"
            for c in candidates
            if keeps_aggregation(rules, c.module)
        }
    keeping = [rules for rules in _quantizers(candidates) if rules.first_last == "float32"]
    if not keeping:
        return kept
    ends, kind = find_ends(candidates), type(keeping[0]).__name__
    return kept | {
        id(c.module): f"{'first' if is_within(c, ends[:1]) else 'last'} layer: "
        f"{kind} leaves it float32 (first_last)"
        for c in candidates
        if is_within(c, ends)
    }


def _other_rows(model: nn.Module, candidates: list[Candidate]) -> list[AuditRow]:
    """Quantized BatchNorms and embeddings, and BatchNorms that the quantizer's rule left float."""
    rule = next((r.norm_rule for r in _quantizers(candidates) if r.norm_rule), None)
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
    row = AuditRow(
        name=candidate.name,
        type=layer.float_type.__name__,
        is_converted=True,
        reason=layer.settings.kernel_reason,
        bits=bits,
        quantizer=type(quantizer).__name__,
    )
    if isinstance(layer, QuantizedNorm):
        used = {role: text for role, text in bits.items() if role in layer.rule_roles}
        reason = f"normalizes by the rule {layer.rule!r}"
        return replace(row, reason=reason, bits=used, multiplies=False)
    if isinstance(layer, QuantizedLookup):
        used = {"weight": bits["weight"]}
        return replace(row, reason="looks rows of its weight up", bits=used, multiplies=False)
    return replace(
        row,
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


# -- products that no module owns ------------------------------------------------------------------

# aten operators that multiply: matmul, einsum, attention and convolutions call these
PRODUCT_OPERATORS = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "convolution",
    "convolution_overrideable", "_convolution", "linear", "_int_mm", "_scaled_mm",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math", "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd", "_trilinear", "mkldnn_rnn_layer", "_sparse_mm",
    "_sparse_addmm", "mkldnn_linear", "mkldnn_convolution",
})  # fmt: skip


class ProductWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every product that runs outside the `owners`: modules that own their products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owners: set[int] = set()  # ids of modules
        self.stack: list[tuple[int, str]] = []
        self.found: dict[tuple[str, str], int] = {}  # (module name, operator) -> times
        self.is_paused = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        result = func(*args, **(kwargs or {}))
        is_owned = any(module in self.owners for module, _ in self.stack)
        if name in PRODUCT_OPERATORS and not is_owned and not self.is_paused:
            self.note(self.stack[-1][1] if self.stack else "", name, args, result)
        return result

    def note(self, place: str, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Record one product: the module it ran in, the operator, its operands and result."""
        self.found[place, name] = self.found.get((place, name), 0) + 1

    def lines(self) -> list[str]:
        """One line per module and operator: 'attention: bmm x2'."""
        return [
            f"{place or '(the model itself)'}: {operator}" + (f" x{count}" if count > 1 else "")
            for (place, operator), count in self.found.items()
        ]


@contextmanager
def watch_products(
    model: nn.Module, owners: Iterable[Candidate], watch: ProductWatch | None = None
) -> Iterator[ProductWatch]:
    """Record the products inside the `with`; the model is in evaluation mode at float32."""
    ids: set[int] = set()
    for owner in owners:
        ids.add(id(owner.module))
        # calls inside a scripted module are not visible
        ids |= {id(p) for p in owner.parents if isinstance(p, torch.jit.ScriptModule)}
    watch = ProductWatch() if watch is None else watch
    watch.owners = ids
    with _evaluation(model), _tracked(model, watch), watch:
        yield watch


@contextmanager
def _tracked(model: nn.Module, watch: ProductWatch) -> Iterator[None]:
    names = {id(entry.module): entry.name for entry in named_modules(model)}

    def enter(module: nn.Module, args: Any) -> None:
        watch.stack.append((id(module), names.get(id(module), "")))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        watch.stack.pop()

    # global hooks: a scripted module takes none of its own
    hooks = nn.modules.module
    handles = [
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using `torch.compile")  # about the hooks
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and float32: nothing is observed or updated."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        if any(isinstance(module, QuantizedLayer) for module in model.modules()):
            with at_precision(model, "fp32"):
                yield
        else:
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
