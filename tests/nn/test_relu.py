"""A converted nn.ReLU: torch's ReLU to the bit, with one bit per element in between."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import bitcycle as bc
from bitcycle.memory import saved_bytes
from bitcycle.nn.companion import accompany
from bitcycle.nn.relu import MaskedReLU
from bitcycle.nn.settings import ModelState
from tests.toys import randn

INF, NAN = float("inf"), float("nan")


def masked(*, inplace: bool = False, has_bits: bool = True) -> nn.ReLU:
    """A companion of a model with or without bits."""
    relu, shared = nn.ReLU(inplace), ModelState()
    shared.note_bits("layer", has_bits)
    accompany(relu, shared)
    return relu


def run(relu: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Output and gradient; the input is not a leaf, so that it may be overwritten."""
    leaf = x.detach().requires_grad_()
    output = relu(leaf.clone(memory_format=torch.preserve_format))
    output.backward(g)
    assert leaf.grad is not None
    return output.detach(), leaf.grad


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal with the signs of zeros; of NaNs only that they are (torch rewrites those of bf16)."""
    a, b = (torch.where(t.isnan(), NAN, t).contiguous().view(-1) for t in (a, b))
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


LAYOUTS = {
    "row-major": randn(3, 5, 4, 7),
    "channels-last": randn(3, 5, 4, 7).contiguous(memory_format=torch.channels_last),
    "3d": randn(2, 3, 4, 5, 2).contiguous(memory_format=torch.channels_last_3d),
    "transposed": randn(5, 7).t(),
    "with gaps": randn(6, 8)[:, ::2],
    "expanded": randn(1, 8).expand(4, 8),
    "one number": randn(1).reshape(()),
    "empty": randn(0, 3),
    "half": randn(50).half(),
    "bfloat16": randn(50).bfloat16(),
    "double": randn(50).double(),
    "special": torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1e-45, -1e-45]).repeat(7),
}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_output_and_gradient_are_torchs_to_the_bit(layout: str, inplace: bool) -> None:
    x = LAYOUTS[layout]
    special = torch.tensor([NAN, INF, -INF, -0.0, 1.0], dtype=x.dtype)
    g = special[torch.arange(x.numel()) % 5].view(x.shape)
    for error in (g, torch.empty_like(x).copy_(g)):  # row-major, and as the input lies
        ours, theirs = run(masked(inplace=inplace), x, error), run(nn.ReLU(inplace), x, error)
        assert all(map(same_bits, ours, theirs))
        assert ours[0].stride() == theirs[0].stride()


def test_gradients_of_channels_last_tensors_stay_channels_last() -> None:
    x = LAYOUTS["channels-last"]
    _, grad = run(masked(), x, torch.ones_like(x))
    assert grad.is_contiguous(memory_format=torch.channels_last)
    leaf = x.clone().requires_grad_()
    masked()(leaf).sum().backward()  # an error that is one number, expanded
    assert leaf.grad is not None
    assert leaf.grad.is_contiguous(memory_format=torch.channels_last)


def test_in_place_overwrites_its_input_and_returns_it() -> None:
    for relu in (masked(inplace=True), masked(inplace=True, has_bits=False)):
        x = randn(40).requires_grad_().clone()
        output = relu(x)
        assert output is x
        assert (x >= 0).all()
    with pytest.raises(RuntimeError, match="leaf Variable"):
        masked(inplace=True)(randn(4).requires_grad_())


def test_in_place_on_a_view_changes_the_base_and_its_gradient() -> None:
    grads = []
    for relu in (masked(inplace=True), nn.ReLU(inplace=True)):
        leaf = randn(4, 8).requires_grad_()
        base = leaf * 1
        relu(base[:, :4])
        base.square().sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)


def test_it_keeps_a_bit_per_element_with_bits_and_a_float_without() -> None:
    x = randn(64, 32).requires_grad_()
    assert saved_bytes(masked(), x).num_bytes == 64 * 32 // 8
    assert saved_bytes(masked(inplace=True), lambda relu: relu(x * 1)).num_bytes == 64 * 32 // 8
    assert saved_bytes(masked(has_bits=False), x).num_bytes == 64 * 32 * 4


def test_what_needs_no_gradient_takes_torchs_own_path() -> None:
    x, relu = randn(8), masked()
    assert relu(x).grad_fn is None
    assert torch.equal(relu(torch.tensor([-1, 2])), torch.tensor([0, 2]))  # integers
    leaf = x.clone().requires_grad_()
    with torch.no_grad():
        assert relu(leaf).grad_fn is None
    with torch.inference_mode():
        assert torch.equal(relu(x), x.relu())


def test_derivatives_of_any_order_are_right() -> None:
    x = randn(6).double().requires_grad_()
    cube = lambda x: masked()(x) ** 3  # noqa: E731
    assert torch.autograd.gradcheck(cube, x)
    assert torch.autograd.gradgradcheck(cube, x)
    third = []
    for relu in (masked(), F.relu):
        grad = (relu(x) ** 3).sum()
        for _ in range(3):
            (grad,) = torch.autograd.grad(grad.sum(), x, create_graph=True)
        third.append(grad)
    assert torch.equal(*third)


def test_one_module_may_be_used_several_times_in_a_forward() -> None:
    for inplace in (False, True):
        results = [
            run(lambda x, r=relu: r(r(x - 0.5) - 0.5), randn(99), randn(99, seed=3))
            for relu in (masked(inplace=inplace), nn.ReLU(inplace))
        ]
        assert all(map(same_bits, *results))


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradient(reentrant: bool) -> None:
    x, g = randn(5, 9), randn(5, 9, seed=4)
    ours = run(lambda x: checkpoint(masked(), x, use_reentrant=reentrant), x, g)
    assert all(map(same_bits, ours, run(nn.ReLU(), x, g)))


def test_autocast_leaves_the_dtype_alone() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert masked()(randn(4).bfloat16().requires_grad_()).dtype == torch.bfloat16
        assert masked()(randn(4).requires_grad_()).dtype == torch.float32


def test_compiled_autograd_after_an_eager_forward_gives_the_same_gradient() -> None:
    x, g = LAYOUTS["channels-last"], torch.ones(3, 5, 4, 7)
    leaf = x.clone().requires_grad_()
    output = masked()(leaf * 1)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        output.backward(g)
    assert leaf.grad is not None
    assert same_bits(leaf.grad, run(nn.ReLU(), x, g)[1])


# -- in a model ----------------------------------------------------------------------------------


class Kind(nn.ReLU):
    """A subclass that changes nothing."""


class OwnForward(nn.ReLU):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


def model(*relus: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    parts = [part for relu in relus for part in (nn.Linear(6, 6), relu)]
    return nn.Sequential(*parts, nn.Linear(6, 6))


def test_relus_are_converted_with_the_layers_and_restored_exactly() -> None:
    net = model(nn.ReLU(), nn.ReLU(inplace=True), Kind(), OwnForward(), nn.ReLU6())
    relus = [net[i] for i in (1, 3, 5, 7, 9)]
    before = [(type(relu), dict(vars(relu))) for relu in relus]
    keys = [key for key in net.state_dict() if "act_range" not in key]
    bc.quantize_model(net)
    assert [isinstance(relu, MaskedReLU) for relu in relus] == [True, True, True, False, False]
    assert isinstance(net[5], Kind)
    assert [key for key in net.state_dict() if "act_range" not in key] == keys
    assert not any(list(relu.buffers()) for relu in relus)
    bc.unquantize_model(net)
    assert [(type(relu), dict(vars(relu))) for relu in relus] == before


def test_a_forward_replaced_on_the_instance_stays() -> None:
    relu = nn.ReLU()
    relu.forward = lambda input: input  # type: ignore[method-assign]
    bc.quantize_model(model(relu))
    assert type(relu) is nn.ReLU


def test_skip_and_only_hold_for_relus_too() -> None:
    def kinds(**patterns: list[str | type[nn.Module]]) -> list[bool]:
        net = bc.quantize_model(model(nn.ReLU(), nn.ReLU()), **patterns)
        return [isinstance(net[i], MaskedReLU) for i in (1, 3)]

    assert kinds(skip=["1"]) == [False, True]
    assert kinds(skip=[nn.ReLU]) == [False, False]
    assert kinds(skip=["0"]) == [True, True]
    assert kinds(only=[nn.Linear]) == [False, False]
    assert kinds(only=[nn.Linear, "3"]) == [False, True]
    with pytest.raises(ValueError, match=r"'relu' matches no layer; layers: 0, 2, 4$"):
        kinds(skip=["relu"])
    with pytest.raises(ValueError, match="nothing to convert"):
        kinds(only=[nn.ReLU])


def test_masks_follow_the_bits_of_the_layers() -> None:
    net = bc.quantize_model(model(nn.ReLU()))
    x = randn(32, 6)

    def is_masked() -> bool:
        return saved_bytes(net[1], lambda relu: relu((x * 1).requires_grad_() * 1)).num_bytes < 100

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


def test_relus_are_no_products() -> None:
    net = bc.quantize_model(model(nn.ReLU()))
    bc.set_precision(net, {"0": "w4", "2": "w8"})
    assert [row.name for row in bc.audit(net).rows] == ["0", "2"]
    precision = bc.get_precision(net)
    assert isinstance(precision, dict)
    assert list(precision) == ["0", "2"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_has_a_state_of_its_own_that_its_layers_share(
    copied: Callable[..., nn.Module],
) -> None:
    net = bc.quantize_model(model(nn.ReLU(inplace=True), Kind()))
    bc.set_precision(net, "w4a4e8")
    other = copied(net)
    assert [type(a) is type(b) for a, b in zip(net, other, strict=True)] == [True] * 5
    assert other[1].inplace
    assert other[1].shared is other[0].shared is not net[0].shared
    bc.set_precision(other, "fp32")
    assert net[1].shared.has_bits
    assert not other[1].shared.has_bits
    assert type(bc.unquantize_model(other)[3]) is Kind


def test_training_with_masks_is_training_without_to_the_bit() -> None:
    grads = []
    for skip in ([], [nn.ReLU]):
        net = bc.quantize_model(model(nn.ReLU(), nn.ReLU(inplace=True)), skip=skip)
        bc.set_precision(net, "w4a4e4")
        net(randn(16, 6)).square().sum().backward()
        grads.append([p.grad for p in net.parameters()])
    assert all(map(torch.equal, *grads))


@pytest.mark.slow
@pytest.mark.parametrize("inplace", [False, True])
def test_it_compiles_without_a_graph_break(inplace: bool) -> None:
    torch._dynamo.reset()
    counters.clear()
    x, g = (
        randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last),
        randn(2, 3, 5, 5, seed=2),
    )
    relu = masked(inplace=inplace)
    compiled = torch.compile(lambda x: relu(x * 1) * 2, fullgraph=True)
    ours = run(compiled, x, g)
    assert all(map(same_bits, ours, run(lambda x: F.relu(x) * 2, x, g)))
    assert not counters["graph_break"]
    torch._dynamo.reset()
