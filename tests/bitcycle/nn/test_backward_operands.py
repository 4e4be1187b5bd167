"""`backward_operands="backward"`: grad_input and grad_weight read operands at the error's bits."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import bitcycle as bc
from bitcycle.formats import round_to
from bitcycle.nn.control import advance_clocks
from bitcycle.quantizers import MX, NVFP4, SBM

from ..toys import randn

HEALED = "w=bf16/mxfp4,a=bf16/mxfp4,e=mxfp4"
PUBLISHED = "w=bf16/nvfp4,a=bf16/nvfp4,e=nvfp4"


def converted(layer: nn.Module, quantizer: object, precision: str, **options: object) -> nn.Module:
    bc.quantize_model(layer, quantizer, **options)
    bc.set_precision(layer, precision)
    return layer


def gradients(layer: nn.Module, x: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """output, grad_input and grad_weight."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(e)
    return y.detach(), x.grad, layer.weight.grad


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_linear_layer_multiplies_bf16_forward_and_mxfp4_backward() -> None:
    layer, x, e = nn.Linear(72, 40), randn(3, 17, 72), randn(3, 17, 40, seed=2)
    converted(layer, MX(), HEALED)
    y, grad_input, grad_weight = gradients(layer, x, e)
    w = layer.weight.detach()
    assert_same(y, F.linear(bf16(x), bf16(w), layer.bias.detach()))
    assert_same(grad_input, round_to(e, "mxfp4", -1) @ round_to(w, "mxfp4", 0))
    tokens, errors = x.reshape(-1, 72), e.reshape(-1, 40)
    assert_same(grad_weight, round_to(errors, "mxfp4", 0).T @ round_to(tokens, "mxfp4", 0))


def test_without_it_the_backward_products_read_the_operands_of_output() -> None:
    layer, x, e = nn.Linear(72, 40, bias=False), randn(17, 72), randn(17, 40, seed=2)
    converted(layer, MX(), "w=bf16,a=bf16,e=mxfp4")
    _, grad_input, grad_weight = gradients(layer, x, e)
    assert_same(grad_input, round_to(e, "mxfp4", -1) @ bf16(layer.weight.detach()))
    assert_same(grad_weight, round_to(e, "mxfp4", 0).T @ bf16(x))


def test_a_convolution_does_too() -> None:
    layer, x = nn.Conv2d(40, 36, 3, padding=1, bias=False), randn(2, 40, 5, 7)
    e = randn(2, 36, 5, 7, seed=2)
    converted(layer, MX(), HEALED)
    y, grad_input, grad_weight = gradients(layer, x, e)
    w = layer.weight.detach()

    def by_pixel(t: Tensor) -> Tensor:
        return round_to(t.flatten(2), "mxfp4", 2).reshape(t.shape)

    assert_same(y, F.conv2d(bf16(x), bf16(w), padding=1))
    rounded = round_to(w, "mxfp4", 0), round_to(e, "mxfp4", 1)
    assert_same(grad_input, torch.nn.grad.conv2d_input(x.shape, *rounded, padding=1))
    expected = torch.nn.grad.conv2d_weight(by_pixel(x), w.shape, by_pixel(e), padding=1)
    assert_same(grad_weight, expected)


def test_a_product_of_activations_does_too() -> None:
    layer = converted(bc.MatMul(), MX(), HEALED)
    a, b = randn(2, 33, 40).requires_grad_(), randn(2, 40, 35, seed=2).requires_grad_()
    e = randn(2, 33, 35, seed=3)
    y = layer(a, b)
    y.backward(e)
    with torch.no_grad():
        assert_same(y, bf16(a) @ bf16(b))
        assert_same(a.grad, round_to(e, "mxfp4", -1) @ round_to(b, "mxfp4", -1).mT)
        assert_same(b.grad, round_to(a, "mxfp4", -2).mT @ round_to(e, "mxfp4", -2))
    assert "precision=a=bf16/mxfp4,e=mxfp4," in repr(layer)


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_keeps_its_backward_products(make: type[nn.Module]) -> None:
    """With bf16 in output only, the gradients at equal gates are those of formats throughout."""
    x, e = randn(1, 3, 40), randn(1, 3, 36, seed=2)  # one step: the hidden state is 0
    found = {}
    for text in (HEALED, "w=fp32/mxfp4,a=fp32/mxfp4,e=mxfp4", "w=bf16,a=bf16,e=mxfp4"):
        torch.manual_seed(0)
        layer = converted(make(40, 36), MX(), text)
        leaf = x.clone().requires_grad_()
        y, _ = layer(leaf)
        y.backward(e)
        found[text] = y.detach(), leaf.grad, layer.weight_ih_l0.grad
    healed, exact, shared = found.values()
    assert not torch.equal(healed[0], exact[0])
    for place in (1, 2):  # the gates differ by the rounding of bf16
        near, far = ((healed[place] - each[place]).norm() for each in (exact, shared))
        assert near < 0.3 * far


def test_the_published_recipe_has_both_backward_products_of_nvfp4() -> None:
    """Forward in bf16, and the gradients of a layer that is NVFP4 throughout, to the bit."""
    layer, x, e = nn.Linear(48, 40), randn(37, 48), randn(37, 40, seed=2)
    healed = converted(copy.deepcopy(layer), NVFP4(), PUBLISHED)
    whole = converted(copy.deepcopy(layer), NVFP4(), "w=nvfp4,a=nvfp4,e=nvfp4")
    shared = converted(copy.deepcopy(layer), NVFP4(), "w=bf16,a=bf16,e=nvfp4")
    ours, theirs, other = (gradients(each, x, e) for each in (healed, whole, shared))
    assert torch.equal(ours[0], other[0])  # output in bf16
    assert torch.equal(ours[1], theirs[1])
    assert torch.equal(ours[2], theirs[2])
    assert not torch.equal(ours[1], other[1])
    assert not torch.equal(ours[2], other[2])


def test_float32_backward_products_read_unrounded_operands() -> None:
    layer, x, e = nn.Linear(32, 16, bias=False), randn(8, 32), randn(8, 16, seed=2)
    converted(layer, MX(), "w=mxfp4/fp32,a=mxfp4/fp32")
    y, grad_input, grad_weight = gradients(layer, x, e)
    assert_same(y, round_to(x, "mxfp4", -1) @ round_to(layer.weight.detach(), "mxfp4", 1).T)
    assert_same(grad_input, e @ layer.weight.detach())
    assert_same(grad_weight, e.T @ x)


@pytest.mark.parametrize("kernel", ["simulate", "native"])
def test_plain_floats_need_no_quantizer_of_their_own(kernel: str) -> None:
    layer, x, e = nn.Linear(32, 16, bias=False), randn(8, 32), randn(8, 16, seed=2)
    converted(layer, SBM(), "w=bf16/fp16,a=bf16/fp16,e=fp16", kernel=kernel)
    y, grad_input, grad_weight = gradients(layer, x, e)
    w = layer.weight.detach()
    expected = bf16(x) @ bf16(w).T
    if kernel == "simulate":
        assert_same(y, expected)
    else:  # bfloat16 products, rounded once more
        assert (y - expected).norm() <= 2**-8 * expected.norm()
    assert_same(grad_input, e.half().float() @ w.half().float())
    assert_same(grad_weight, e.half().float().T @ x.half().float())


@pytest.mark.parametrize(("quantizer", "text"), [(MX(), "bf16"), (MX(), "mxfp8"), (SBM(), "bf16")])
def test_bits_that_are_equal_in_both_passes_change_nothing(quantizer: object, text: str) -> None:
    layer, x, e = nn.Linear(32, 16), randn(8, 32), randn(8, 16, seed=2)
    own = converted(copy.deepcopy(layer), quantizer, f"w={text}/{text},a={text}/{text},e={text}")
    plain = converted(copy.deepcopy(layer), quantizer, f"w={text},a={text},e={text}")
    for one, other in zip(gradients(own, x, e), gradients(plain, x, e), strict=True):
        assert torch.equal(one, other)
    assert bc.get_precision(own) == bc.get_precision(plain)  # it has no effect, so it is not shown


@pytest.mark.parametrize("quantizer", [MX(), SBM()])
def test_attention_is_the_same_with_every_kernel(
    quantizer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`native` recomputes scores in backward from what it saved: not where that is unrounded."""
    monkeypatch.setattr("bitcycle.nn.layer._bf16_roles", lambda *_: frozenset())  # float32 products
    text = HEALED if isinstance(quantizer, MX) else "w=bf16/fp16,a=bf16/fp16,e=fp16"
    found = []
    for kernel in ("simulate", "native"):
        torch.manual_seed(0)
        layer = nn.MultiheadAttention(32, 2, batch_first=True)
        converted(layer, quantizer, text, kernel=kernel)
        x = randn(2, 7, 32).requires_grad_()
        y, _ = layer(x, x, x)
        y.square().sum().backward()
        found.append([y.detach(), x.grad, *(p.grad for p in layer.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 48))
    converted(model, NVFP4(), PUBLISHED)
    twin, x = copy.deepcopy(model), randn(20, 48)
    model(x).square().sum().backward()
    checkpoint(twin, x, use_reentrant=False).square().sum().backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("role", ["weight", "act", "error"])
def test_an_integer_grid_is_an_error_that_names_the_role(role: str) -> None:
    formats = {"weight": "bf16", "act": "bf16", "error": "fp16"} | {role: 8}
    with pytest.raises(ValueError, match=role):
        bc.Precision(**formats, backward_operands="backward")


def test_an_embedding_has_no_backward_product() -> None:
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9, bias=False))
    model[1].weight = model[0].weight  # tied: both are converted
    converted(model, SBM(), "w=bf16/fp16,a=bf16/fp16,e=fp16")
    rows = bc.audit(model)
    assert rows["1"].bits["weight"] == "bf16/fp16"
    assert {row.bits["weight"] for row in rows.converted_rows if row.name == "0"} <= {"bf16"}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_formats_of_one_kind_are_one_graph(backend: str) -> None:
    """Forward walks over MX formats, at one step those of backward: nothing is compiled again."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 32))
    bc.quantize_model(model, MX())
    twin = copy.deepcopy(model)
    compiled, x = torch.compile(model, backend=backend), randn(8, 32)
    for step, name in enumerate(("mxfp8", "mxfp4", "mxfp6", "mxfp8", "mxfp4")):
        grads = []
        for each, run in ((model, compiled), (twin, twin)):
            bc.set_precision(each, f"w={name}/mxfp6,a={name}/mxfp6,e=mxfp6")
            advance_clocks([m for m in each if isinstance(m, bc.nn.QuantizedLayer)], step)
            each.zero_grad()
            run(x).square().sum().backward()
            grads.append([p.grad for p in each.parameters()])
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    torch._dynamo.reset()
