"""A direction in one library call computes what the separate functions do, to the last bit."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import bitcycle as bc
from bitcycle.native.encode import Rule
from bitcycle.native.layer import NONE, Flags, LayerProduct, can_call, code_bytes, layout_of
from bitcycle.native.library import INSTRUCTION_SETS, library
from bitcycle.native.operators import can_trace, trace_backward, trace_forward
from bitcycle.ops.layout import memory_layout
from bitcycle.quantizers import SBM, AbsMax, DoReFa, PowerOfTwo

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

RULES = {
    "sbm": SBM(),
    "with zero": SBM(zero="integer", floor=1e-3),
    "nearest": SBM(error_rounding="nearest"),
    "synchronized": SBM(sync_ranges=True),
    "absmax": AbsMax(),
    "pow2": PowerOfTwo(),
    "dorefa": DoReFa(first_last="quantized"),
}
LAST = torch.channels_last


def has_given(rules: Any) -> bool:
    """Whether ranges are not those of the tensors."""
    return bool(rules.grid_rule.given)


class Product(nn.Module):
    """A product of two activations, both leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.product = bc.MatMul()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.product(a, b)


def layer_of(module: nn.Module, rules: Any, bits: str, whole: bool) -> nn.Module:
    """A converted copy, with or without whole products; both have the same noise."""
    made = bc.quantize_model(copy.deepcopy(module), rules, kernel="native")
    bc.set_precision(made, bits)
    if not whole:
        for layer in made.modules():
            if isinstance(layer, bc.nn.QuantizedLayer):
                layer._make_plan = without_whole(layer)
    return made


def without_whole(layer: bc.nn.QuantizedLayer) -> Any:
    def make(*arguments: Any) -> Any:
        plan = type(layer)._make_plan(layer, *arguments)
        assert plan.whole is not None
        return replace(plan, whole=None, is_backward_whole=False)

    return make


def results(module: nn.Module, inputs: list[Tensor]) -> dict[str, Tensor]:
    """Two training steps and an evaluation: outputs, gradients, buffers."""
    found: dict[str, Tensor] = {}
    for step in range(2):
        leaves = [x.detach().clone(memory_format=torch.preserve_format) for x in inputs]
        leaves = [x.requires_grad_() for x in leaves]
        output = module(*leaves)
        torch.manual_seed(step)
        error = torch.randn(output.shape)
        if step and error.dim() == 4:  # errors come in any layout
            error = error.contiguous(memory_format=LAST)
        module.zero_grad()
        output.backward(error)
        found[f"output {step}"] = output.detach()
        found |= {f"grad of input {i} {step}": x.grad for i, x in enumerate(leaves)}
        found |= {f"grad of {n} {step}": p.grad.clone() for n, p in module.named_parameters()}
    found |= {name: buffer.clone() for name, buffer in module.named_buffers()}
    found["evaluation"] = module.eval()(*[1.1 * x for x in inputs]).detach()
    return found


def assert_same(module: nn.Module, rules: Any, bits: str, *inputs: Tensor) -> None:
    ours = results(layer_of(module, rules, bits, whole=True), list(inputs))
    theirs = results(layer_of(module, rules, bits, whole=False), list(inputs))
    for name, expected in theirs.items():
        assert torch.equal(ours[name], expected), name
        assert memory_layout(ours[name]) == memory_layout(expected), name


def conv(*sizes: int, **options: Any) -> nn.Module:
    return nn.Conv2d(*sizes, **options)


CASES = {
    "linear": (lambda: nn.Linear(13, 7), (5, 13)),
    "tokens": (lambda: nn.Linear(16, 32), (3, 5, 16)),
    "one output": (lambda: nn.Linear(9, 1), (4, 9)),
    "3x3": (lambda: conv(5, 9, 3, padding=1), (2, 5, 7, 6)),
    "strided": (lambda: conv(6, 8, 3, stride=2, padding=1, bias=False), (3, 6, 9, 8)),
    "1x1": (lambda: conv(20, 12, 1), (2, 20, 4, 4)),
    "groups": (lambda: conv(8, 12, 3, groups=4, dilation=2), (2, 8, 9, 9)),
    "depthwise": (lambda: conv(10, 10, 3, groups=10, padding=1), (2, 10, 6, 6)),
    "same": (lambda: conv(3, 4, (2, 4), padding="same"), (2, 3, 5, 6)),
    "circular": (lambda: conv(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 5, 6)),
    "one channel": (lambda: conv(1, 1, 3, padding=1), (2, 1, 5, 5)),
    "one pixel": (lambda: conv(4, 6, 3), (2, 4, 3, 3)),
    "1-d": (lambda: nn.Conv1d(6, 10, 3, stride=2, padding=1), (2, 6, 11)),
}


@pytest.mark.parametrize("rules", RULES)
def test_a_whole_product_is_the_separate_ones(rules: str) -> None:
    for make, shape in CASES.values():
        torch.manual_seed(0)
        module, x = make(), torch.randn(shape)
        for bits in ("w8a8e8", "w4a3e5", "w8a8"):
            assert_same(module, RULES[rules], bits, x)
        if x.dim() == 4:
            last = x.contiguous(memory_format=LAST)
            assert_same(module, RULES[rules], "w7a4e8", last)
            assert_same(copy.deepcopy(module).to(memory_format=LAST), RULES[rules], "w4a8e8", x)


NODES = {
    "nodes": ((13, 7), (5, 13)),
    "graphs": ((16, 32), (3, 5, 16)),
    "many": ((70, 40), (300, 70)),
    "one node": ((9, 4), (1, 9)),
    "no axis of nodes": ((9, 4), (9,)),
    "one feature": ((1, 5), (6, 1)),
}


@pytest.mark.parametrize("rules", [name for name, rule in RULES.items() if not has_given(rule)])
def test_so_is_a_product_with_a_range_for_each_row(rules: str) -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    for sizes, shape in NODES.values():
        torch.manual_seed(0)
        module, x = geometric.Linear(*sizes), torch.randn(shape)
        x = x * torch.logspace(-2, 2, x[..., :1].numel()).view(*shape[:-1], 1)
        for bits in ("w8a8e8", "w4a3e5", "w8a8"):
            assert_same(module, RULES[rules], bits, x)
    assert_same(geometric.Linear(4, 3), RULES[rules], "w8a8e8", torch.randn(6, 8)[:, ::2])


@pytest.mark.parametrize("rules", [name for name in RULES if name != "dorefa"])
def test_so_is_a_product_of_activations(rules: str) -> None:
    torch.manual_seed(0)
    for a, b in (
        (torch.randn(5, 7), torch.randn(7, 4)),
        (torch.randn(3, 5, 7), torch.randn(3, 7, 4)),
        (torch.randn(2, 5, 3, 7).transpose(1, 2), torch.randn(2, 3, 4, 7).transpose(2, 3)),
        (torch.randn(2, 3, 5, 14)[..., :7], torch.randn(2, 3, 7, 8)[..., ::2]),  # with gaps
    ):
        for bits in ("a8e8", "a4e7"):
            assert_same(Product(), RULES[rules], bits, a, b)


@settings(max_examples=60)
@given(st.data())
def test_any_convolution_is_the_same(data: st.DataObject) -> None:
    def number(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    groups, kernel, dilation = number(1, 3), number(1, 3), number(1, 2)
    module = nn.Conv2d(
        groups * number(1, 9), groups * number(1, 18), kernel, stride=number(1, 3),
        padding=number(0, 2), dilation=dilation, groups=groups, bias=data.draw(st.booleans()),
    )  # fmt: skip
    reach = dilation * (kernel - 1) + 1
    shape = number(1, 3), module.in_channels, number(reach, 9), number(reach, 9)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(number(0, 99)))
    if data.draw(st.booleans()):
        x = x.contiguous(memory_format=LAST)
    roles = data.draw(st.sampled_from(["wae", "wa"]))  # a float32 error: backward is separate
    bits = "".join(f"{role}{number(2, 8)}" for role in roles)
    rules = RULES[data.draw(st.sampled_from(sorted(RULES)))]
    assert_same(module, rules, bits, x)


def test_what_the_library_cannot_read_takes_the_separate_way() -> None:
    seen: list[bool] = []
    layer = layer_of(nn.Conv2d(3, 4, 3), SBM(), "w8a8e8", whole=True)
    turned = torch.randn(6, 3, 2, 6).permute(2, 1, 3, 0)  # neither layout
    plan = layer.plan(layer_geometry(layer), turned, layer.weight)
    assert plan.whole is not None
    assert not plan.whole.takes(turned, layer.weight)
    assert plan.whole.takes(turned.contiguous(), layer.weight)
    assert layer(turned).shape == (2, 4, 4, 4)
    x = torch.randn(2)
    assert can_call(x, None, x.bfloat16())
    for other in (x.double(), x.half(), x.to("meta"), x.to_sparse(), torch._neg_view(x)):
        assert not can_call(x, other)
    with FlopCounterMode(display=False):
        assert not can_call(x)
    torch.func.vmap(lambda each: seen.append(can_call(each)) or each)(x)
    assert seen == [False]


def layer_geometry(layer: Any) -> Any:
    """The geometry that the layer multiplies with."""
    seen = []
    multiply = type(layer).multiply
    layer.multiply = lambda geometry, *args, **options: (
        seen.append(geometry) or multiply(layer, geometry, *args, **options)
    )
    layer(torch.randn(1, layer.in_channels, 5, 5))
    del layer.multiply
    return seen[0]


@pytest.mark.parametrize("kind", ["linear", "3x3"])
def test_a_bias_with_gaps_counts_as_its_copy(kind: str) -> None:
    make, shape = CASES[kind]
    torch.manual_seed(0)
    layer, x = layer_of(make(), SBM(), "w8a8e8", whole=True), torch.randn(shape)
    bias = torch.randn(2 * len(layer.bias))[::2]
    given = torch.func.functional_call(layer, {"bias": bias}, (x,))
    assert torch.equal(given, torch.func.functional_call(layer, {"bias": bias.clone()}, (x,)))
    for wrong in (bias[:2], bias[:0]):
        with pytest.raises(RuntimeError):
            torch.func.functional_call(layer, {"bias": wrong}, (x,))


def test_another_default_device_does_not_concern_a_model_on_the_cpu() -> None:
    layer, x = layer_of(nn.Linear(4, 3), SBM(), "w8a8e8", whole=True), torch.randn(5, 4)
    expected = layer(x)
    with torch.device("meta"):
        output = layer(x.requires_grad_())
        output.backward(torch.ones(5, 3, device="cpu"))
    assert torch.equal(output, expected)
    assert x.grad.device.type == "cpu"


def test_nothing_is_kept_where_no_gradient_is_recorded() -> None:
    layer, x = layer_of(nn.Linear(4, 3), SBM(), "w8a8e8", whole=True), torch.randn(5, 4)
    made = []
    forward = LayerProduct.forward

    def spy(self: Any, *arguments: Any) -> Any:
        made.append(forward(self, *arguments))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(LayerProduct, "forward", spy)
        layer(x)
    assert made[0].a_saved is made[0].w_saved is None


def test_the_shapes_of_many_batches_are_not_kept_for_ever() -> None:
    layer = layer_of(nn.Linear(4, 3), SBM(), "w8a8e8", whole=True)
    with torch.no_grad():
        for rows in range(1, 600):
            layer(torch.ones(rows, 4))
    (plan,) = layer._plans.values()
    product: LayerProduct = plan.whole
    assert 0 < len(product._shapes) <= 256


# -- bfloat16 -------------------------------------------------------------------------------------

HALF, SINGLE = torch.bfloat16, torch.float32
DTYPES = list(itertools.product((HALF, SINGLE), repeat=3))  # of the input, the second, the output


class Case(NamedTuple):
    """Operands of a product; window: of a convolution, as `LayerProduct` has it."""

    a: Tensor
    w: Tensor
    window: tuple[int, ...] = ()
    second: str = "weight"
    has_rows: bool = False


def window(stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1, dims: int = 2) -> Any:
    high = (stride, pad, dilation) if dims == 2 else (1, 0, 1)
    return high[0], stride, high[1], pad, 0, 0, high[2], dilation, groups, dims


def half_cases() -> dict[str, Case]:
    torch.manual_seed(0)
    randn, logspace = torch.randn, torch.logspace
    wide, last = randn(2, 20, 9, 8), randn(2, 20, 9, 8).contiguous(memory_format=LAST)
    w_last = randn(18, 20, 3, 3).contiguous(memory_format=LAST)
    return {
        "linear": Case(randn(37, 53), randn(41, 53)),
        "tokens": Case(randn(3, 5, 16), randn(33, 16)),
        "one output": Case(randn(4, 9), randn(1, 9)),
        "nodes": Case(randn(37, 53) * logspace(-2, 2, 37)[:, None], randn(41, 53), has_rows=True),
        "gaps": Case(randn(6, 20)[:, ::2], randn(14, 10)[::2]),
        "turned weight": Case(randn(6, 20), randn(20, 7).t()),
        "3x3": Case(wide, randn(18, 20, 3, 3), window(pad=1)),
        "3x3 last": Case(last, randn(18, 20, 3, 3), window(pad=1)),
        "weight last": Case(wide, w_last, window(pad=1)),
        "strided": Case(wide, randn(18, 20, 3, 3), window(stride=2, pad=1)),
        "strided last": Case(last, randn(18, 20, 1, 1), window(stride=2)),  # grad_input has gaps
        "dilated": Case(last, randn(3, 20, 3, 2), window(dilation=2, pad=2)),
        "groups": Case(wide, randn(12, 5, 3, 3), window(groups=4)),
        "groups last": Case(last, randn(36, 10, 3, 3), window(groups=2, stride=3, pad=1)),
        "depthwise": Case(wide, randn(20, 1, 3, 3), window(groups=20, pad=1)),
        "depthwise last": Case(last, randn(20, 1, 3, 3), window(groups=20, stride=2)),
        "one channel": Case(randn(2, 1, 5, 4), randn(1, 1, 3, 3), window(pad=1)),
        "1-d": Case(randn(2, 6, 11), randn(10, 6, 3), window(stride=2, pad=1, dims=1)),
        "matmul": Case(randn(5, 7), randn(7, 40), second="act"),
        "batches": Case(
            randn(2, 5, 3, 17).transpose(1, 2), randn(2, 3, 4, 17).transpose(2, 3), second="act"
        ),
        "a long sum": Case(randn(2, 140_000), randn(3, 140_000)),  # in parts, beyond 32 bits
    }  # fmt: skip


def product_of(case: Case, bits: int, *, rule: Rule = Rule.FROM_LOW) -> LayerProduct:
    return LayerProduct(
        second=case.second, window=case.window, rule=rule, floor=0.0, is_stochastic=True,
        has_channels=case.second == "weight", packs=(bits <= 4, bits <= 4),
        has_rows=case.has_rows,
    )  # fmt: skip


def control_of(bits: int) -> Tensor:
    """The control tensor of these bits, with a clock."""
    control = torch.arange(100, 119, dtype=torch.int32)
    control[:3] = 2**bits - 1
    return control


def run_both(
    product: LayerProduct, a: Tensor, w: Tensor, bits: int, dtype: torch.dtype, bias: Tensor | None
) -> dict[str, Any]:
    """All that a call of each direction makes; the error is random, in the output's dtype."""
    health, ranges, control = torch.zeros(4), torch.zeros(2, 3), control_of(bits)
    flags, key = Flags(counts=True, observes=not product.has_rows), layout_of(a, w, dtype)
    made = product.forward(
        a, w, bias, control, health, ranges, flags, (NONE, NONE), (True, True), out_dtype=dtype
    )
    assert made.a_saved is not None
    assert made.w_saved is not None
    saved = made.a_saved, made.w_saved
    again = product.recompute(key, *saved) if bias is None else None
    e = torch.randn(made.output.shape, generator=torch.Generator().manual_seed(1)).to(HALF)
    e = torch.empty_like(made.output).copy_(e)  # the same numbers for each dtype, and the layout
    grads = product.backward(key, e, saved, made.control, health, (True, True))
    results = {
        "output": made.output, "again": again, "grad_a": grads[0], "grad_w": grads[1],
        "health": health, "ranges": ranges, "control": made.control,
    }  # fmt: skip
    for name, operand in zip("aw", product.operands(key, saved), strict=True):
        assert operand is not None
        start = code_bytes(math.prod(operand.shape), operand.is_packed)  # behind unused bytes
        results |= {f"codes of {name}": operand.codes}
        results |= {f"grid of {name}": operand.saved[start:].view(SINGLE)}
    return results


def assert_same_bits(ours: Tensor, expected: Tensor, name: str = "") -> None:
    """Equal in dtype, layout and bits, but for those of a NaN."""
    assert ours.dtype is expected.dtype, name
    assert ours.stride() == expected.stride(), name
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[ours.element_size()]
    if ours.is_floating_point():
        assert torch.equal(ours.isnan(), expected.isnan()), name
        ours, expected = (x.masked_fill(x.isnan(), 0.0) for x in (ours, expected))
    assert torch.equal(ours.view(size), expected.view(size)), name


def assert_rounded(case: Case, bits: int, dtypes: Any, **options: Any) -> None:
    """A call with these dtypes makes what that with float32 copies does, rounded by torch."""
    product, (a_dtype, w_dtype, out_dtype) = product_of(case, bits, **options), dtypes
    a, w = case.a.to(a_dtype), case.w.to(w_dtype)
    bias = None if case.second == "act" or bits == 8 else torch.randn(w.shape[0])
    ours = run_both(product, a, w, bits, out_dtype, bias)
    theirs = run_both(product, a.float(), w.float(), bits, SINGLE, bias)
    grad_w_dtype = w_dtype if case.second == "act" else SINGLE
    rounded = {"output": out_dtype, "again": out_dtype, "grad_a": a_dtype, "grad_w": grad_w_dtype}
    for name, expected in theirs.items():
        if expected is not None:
            dtype = rounded.get(name, expected.dtype)
            assert_same_bits(ours[name], expected.to(dtype), f"{name} of {dtypes} {bits} bits")


@contextmanager
def threads(count: int) -> Iterator[None]:
    former = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(former)


@pytest.fixture(params=INSTRUCTION_SETS)
def tiles(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each instruction set of this processor in turn."""
    found = library()
    best = found.bitcycle_tiles(None)
    if found.bitcycle_tiles(request.param.encode()) is None:
        pytest.skip("this processor has no such instructions")
    yield
    found.bitcycle_tiles(best)


@pytest.mark.parametrize("kind", half_cases())
def test_bfloat16_operands_and_results_are_float32_ones_rounded(kind: str) -> None:
    case = half_cases()[kind]
    for count, bits, dtypes in itertools.product((1, 2), (8, 4), DTYPES):
        with threads(count):
            assert_rounded(case, bits, dtypes)


@pytest.mark.parametrize("rule", Rule)
def test_so_they_are_on_every_kind_of_grid(rule: Rule) -> None:
    cases = half_cases()
    for kind, bits in itertools.product(("linear", "nodes", "3x3", "batches"), (8, 5, 2)):
        assert_rounded(cases[kind], bits, (HALF, HALF, HALF), rule=rule)


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 1e-40, 1e38])
def test_so_are_numbers_that_are_not_finite_tiny_or_huge(factor: float) -> None:
    for kind in ("linear", "nodes", "3x3", "depthwise last", "batches"):
        case = half_cases()[kind]
        a = case.a.clone()
        (a if math.isfinite(factor) else a[0]).mul_(factor)
        for dtypes in ((HALF, HALF, HALF), (HALF, SINGLE, HALF)):
            assert_rounded(case._replace(a=a), 8, dtypes)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("kind", ["linear", "nodes", "1x1", "depthwise"])
def test_every_result_is_rounded_as_torch_does(kind: str) -> None:
    # all upper halves of a float32, with the lower halves between which rounding changes
    lower = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    bits = (torch.arange(1 << 16)[:, None] << 16 | lower).flatten()
    numbers = (bits - (bits >> 31 << 32)).to(torch.int32).view(SINGLE)
    count = len(numbers)
    case = {
        "linear": Case(torch.zeros(1, 1), torch.zeros(count, 1)),
        "nodes": Case(torch.zeros(2, 1), torch.zeros(count, 1), has_rows=True),
        "1x1": Case(torch.zeros(1, 1, 1, 1), torch.zeros(count, 1, 1, 1), window()),
        "depthwise": Case(
            torch.zeros(1, count, 1, 1), torch.zeros(count, 1, 1, 1), window(groups=count)
        ),
    }[kind]
    # zeros times zeros: the output is the bias
    product, control = product_of(case, 8), control_of(8)
    health, ranges, flags = torch.zeros(4), torch.zeros(2, 3), Flags(saves=False)
    plain, ours = (
        product.forward(
            case.a, case.w, numbers, control, health, ranges, flags, (NONE, NONE), (False, False),
            out_dtype=dtype,
        ).output.flatten()[:count]
        for dtype in (SINGLE, HALF)
    )  # fmt: skip
    assert torch.equal(plain.nan_to_num(5.0), numbers.nan_to_num(5.0))
    assert_same_bits(ours, plain.to(HALF))


@pytest.mark.parametrize("kind", ["nodes", "3x3 last"])
def test_results_of_bfloat16_depend_on_no_instruction_set(kind: str) -> None:
    found, case = library(), half_cases()[kind]
    best = found.bitcycle_tiles(None)
    made = []
    for name in INSTRUCTION_SETS:
        if found.bitcycle_tiles(name.encode()) is not None:
            made.append(run_both(product_of(case, 8), case.a.to(HALF), case.w, 8, HALF, None))
    found.bitcycle_tiles(best)
    for other in made[1:]:
        for name, expected in made[0].items():
            assert_same_bits(other[name], expected, name)


@pytest.mark.parametrize("kind", ["gaps", "nodes", "3x3", "3x3 last", "1-d", "batches"])
def test_the_operators_of_graphs_know_dtypes_and_layouts(kind: str) -> None:
    case = half_cases()[kind]

    def run(a: Tensor, w: Tensor, dtype: torch.dtype) -> list[Tensor]:
        product, control = product_of(case, 8), torch.full((19,), 255, dtype=torch.int32)
        assert can_trace(product, a, w, dtype)
        made = trace_forward(
            product, a, w, None, control, torch.zeros(4), torch.zeros(2, 3), Flags(), (NONE, NONE),
            (True, True), None, dtype,
        )  # fmt: skip
        key, needs = layout_of(a, w, dtype), (True, True)
        e = torch.ones_like(made.output)
        saved = made.a_saved, made.w_saved
        grads = trace_backward(product, key, e, saved, control, None, needs, NONE)
        assert made.a_saved is not None
        assert made.w_saved is not None
        return [made.output, made.a_saved, made.w_saved, *(g for g in grads if g is not None)]

    for a_dtype, w_dtype, out_dtype in DTYPES:
        a, w = case.a.to(a_dtype), case.w.to(w_dtype)
        made = run(a, w, out_dtype)
        with FakeTensorMode() as mode:
            fakes = run(mode.from_tensor(a), mode.from_tensor(w), out_dtype)
        for real, fake in zip(made, fakes, strict=True):
            assert (real.dtype, real.shape) == (fake.dtype, fake.shape)
            assert real.stride() == fake.stride()
        dtypes = [made[i].dtype for i in (0, 3, 4)]
        assert dtypes == [out_dtype, a_dtype, SINGLE if case.second == "weight" else w_dtype]
    assert not can_trace(product_of(case, 8), case.a.half(), case.w, torch.float32)
    assert not can_trace(product_of(case, 8), case.a, case.w, torch.float16)
