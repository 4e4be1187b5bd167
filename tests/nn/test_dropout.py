"""A converted nn.Dropout: torch's dropout to the bit, with one bit per element in between."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import bitcycle as bc
from bitcycle.memory import saved_bytes
from bitcycle.models import build_model
from bitcycle.nn.companion import accompany
from bitcycle.nn.dropout import MaskedDropout, drop
from bitcycle.nn.settings import ModelState
from tests.toys import randn

INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1e-45, -1e-45, 1.0, -2.0])
Result = tuple[Tensor, Tensor, Tensor]


def masked(p: float = 0.3, *, inplace: bool = False, has_bits: bool = True) -> nn.Dropout:
    """A companion of a model with or without bits."""
    dropout, shared = nn.Dropout(p, inplace), ModelState()
    shared.note_bits("layer", has_bits)
    accompany(dropout, shared)
    return dropout


def run(dropout: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> Result:
    """Output, gradient and generator after it; the input is no leaf: it may be overwritten."""
    leaf = x.detach().requires_grad_()
    torch.manual_seed(5)
    output = dropout(leaf.clone(memory_format=torch.preserve_format))
    state = torch.get_rng_state()
    output.backward(g)
    assert leaf.grad is not None
    return output.detach(), leaf.grad, state


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal with the signs of zeros; of NaNs only that they are."""
    if a.is_floating_point():
        a, b = (torch.where(t.isnan(), NAN, t) for t in (a, b))
    a, b = (t.contiguous().view(-1) for t in (a, b))
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def is_exact(ours: Result, theirs: Result) -> bool:
    """The same numbers in the same layout, and the generator in the same state."""
    return all(map(same_bits, ours, theirs)) and all(
        a.stride() == b.stride() for a, b in zip(ours, theirs, strict=True)
    )


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


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_draws_output_and_gradient_are_torchs_to_the_bit(layout: str, inplace: bool) -> None:
    x = LAYOUTS[layout]
    g = SPECIAL.to(x.dtype)[torch.arange(x.numel()) % 9].view(x.shape)
    for error in (g, torch.empty_like(x).copy_(g)):  # row-major, and as the input lies
        ours, theirs = (
            run(dropout, x, error)
            for dropout in (masked(inplace=inplace), nn.Dropout(0.3, inplace))
        )
        assert is_exact(ours, theirs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layer_s_own_dropout_is_torchs_to_the_bit(layout: str) -> None:
    x, g = LAYOUTS[layout], torch.ones_like(LAYOUTS[layout])
    assert is_exact(run(lambda x: drop(x, 0.3), x, g), run(nn.Dropout(0.3), x, g))


@pytest.mark.parametrize("layer", [
    nn.MultiheadAttention(8, 2, dropout=0.4), nn.LSTM(8, 8, num_layers=2, dropout=0.4),
])  # fmt: skip
def test_a_layer_with_a_dropout_of_its_own_keeps_a_bit_per_element(layer: nn.Module) -> None:
    x = randn(16, 4, 8).requires_grad_()
    bc.set_precision(bc.quantize_model(layer, kernel="simulate"), "w4a4e8")

    def num_bytes(p: float) -> int:
        layer.dropout = p
        inputs = (x, x, x) if isinstance(layer, nn.MultiheadAttention) else (x,)
        return saved_bytes(layer, inputs).num_bytes

    num_dropped = 4 * 2 * 16 * 16 if isinstance(layer, nn.MultiheadAttention) else 16 * 4 * 8
    assert num_bytes(0.4) - num_bytes(0.0) == num_dropped // 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.floats(0, 1), st.integers(1, 70), st.booleans())
def test_it_is_exact_at_any_probability_and_size(
    dtype: torch.dtype, p: float, size: int, inplace: bool
) -> None:
    x, g = randn(size).to(dtype), randn(size, seed=2).to(dtype)
    ours, theirs = masked(p, inplace=inplace), nn.Dropout(p, inplace)
    assert is_exact(run(ours, x, g), run(theirs, x, g))


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_where_nothing_is_drawn_the_generator_stays(p: float) -> None:
    x = SPECIAL.clone()
    ours, theirs = run(masked(p), x, torch.ones(9)), run(nn.Dropout(p), x, torch.ones(9))
    assert is_exact(ours, theirs)
    torch.manual_seed(5)
    assert torch.equal(ours[2], torch.get_rng_state())


def test_in_evaluation_it_returns_its_input() -> None:
    x = randn(8).requires_grad_()
    before = torch.get_rng_state()
    assert masked().eval()(x) is x
    assert torch.equal(torch.get_rng_state(), before)


def test_a_probability_changed_between_forward_and_backward_changes_nothing() -> None:
    def dropped(dropout: nn.Dropout) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            dropout.p = 0.3
            output: Tensor = dropout(x)
            dropout.p = 0.9
            return output

        return forward

    x, g = randn(99), randn(99, seed=2)
    assert is_exact(run(dropped(masked()), x, g), run(dropped(nn.Dropout()), x, g))


def test_in_place_overwrites_its_input_and_returns_it() -> None:
    for dropout in (masked(inplace=True), masked(inplace=True, has_bits=False)):
        x = randn(400).requires_grad_().clone()
        assert dropout(x) is x
        assert (x == 0).any()
    with pytest.raises(RuntimeError, match="leaf Variable"):
        masked(inplace=True)(randn(4).requires_grad_())


def test_in_place_on_a_view_changes_the_base_and_its_gradient() -> None:
    grads = []
    for dropout in (masked(inplace=True), nn.Dropout(0.3, inplace=True)):
        torch.manual_seed(0)
        leaf = randn(4, 8).requires_grad_()
        base = leaf * 1
        dropout(base[:, :4])
        base.square().sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)


def test_it_keeps_a_bit_per_element_with_bits_and_a_float_without() -> None:
    x = randn(64, 32).requires_grad_()
    assert saved_bytes(masked(), x).num_bytes == 64 * 32 // 8
    assert saved_bytes(masked(inplace=True), lambda drop: drop(x * 1)).num_bytes == 64 * 32 // 8
    assert saved_bytes(masked(has_bits=False), x).num_bytes == 64 * 32 * 4


def test_dropout_of_channels_keeps_a_float_per_channel_in_torch_already() -> None:
    for kind, size in ((nn.Dropout1d, 1), (nn.Dropout2d, 2), (nn.Dropout3d, 3)):
        x = randn(4, 6, *(8,) * size).requires_grad_()
        assert saved_bytes(kind(0.3), x).num_bytes == 4 * 6 * 4


def test_what_needs_no_gradient_takes_torchs_own_path() -> None:
    x, dropout = randn(8), masked()
    assert dropout(x).grad_fn is None
    leaf = x.clone().requires_grad_()
    outputs = []
    for context in (torch.no_grad(), torch.inference_mode()):
        torch.manual_seed(1)
        with context:
            outputs.append(dropout(leaf))
            assert outputs[-1].grad_fn is None
    torch.manual_seed(1)
    expected = nn.Dropout(0.3)(x)
    assert all(torch.equal(output, expected) for output in outputs)


def test_off_the_cpu_it_takes_torchs_own_path() -> None:
    output = masked()(torch.empty(4, 4, device="meta", requires_grad=True))
    assert type(output.grad_fn).__name__ == "MulBackward0"


def test_derivatives_of_any_order_are_right() -> None:
    x = randn(6).double().requires_grad_()

    def cube(x: Tensor) -> Tensor:
        torch.manual_seed(2)
        return masked(0.5)(x) ** 3

    assert torch.autograd.gradcheck(cube, x)
    assert torch.autograd.gradgradcheck(cube, x)
    third = []
    for dropout in (masked(0.5), nn.Dropout(0.5)):
        torch.manual_seed(2)
        grad = (dropout(x) ** 3).sum()
        for _ in range(3):
            (grad,) = torch.autograd.grad(grad.sum(), x, create_graph=True)
        third.append(grad)
    assert torch.equal(*third)


def test_one_module_may_be_used_several_times_in_a_forward() -> None:
    for inplace in (False, True):
        results = [
            run(lambda x, d=dropout: d(d(x - 0.5) - 0.5), randn(99), randn(99, seed=3))
            for dropout in (masked(inplace=inplace), nn.Dropout(0.3, inplace))
        ]
        assert is_exact(*results)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_draws_the_same_again(reentrant: bool) -> None:
    x, g = randn(5, 90), randn(5, 90, seed=4)

    def checkpointed(x: Tensor) -> Tensor:
        output: Tensor = checkpoint(masked(), x, use_reentrant=reentrant, preserve_rng_state=True)
        return output

    assert is_exact(run(checkpointed, x, g), run(nn.Dropout(0.3), x, g))


def test_autocast_leaves_the_dtype_alone() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert masked()(randn(4).bfloat16().requires_grad_()).dtype == torch.bfloat16
        assert masked()(randn(4).requires_grad_()).dtype == torch.float32


def test_compiled_autograd_after_an_eager_forward_gives_the_same_gradient() -> None:
    x = LAYOUTS["channels-last"]
    leaf = x.clone().requires_grad_()
    torch.manual_seed(5)
    output = masked()(leaf * 1)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        output.backward(torch.ones_like(output))
    assert leaf.grad is not None
    assert same_bits(leaf.grad, run(nn.Dropout(0.3), x, torch.ones_like(x))[1])


@pytest.mark.parametrize("inplace", [False, True])
def test_compiled_it_is_the_float_module_without_a_graph_break(inplace: bool) -> None:
    torch._dynamo.reset()
    counters.clear()
    x, g = randn(20, 30), randn(20, 30, seed=2)
    results = []
    for dropout in (masked(inplace=inplace), nn.Dropout(0.3, inplace)):
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x, d=dropout: d(x * 1) * 2, fullgraph=True, backend="aot_eager"
        )
        results.append(run(compiled, x, g))
    assert is_exact(*results)
    assert not counters["graph_break"]
    torch._dynamo.reset()


# -- in a model ----------------------------------------------------------------------------------


class Kind(nn.Dropout):
    """A subclass that changes nothing."""


class OwnForward(nn.Dropout):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


def model(*dropouts: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    parts = [part for dropout in dropouts for part in (nn.Linear(6, 6), dropout)]
    return nn.Sequential(*parts, nn.Linear(6, 6))


def test_dropouts_are_converted_with_the_layers_and_restored_exactly() -> None:
    net = model(
        nn.Dropout(0.2), nn.Dropout(inplace=True), Kind(), OwnForward(), nn.AlphaDropout(),
        nn.Dropout1d(),
    )  # fmt: skip
    dropouts = [net[i] for i in range(1, 12, 2)]
    before = [(type(dropout), dict(vars(dropout))) for dropout in dropouts]
    keys = [key for key in net.state_dict() if "act_range" not in key]
    bc.quantize_model(net)
    is_masked = [isinstance(dropout, MaskedDropout) for dropout in dropouts]
    assert is_masked == [True, True, True, False, False, False]
    assert isinstance(net[5], Kind)
    assert [key for key in net.state_dict() if "act_range" not in key] == keys
    assert not any(list(dropout.buffers()) for dropout in dropouts)
    assert repr(net[1]) == "MaskedDropout(p=0.2, inplace=False)"
    bc.unquantize_model(net)
    assert [(type(dropout), dict(vars(dropout))) for dropout in dropouts] == before


def test_skip_and_only_hold_for_dropouts_too() -> None:
    def kinds(**patterns: list[str | type[nn.Module]]) -> list[bool]:
        net = bc.quantize_model(model(nn.Dropout(), nn.Dropout()), **patterns)
        return [isinstance(net[i], MaskedDropout) for i in (1, 3)]

    assert kinds(skip=["1"]) == [False, True]
    assert kinds(skip=[nn.Dropout]) == [False, False]
    assert kinds(only=[nn.Linear]) == [False, False]
    assert kinds(only=[nn.Linear, "3"]) == [False, True]


def test_masks_follow_the_bits_of_the_layers() -> None:
    net = bc.quantize_model(model(nn.Dropout()))
    x = randn(32, 6)

    def is_masked() -> bool:
        return saved_bytes(net[1], lambda drop: drop((x * 1).requires_grad_() * 1)).num_bytes < 100

    assert not is_masked()
    bc.set_precision(net, {"0": "w4a4"})
    assert is_masked()
    with bc.at_precision(net, "fp32"):
        assert not is_masked()
    bc.set_precision(net, "fp32")
    assert not is_masked()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_has_a_state_of_its_own_that_its_layers_share(
    copied: Callable[..., nn.Module],
) -> None:
    net = bc.quantize_model(model(nn.Dropout(0.2, inplace=True), Kind()))
    bc.set_precision(net, "w4a4e8")
    other = copied(net)
    assert [type(a) is type(b) for a, b in zip(net, other, strict=True)] == [True] * 5
    assert (other[1].p, other[1].inplace) == (0.2, True)
    assert other[1].shared is other[0].shared is not net[0].shared
    bc.set_precision(other, "fp32")
    assert net[1].shared.has_bits
    assert not other[1].shared.has_bits
    assert type(bc.unquantize_model(other)[3]) is Kind


@pytest.mark.parametrize("name", ["transformer_lm", "lstm_lm"])
def test_training_with_masks_is_training_without_to_the_bit(name: str) -> None:
    sizes = {"transformer_lm": {"dim": 16, "ffn_dim": 32, "num_layers": 1, "num_heads": 2}}
    options = sizes.get(name, {"embedding_dim": 16, "hidden_dim": 16})
    results, num_masked = [], []
    for skip in ([], [nn.Dropout]):
        torch.manual_seed(0)
        net = bc.quantize_model(
            build_model(name, vocab_size=50, **options), skip=skip, kernel="simulate"
        )
        bc.set_precision(net, "w4a4e8")
        num_masked.append(sum(isinstance(module, MaskedDropout) for module in net.modules()))
        for _ in range(2):
            output = net(torch.arange(40).view(4, 10))
            logits = output if isinstance(output, Tensor) else output[0]
            logits.square().mean().backward()
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        results.append([*grads, torch.get_rng_state()])
    assert num_masked[0] > num_masked[1] == 0
    assert len(results[0]) > 5
    assert all(map(torch.equal, *results))
