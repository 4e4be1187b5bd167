"""The base of every converted layer: its bits, its plans, and the products that execute them.

A converted layer is a float module whose class was swapped (`class_swap`). With bits, its products
go through `multiply`; without, its forward pass is the float module's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from bitcycle.bits import Bits
from bitcycle.gpu import driver
from bitcycle.kernels.base import Kernel, make_kernel
from bitcycle.kernels.bf16 import is_depthwise
from bitcycle.kernels.choice import TOPS, Recurrence, decide_kernel, requested_kernel
from bitcycle.kernels.geometry import Geometry
from bitcycle.native.layer import NONE, Flags, Given, can_call
from bitcycle.native.operators import can_trace
from bitcycle.nn.class_swap import SwappedModule
from bitcycle.nn.control import (
    CONTROL_SIZE,
    LEVELS,
    control_for_product,
    is_recomputing,
    version,
)
from bitcycle.nn.input_cache import SharedCodes
from bitcycle.nn.loading import OWN_BUFFERS, OwnBuffers
from bitcycle.nn.plan import NO_TOPS, LayerPlan, RoleFormats, Rounding, make_plan
from bitcycle.nn.product import quantized_product, whole_product
from bitcycle.nn.rounding import Recorder, is_checked_when_rounded, widen
from bitcycle.nn.settings import LayerSettings, ModelState, float_products, notes_on
from bitcycle.precision import ROLES, Precision
from bitcycle.quantizers.base import Quantizer, Range
from bitcycle.quantizers.blocks import BlockQuantizer

AUTOCAST_DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # it leaves float64 and integers

# What conversion adds to a float module.
OWN_ATTRIBUTES = (
    "settings", "shared", "precision", "quantized_roles", "role_formats", "between_activations",
    "tops", "expected", "is_scheduled", "code_tops", "recorder", "decision", "_traced",
    "_traced_simulate", "_tracing", "_plans", "_is_observed", "_range_version", "_written_version",
)  # fmt: skip


class ExpectedKinds(NamedTuple):
    """The roles that at some step have integers, the level bf16, and elements of tensor cores."""

    integers: frozenset[str] = frozenset()
    bf16: frozenset[str] = frozenset()
    scaled: frozenset[str] = frozenset()


class Decision(NamedTuple):
    """What "auto" means for a layer; final once it was made in training."""

    kernel: str
    reason: str
    is_final: bool
    expected: ExpectedKinds  # what it was made for


class QuantizedLayer(OwnBuffers, SwappedModule):
    """Mixed in before a float module type; the float module's own attributes stay as they are.

    Conversion adds three buffers. `control` (not saved) holds what the arithmetic reads: the level
    counts of the four roles, the numbers of their formats and the clock of the noise. `health` (not
    saved) turns NaN when an operand is not finite. `act_range` (saved) has a row [observations,
    minimum, range] per activation input.
    """

    num_act_inputs: ClassVar[int] = 1  # 0: keeps no running range
    has_row_ranges: ClassVar[bool] = False  # an activation has a range for each row
    own_roles: ClassVar[tuple[str, ...]] = ROLES  # the roles that this type of layer has
    is_between_activations: ClassVar[bool] = False  # multiplies activations only
    aggregates: ClassVar[bool] = False  # sums along edges, without a weight (`aggregation`)
    multiplies: ClassVar[bool] = True  # False: has no products, such as a BatchNorm
    replaced_methods: ClassVar[tuple[str, ...]] = ("forward",)  # of the float type

    role_formats: RoleFormats
    between_activations: RoleFormats  # for products of two activations
    tops: dict[str, int]  # the most bits each role was or will be given
    expected: ExpectedKinds  # the kinds that they were or will be given
    is_scheduled: bool  # a scheduler set both: the bits of an evaluation do not count then
    code_tops: tuple[int, ...]  # `tops` as kernels and graphs see them: they never read the bits
    recorder: Recorder | None  # while `collect` runs
    decision: Decision | None  # of "auto"
    # Of traced graphs of training: one that found a faster kernel than `simulate`, one that did
    # not (a last, small batch); and of the graph that is being traced.
    _traced: Decision | None
    _traced_simulate: Decision | None
    _tracing: Decision | None

    # -- conversion -----------------------------------------------------------------------------

    def become_quantized(self, settings: LayerSettings, shared: ModelState) -> None:
        """Add buffers and attributes to a float module whose class was just swapped."""
        device = next((p.device for p in self.parameters()), None)
        self.settings, self.shared = self.adapt(settings), shared
        self.precision, self.quantized_roles = Precision(), ()
        self.role_formats = self.between_activations = RoleFormats()
        self.tops, self.is_scheduled, self.code_tops = {}, False, NO_TOPS
        self.expected = ExpectedKinds()
        self.recorder = self.decision = None
        self._traced = self._traced_simulate = self._tracing = None
        self._plans = {}
        self._is_observed, self._range_version = False, None
        zeros = torch.zeros(CONTROL_SIZE, dtype=torch.int32, device=device)
        self.register_buffer("control", zeros, persistent=False)
        health = torch.zeros(len(ROLES), dtype=torch.float32, device=device)
        self.register_buffer("health", health, persistent=False)
        ranges = torch.zeros(self.num_act_inputs, 3, dtype=torch.float32, device=device)
        self.register_buffer("act_range", ranges, persistent=self.num_act_inputs > 0)
        self.write_control()

    @classmethod
    def reason_against(cls, module: nn.Module) -> str | None:
        """Why this float module cannot be converted; None if it can."""
        return None

    @classmethod
    def adapt(cls, settings: LayerSettings) -> LayerSettings:
        """The settings that layers of this type use."""
        return settings

    def change_settings(self, settings: LayerSettings) -> None:
        """Take other settings; "auto" is decided anew."""
        self.settings, self.decision = settings, None
        self._traced = self._traced_simulate = None
        self._plans.clear()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = self.control.device.type
        super()._apply(fn, recurse)
        self._note_device(before)
        return self

    def _note_device(self, before: str) -> None:
        """Decide "auto" anew on another type of device, and say what a kernel is there."""
        now = self.control.device.type
        if "meta" in (before, now) or before == now:
            return
        settings, (old, new) = (
            self.settings,
            [
                requested_kernel(self.settings.kernel.name, device_type=each)[1]
                for each in (before, now)
            ],
        )
        if settings.is_asked_for and settings.kernel_reason.startswith(old):
            reason = new + settings.kernel_reason.removeprefix(old)
            settings = replace(settings, kernel_reason=reason)
        self.change_settings(settings)

    def become_float(self) -> None:
        """Remove what `become_quantized` added and swap the class back."""
        for name in OWN_BUFFERS:
            del self._buffers[name]
        self._non_persistent_buffers_set -= set(OWN_BUFFERS)
        self.shared.note_bits(self.settings.name, False)
        for name in OWN_ATTRIBUTES:
            delattr(self, name)
        self.swap_back()

    # -- precision ------------------------------------------------------------------------------

    def set_precision(self, precision: Precision) -> bool:
        """Set the bits; returns whether anything changed (one tensor write)."""
        if precision == self.precision and version(self.control) == self._written_version:
            return False
        self.check_precision(precision)
        self.precision = precision
        rules = self.settings.quantizer.roles
        self.quantized_roles = tuple(r for r in precision.quantized_roles if r in rules)
        given = {role: bits for role, bits in precision.bits.items() if role in rules}
        rule = self.settings.quantizer.bits_between_activations
        has_own = precision.has_backward_operands
        formats = RoleFormats.of(given, has_backward_operands=has_own)
        used = {r: rule(b) for r, b in given.items()}
        between = RoleFormats.of(given, used, has_backward_operands=has_own)
        if (formats, between) != (self.role_formats, self.between_activations):
            self.role_formats, self.between_activations = formats, between
            self._plans.clear()
        if not self.is_scheduled:  # no scheduler: the most bits so far
            bits = {role: each.grid_bits for role, each in precision.bits.items()}
            self.tops |= {role: max(self.tops.get(role, 0), n) for role, n in bits.items()}
            own = between if self.is_between_activations else formats
            now = frozenset(r for r, s in zip(ROLES, own.stored, strict=True) if s is not None)
            self._set_expected(self.expected.bf16 | own.bf16_roles, self.expected.scaled | now)
        self._set_code_tops()
        self.shared.note_bits(self.settings.name, bool(self.quantized_roles))
        self.write_control()
        return True

    @property
    def grid_roles(self) -> tuple[str, ...]:
        """The roles that have a range or blocks now."""
        return self.role_formats.grid_roles

    @property
    def kinds(self) -> tuple[str | None, ...]:
        """The kinds of the roles' formats, in the order of ROLES."""
        return self.role_formats.kinds

    def in_force(self, precision: Precision) -> Precision:
        """What a precision means in this layer: None for roles that the quantizer does not round.

        Products of two activations may have other bits (`Quantizer.bits_between_activations`).
        """
        quantizer = self.settings.quantizer
        if not self.multiplies or self.aggregates:  # no backward product reads an operand again
            precision = replace(precision, backward_operands="forward")
        given = precision.in_force([role for role in self.own_roles if role in quantizer.roles])
        if not (self.is_between_activations and quantizer.scales_by_product):
            return given
        rule = quantizer.bits_between_activations
        between = {role: rule(bits).plain for role, bits in given.bits.items()}
        return given.replace(**between).in_force(self.own_roles)

    @property
    def bits_in_force(self) -> Precision:
        """The present bits of the layer's roles, as `in_force` reads them."""
        return self.in_force(self.precision)

    def expect_bits(
        self, tops: Mapping[str, int], formats: Mapping[str, Iterable[Bits]] | None = None
    ) -> None:
        """Set the most bits on a grid that roles will take, and the formats.

        Kernels and packing depend on them.
        """
        self.tops, self.is_scheduled = dict(tops), True
        by_role = {} if formats is None else dict(formats)
        if self.is_between_activations:
            rule = self.settings.quantizer.bits_between_activations
            by_role = {role: [rule(each) for each in found] for role, found in by_role.items()}
        self._set_expected(
            frozenset(r for r, found in by_role.items() if any(each.is_bf16 for each in found)),
            frozenset(r for r, found in by_role.items() if any(each.stored_as for each in found)),
        )
        self._set_code_tops()

    def _set_expected(self, bf16_roles: frozenset[str], scaled_roles: frozenset[str]) -> None:
        integers = frozenset(role for role, top in self.tops.items() if top)
        found = ExpectedKinds(integers, bf16_roles, scaled_roles)
        if found != self.expected:  # graphs depend on this object
            self.expected = found

    def _set_code_tops(self) -> None:
        tops = tuple(self.top_bits(role) for role in ROLES)
        if tops != self.code_tops:
            self.code_tops = tops
            self._plans.clear()

    def top_bits(self, role: str) -> int:
        """`max_bits`, or the most bits this role has or will take, rounded up to one of `TOPS`.

        Kernels differ only between these, so that each new bit-width does not compile a new graph.
        """
        now = self.precision.bits[role].grid_bits
        top = self.settings.max_bits or max(self.tops.get(role, 0), now)
        return next((bits for bits in TOPS if top <= bits), 32)

    def check_precision(self, precision: Precision) -> None:
        """Raise a ValueError if this layer cannot take these bits."""
        self.settings.check(precision)

    def rename(self, name: str) -> None:
        """Set the layer's name in the whole model; its noise depends on it."""
        if name != self.settings.name:
            self.shared.note_bits(self.settings.name, False)
            self.settings = replace(self.settings, name=name)
            self.shared.note_bits(name, bool(self.quantized_roles))
            self.write_control()

    # -- plans ----------------------------------------------------------------------------------

    @property
    def kernel(self) -> Kernel:
        """The kernel that was asked for, or what "auto" turned out to be."""
        decision = self.current_decision
        return self.settings.kernel if decision is None else make_kernel(decision.kernel)

    @property
    def kernel_reason(self) -> str:
        """Why it has this kernel."""
        if (decision := self.current_decision) is not None:
            return decision.reason
        notes: list[str] = []
        if (geometry := self.own_geometry) is not None:
            notes = notes_on(self.settings, geometry, self.control.device.type)
        return "; ".join([self.settings.kernel_reason, *notes])

    @property
    def own_geometry(self) -> Geometry | None:
        """The geometry of its product, where it depends on no input."""
        return None

    @property
    def plan_notes(self) -> list[str]:
        """The matmuls in formats that its kernel left to float32 so far, and why."""
        return list(dict.fromkeys(note for plan in self._plans.values() for note in plan.notes))

    @property
    def current_decision(self) -> Decision | None:
        """What "auto" was decided to be: in training, by a traced graph, or in evaluation."""
        if self.decision is not None and self.decision.is_final:
            return self.decision
        return self._traced or self._traced_simulate or self.decision

    def plan(
        self,
        geometry: Geometry,
        a: Tensor,
        w: Tensor,
        *,
        row: int = 0,
        recurrence: Recurrence | None = None,
    ) -> LayerPlan:
        """What the present kinds of bits mean for a product of these operands.

        It is kept until kinds or most bits change. row: the number of the product in the layer.
        A traced forward pass makes its own, which costs nothing when the graph runs.
        """
        if torch.compiler.is_compiling():
            return self._make_plan(geometry, a, w, row, recurrence)
        key = row, a.dtype, self.training, self.shared.is_calibrating
        kept = self._plans.get(key)
        if kept is not None and (kept.geometry is geometry or kept.geometry == geometry):
            plan: LayerPlan = kept
            return plan
        plan = self._make_plan(geometry, a, w, row, recurrence)
        if a.numel():  # else "auto" is not decided
            self._plans[key] = plan
        return plan

    def _make_plan(
        self, geometry: Geometry, a: Tensor, w: Tensor, row: int, recurrence: Recurrence | None
    ) -> LayerPlan:
        kernel = self.settings.kernel
        if kernel.is_undecided and torch.compiler.is_compiling():
            kernel = self._trace_decision(geometry, a, w, row)
        elif kernel.is_undecided:
            kernel = self._decide_kernel(geometry, a, w, recurrence)
        is_between = geometry.second == "act"
        formats = self.between_activations if is_between else self.role_formats
        return make_plan(
            self.current_quantizer,
            geometry,
            kernel,
            kinds=formats.kinds,
            tops=self.code_tops,
            dtype=a.dtype,
            has_backward_operands=formats.has_backward_operands,
            has_rows=self.has_row_ranges,
            bf16_roles=_bf16_roles(kernel, formats, geometry, w),
            stored=formats.stored,
            device_class=_device_class(a.device) if recurrence is None else None,
        )

    def _decide_kernel(
        self, geometry: Geometry, a: Tensor, w: Tensor, recurrence: Recurrence | None
    ) -> Kernel:
        """Decide "auto" by the first shapes of training; until then by those of an evaluation."""
        decision = self.decision
        if decision is None or (self.training and not decision.is_final) or self._is_new_kind:
            decision = self._decide(geometry, a, w, recurrence)
            if decision is None:
                return make_kernel("simulate")
            if not a.is_meta:
                self.decision = decision
                self._plans.clear()  # those of an evaluation that decided otherwise
        return make_kernel(decision.kernel)

    @property
    def _is_new_kind(self) -> bool:
        """Whether the decision was made before bits of such a kind were set."""
        decision = self.decision
        return decision is not None and decision.expected != self.expected

    def _trace_decision(self, geometry: Geometry, a: Tensor, w: Tensor, row: int) -> Kernel:
        """The same while a graph is traced, by the shapes of its first product.

        A graph depends on what it reads before it writes it, so the first product reads nothing:
        the decision would trace the graph again.
        """
        if row > 0:
            decision = self._tracing
        else:
            decision = self._tracing = self._decide(geometry, a, w, None)
        name = "simulate" if decision is None else decision.kernel
        if self.training and name == "simulate":
            self._traced_simulate = decision
        elif self.training:
            self._traced = decision
        return make_kernel(name)

    def _decide(
        self, geometry: Geometry, a: Tensor, w: Tensor, recurrence: Recurrence | None
    ) -> Decision | None:
        """None for an empty input, and while no role has integers: those may come later."""
        first, second, error = [
            self.code_tops[slot]
            if self.kinds[slot] == "integer" or role in self.expected.integers
            else None
            for role, slot in ((role, LEVELS[role]) for role in ("act", geometry.second, "error"))
        ]
        has_bf16 = {"act", geometry.second} <= self.expected.bf16
        has_integers = not (first is None and second is None and error is None)
        quantizer = self.settings.quantizer
        recipe = quantizer.recipe if isinstance(quantizer, BlockQuantizer) else None
        has_scaled = {"act", geometry.second} <= self.expected.scaled
        if a.numel() == 0 or not (has_integers or has_bf16 or recipe is not None):
            return None
        tops = first, second, error
        kernel, reason = decide_kernel(
            geometry,
            a,
            w,
            tops=tops,
            recurrence=recurrence,
            has_rows=self.has_row_ranges,
            has_bf16=has_bf16,
            recipe=recipe,
            has_scaled=has_scaled,
        )
        notes = kernel.notes_on(geometry), float_products(kernel, self.settings.quantizer)
        reason = "; ".join([reason, *chain(*notes)])
        return Decision(kernel.name, reason, self.training, self.expected)

    # -- forward --------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether forward differs from the float module's: a role has bits, or `calibrate` runs."""
        return bool(self.quantized_roles) or self.shared.is_calibrating

    def quantizes(self, first: Tensor, *others: Tensor | None) -> bool:
        """Whether this call differs from the float module's: it is active and the dtypes match.

        Otherwise a layer calls the float module's forward, which refuses such operands with a
        message of its own. `MatMul` takes integers, and multiplies them exactly.
        """
        if not (self.quantized_roles or self.shared.is_calibrating):
            return False
        dtype = first.dtype
        if dtype is torch.float32:
            for x in others:
                if x is not None and x.dtype is not dtype:
                    return have_matching_dtypes(first, *others)
            return True
        if first.is_complex():
            raise TypeError(
                f"layer {self.settings.name!r} has no grid for {first.dtype} at "
                f"{self.bits_in_force}; leave it out with skip="
            )
        return have_matching_dtypes(first, *others)

    def multiply(
        self,
        geometry: Geometry,
        a: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        *,
        act_row: int = 0,
    ) -> Tensor:
        """a x w (+ bias) with both operands, the error and the weight gradient quantized.

        act_row: the row of `act_range` for `a`; a second activation has the next row. Each product
        of a layer has its own rows and its own noise.
        """
        dtype = a.dtype if a.dtype is w.dtype is torch.float32 else self._check_dtypes(a, w)
        if is_autocast(a):
            dtype = torch.get_autocast_dtype(a.device.type)
        plan = self.plan(geometry, a, w, row=act_row)
        if plan.whole is not None and self.recorder is None and _can_call(plan, a, w, bias, dtype):
            return self._multiply_whole(plan, a, w, bias, act_row, dtype)
        second = geometry.second
        control = self.next_control(is_first=act_row == 0)
        control = control_for_product(control, act_row) if act_row else control
        formats = self.between_activations if second == "act" else self.role_formats
        if formats.replaced:
            control = formats.replace_numbers(control)
        if type(plan.quantizer).prepare is not Quantizer.prepare:
            a, w = self._prepare(plan, a, w, control)
        a_range = self._range_for(plan.output.first, a, act_row)
        w_range = self._range_for(plan.output.second, w, act_row + 1) if second == "act" else None
        shared = None
        if self.training and self.recorder is None and not torch.compiler.is_compiling():
            first = plan.output.first
            rounded = first.as_codes, first.as_bf16, self.has_row_ranges
            key = plan.quantizer, self.precision.act, *rounded
            shared = SharedCodes(self.shared.input_cache, key)
        return quantized_product(
            plan, a, w, bias, control, self.health, a_range, w_range, self.recorder, shared,
            dtype=dtype,
        )  # fmt: skip

    def _range_for(self, how: Rounding, x: Tensor, row: int) -> Range | None:
        """`activation_range`, unless the operand has none and is checked when it is rounded."""
        if not self.shared.is_calibrating and is_checked_when_rounded(x, how):
            return None
        return self.activation_range(x, row)

    def _multiply_whole(
        self,
        plan: LayerPlan,
        a: Tensor,
        w: Tensor,
        bias: Tensor | None,
        act_row: int,
        dtype: torch.dtype,
    ) -> Tensor:
        """The same where the native library computes a direction as a whole."""
        quantizer, rule, shared = plan.quantizer, plan.rule, None
        assert plan.whole is not None
        assert rule is not None
        if torch.compiler.is_compiling():
            control = self.next_control(is_first=act_row == 0)
            control, counts = control_for_product(control, act_row), False
        else:
            self.renew_control()
            control, counts = self.control, self.counts_call(is_first=act_row == 0)
            # a weight's product has its input's codes in one order; that of activations has many
            if self.training and a.grad_fn is not None and plan.geometry.second == "weight":
                order = bool(plan.whole.window), plan.whole.has_rows
                key = id(quantizer), self.precision.act, plan.output.first, *order
                shared = SharedCodes(self.shared.input_cache, key)
        a_range = w_range = NONE
        if rule.given:
            a, w = self._prepare(plan, a, w, control)
            a_range = self._given_range(plan, "act", a)
            w_range = self._given_range(plan, plan.geometry.second, w)
        observes = evaluates = False
        if quantizer.observes and self.num_act_inputs:
            observes = self.must_observe
            evaluates = not observes and self.is_observed
            if not (observes or evaluates):
                self.warn_unobserved()
            observes = observes and not is_recomputing()
            if observes:
                self.note_observation()
        momentum, saves = self.range_momentum or 0.0, torch.is_grad_enabled()
        flags = Flags(act_row, counts, observes, evaluates, momentum, saves)
        return whole_product(
            plan, a, w, bias, control, self.health, self.act_range, a_range, w_range, flags, shared,
            dtype=dtype,
        )  # fmt: skip

    def _given_range(self, plan: LayerPlan, role: str, x: Tensor) -> Given:
        assert plan.rule is not None
        if role not in plan.rule.given:
            return NONE
        if role == "act" and type(plan.quantizer).grid_range is Quantizer.grid_range:
            return self.batch_range(x)  # which layers with the same input share
        return plan.quantizer.grid_range(role, x.detach(), self.control[LEVELS[role]])

    def _prepare(
        self, plan: LayerPlan, a: Tensor, w: Tensor, control: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Both operands after the quantizer's differentiable functions."""
        quantizer, (first, second) = plan.quantizer, plan.output
        a, w = widen(a), widen(w)
        if first.kind not in (None, "float"):
            a = quantizer.prepare("act", a, control[LEVELS["act"]])
        if second.kind not in (None, "float"):
            w = quantizer.prepare(second.role, w, control[LEVELS[second.role]])
        return a, w

    def _check_dtypes(self, a: Tensor, w: Tensor) -> torch.dtype:
        """The dtype of the product; operands of half precision have grids in float32."""
        if not have_matching_dtypes(a, w):
            raise RuntimeError(
                f"layer {self.settings.name!r}: both operands must have the same dtype, but "
                f"got {a.dtype} and {w.dtype}"
            )
        return torch.promote_types(a.dtype, w.dtype)

    def extra_repr(self) -> str:
        """The float module's, the precision and the quantizer."""
        inner = super().extra_repr()
        bits = self.bits_in_force.text(self.own_roles)
        own = f"precision={bits}, quantizer={type(self.settings.quantizer).__name__}"
        return f"{inner}, {own}" if inner else own


def _bf16_roles(
    kernel: Kernel, formats: RoleFormats, geometry: Geometry, w: Tensor
) -> frozenset[str]:
    """The roles whose operands this kernel gets in bfloat16."""
    device = "cpu" if w.device.type == "meta" else w.device.type
    is_elsewhere = kernel.reason_against_device(device) is not None
    if not kernel.takes_bf16 or is_elsewhere or is_depthwise(geometry, w):
        return frozenset()  # and a graph does not depend on whether a format is bf16 or fp16
    return formats.bf16_roles


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _device_class(device: torch.device) -> str | None:
    """The class of a GPU that Triton drives, else None."""
    if device.type != "cuda" or not driver.is_ready():
        return None
    return driver.device_class(device.index or 0)


def _can_call(
    plan: LayerPlan, a: Tensor, w: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> bool:
    """Whether the native library can read these operands, and has a call for their shapes."""
    assert plan.whole is not None
    if bias is not None and bias.shape != w.shape[:1]:
        return False  # torch refuses it, or repeats it
    if torch.compiler.is_compiling():
        return a.device.type == "cpu" and can_trace(plan.whole, a, w, dtype)
    return can_call(a, w, bias) and plan.whole.takes(a, w, dtype)


def have_matching_dtypes(first: Tensor, *others: Tensor | None) -> bool:
    """Whether all are of one floating dtype, or of dtypes that autocast casts to one.

    >>> x, bytes = torch.ones(2), torch.ones(2, dtype=torch.uint8)
    >>> have_matching_dtypes(x, x), have_matching_dtypes(x, bytes), have_matching_dtypes(bytes)
    (True, False, False)
    """
    dtypes = [x.dtype for x in (first, *others) if x is not None]
    if all(dtype == first.dtype for dtype in dtypes):
        return first.is_floating_point()
    return all(dtype in AUTOCAST_DTYPES for dtype in dtypes) and is_autocast(first)


def is_autocast(x: Tensor) -> bool:
    """Whether autocast is on for this tensor, whose products then have autocast's dtype."""
    device = x.device.type
    if device == "meta" or x.dtype not in AUTOCAST_DTYPES:
        return False
    return torch.is_autocast_enabled(device)
