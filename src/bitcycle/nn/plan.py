"""The plan of a layer: what its bits mean for one of its products, worked out once.

    output       a x w     how each operand is rounded and carried, and
    grad_input   e x w     which function multiplies them
    grad_weight  e x a

A plan depends on the kinds of bits (integers, a kind of format, float32) and on the most bits that
each role will take, never on the bits of the step: those are data. So one plan, and one compiled
graph, serves a whole schedule. A forward pass only executes it (`nn.product`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from bitcycle.bits import Bits
from bitcycle.kernels.base import MATMULS, Kernel, Products
from bitcycle.kernels.choice import MAX_CODE_BITS
from bitcycle.kernels.geometry import Geometry, LinearGeometry
from bitcycle.kernels.scaled import reason_against, reason_against_pair
from bitcycle.native.layer import LayerProduct
from bitcycle.nn.control import LEVELS, number_slots
from bitcycle.precision import ROLES
from bitcycle.quantizers.base import GridRule, Quantizer
from bitcycle.quantizers.blocks import BlockQuantizer

NO_TOPS = (32,) * len(ROLES)
PACKED_BITS = 4  # codes of at most these are saved two per byte


@dataclass(frozen=True)
class RoleFormats:
    """The kinds of the roles' formats.

    grid_roles: roles with a range or blocks: rounded, and not to bf16 or fp16. kinds: in the order
    of ROLES; None is float32. stored: the elements of tensor cores that have their values, in the
    same order. replaced: numbers that differ from those of the control tensor.
    has_backward_operands: backward products read weight and act in the format of the error.
    bf16_roles: roles at the level bf16.
    """

    grid_roles: tuple[str, ...] = ()
    kinds: tuple[str | None, ...] = (None,) * len(ROLES)
    replaced: tuple[tuple[str, tuple[int, int, int]], ...] = ()
    stored: tuple[str | None, ...] = (None,) * len(ROLES)
    has_backward_operands: bool = False
    bf16_roles: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        given: Mapping[str, Bits],
        used: Mapping[str, Bits] | None = None,
        *,
        has_backward_operands: bool = False,
    ) -> RoleFormats:
        """Of the bits by role; used: the bits that count in place of the given ones."""
        used = given if used is None else used
        kinds = {role: used[role].kind if role in used else None for role in ROLES}
        return cls(
            tuple(role for role, kind in kinds.items() if kind not in (None, "float")),
            tuple(kinds.values()),
            tuple((r, b.numbers) for r, b in used.items() if b != given[r]),
            tuple(used[role].stored_as if role in used else None for role in ROLES),
            has_backward_operands,
            frozenset(r for r, b in used.items() if b.is_bf16),
        )

    def replace_numbers(self, control: Tensor) -> Tensor:
        """A copy of the control tensor with the replaced numbers."""
        control = control.clone()
        for role, numbers in self.replaced:
            for place, number in enumerate(numbers, start=number_slots(LEVELS[role]).start):
                control[place].fill_(number)  # a tensor of the numbers would be uploaded
        return control


@dataclass(frozen=True)
class Rounding:
    """How a matmul rounds one of its operands.

    role: of the operand. slot: of its level count and format in the control tensor. kind: of its
    format; None leaves it float32. as_codes: it is multiplied as codes. top: the most bits of the
    codes. keep: the dimensions of a weight that get a range each. matmul: a matmul that rounds the
    operand for itself, in backward from the unrounded tensor; else "". as_bf16: it is at the level
    bf16 and kept in 16 bits, so that a product of two such operands is a bfloat16 product.
    stored_as: the elements of the matrix that tensor cores multiply; None: not by them.
    """

    role: str
    slot: int
    kind: str | None = None
    as_codes: bool = False
    top: int = 8
    keep: tuple[int, ...] = ()
    matmul: str = ""
    as_bf16: bool = False
    stored_as: str | None = None

    @property
    def numbers(self) -> slice:
        """The slots of the format's numbers in the control tensor."""
        return number_slots(self.slot)


class Operands(NamedTuple):
    """The two operands of a matmul."""

    first: Rounding
    second: Rounding


@dataclass(frozen=True)
class LayerPlan:
    """One product of a layer, forward and backward.

    An operand that two matmuls round alike is rounded once and saved as it is multiplied.
    whole: the native library's call for a direction, if it has one. notes: the matmuls in formats
    that the tensor cores of a GPU do not multiply, and why.
    """

    quantizer: Quantizer
    geometry: Geometry
    kernel: Kernel
    products: Products
    output: Operands  # a, w
    grad_input: Operands  # e, w
    grad_weight: Operands  # e, a
    grad: Rounding
    rule: GridRule | None = None
    whole: LayerProduct | None = None
    is_backward_whole: bool = False
    notes: tuple[str, ...] = ()


def make_plan(
    quantizer: Quantizer,
    geometry: Geometry,
    kernel: Kernel,
    *,
    kinds: tuple[str | None, ...],
    tops: tuple[int, ...] = NO_TOPS,
    dtype: torch.dtype = torch.float32,
    has_backward_operands: bool = False,
    has_rows: bool = False,
    bf16_roles: frozenset[str] = frozenset(),
    stored: tuple[str | None, ...] = (None,) * len(ROLES),
    device_class: str | None = None,
) -> LayerPlan:
    """The plan for these kinds and most bits, in the order of ROLES.

    has_backward_operands: both backward products round weight and act for themselves, to the format
    in the error's slot. has_rows: the first operand has a range for each row. bf16_roles: those
    whose operands are kept in bfloat16. stored: elements of tensor cores by role. device_class: of
    a GPU (`driver.device_class`).
    """
    own_kinds = quantizer.kinds - {"integer", "float"}
    is_by_product = quantizer.scales_by_product and any(kind in own_kinds for kind in kinds)
    tops = tops if kernel.takes_codes else NO_TOPS

    def is_bf16(role: str) -> bool:
        return role in bf16_roles and dtype != torch.float64

    def rounding(role: str, matmul: str, keep: tuple[int, ...] = ()) -> Rounding:
        if has_backward_operands and matmul in ("grad_input", "grad_weight") and role != "error":
            slot, as_bf16 = LEVELS["error"], is_bf16("error")
            return Rounding(role, slot, kinds[slot], keep=keep, matmul=matmul, as_bf16=as_bf16)
        slot = LEVELS[role]
        kind, top = kinds[slot], tops[slot]
        has_codes = kind == "integer" and top <= MAX_CODE_BITS and dtype != torch.float64
        has_codes = has_codes and quantizer.integer_range(top) is not None
        own = matmul if is_by_product else ""
        return Rounding(role, slot, kind, has_codes and not own, top, keep, own, is_bf16(role))

    second, channels = geometry.second, geometry.channel_dims
    a, w = rounding("act", "output"), rounding(second, "output", channels)
    if len(channels) > 1:  # such scales do not broadcast against the weight
        w = replace(w, as_codes=False)
    w_in = replace(w, matmul="grad_input" if is_by_product else "")
    if has_backward_operands:
        w_in = rounding(second, "grad_input", channels)
    if quantizer.weight_grids > 1 and geometry.input_channel_dims and w.kind == "integer":
        w_in = replace(w_in, keep=geometry.input_channel_dims)
    plan = LayerPlan(
        quantizer,
        geometry,
        kernel,
        kernel.products(geometry),
        Operands(a, w),
        Operands(rounding("error", "grad_input"), w_in),
        Operands(rounding("error", "grad_weight"), rounding("act", "grad_weight")),
        rounding("grad", ""),
    )
    if a.as_codes and w.as_codes and w_in == w:
        return _with_whole_product(plan, has_rows=has_rows)
    is_scaled = kernel.takes_scaled and device_class is not None and dtype != torch.float64
    if is_scaled and isinstance(quantizer, BlockQuantizer):
        return _with_scaled_products(plan, quantizer, stored, device_class)
    return plan


def _with_scaled_products(
    plan: LayerPlan,
    quantizer: BlockQuantizer,
    stored: tuple[str | None, ...],
    device_class: str | None,
) -> LayerPlan:
    """The plan with operands for tensor cores where these multiply both of a matmul."""
    notes: list[str] = []
    found: dict[str, Operands] = {}
    for matmul in MATMULS:
        first, second = operands = getattr(plan, matmul)
        if {first.kind, second.kind} != {quantizer.kind}:
            continue
        elements = stored[first.slot], stored[second.slot]
        why = None if isinstance(plan.geometry, LinearGeometry) else "only linear layers do better"
        why = why or reason_against(quantizer.recipe, device_class)
        why = why or reason_against_pair(quantizer.recipe, *elements)
        if why is not None:
            notes.append(f"{matmul} in float32: {why}")
            continue
        both = (replace(x, stored_as=e) for x, e in zip(operands, elements, strict=True))
        found[matmul] = Operands(*both)
    return replace(plan, notes=tuple(notes), **found)  # type: ignore[arg-type]


def _with_whole_product(plan: LayerPlan, *, has_rows: bool) -> LayerPlan:
    """The plan with the library's call for each direction that it can compute as a whole."""
    rule, (a, w) = plan.quantizer.grid_rule, plan.output
    if rule is None:
        return plan
    packs = a.top <= PACKED_BITS, w.top <= PACKED_BITS
    whole = plan.kernel.layer_product(plan.geometry, rule, packs=packs, has_rows=has_rows)
    has_error = rule.has_error and plan.grad_input.first.as_codes and plan.grad.kind is None
    return replace(plan, rule=rule, whole=whole, is_backward_whole=whole is not None and has_error)
