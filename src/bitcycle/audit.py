"""What of a model is quantized, and why the rest is not: one row per module that multiplies.

With example inputs the model runs once, and products that no module owns are listed too, by the
call as it is written in the forward pass.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from bitcycle.calibrate import call_model
from bitcycle.convert import Candidate, find_candidates, find_ends, is_within, keeps_aggregation
from bitcycle.functional_calls import CallWatch, watch_products
from bitcycle.native.library import describe
from bitcycle.nn.embedding import LOOKUPS, QuantizedLookup
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.nn.norm import QuantizedNorm
from bitcycle.patterns import NamedModule, named_modules, unwrap
from bitcycle.precision import FORWARD_OPERANDS, ROLES
from bitcycle.quantizers.base import Quantizer
from bitcycle.snapshot import preserved
from bitcycle.tables import THE_MODEL, text_table

FLOAT = "fp32"  # the bits of a role that is not quantized
LEFT_OUT = "left out by skip or only, or never given to quantize_model"  # the reason of a row
WIDTH = 100  # columns of the text, unless it is verbose
_MAX_NAME, _MAX_TYPE = 48, 30
_NAMES_SHOWN = 3
_ROLE_NOUNS = {
    "weight": "weights",
    "act": "activations",
    "error": "errors",
    "grad": "weight gradients",
}


@dataclass(frozen=True)
class AuditRow:
    """A module that multiplies, an embedding or a quantized BatchNorm, or a functional product.

    A functional product is one that no module owns, such as `x @ y` in a forward pass. Its name is
    "module: call", and `call`, `num_calls` and `where` say how often which line of the source calls
    what.
    """

    name: str
    type: str
    is_converted: bool
    reason: str  # why it stays float; for a converted layer, why this kernel
    # in force, by the roles of the layer: a number, a format or "fp32"; "bf16/nvfp4" where the
    # backward products read the operand in nvfp4 (`backward_operands`)
    bits: dict[str, str]
    quantizer: str = ""
    kernel: str = ""
    is_observed: bool | None = None  # None: keeps no running activation range
    multiplies: bool = True  # False: a BatchNorm or an embedding
    roles_without_rule: tuple[str, ...] = ()  # roles of the layer that its quantizer leaves float
    module: str = ""  # of a functional product: the module that it runs in
    call: str = ""  # the call as written: "@", "F.linear", "torch.einsum"
    num_calls: int = 0
    where: tuple[str, ...] = ()  # "model.py:12"

    @property
    def precision(self) -> str:
        """The bits in short: w4a4e8, or w=nvfp4,a=nvfp4,e=8 with a format.

        "fp32" if nothing is rounded now, "-" without roles.
        """
        rounded = {role[0]: bits for role, bits in self.bits.items() if bits != FLOAT}
        if not all(bits.isdigit() for bits in rounded.values()):
            return ",".join(f"{letter}={bits}" for letter, bits in rounded.items())
        named = [f"{role[0]}{bits}" for role, bits in self.bits.items() if bits != FLOAT]
        return "".join(named) or (FLOAT if self.bits else "-")


@dataclass(frozen=True)
class TiedWeight:
    """One tensor under several names, and the bits at which each of its modules reads it."""

    bits: dict[str, str]  # by the parameter's full name: a number, a format, or "fp32"

    def __str__(self) -> str:
        uses = [
            f"{name} ({'float32' if bits == FLOAT else f'{bits} bits'})"
            for name, bits in self.bits.items()
        ]
        return f"{_joined(uses)} are one tensor"


@dataclass(frozen=True, kw_only=True)
class FunctionalActivation:
    """A call such as `F.relu(x)`, which keeps a float copy for the backward pass.

    The module `instead`, which `quantize_model` converts, keeps one bit per element. Bytes are
    those of the example inputs, in a training step at low bits.
    """

    module: str  # that it runs in
    call: str  # as written: "F.relu", "torch.relu", "Tensor.relu"
    num_calls: int
    where: tuple[str, ...]
    num_bytes: int
    instead: str
    bytes_instead: int


@dataclass(frozen=True, repr=False)
class Audit:
    """The rows of an audit; its text is a table and what there is to know about it."""

    rows: tuple[AuditRow, ...]
    functional_activations: tuple[FunctionalActivation, ...] = ()
    tied_weights: tuple[TiedWeight, ...] = ()
    shared_modules: tuple[tuple[str, ...], ...] = ()  # the names of modules that have several
    has_run: bool = False  # with example inputs: functional products were looked for
    is_verbose: bool = False
    autocast: str | None = None  # the dtype of an autocast that was on, such as "bfloat16"

    @property
    def converted_rows(self) -> tuple[AuditRow, ...]:
        """The rows of converted layers."""
        return tuple(row for row in self.rows if row.is_converted)

    @property
    def float_rows(self) -> tuple[AuditRow, ...]:
        """The rows of what stays float32."""
        return tuple(row for row in self.rows if not row.is_converted)

    @property
    def functional_rows(self) -> tuple[AuditRow, ...]:
        """The rows of products that no module owns."""
        return tuple(row for row in self.rows if row.call)

    def __getitem__(self, name: str) -> AuditRow:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no row {name!r}; rows: {', '.join(row.name for row in self.rows)}")

    def __str__(self) -> str:
        modules = [row for row in self.rows if not row.call]
        parts = [_wide_table(modules) if self.is_verbose else _table(modules)] if modules else []
        if self.functional_rows:
            parts.append(_functional_table(self.functional_rows))
        notes = [line for note in self._notes() for line in _wrapped(note)]
        return "\n\n".join([*parts, "\n".join(notes)])

    __repr__ = __str__  # what a notebook shows

    def _notes(self) -> Iterator[str]:
        """What the table does not say, a sentence each."""
        for names, reason in _reasons(self.float_rows):
            yield f"{_joined(names)} {'stays' if len(names) == 1 else 'stay'} float32: {reason}"
        for names, reason in _reasons(row for row in self.converted_rows if not row.bits):
            yield f"{_joined(names)}: {reason}"
        for quantizer, role in dict.fromkeys(
            (row.quantizer, role) for row in self.rows for role in row.roles_without_rule
        ):
            yield f"{_ROLE_NOUNS[role]} stay float32: {quantizer} does not quantize them"
        yield from map(str, self.tied_weights)
        yield from (f"{_joined(shared)} are one module" for shared in self.shared_modules)
        if self.converted_rows:
            yield from _activation_notes(self.functional_activations)
        used = [row for row in self.rows if row.bits.get("act", FLOAT) != FLOAT]
        unobserved = [row.name or THE_MODEL for row in used if row.is_observed is False]
        if unobserved:
            by = f" by {_joined(unobserved)}" if any(row.is_observed for row in used) else ""
            yield f"no activation range observed yet{by}: train, or use bitcycle.calibrate"
        if self.converted_rows:
            if all(row.precision in (FLOAT, "-") for row in self.converted_rows):
                yield (
                    "no bits are set yet (set_precision, PrecisionScheduler): converted layers run "
                    "in float32"
                )
            if self.autocast is not None:
                yield (
                    f"inside autocast converted layers take and return {self.autocast}; grids, "
                    "sums and weight gradients are float32"
                )
            yield describe()
        yield self._count()
        if not self.has_run:
            yield (
                "bc.audit(model, example_inputs) runs the model once and lists them: x @ y, "
                "einsum, attention"
            )

    def _count(self) -> str:
        owned = [row for row in self.rows if row.multiplies and not row.call]
        count = sum(row.is_converted for row in owned)
        text = f"{count} of {len(owned)} modules that multiply are converted"
        if not self.has_run:
            return f"{text}; products outside of modules were not looked for"
        num_calls = sum(row.num_calls for row in self.functional_rows)
        if not num_calls:
            return f"{text}; no products outside of modules"
        what = "product stays" if num_calls == 1 else "products stay"
        return f"{text}; outside of modules {num_calls} {what} float32"


def audit(model: nn.Module, example_inputs: Any = None, *, verbose: bool = False) -> Audit:
    """List everything in the model that multiplies, with its bits; print it to read it.

    Embeddings and quantized BatchNorms have rows as well. With example_inputs (a tensor, a tuple of
    arguments, or a dict of keyword arguments) the model runs once, in evaluation mode and float32,
    and is left as it was. Products that no module owns, such as `x @ y` or
    `F.scaled_dot_product_attention` in a forward pass, are then listed too, by the call as written,
    and functional activations that keep more for the backward pass than their modules.
    verbose=True adds the quantizer, the kernel, the ranges and the reasons of every row, at any
    width.

    >>> from bitcycle.convert import quantize_model
    >>> model = nn.ModuleList([nn.Linear(4, 8), nn.Bilinear(8, 8, 2)])
    >>> model = quantize_model(model, kernel="simulate")
    >>> [(row.name, row.is_converted, row.reason) for row in audit(model).rows]
    [('0', True, 'asked for'), ('1', False, 'no quantized layer for Bilinear')]
    """
    candidates = find_candidates(model)
    entries = named_modules(model)
    rows = _module_rows(entries, candidates)
    watch = CallWatch()
    if example_inputs is not None:
        watch = _watch_calls(model, candidates, example_inputs)
    return Audit(
        rows=(*rows.values(), *_functional_rows(watch)),
        functional_activations=tuple(_functional_activations(watch)),
        tied_weights=tuple(_tied_weights(entries, rows)),
        shared_modules=tuple(_shared_modules(entries)),
        has_run=example_inputs is not None,
        is_verbose=verbose,
        autocast=_autocast(model),
    )


def _autocast(model: nn.Module) -> str | None:
    """The dtype of an autocast that is on for the model's device."""
    device = next((p.device.type for p in model.parameters()), "cpu")
    if device == "meta" or not torch.is_autocast_enabled(device):
        return None
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")


# -- the rows of modules ---------------------------------------------------------------------------


def _module_rows(entries: list[NamedModule], candidates: list[Candidate]) -> dict[int, AuditRow]:
    """By the modules' ids, in the order of the model."""
    kept = _kept_float(candidates)
    found = {id(candidate.module): candidate for candidate in candidates}
    norm_rule = next((r.norm_rule for r in _quantizers(candidates) if r.norm_rule), None)
    rows = {}
    for entry in entries:
        key = id(entry.module)
        if key in found:
            rows[key] = _row(found[key], kept)
        elif (row := _other_row(entry, norm_rule)) is not None:
            rows[key] = row
    return rows


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


def _other_row(entry: NamedModule, norm_rule: str | None) -> AuditRow | None:
    """The row of an embedding, of a quantized BatchNorm, or of one that the rule left float."""
    module, kind = entry.module, type(entry.module)
    if isinstance(module, (QuantizedNorm, QuantizedLookup)):
        return _row(Candidate(module, entry.names, entry.parents), {})
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        reason: str | None = f"no quantized layer for {kind.__name__}"
        if kind in LOOKUPS:
            reason = LOOKUPS[kind].reason_against(module)
        reason = reason or "embeddings are converted only if named, as by only=['*']"
    elif norm_rule and isinstance(module, nn.modules.batchnorm._BatchNorm):
        reason = f"no {norm_rule!r} rule for {kind.__name__}, or not chosen"
    else:
        return None
    return AuditRow(entry.name, kind.__name__, False, reason, {}, multiplies=False)


def _row(candidate: Candidate, kept: dict[int, str]) -> AuditRow:
    layer = candidate.module
    if not isinstance(layer, QuantizedLayer):
        reason = candidate.reason or kept.get(id(layer))
        reason = reason or LEFT_OUT
        return AuditRow(candidate.name, type(layer).__name__, False, reason, {})
    quantizer = layer.settings.quantizer
    row = AuditRow(
        name=candidate.name,
        type=layer.float_type.__name__,
        is_converted=True,
        reason="; ".join([layer.kernel_reason, *layer.plan_notes]),
        bits=_bits_by_role(layer),
        quantizer=type(quantizer).__name__,
        roles_without_rule=tuple(r for r in layer.own_roles if r not in quantizer.roles),
    )
    if quantizer.observes and layer.num_act_inputs:
        row = replace(row, is_observed=layer.is_observed)
    if isinstance(layer, QuantizedNorm):
        return replace(row, reason=f"normalizes by the rule {layer.rule!r}", multiplies=False)
    if isinstance(layer, QuantizedLookup):
        return replace(row, reason="looks rows of its weight up", multiplies=False)
    return replace(row, kernel=layer.kernel.name)


def _bits_by_role(layer: QuantizedLayer) -> dict[str, str]:
    """The bits in force; "bf16/nvfp4" where the backward products read an operand in nvfp4."""
    now = layer.bits_in_force
    texts = {role: str(bits) for role, bits in now.bits.items() if role in layer.own_roles}
    if now.has_backward_operands:
        operands = [role for role in FORWARD_OPERANDS if role in texts]
        texts |= {role: f"{texts[role]}/{now.bits['error']}" for role in operands}
    return texts


def _tied_weights(entries: list[NamedModule], rows: dict[int, AuditRow]) -> Iterator[TiedWeight]:
    """Weights that several modules have."""
    found: dict[int, dict[str, str]] = {}
    for entry in entries:
        owners = (entry.module, *reversed(entry.parents))  # out_proj belongs to its attention
        row = next((rows[id(owner)] for owner in owners if id(owner) in rows), None)
        bits = FLOAT if row is None else row.bits.get("weight", FLOAT)
        for key, parameter in entry.module._parameters.items():
            if parameter is not None and not is_lazy(parameter) and parameter.dim() > 1:
                name = f"{entry.name}.{key}" if entry.name else key
                found.setdefault(id(parameter), {})[name] = bits
    return (TiedWeight(names) for names in found.values() if len(names) > 1)


def _shared_modules(entries: list[NamedModule]) -> Iterator[tuple[str, ...]]:
    """The names of each module that has several, without the modules inside it."""
    shared = {id(entry.module) for entry in entries if len(entry.names) > 1}
    for entry in entries:
        if id(entry.module) in shared and not any(id(p) in shared for p in entry.parents):
            yield tuple(entry.names)


# -- the text --------------------------------------------------------------------------------------


def _table(rows: Sequence[AuditRow]) -> str:
    """The table that fits `WIDTH`: repeated layers are one line, long names lose their middle."""
    groups: dict[tuple[str, str, str], list[int]] = {}  # equal rows whose names differ in numbers
    for index, row in enumerate(rows):
        pattern = ".".join("#" if part.isdecimal() else part for part in row.name.split("."))
        bits = row.precision if row.is_converted else "not converted"
        groups.setdefault((pattern, row.type, bits), []).append(index)
    lines: dict[int, tuple[str, str, str]] = {}
    for (pattern, kind, bits), group in groups.items():
        folded = None if pattern == "#" else _folded([rows[index].name for index in group])
        times = f" x{len(group)}" if folded else ""
        for index in group[:1] if folded else group:
            name = _shortened(folded or rows[index].name or THE_MODEL, _MAX_NAME)
            lines[index] = name, _shortened(kind, _MAX_TYPE - len(times)) + times, bits
    return text_table(("name", "type", "bits"), [lines[index] for index in sorted(lines)])


def _folded(names: Sequence[str]) -> str | None:
    """One name for all of them, if they differ in one number only.

    >>> _folded(["layers.0.fc", "layers.1.fc", "layers.2.fc", "layers.4.fc"])
    'layers.0-2,4.fc'
    >>> _folded(["stages.0.0.fc", "stages.1.1.fc"])
    """
    columns = list(zip(*(name.split(".") for name in names), strict=True))
    varying = [place for place, parts in enumerate(columns) if len(set(parts)) > 1]
    if len(varying) != 1:
        return None
    runs: list[list[int]] = []
    for number in map(int, columns[varying[0]]):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    numbers = ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
    parts = [parts[0] for parts in columns]
    return ".".join([*parts[: varying[0]], numbers, *parts[varying[0] + 1 :]])


def _wide_table(rows: Sequence[AuditRow]) -> str:
    header = ("name", "type", *ROLES, "quantizer", "kernel", "ranges", "why")
    body = [
        (
            row.name or THE_MODEL, row.type,
            *(row.bits.get(role, "-") if row.is_converted else "float" for role in ROLES),
            row.quantizer or "-", row.kernel or "-",
            {None: "-", True: "observed", False: "unobserved"}[row.is_observed],
            row.reason,
        )
        for row in rows
    ]  # fmt: skip
    return text_table(header, body)


def _functional_table(rows: Sequence[AuditRow]) -> str:
    """One line for each call in the source; it may run in many modules."""
    lines: dict[tuple[str, tuple[str, ...]], list[AuditRow]] = {}
    for row in rows:
        lines.setdefault((row.call, row.where), []).append(row)
    body = []
    for (call, where), group in lines.items():
        count = sum(row.num_calls for row in group)
        modules = [row.module or THE_MODEL for row in group]
        more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
        body.append((
            _shortened(call, _MAX_TYPE) + (f" x{count}" if count > 1 else ""),
            _shortened(modules[0], 36 - len(more)) + more,
            _shortened(", ".join(where), 24),
        ))  # fmt: skip
    return text_table(("functional product", "in module", "at"), body)


def _activation_notes(found: Sequence[FunctionalActivation]) -> Iterator[str]:
    """What functional activations keep, a sentence for each call as written."""
    for call in dict.fromkeys(each.call for each in found):
        group = [each for each in found if each.call == call]
        count = sum(each.num_calls for each in group)
        places = list(dict.fromkeys(place for each in group for place in each.where))
        yield (
            f"{call}{f' x{count}' if count > 1 else ''} (at {_joined(places)}) keeps a float copy "
            f"for the backward pass, {sum(each.num_bytes for each in group):,} bytes for these "
            f"inputs: as a module, {group[0].instead} keeps "
            f"{sum(each.bytes_instead for each in group):,}"
        )


def _reasons(rows: Iterable[AuditRow]) -> Iterator[tuple[list[str], str]]:
    """The names of the rows, or their calls, by their reasons."""
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        names.setdefault(row.reason, {})[row.call or row.name or THE_MODEL] = None
    return ((list(group), reason) for reason, group in names.items())


def _joined(names: Sequence[str]) -> str:
    """The first names in a sentence, and how many more there are.

    >>> _joined(["a", "b"]), _joined(["a", "b", "c", "d", "e"])
    ('a and b', 'a, b, c and 2 more')
    """
    shown = [_shortened(name, _MAX_NAME) for name in names[:_NAMES_SHOWN]]
    more = len(names) - len(shown)
    if more > 1:
        shown.append(f"{more} more")
    elif more == 1:
        shown.append(_shortened(names[-1], _MAX_NAME))
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def _shortened(text: str, width: int) -> str:
    """The text, without its middle if it is longer.

    >>> _shortened("encoder.layers.11.attention.output.dense", 24)
    'encoder.la...utput.dense'
    """
    if len(text) <= width:
        return text
    kept = width - 3
    return f"{text[: kept // 2]}...{text[-(kept - kept // 2) :]}"


def _wrapped(note: str) -> list[str]:
    return textwrap.wrap(
        note, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


# -- products and activations that no module owns --------------------------------------------------

_WAYS_OUT = {
    **dict.fromkeys(
        ("scaled_dot_product_attention", "flex_attention"),
        "write both of its products with bitcycle.MatMul, or use nn.MultiheadAttention",
    ),
    "multi_head_attention_forward": "use nn.MultiheadAttention",
    "linear": "call an nn.Linear instead",
    **{f"conv{t}{d}d": f"call an nn.Conv{t.replace('_t', 'T')}{d}d instead"
       for t in ("", "_transpose") for d in (1, 2, 3)},
}  # fmt: skip


def _watch_calls(model: nn.Module, candidates: list[Candidate], example_inputs: Any) -> CallWatch:
    """Run the model once."""
    model = unwrap(model)
    watch = CallWatch()
    with preserved(model), watch_products(model, candidates, watch), torch.no_grad():
        call_model(model, example_inputs)
    return watch


def _functional_rows(watch: CallWatch) -> list[AuditRow]:
    return [
        AuditRow(
            name=f"{module or THE_MODEL}: {call}",
            type="functional",
            is_converted=False,
            reason=f"no module owns it; {_way_out(call)}",
            bits={},
            module=module,
            call=call,
            num_calls=len(found.numbers),
            where=tuple(found.where),
        )
        for (module, call), found in watch.calls.items()
    ]


def _way_out(call: str) -> str:
    return _WAYS_OUT.get(call.rpartition(".")[2], "write it with bitcycle.MatMul to convert it")


def _functional_activations(watch: CallWatch) -> Iterator[FunctionalActivation]:
    for (module, call), found in watch.activations.items():
        yield FunctionalActivation(
            module=module,
            call=call,
            num_calls=found.num_calls,
            where=tuple(found.where),
            num_bytes=found.num_bytes,
            instead=f"nn.{found.kind.__name__}",
            bytes_instead=found.num_mask_bytes,
        )
