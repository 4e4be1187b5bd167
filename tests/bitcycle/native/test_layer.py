"""A direction in one library call computes what the separate functions do, to the last bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.native.layer import LayerProduct, can_call
from bitcycle.native.library import library
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


class Product(nn.Module):
    """A product of two activations, both leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.product = bc.MatMul()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.product(a, b)


def layer_of(module: nn.Module, rules: Any, bits: str, whole: bool) -> nn.Module:
    """A converted copy, with or without whole products; both have the same noise."""
    made = bc.quantize_model(copy.deepcopy(module), rules, kernel="native", verbose=False)
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


@settings(max_examples=60, deadline=None)
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
    assert can_call(x, None)
    for other in (x.double(), x.to("meta"), x.to_sparse(), torch._neg_view(x)):
        assert not can_call(x, other)
    with torch.utils.flop_counter.FlopCounterMode(display=False):
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
