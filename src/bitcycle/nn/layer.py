"""The base of every converted layer: its bits, its running activation ranges and its noise.

A converted layer is a float module whose class was swapped (`class_swap`). With bits, its products
go through `multiply`; without, its forward pass is the float module's.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bitcycle.bits import Bits
from bitcycle.kernels.choice import Recurrence, decide_kernel
from bitcycle.kernels.geometry import Geometry
from bitcycle.nn.class_swap import SwappedModule
from bitcycle.nn.product import (
    CALL,
    CONTROL_SIZE,
    LEVELS,
    NUMBERS,
    STEP,
    ProductSpec,
    Recorder,
    can_use_input_cache,
    control_for_product,
    flag_nonfinite,
    quantized_product,
)
from bitcycle.nn.settings import LayerSettings, ModelState, float_products, without_sync
from bitcycle.ops import state
from bitcycle.ops.affine import value_range
from bitcycle.ops.noise import hash_ints
from bitcycle.precision import ROLES, Precision
from bitcycle.quantizers.base import Quantizer, Range
from bitcycle.warnings import BitcycleWarning

MOMENTUM = 0.1  # of running ranges: 0.9 * old + 0.1 * new
TOPS = (4, 7, 8)  # two codes per byte; exact in 16-bit sums; exact in 32-bit sums
NO_TOPS = (32,) * len(ROLES)
AUTOCAST_DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # it leaves float64 and integers

# What conversion adds to a float module.
OWN_ATTRIBUTES = (
    "settings", "shared", "precision", "quantized_roles", "role_formats", "between_activations",
    "tops", "is_scheduled", "code_tops", "recorder", "_is_observed", "_range_version",
    "_written_version",
)  # fmt: skip
OWN_BUFFERS = ("control", "health", "act_range")


@dataclass(frozen=True)
class RoleFormats:
    """The kinds of the roles' formats. Graphs depend on these, never on bits.

    grid_roles: roles with a range or blocks: rounded, and not to bf16 or fp16. kinds: in the order
    of ROLES; None is float32. replaced: numbers that differ from those of the control tensor.
    """

    grid_roles: tuple[str, ...] = ()
    kinds: tuple[str | None, ...] = (None,) * len(ROLES)
    replaced: tuple[tuple[str, tuple[int, int, int]], ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, Bits], used: Mapping[str, Bits] | None = None) -> RoleFormats:
        """Of the bits by role; used: the bits that count in place of the given ones."""
        used = given if used is None else used
        kinds = {role: used[role].kind if role in used else None for role in ROLES}
        return cls(
            tuple(role for role, kind in kinds.items() if kind not in (None, "float")),
            tuple(kinds.values()),
            tuple((r, b.numbers) for r, b in used.items() if b != given[r]),
        )

    def replace_numbers(self, control: Tensor) -> Tensor:
        """A copy of the control tensor with the replaced numbers."""
        control = control.clone()
        for role, numbers in self.replaced:
            control[NUMBERS[role]] = torch.tensor(numbers, dtype=torch.int32, device=control.device)
        return control


class QuantizedLayer(SwappedModule):
    """Mixed in before a float module type; the float module's own attributes stay as they are.

    Conversion adds three buffers. `control` (not saved) holds what the arithmetic reads: the level
    counts of the four roles, the numbers of their formats and the clock of the noise. `health` (not
    saved) turns NaN when an operand is not finite. `act_range` (saved) has a row [observations,
    minimum, range] per activation input.
    """

    num_act_inputs: ClassVar[int] = 1  # 0: keeps no running range
    own_roles: ClassVar[tuple[str, ...]] = ROLES  # the roles that this type of layer has
    is_between_activations: ClassVar[bool] = False  # multiplies activations only
    aggregates: ClassVar[bool] = False  # sums along edges, without a weight (`aggregation`)
    replaced_methods: ClassVar[tuple[str, ...]] = ("forward",)  # of the float type

    settings: LayerSettings
    shared: ModelState
    precision: Precision
    quantized_roles: tuple[str, ...]
    role_formats: RoleFormats
    between_activations: RoleFormats  # for products of two activations
    tops: dict[str, int]  # the most bits each role was or will be given
    is_scheduled: bool  # a scheduler set `tops`: the bits of an evaluation do not count then
    code_tops: tuple[int, ...]  # `tops` as kernels and graphs see them: they never read the bits
    recorder: Recorder | None  # while `collect` runs
    control: Tensor
    health: Tensor
    act_range: Tensor
    _is_observed: bool
    _range_version: int | None
    _written_version: int

    # -- conversion -----------------------------------------------------------------------------

    def become_quantized(self, settings: LayerSettings, shared: ModelState) -> None:
        """Add buffers and attributes to a float module whose class was just swapped."""
        device = next((p.device for p in self.parameters()), None)
        self.settings, self.shared = self.adapt(settings), shared
        self.precision, self.quantized_roles = Precision(), ()
        self.role_formats = self.between_activations = RoleFormats()
        self.tops, self.is_scheduled, self.code_tops = {}, False, NO_TOPS
        self.recorder = None
        self._is_observed, self._range_version = False, None
        zeros = torch.zeros(CONTROL_SIZE, dtype=torch.int32, device=device)
        self.register_buffer("control", zeros, persistent=False)
        health = torch.zeros(len(ROLES), dtype=torch.float32, device=device)
        self.register_buffer("health", health, persistent=False)
        ranges = torch.zeros(self.num_act_inputs, 3, dtype=torch.float32, device=device)
        self.register_buffer("act_range", ranges, persistent=self.num_act_inputs > 0)
        self._write_control()

    @classmethod
    def reason_against(cls, module: nn.Module) -> str | None:
        """Why this float module cannot be converted; None if it can."""
        return None

    @classmethod
    def adapt(cls, settings: LayerSettings) -> LayerSettings:
        """The settings that layers of this type use."""
        return settings

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
        self.role_formats = RoleFormats.of(given)
        self.between_activations = RoleFormats.of(given, {r: rule(b) for r, b in given.items()})
        if not self.is_scheduled:  # no scheduler: the most bits so far
            bits = {role: each.grid_bits for role, each in precision.bits.items()}
            self.tops |= {role: max(self.tops.get(role, 0), n) for role, n in bits.items()}
        self.code_tops = tuple(self.top_bits(role) for role in ROLES)
        self.shared.note_bits(self.settings.name, bool(self.quantized_roles))
        self._write_control()
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
        given = precision.in_force([role for role in self.own_roles if role in quantizer.roles])
        if not (self.is_between_activations and quantizer.scales_by_product):
            return given
        rule = quantizer.bits_between_activations
        return Precision(**{role: rule(bits).plain for role, bits in given.bits.items()})

    @property
    def bits_in_force(self) -> Precision:
        """The present bits of the layer's roles, as `in_force` reads them."""
        return self.in_force(self.precision)

    def expect_bits(self, tops: Mapping[str, int]) -> None:
        """Set the most bits that roles will take; kernels and packing depend on them."""
        self.tops, self.is_scheduled = dict(tops), True
        self.code_tops = tuple(self.top_bits(role) for role in ROLES)

    def top_bits(self, role: str) -> int:
        """`max_bits`, or the most bits this role has or will take, rounded up to one of `TOPS`.

        Kernels differ only between these, so that each new bit-width does not compile a new graph.
        """
        now = self.precision.bits[role].grid_bits
        top = self.settings.max_bits or max(self.tops.get(role, 0), now)
        return next((bits for bits in TOPS if top <= bits), 32)

    def kernel_tops(self) -> tuple[int, ...]:
        """The most bits of each role as the kernel sees them; no limit for a float kernel."""
        if not self.settings.kernel.takes_codes:
            return NO_TOPS
        return self.code_tops

    def check_precision(self, precision: Precision) -> None:
        """Raise a ValueError if this layer cannot take these bits."""
        self.settings.check(precision)

    def rename(self, name: str) -> None:
        """Set the layer's name in the whole model; its noise depends on it."""
        if name != self.settings.name:
            self.shared.note_bits(self.settings.name, False)
            self.settings = replace(self.settings, name=name)
            self.shared.note_bits(name, bool(self.quantized_roles))
            self._write_control()

    def _write_control(self) -> None:
        roles = self.precision.bits.values()
        levels = [bits.levels for bits in roles]
        numbers = [n for bits in roles for n in bits.numbers]
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        base = hash_ints(self.settings.seed, rank, zlib.crc32(self.settings.name.encode()))
        if not self.control.is_meta:
            values = torch.tensor([*levels, *numbers, base, self.shared.step], dtype=torch.int32)
            self.control[:CALL].copy_(values, non_blocking=True)
        # averaging (EMA with buffers) may overwrite the buffer: `next_control` then writes again
        self._written_version = version(self.control)

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
        if not self.is_active:
            return False
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
        second: str = "weight",
        second_keep: tuple[int, ...] = (),
        second_view: tuple[int, ...] = (),
        input_keep: tuple[int, ...] = (),
        act_row: int = 0,
    ) -> Tensor:
        """a x w (+ bias) with both operands, the error and the weight gradient quantized.

        second: the role of `w`, "weight" or "act". second_keep: its channel dimensions, which get a
        range each. act_row: the row of `act_range` for `a`; a second activation has the next row.
        Each product of a layer has its own rows and its own noise.
        """
        quantizer = self.current_quantizer
        if a.dtype != w.dtype:
            if not have_matching_dtypes(a, w):
                raise RuntimeError(
                    f"layer {self.settings.name!r}: both operands must have the same dtype, but "
                    f"got {a.dtype} and {w.dtype}"
                )
            wide = torch.promote_types(a.dtype, w.dtype)  # grids are not bf16, operands may be
            a, w, bias = a.to(wide), w.to(wide), None if bias is None else bias.to(wide)
        formats = self.between_activations if second == "act" else self.role_formats
        roles, kinds = formats.grid_roles, formats.kinds
        control = control_for_product(self.next_control(is_first=act_row == 0), act_row)
        if formats.replaced:
            control = formats.replace_numbers(control)
        if "act" in roles:
            a = quantizer.prepare("act", a, control[LEVELS["act"]])
        if second in roles:
            w = quantizer.prepare(second, w, control[LEVELS[second]])
        a_range = self.activation_range(a, act_row)
        w_range = self.activation_range(w, act_row + 1) if second == "act" else None
        is_undecided = self.settings.kernel.is_undecided
        if is_undecided and self.training and not torch.compiler.is_compiling() and a.numel():
            self._decide_kernel(geometry, a, w, second)
        spec = ProductSpec(
            quantizer=quantizer,
            kernel=self.settings.kernel,
            geometry=geometry,
            roles=roles,
            kinds=kinds,
            tops=self.kernel_tops(),
            second=second,
            second_keep=second_keep,
            second_view=second_view,
            input_keep=input_keep,
            recorder=self.recorder,
            input_cache=self.shared.input_cache if self._shares_codes() else None,
            act_bits=self.precision.act or 0 if self._shares_codes() else 0,
        )
        return quantized_product(spec, a, w, bias, control, self.health, a_range, w_range)

    def _shares_codes(self) -> bool:
        """Whether every layer that reads an input rounds it to the same range, the batch's."""
        return can_use_input_cache() and self.training and self.recorder is None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _decide_kernel(
        self,
        geometry: Geometry,
        a: Tensor,
        w: Tensor,
        second: str,
        recurrence: Recurrence | None = None,
    ) -> None:
        """Choose the kernel for "auto" once the shapes are known, in the first training step."""
        kinds = zip(ROLES, self.kinds, strict=True)
        roles = [role for role, kind in kinds if kind == "integer"]
        first, other, error = (
            self.top_bits(role) if role in roles or self.tops.get(role) else None
            for role in ("act", second, "error")
        )
        if first is other is error is None:
            return  # bf16 and fp16 are multiplied in float32; integers may come later
        kernel, reason = decide_kernel(
            geometry,
            a.detach(),
            w.detach(),
            tops=(first, other, error),
            recurrence=recurrence,
        )
        reason = "; ".join([reason, *float_products(kernel, self.settings.quantizer)])
        self.settings = replace(self.settings, kernel=kernel, kernel_reason=reason)

    def next_control(self, *, is_first: bool = True) -> Tensor:
        """A copy of the control tensor for this call, with its own noise.

        The first product counts the call. A forward pass that is recomputed (gradient
        checkpointing) counts nothing, so that its noise repeats. Evaluation takes no noise and
        leaves the count of the training around it.
        """
        if not torch.compiler.is_compiling() and version(self.control) != self._written_version:
            self._write_control()  # averaged or broadcast: `precision` is what counts
        may_train = self.training or torch.is_grad_enabled()
        takes_noise = "error" in self.quantized_roles or "grad" in self.quantized_roles
        if is_first and takes_noise and may_train and not is_recomputing():
            control = state.count_up(self.control, CALL)
            if not torch.compiler.is_compiling():
                self._written_version = version(self.control)
            return control
        return self.control.clone()

    # -- activation ranges ----------------------------------------------------------------------

    def activation_range(self, x: Tensor, index: int) -> Range | None:
        """The range of an activation: the batch's in training, the running one in evaluation."""
        quantizer = self.settings.quantizer
        is_calibrating = self.shared.is_calibrating
        if "act" not in self.grid_roles and not is_calibrating:
            if "act" in self.quantized_roles:  # bf16 or fp16
                flag_nonfinite(self.health, "act", value_range(x.detach()))
            return None
        must_observe = (self.training or is_calibrating) and quantizer.observes
        if not must_observe and quantizer.observes and self.is_observed:
            row = self.act_range[index].clone()  # backward may read it after the next observation
            return row[1], row[1] + row[2]
        low, high = self._batch_range(x)
        flag_nonfinite(self.health, "act", (low, high))
        if must_observe and not is_recomputing() and x.numel() > 0:
            self._observe(index, low, high)
        elif not must_observe and quantizer.observes:
            self._warn_unobserved()
        return low, high

    @property
    def current_quantizer(self) -> Quantizer:
        """The quantizer; in evaluation without synchronization, as other ranks may not evaluate."""
        quantizer = self.settings.quantizer
        must_sync = self.training or self.shared.is_calibrating
        return quantizer if must_sync else without_sync(quantizer)

    def _batch_range(self, x: Tensor) -> Range:
        quantizer, cache = self.current_quantizer, self.shared.input_cache
        if not can_use_input_cache():
            return quantizer.range_of("act", x.detach())
        within = cache.range_of(x, quantizer)
        if within is None:
            within = quantizer.range_of("act", x.detach())
            cache.keep_range(x, quantizer, within)
        return within

    def _observe(self, index: int, low: Tensor, high: Tensor) -> None:
        momentum = None if self.shared.takes_mean else MOMENTUM
        state.observe(self.act_range, index, low, high, momentum)
        self._is_observed = True
        if not torch.compiler.is_compiling():
            self._range_version = version(self.act_range)

    @property
    def is_observed(self) -> bool:
        """Whether every activation input has a range.

        Averaging (EMA, SWA), replication and loading write `act_range` directly, so it is read
        again when its version changed.
        """
        if self.num_act_inputs == 0:
            return True
        if torch.compiler.is_compiling() or self.act_range.is_meta:
            return self._is_observed
        if version(self.act_range) != self._range_version:
            self._is_observed = bool((self.act_range[:, 0] > 0).all())
            self._range_version = version(self.act_range)
        return self._is_observed

    def _warn_unobserved(self) -> None:
        if torch.compiler.is_compiling() or self.shared.has_warned_unobserved:
            return
        self.shared.has_warned_unobserved = True
        warnings.warn(
            f"layer {self.settings.name!r} has never observed an activation range: evaluation uses "
            "each batch's own range; train, or use bitcycle.calibrate(model, batches)",
            BitcycleWarning,
            stacklevel=5,
        )

    def reset_ranges(self) -> None:
        """Forget every observed activation range."""
        self._is_observed = False
        if not self.act_range.is_meta:
            self.act_range.zero_()
        self._range_version = version(self.act_range)

    # -- state ----------------------------------------------------------------------------------

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        own = {name: getattr(self, name) for name in OWN_BUFFERS}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in own.items():  # follow the device only: .half() would round the ranges
            device = getattr(self, name).device
            if buffer.is_meta and device.type != "meta":
                self._buffers[name] = torch.zeros_like(buffer, device=device)
                self._is_observed = False
            else:
                self._buffers[name] = buffer.to(device)
        self._range_version = None  # a new tensor, or a state that was loaded into the old one
        self._write_control()
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        key = prefix + "act_range"
        super()._load_from_state_dict(state_dict, prefix, *args)
        if self.control.is_meta:  # load_state_dict(assign=True) onto a model made on meta
            near = next(self.parameters(recurse=False), self.act_range)
            is_unplaced = near is self.act_range and near.is_meta  # a MatMul, from a float state
            device = torch.device("cpu") if is_unplaced else near.device
            if device.type != "meta":
                for name in OWN_BUFFERS:
                    buffer = self._buffers[name]
                    assert buffer is not None
                    if buffer.is_meta:
                        self._buffers[name] = torch.zeros_like(buffer, device=device)
                self._write_control()
        self._range_version = None
        if key in state_dict:
            return
        strict, missing_keys = args[1], args[2]
        if key in missing_keys:
            missing_keys.remove(key)
        weights = [prefix + name for name in self._parameters]
        if any(name in state_dict for name in weights) or (strict and not weights):
            self.reset_ranges()  # a float model's state: complete, and nothing was observed

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._written_version = version(self.control)  # a copy's counts from 0
        self._range_version = None

    def extra_repr(self) -> str:
        """The float module's, the precision and the quantizer."""
        inner = super().extra_repr()
        own = f"precision={self.bits_in_force}, quantizer={type(self.settings.quantizer).__name__}"
        return f"{inner}, {own}" if inner else own


def advance_clocks(layers: Iterable[QuantizedLayer], step: int) -> None:
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
        if version(layer.control) != layer._written_version:
            layer._write_control()  # overwritten, or counted by a compiled forward pass
        layer.control[STEP:].copy_(clocks[device])
        layer._written_version = version(layer.control)


def have_matching_dtypes(first: Tensor, *others: Tensor | None) -> bool:
    """Whether all are of one floating dtype, or of dtypes that autocast casts to one.

    >>> x, bytes = torch.ones(2), torch.ones(2, dtype=torch.uint8)
    >>> have_matching_dtypes(x, x), have_matching_dtypes(x, bytes), have_matching_dtypes(bytes)
    (True, False, False)
    """
    dtypes = [x.dtype for x in (first, *others) if x is not None]
    if all(dtype == first.dtype for dtype in dtypes):
        return first.is_floating_point()
    can_cast = all(dtype in AUTOCAST_DTYPES for dtype in dtypes)
    device = first.device.type
    return can_cast and device != "meta" and torch.is_autocast_enabled(device)


def version(x: Tensor) -> int:
    """How often the tensor was written to; -1 for inference tensors, which have no count."""
    return -1 if x.is_inference() else x._version


def is_recomputing() -> bool:
    """Whether this forward pass runs inside a backward pass (gradient checkpointing)."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1
