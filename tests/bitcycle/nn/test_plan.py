"""The plan of a layer: how matmuls round their operands, what multiplies them, when it changes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.kernels import make_kernel, native
from bitcycle.kernels.geometry import ConvGeometry, Geometry, LinearGeometry, MatMulGeometry
from bitcycle.kernels.simulate import FloatProducts
from bitcycle.native.library import library
from bitcycle.nn import QuantizedLayer
from bitcycle.nn.control import CONTROL_SIZE, LEVELS
from bitcycle.nn.plan import LayerPlan, Operands, Rounding, make_plan
from bitcycle.nn.product import quantized_product
from bitcycle.quantizers import (
    FP8,
    MX,
    NVFP4,
    SBM,
    WAGEUBN,
    AbsMax,
    DoReFa,
    PowerOfTwo,
    Quantizer,
    SBMFull,
)

from .. import naive

needs_library = pytest.mark.skipif(library() is None, reason="no native library")

LINEAR, MATMUL = LinearGeometry(), MatMulGeometry()
CONV = ConvGeometry((1, 1), (1, 1), (1, 1), 1)
GROUPS = replace(CONV, groups=2)
SAME = replace(CONV, padding=(0, 0), end_padding=(1, 1))
TRANSPOSED = replace(CONV, transposed=True)
CONV1D = ConvGeometry((2,), (0,), (1,), 1)
CONV3D = ConvGeometry((1, 1, 1), (0, 0, 0), (1, 1, 1), 1)

INTEGERS = ("integer", "integer", "integer", None)  # weight, act, error, grad
BY_COLUMN = SBM(grad_input_weight="per_input_channel")


def rounding(role: str, *how: Any, **options: Any) -> Rounding:
    """A rounding by the role's own bits."""
    return Rounding(role, LEVELS[role], *how, **options)


def planned(quantizer: Quantizer, geometry: Geometry = LINEAR, **options: Any) -> LayerPlan:
    kernel = make_kernel(options.pop("kernel", "native"))
    given = {"kinds": INTEGERS, "tops": (4, 7, 8, 8), **options}
    return make_plan(quantizer, geometry, kernel, **given)


# -- what a plan says -----------------------------------------------------------------------------

ACT = rounding(role="act", kind="integer", as_codes=True, top=7)
WEIGHT = rounding(role="weight", kind="integer", as_codes=True, top=4, keep=(0,))
ERROR = rounding(role="error", kind="integer", as_codes=True, top=8)
SECOND_GRID = rounding(role="weight", kind="integer", as_codes=True, top=4, keep=(1,))

# codes of no kind: float64, simulate, a quantizer without codes, more than 8 bits
ACT_VALUES = rounding(role="act", kind="integer", as_codes=False, top=7)
WEIGHT_VALUES = rounding(role="weight", kind="integer", as_codes=False, top=4, keep=(0,))
ERROR_VALUES = rounding(role="error", kind="integer", as_codes=False, top=8)
ANY_ACT = rounding(role="act", kind="integer", as_codes=False, top=32)
ANY_WEIGHT = rounding(role="weight", kind="integer", as_codes=False, top=32, keep=(0,))
ANY_ERROR = rounding(role="error", kind="integer", as_codes=False, top=32)
TURNED_WEIGHT = rounding(role="weight", kind="integer", as_codes=False, top=4, keep=(0, 2))
NO_ERROR = rounding(role="error", kind=None, as_codes=False, top=8)


def in_blocks(role: str, kind: str, matmul: str) -> Rounding:
    """An operand that a matmul rounds for itself."""
    keep = (0,) if role == "weight" else ()
    top = {"weight": 4, "act": 7, "error": 8}[role]
    return rounding(role=role, kind=kind, as_codes=False, top=top, keep=keep, matmul=matmul)


# quantizer, geometry, options; then the operands of output, grad_input and grad_weight
TABLE: dict[str, tuple[Quantizer, Geometry, dict[str, Any], list[tuple[Rounding, Rounding]]]] = {
    "sbm": (SBM(), LINEAR, {}, [(ACT, WEIGHT), (ERROR, WEIGHT), (ERROR, ACT)]),
    "sbm, a convolution": (SBM(), CONV, {}, [(ACT, WEIGHT), (ERROR, WEIGHT), (ERROR, ACT)]),
    "per input channel": (
        BY_COLUMN, LINEAR, {},
        [(ACT, WEIGHT), (ERROR, SECOND_GRID), (ERROR, ACT)],
    ),
    "per input channel, a convolution": (
        BY_COLUMN, CONV, {},
        [(ACT, WEIGHT), (ERROR, SECOND_GRID), (ERROR, ACT)],
    ),
    "per input channel, that groups share": (
        BY_COLUMN, GROUPS, {},
        [(ACT, WEIGHT), (ERROR, WEIGHT), (ERROR, ACT)],
    ),
    "sbm_full": (SBMFull(), LINEAR, {}, [(ACT, WEIGHT), (ERROR, WEIGHT), (ERROR, ACT)]),
    "wageubn": (
        WAGEUBN(), LINEAR, {"kinds": ("integer",) * 4},
        [
            (ACT_VALUES, WEIGHT_VALUES), (ERROR_VALUES, WEIGHT_VALUES), (ERROR_VALUES, ACT_VALUES),
        ],
    ),
    "nvfp4": (
        NVFP4(), LINEAR, {"kinds": ("nvfp4", "nvfp4", "nvfp4", None)},
        [
            (in_blocks("act", "nvfp4", "output"), in_blocks("weight", "nvfp4", "output")),
            (in_blocks("error", "nvfp4", "grad_input"), in_blocks("weight", "nvfp4", "grad_input")),
            (in_blocks("error", "nvfp4", "grad_weight"), in_blocks("act", "nvfp4", "grad_weight")),
        ],
    ),
    "nvfp4, bf16 and integers": (
        NVFP4(), LINEAR, {"kinds": ("nvfp4", "float", "integer", None)},
        [
            (in_blocks("act", "float", "output"), in_blocks("weight", "nvfp4", "output")),
            (
                in_blocks("error", "integer", "grad_input"),
                in_blocks("weight", "nvfp4", "grad_input"),
            ),
            (
                in_blocks("error", "integer", "grad_weight"),
                in_blocks("act", "float", "grad_weight"),
            ),
        ],
    ),
    "bf16": (
        SBM(), LINEAR, {"kinds": ("float", "float", "float", None)},
        [
            (in_blocks("act", "float", ""), in_blocks("weight", "float", "")),
            (in_blocks("error", "float", ""), in_blocks("weight", "float", "")),
            (in_blocks("error", "float", ""), in_blocks("act", "float", "")),
        ],
    ),
    "a float32 error": (
        SBM(), LINEAR, {"kinds": ("integer", "integer", None, None)},
        [(ACT, WEIGHT), (NO_ERROR, WEIGHT), (NO_ERROR, ACT)],
    ),
    "float64": (
        SBM(), LINEAR, {"dtype": torch.float64},
        [
            (ACT_VALUES, WEIGHT_VALUES), (ERROR_VALUES, WEIGHT_VALUES), (ERROR_VALUES, ACT_VALUES),
        ],
    ),
    "more than 8 bits": (
        SBM(), LINEAR, {"tops": (32, 32, 32, 32)},
        [(ANY_ACT, ANY_WEIGHT), (ANY_ERROR, ANY_WEIGHT), (ANY_ERROR, ANY_ACT)],
    ),
    "more than 8 bits of the error": (
        SBM(), LINEAR, {"tops": (4, 7, 32, 32)},
        [(ACT, WEIGHT), (ANY_ERROR, WEIGHT), (ANY_ERROR, ACT)],
    ),
    "simulate": (
        SBM(), LINEAR, {"kernel": "simulate"},
        [(ANY_ACT, ANY_WEIGHT), (ANY_ERROR, ANY_WEIGHT), (ANY_ERROR, ANY_ACT)],
    ),
    "a transposed convolution": (
        SBM(), TRANSPOSED, {},
        [(ACT, TURNED_WEIGHT), (ERROR, TURNED_WEIGHT), (ERROR, ACT)],
    ),
    "a product of activations": (SBM(), MATMUL, {}, [(ACT, ACT), (ERROR, ACT), (ERROR, ACT)]),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_every_matmul_rounds_its_operands_as_the_table_says(name: str) -> None:
    quantizer, geometry, options, expected = TABLE[name]
    plan = planned(quantizer, geometry, **options)
    assert [tuple(plan.output), tuple(plan.grad_input), tuple(plan.grad_weight)] == expected
    assert plan.grad.kind == options.get("kinds", INTEGERS)[3]
    assert (plan.quantizer, plan.geometry) == (quantizer, geometry)


def test_codes_are_multiplied_as_codes_where_the_kernel_has_products_of_the_geometry() -> None:
    for geometry in (LINEAR, CONV, CONV1D, MATMUL):
        assert not isinstance(planned(SBM(), geometry).products, FloatProducts)
        assert isinstance(planned(SBM(), geometry, kernel="simulate").products, FloatProducts)
    for geometry in (TRANSPOSED, CONV3D):
        assert isinstance(planned(SBM(), geometry).products, FloatProducts)


def test_plans_are_equal_where_kinds_and_most_bits_are() -> None:
    assert planned(SBM()) == planned(SBM())
    for options in (
        {"tops": (7, 7, 8, 8)}, {"kinds": ("integer", "integer", None, None)},
        {"dtype": torch.float64}, {"kernel": "simulate"}, {"geometry": MATMUL},
    ):  # fmt: skip
        assert planned(SBM(), **options) != planned(SBM())


def test_an_operand_can_have_other_bits_in_backward() -> None:
    """Weight and input at 3 bits forward, at those of the error backward."""
    quantizer, error = SBM(error_rounding="nearest"), LEVELS["error"]
    plan = planned(quantizer, kernel="simulate")
    e, w = plan.grad_input
    plan = replace(
        plan,
        grad_input=Operands(e, replace(w, slot=error, matmul="grad_input")),
        grad_weight=Operands(e, replace(plan.grad_weight.second, slot=error, matmul="grad_weight")),
    )
    torch.manual_seed(0)
    x, weight, arriving = torch.randn(6, 5), torch.randn(4, 5), torch.randn(6, 4)
    control = torch.zeros(CONTROL_SIZE, dtype=torch.int32)
    control[:3] = torch.tensor([7, 7, 255])
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    within = quantizer.range_of("act", x)
    output = quantized_product(
        plan, *leaves, None, control, torch.zeros(4), within, None, dtype=torch.float32
    )
    grads = torch.autograd.grad(output, leaves, arriving)
    rounded = naive.per_tensor(arriving, 8)
    torch.testing.assert_close(
        output.detach(), naive.per_tensor(x, 3) @ naive.per_channel(weight, 3).t()
    )
    torch.testing.assert_close(grads[0], rounded @ naive.per_channel(weight, 8))
    torch.testing.assert_close(grads[1], rounded.t() @ naive.per_tensor(x, 8))


# -- whole products -------------------------------------------------------------------------------

# quantizer, geometry, options; whether output and whether both gradients are one call
WHOLE: dict[str, tuple[Quantizer, Geometry, dict[str, Any], tuple[bool, bool]]] = {
    **{
        f"sbm, {name}": (SBM(), geometry, {}, (True, True))
        for name, geometry in {
            "linear": LINEAR, "matmul": MATMUL, "conv": CONV, "1-d": CONV1D, "groups": GROUPS,
            "same padding": SAME,
        }.items()
    },
    "zero on the grid": (SBM(zero="integer", floor=1e-8), LINEAR, {}, (True, True)),
    "synchronized": (SBM(sync_ranges=True), LINEAR, {}, (True, True)),
    "groups of input channels": (BY_COLUMN, GROUPS, {}, (True, True)),
    "absmax": (AbsMax(), CONV, {}, (True, True)),
    "pow2": (PowerOfTwo(), LINEAR, {}, (True, True)),
    "dorefa": (DoReFa(), LINEAR, {}, (True, False)),
    "8 bits": (SBM(), LINEAR, {"tops": (8, 8, 8, 8)}, (True, True)),
    "bfloat16 operands": (SBM(), LINEAR, {"dtype": torch.bfloat16}, (True, True)),
    "a float32 error": (SBM(), LINEAR, {"kinds": (*INTEGERS[:2], None, None)}, (True, False)),
    "a bf16 error": (SBM(), LINEAR, {"kinds": (*INTEGERS[:2], "float", None)}, (True, False)),
    "a long error": (SBM(), LINEAR, {"tops": (8, 8, 32, 32)}, (True, False)),
    "a rounded gradient": (SBM(), LINEAR, {"kinds": ("integer",) * 4}, (True, False)),
    "a float32 input": (SBM(), LINEAR, {"kinds": ("integer", None, "integer", None)}, (False,) * 2),
    "a bf16 weight": (SBM(), LINEAR, {"kinds": ("float", *INTEGERS[1:])}, (False, False)),
    "long weights": (SBM(), LINEAR, {"tops": (32, 8, 8, 8)}, (False, False)),
    "float64": (SBM(), LINEAR, {"dtype": torch.float64}, (False, False)),
    "simulate": (SBM(), LINEAR, {"kernel": "simulate"}, (False, False)),
    "transposed": (SBM(), TRANSPOSED, {}, (False, False)),
    "3-d": (SBM(), CONV3D, {}, (False, False)),
    "per input channel": (BY_COLUMN, LINEAR, {}, (False, False)),
    "sbm_full": (SBMFull(), LINEAR, {}, (False, False)),
    "wageubn": (WAGEUBN(), LINEAR, {"kinds": ("integer",) * 4}, (False, False)),
    **{
        f"{name}, {kind}": (quantizer, LINEAR, {"kinds": (kind, kind, kind, None)}, (False, False))
        for quantizer, name in ((FP8(), "fp8"), (MX(), "mxfp8"), (NVFP4(), "nvfp4"))
        for kind in ("integer", name)
    },
}  # fmt: skip


@needs_library
@pytest.mark.parametrize("name", WHOLE)
def test_a_direction_is_one_call_exactly_where_the_table_says(name: str) -> None:
    quantizer, geometry, options, expected = WHOLE[name]
    plan = planned(quantizer, geometry, **options)
    assert (plan.whole is not None, plan.is_backward_whole) == expected


def test_without_the_library_there_is_no_whole_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "HAS_LIBRARY", False)
    assert planned(SBM()).whole is None


@needs_library
def test_codes_of_at_most_4_bits_are_kept_two_per_byte() -> None:
    for tops, packs in (
        ((4, 4, 8, 8), (True, True)),
        ((4, 7, 4, 4), (False, True)),
        ((8, 4, 4, 4), (True, False)),
    ):
        plan = planned(SBM(), tops=tops)
        assert plan.whole is not None
        assert plan.whole.packs == packs  # input, weight


# -- the plans of a layer -------------------------------------------------------------------------


def a_layer(kernel: str = "native", precision: str = "w4a4e4", **options: Any) -> QuantizedLayer:
    torch.manual_seed(0)
    layer = bc.quantize_model(nn.Linear(6, 5), SBM(**options), kernel=kernel)
    assert isinstance(layer, QuantizedLayer)
    bc.set_precision(layer, precision)
    return layer


def plan_of(layer: QuantizedLayer, dtype: torch.dtype = torch.float32) -> LayerPlan:
    return layer.plan(LINEAR, torch.ones(3, 6, dtype=dtype), layer.weight.to(dtype))


def test_a_layer_keeps_its_plan_while_only_bits_change() -> None:
    for kernel in ("simulate", "native", "auto"):
        layer = a_layer(kernel)
        layer.expect_bits(dict.fromkeys(("weight", "act", "error"), 8))
        plan = plan_of(layer)
        for bits in (3, 8, 5, 2):
            bc.set_precision(layer, f"w{bits}a{bits}e{bits}")
            layer(torch.randn(3, 6)).sum().backward()
            assert plan_of(layer) is plan
        layer.eval()
        layer.train()
        assert plan_of(layer) is plan


CHANGES: dict[str, Callable[[QuantizedLayer], Any]] = {
    "kinds": lambda layer: bc.set_precision(layer, "w4a4"),
    "a kind of another role": lambda layer: bc.set_precision(layer, "w=bf16,a=4,e=4"),
    "more top bits": lambda layer: bc.set_precision(layer, "w8a4e4"),
    "expected bits": lambda layer: layer.expect_bits({"weight": 7, "act": 7, "error": 7}),
    "kernel": lambda layer: layer.change_settings(
        replace(layer.settings, kernel=make_kernel("simulate"))
    ),
    "quantizer": lambda layer: layer.change_settings(
        replace(layer.settings, quantizer=BY_COLUMN)
    ),
    "mode": lambda layer: layer.eval(),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_makes_a_new_plan_when_that_changes(change: str) -> None:
    layer = a_layer(sync_ranges=True)  # which evaluation does not do
    plan = plan_of(layer)
    layer(torch.randn(3, 6))
    assert plan_of(layer) is plan
    CHANGES[change](layer)
    changed = plan_of(layer)
    assert changed != plan
    assert plan_of(layer) is changed
    assert layer(torch.randn(3, 6)).isfinite().all()


def test_every_dtype_has_a_plan_of_its_own() -> None:
    layer = a_layer()
    plan, other = plan_of(layer), plan_of(layer, torch.float64)
    assert plan.output.first.as_codes
    assert not other.output.first.as_codes
    assert plan_of(layer) is plan
    assert plan_of(layer, torch.float64) is other


def test_every_product_of_a_layer_has_a_plan_of_its_own() -> None:
    module = bc.quantize_model(nn.MultiheadAttention(8, 2), kernel="native")
    bc.set_precision(module, "w8a8e8")
    x = torch.randn(3, 2, 8)
    module(x, x, x)
    geometries = [plan.geometry for plan in module._plans.values()]
    assert [type(g) for g in geometries] == [LinearGeometry] * 3 + [MatMulGeometry] * 2 + [
        LinearGeometry
    ]
    kept = dict(module._plans)
    module(x, x, x)
    assert all(module._plans[key] is plan for key, plan in kept.items())


GEOMETRIES = {
    "stride": (2, 2),
    "stride as a list": [2, 2],
    "padding": (2, 1),
    "padding as a list": [2, 1],
    "padding by name": "same",
    "dilation": (2, 2),
}


@pytest.mark.parametrize("kernel", ["simulate", "native"])
@pytest.mark.parametrize("change", GEOMETRIES)
def test_a_convolution_that_is_changed_after_conversion_computes_what_it_says(
    change: str, kernel: str
) -> None:
    torch.manual_seed(0)
    x, error = torch.randn(2, 3, 7, 7), torch.randn(2, 4, 9, 9)
    option, value = change.split()[0], GEOMETRIES[change]
    original, before = nn.Conv2d(3, 4, 3), copy.deepcopy(x)

    def converted(module: nn.Module) -> nn.Module:
        bc.quantize_model(module, SBM(error_rounding="nearest"), kernel=kernel)
        bc.set_precision(module, "w8a8e8")
        return module

    def results(module: nn.Module) -> list[Tensor]:
        module.zero_grad()
        leaf = x.clone().requires_grad_()
        output = module(leaf)
        output.backward(error[:, :, : output.shape[2], : output.shape[3]])
        return [output.detach(), leaf.grad, *(p.grad.clone() for p in module.parameters())]

    changed, fresh = converted(copy.deepcopy(original)), copy.deepcopy(original)
    first = results(changed)
    setattr(changed, option, value)
    setattr(fresh, option, value)
    assert all(map(torch.equal, results(changed), results(converted(fresh))))
    setattr(changed, option, getattr(original, option))
    assert all(map(torch.equal, results(changed), first))
    assert torch.equal(x, before)


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
}


@pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("kernel", ["simulate", "native", "auto"])
def test_a_copy_of_a_layer_has_plans_of_its_own(kernel: str, make_copy: Any) -> None:
    for make, shape in ((nn.Linear(6, 5), (3, 6)), (nn.Conv2d(3, 4, 3), (2, 3, 5, 5))):
        layer = bc.quantize_model(make, kernel=kernel)
        bc.set_precision(layer, "w4a4e4")
        x = torch.randn(shape)
        layer(x).sum().backward()
        kept = dict(layer._plans)
        assert kept
        other = make_copy(layer)
        assert other.decision == layer.decision
        assert not any(plan is mine for plan in other._plans.values() for mine in kept.values())
        assert torch.equal(other.eval()(x), layer.eval()(x))
        bc.set_precision(other.train(), "w8a8e8")
        other(x).sum().backward()
        layer.train()(x).sum().backward()
        assert all(layer._plans[key] is plan for key, plan in kept.items())


def test_a_model_that_was_moved_makes_its_plans_anew() -> None:
    layer = a_layer()
    plan = plan_of(layer)
    layer.double()
    assert not plan_of(layer, torch.float64).output.first.as_codes
    layer.float()
    assert plan_of(layer) == plan
    assert layer(torch.ones(3, 6)).dtype == torch.float32
