"""Converted nn.ReLU and nn.Dropout: torch's own to the bit, with one bit per element in between."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import bitcycle as bc
from bitcycle.memory import saved_bytes
from bitcycle.nn.activations import MaskedModule, convert_activation, masked_dropout
from bitcycle.nn.settings import ModelState
from bitcycle_lab.models import build_model
from tests.bitcycle.toys import randn

INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1e-45, -1e-45, 1.0, -2.0])
Result = tuple[Tensor, Tensor, Tensor]
Make = Callable[..., nn.Module]
KINDS: dict[str, Make] = {
    "relu": lambda inplace=False: nn.ReLU(inplace),
    "dropout": lambda inplace=False: nn.Dropout(0.3, inplace),
}
either = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def masked(module: nn.Module, *, has_bits: bool = True) -> nn.Module:
    """The module converted for a model with or without bits."""
    shared = ModelState()
    shared.note_bits("layer", has_bits)
    convert_activation(module, shared)
    return module


def run(module: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> Result:
    """Output, gradient and generator after it; the input is no leaf: it may be overwritten."""
    leaf = x.detach().requires_grad_()
    torch.manual_seed(5)
    output = module(leaf.clone(memory_format=torch.preserve_format))
    state = torch.get_rng_state()
    output.backward(g)
    assert leaf.grad is not None
    return output.detach(), leaf.grad, state


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal with the signs of zeros; of NaNs only that they are (torch rewrites those of bf16)."""
    if a.is_floating_point():
        a, b = (torch.where(t.isnan(), NAN, t) for t in (a, b))
    a, b = (t.contiguous().view(-1) for t in (a, b))
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def is_exact(ours: Result, theirs: Result) -> bool:
    """The same numbers, the output in the same layout, and the generator in the same state."""
    return all(map(same_bits, ours, theirs)) and ours[0].stride() == theirs[0].stride()


LAYOUTS = {
    "row-major": randn(3, 5, 4, 7),
    "channels-last": randn(3, 5, 4, 7).contiguous(memory_format=torch.channels_last),
    "3d": randn(2, 3, 4, 5, 2).contiguous(memory_format=torch.channels_last_3d),
    "transposed": randn(5, 7).t(),
    "permuted": randn(2, 3, 4, 5).permute(2, 0, 3, 1),
    "with gaps": randn(6, 8)[:, ::2],
    "with gaps, transposed": randn(6, 8)[:, ::2].t(),
    "expanded": randn(1, 8).expand(4, 8),
    "one number": randn(1).reshape(()),
    "empty": randn(0, 3),
    "half": randn(500).half(),
    "bfloat16": randn(500).bfloat16(),
    "double": randn(500).double(),
    "special": SPECIAL.repeat(7),
    "many": randn(70_001),  # drawn in several threads
}


@either
def test_output_and_gradient_are_torchs_to_the_bit(make: Make) -> None:
    for layout in LAYOUTS:
        x = LAYOUTS[layout]
        g = SPECIAL.to(x.dtype)[torch.arange(x.numel()) % 9].view(x.shape)
        for inplace in (False, True):
            for error in (g, torch.empty_like(x).copy_(g)):  # row-major, and as the input lies
                ours, theirs = run(masked(make(inplace)), x, error), run(make(inplace), x, error)
                assert is_exact(ours, theirs)
                if make is KINDS["dropout"]:
                    assert ours[1].stride() == theirs[1].stride()
        if make is KINDS["dropout"]:  # a layer's own dropout
            assert is_exact(run(lambda x: masked_dropout(x, 0.3), x, g), run(make(), x, g))


def test_gradients_of_a_relu_on_channels_last_tensors_stay_channels_last() -> None:
    x = LAYOUTS["channels-last"]
    leaf = x.clone().requires_grad_()
    masked(nn.ReLU())(leaf).sum().backward()  # an error that is one number, expanded
    for grad in (run(masked(nn.ReLU()), x, torch.ones_like(x))[1], leaf.grad):
        assert grad.is_contiguous(memory_format=torch.channels_last)


@settings(max_examples=100, derandomize=True)
@given(
    st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    st.floats(0, 1), st.integers(1, 70), st.booleans(),
)  # fmt: skip
def test_dropout_is_exact_at_any_probability_and_size(
    dtype: torch.dtype, p: float, size: int, inplace: bool
) -> None:
    x, g = randn(size).to(dtype), randn(size, seed=2).to(dtype)
    ours, theirs = masked(nn.Dropout(p, inplace)), nn.Dropout(p, inplace)
    assert is_exact(run(ours, x, g), run(theirs, x, g))


def test_where_nothing_is_drawn_the_generator_stays() -> None:
    x = SPECIAL.clone()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for p in (0.0, 1.0):
        ours = run(masked(nn.Dropout(p)), x, torch.ones(9))
        assert is_exact(ours, run(nn.Dropout(p), x, torch.ones(9)))
        assert torch.equal(ours[2], before)
    x.requires_grad_()
    torch.manual_seed(5)
    assert masked(nn.Dropout(0.3)).eval()(x) is x
    assert torch.equal(torch.get_rng_state(), before)


def test_a_probability_changed_between_forward_and_backward_changes_nothing() -> None:
    def dropped(dropout: nn.Module) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            dropout.p = 0.3
            output: Tensor = dropout(x)
            dropout.p = 0.9
            return output

        return forward

    x, g = randn(99), randn(99, seed=2)
    assert is_exact(run(dropped(masked(nn.Dropout())), x, g), run(dropped(nn.Dropout()), x, g))


@either
def test_in_place_overwrites_its_input_and_returns_it(make: Make) -> None:
    for module in (masked(make(True)), masked(make(True), has_bits=False)):
        x = randn(400).requires_grad_().clone()
        assert module(x) is x
        assert (x == 0).any()
    with pytest.raises(RuntimeError, match="leaf Variable"):
        masked(make(True))(randn(4).requires_grad_())
    for part in (lambda x: x[:, :4], lambda x: x[:, ::2].t(), lambda x: x[1:], lambda x: x.t()):
        grads = []
        for module in (masked(make(True)), make(True)):  # on a view
            torch.manual_seed(0)
            leaf = randn(4, 8).requires_grad_()
            base = leaf * 1
            module(part(base))
            base.square().sum().backward()
            grads.append(leaf.grad)
        assert torch.equal(*grads)


@either
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_overwriting_what_another_operation_keeps_is_an_error(
    make: Make, dtype: torch.dtype
) -> None:
    kept = randn(40).to(dtype).requires_grad_().exp()
    output = masked(make(True))(kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@either
def test_it_keeps_a_bit_per_element_with_bits_and_a_float_without(make: Make) -> None:
    x = randn(64, 32).requires_grad_()
    assert saved_bytes(masked(make()), x).num_bytes == 64 * 32 // 8
    assert saved_bytes(masked(make(True)), lambda m: m(x * 1)).num_bytes == 64 * 32 // 8
    assert saved_bytes(masked(make(), has_bits=False), x).num_bytes == 64 * 32 * 4


@pytest.mark.parametrize("layer", [
    nn.MultiheadAttention(8, 2, dropout=0.4), nn.LSTM(8, 8, num_layers=2, dropout=0.4),
])  # fmt: skip
def test_a_layer_with_a_dropout_of_its_own_keeps_a_bit_per_element(layer: nn.Module) -> None:
    x = randn(16, 4, 8).requires_grad_()
    bc.set_precision(bc.quantize_model(layer, kernel="simulate"), "w4a4e8")
    is_attention = isinstance(layer, nn.MultiheadAttention)

    def num_bytes(p: float) -> int:
        layer.dropout = p
        return saved_bytes(layer, (x, x, x) if is_attention else (x,)).num_bytes

    num_dropped = 4 * 2 * 16 * 16 if is_attention else 16 * 4 * 8
    assert num_bytes(0.4) - num_bytes(0.0) == num_dropped // 8


@either
def test_what_needs_no_gradient_takes_torchs_own_path(make: Make) -> None:
    x, module = randn(8), masked(make())
    assert module(x).grad_fn is None
    leaf = x.clone().requires_grad_()
    outputs = []
    for context in (torch.no_grad(), torch.inference_mode()):
        torch.manual_seed(1)
        with context:
            outputs.append(module(leaf))
            assert outputs[-1].grad_fn is None
    torch.manual_seed(1)
    expected = make()(x)
    assert all(torch.equal(output, expected) for output in outputs)
    assert torch.equal(masked(nn.ReLU())(torch.tensor([-1, 2])), torch.tensor([0, 2]))  # integers


def test_dropout_off_the_cpu_takes_torchs_own_path() -> None:
    output = masked(nn.Dropout(0.3))(torch.empty(4, 4, device="meta", requires_grad=True))
    assert type(output.grad_fn).__name__ == "MulBackward0"


@either
def test_derivatives_of_any_order_are_right(make: Make) -> None:
    x = randn(6).double().requires_grad_()

    def cube(x: Tensor) -> Tensor:
        torch.manual_seed(2)
        return masked(make())(x) ** 3

    assert torch.autograd.gradcheck(cube, x)
    assert torch.autograd.gradgradcheck(cube, x)
    third = []
    for module in (masked(make()), make()):
        torch.manual_seed(2)
        grad = (module(x) ** 3).sum()
        for _ in range(3):
            (grad,) = torch.autograd.grad(grad.sum(), x, create_graph=True)
        third.append(grad)
    assert torch.equal(*third)


@either
def test_one_module_may_be_used_several_times_in_a_forward(make: Make) -> None:
    for inplace in (False, True):
        results = [
            run(lambda x, m=module: m(m(x - 0.5) - 0.5), randn(99), randn(99, seed=3))
            for module in (masked(make(inplace)), make(inplace))
        ]
        assert is_exact(*results)


@either
def test_gradient_checkpointing_draws_the_same_again(make: Make) -> None:
    x, g = randn(5, 90), randn(5, 90, seed=4)
    for reentrant in (True, False):
        ours = run(lambda x, r=reentrant: checkpoint(masked(make()), x, use_reentrant=r), x, g)
        assert is_exact(ours, run(make(), x, g))


@either
def test_autocast_leaves_the_dtype_alone(make: Make) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for dtype in (torch.bfloat16, torch.float32):
            assert masked(make())(randn(4).to(dtype).requires_grad_()).dtype == dtype


@either
def test_compiled_autograd_after_an_eager_forward_gives_the_same_gradient(make: Make) -> None:
    x = LAYOUTS["channels-last"]
    leaf = x.clone().requires_grad_()
    torch.manual_seed(5)
    output = masked(make())(leaf * 1)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        output.backward(torch.ones_like(output))
    assert leaf.grad is not None
    assert same_bits(leaf.grad, run(make(), x, torch.ones_like(x))[1])


@either
@pytest.mark.parametrize("inplace", [False, True])
def test_compiled_it_is_the_float_module_without_a_graph_break(inplace: bool, make: Make) -> None:
    counters.clear()
    x, g = randn(2, 3, 5, 5), randn(2, 3, 5, 5, seed=2)
    results = []
    for module in (masked(make(inplace)), make(inplace)):
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x, m=module: m(x * 1) * 2, fullgraph=True, backend="aot_eager"
        )
        results.append(run(compiled, x.contiguous(memory_format=torch.channels_last), g))
    assert all(map(same_bits, *results))
    assert not counters["graph_break"]
    torch._dynamo.reset()


@pytest.mark.slow
def test_a_relu_compiles_to_machine_code_that_gives_torchs_bits() -> None:
    torch._dynamo.reset()
    relu, x, g = masked(nn.ReLU()), randn(2, 3, 5, 5), randn(2, 3, 5, 5, seed=2)
    compiled = torch.compile(lambda x: relu(x * 1) * 2, fullgraph=True)
    assert all(map(same_bits, run(compiled, x, g), run(lambda x: F.relu(x) * 2, x, g)))
    torch._dynamo.reset()


# -- in a model ----------------------------------------------------------------------------------


class KindOfReLU(nn.ReLU):
    """A subclass that changes nothing."""


class KindOfDropout(nn.Dropout):
    """A subclass that changes nothing."""


class OwnForward(nn.ReLU):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


def model(*modules: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    parts = [part for module in modules for part in (nn.Linear(6, 6), module)]
    return nn.Sequential(*parts, nn.Linear(6, 6))


def test_they_are_converted_with_the_layers_and_restored_exactly() -> None:
    replaced = nn.ReLU()
    replaced.forward = lambda input: input  # type: ignore[method-assign]
    changed = [nn.ReLU(), nn.ReLU(inplace=True), KindOfReLU(), nn.Dropout(0.2), KindOfDropout()]
    kept = [replaced, OwnForward(), nn.ReLU6(), nn.AlphaDropout(), nn.Dropout1d()]
    net = model(*changed, *kept)
    before = [(type(module), dict(vars(module))) for module in (*changed, *kept)]
    keys = [key for key in net.state_dict() if "act_range" not in key]
    bc.quantize_model(net)
    assert all(isinstance(module, MaskedModule) for module in changed)
    assert not any(isinstance(module, MaskedModule) for module in kept)
    assert isinstance(changed[2], KindOfReLU)
    assert [key for key in net.state_dict() if "act_range" not in key] == keys
    assert not any(list(module.buffers()) for module in changed)
    assert repr(changed[3]) == "MaskedDropout(p=0.2, inplace=False)"
    bc.unquantize_model(net)
    assert [(type(module), dict(vars(module))) for module in (*changed, *kept)] == before


@pytest.mark.parametrize("kind", [nn.ReLU, nn.Dropout])
def test_skip_and_only_hold_for_them_too(kind: type[nn.Module]) -> None:
    def kinds(**patterns: list[str | type[nn.Module]]) -> list[bool]:
        net = bc.quantize_model(model(kind(), kind()), **patterns)
        return [isinstance(net[i], MaskedModule) for i in (1, 3)]

    assert kinds(skip=["1"]) == [False, True]
    assert kinds(skip=[kind]) == [False, False]
    assert kinds(skip=["0"]) == [True, True]
    assert kinds(only=[nn.Linear]) == [False, False]
    assert kinds(only=[nn.Linear, "3"]) == [False, True]
    with pytest.raises(ValueError, match="'relu'.*0, 2, 4$"):
        kinds(skip=["relu"])
    with pytest.raises(ValueError, match="nothing to convert"):
        kinds(only=[kind])


@either
def test_masks_follow_the_bits_of_the_layers(make: Make) -> None:
    net = bc.quantize_model(model(make()))
    x = randn(32, 6)

    def is_masked() -> bool:
        return saved_bytes(net[1], lambda m: m((x * 1).requires_grad_() * 1)).num_bytes < 100

    assert not is_masked()
    bc.set_precision(net, {"0": "w4a4"})
    assert is_masked()
    with bc.at_precision(net, "fp32"):
        assert not is_masked()
    assert is_masked()
    bc.set_precision(net, {"2": "w4a4e8"})
    bc.set_precision(net, {"0": "fp32"})
    assert is_masked()
    bc.set_precision(net, "fp32")
    assert not is_masked()
    bc.set_precision(net, "g8")  # no rule of sbm: nothing is quantized
    assert not is_masked()


def test_bits_survive_a_second_conversion_of_parts_and_whole() -> None:
    net = nn.Sequential(model(nn.ReLU()), model(nn.ReLU()))
    bc.set_precision(bc.quantize_model(net[1]), "w4a4")
    bc.quantize_model(net)
    state = net[0][1].shared
    assert state is net[1][0].shared
    assert state.layers_with_bits == {"1.0", "1.2"}
    bc.PrecisionScheduler(net, forward="fp32", total_steps=2)
    assert not state.has_bits
    bc.set_precision(net, {"0": "w4"})
    bc.unquantize_model(net[0])
    assert not net[1][1].shared.has_bits


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_has_a_state_of_its_own_that_its_layers_share(copied: Make) -> None:
    net = bc.quantize_model(model(nn.Dropout(0.2, inplace=True), KindOfReLU()))
    bc.set_precision(net, "w4a4e8")
    other = copied(net)
    assert [type(a) is type(b) for a, b in zip(net, other, strict=True)] == [True] * 5
    assert (other[1].p, other[1].inplace) == (0.2, True)
    assert other[1].shared is other[0].shared is not net[0].shared
    bc.set_precision(other, "fp32")
    assert net[1].shared.has_bits
    assert not other[1].shared.has_bits
    assert type(bc.unquantize_model(other)[3]) is KindOfReLU


@pytest.mark.parametrize("name", ["transformer_lm", "lstm_lm"])
def test_training_with_masks_is_training_without_to_the_bit(name: str) -> None:
    sizes = {"transformer_lm": {"dim": 16, "ffn_dim": 32, "num_layers": 1, "num_heads": 2}}
    options = sizes.get(name, {"embedding_dim": 16, "hidden_dim": 16})
    results, num_masked = [], []
    for skip in ([], [nn.Dropout, nn.ReLU] if name == "transformer_lm" else [nn.Dropout]):
        torch.manual_seed(0)
        net = build_model(name, vocab_size=50, **options)
        bc.quantize_model(net, skip=skip, kernel="simulate")
        bc.set_precision(net, "w4a4e8")
        num_masked.append(sum(isinstance(module, MaskedModule) for module in net.modules()))
        for _ in range(2):
            output = net(torch.arange(40).view(4, 10))
            logits = output if isinstance(output, Tensor) else output[0]
            logits.square().mean().backward()
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        results.append([*grads, torch.get_rng_state()])
    assert num_masked[0] > num_masked[1] == 0
    assert len(results[0]) > 5
    assert all(map(torch.equal, *results))
