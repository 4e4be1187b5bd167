"""Converted nn.LSTM, nn.GRU and nn.RNN against a loop over time steps written out slowly.

In float64, where the two cannot disagree about a rounding.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

import bitcycle as bc

from .layers import convert
from .recurrent_oracle import Bits, run_layers

KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
}
T, N, IN, SIZE = 5, 3, 4, 6


def _make(kind: str, *args: Any, **kwargs: Any) -> nn.RNNBase:
    torch.manual_seed(0)
    return KINDS[kind](IN, SIZE, *args, **kwargs).double()


def _convert(layer: nn.RNNBase, bits: int | None = 4, **rules: Any) -> Any:
    return convert(layer, None if bits is None else f"w{bits}a{bits}e{bits}", **rules)


def _states(layer: nn.RNNBase, num: int = N) -> tuple[Tensor, Tensor]:
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    generator = torch.Generator().manual_seed(3)
    return tuple(
        torch.randn(count, num, width, generator=generator, dtype=torch.float64).requires_grad_()
        for width in (layer.proj_size or SIZE, SIZE)
    )  # type: ignore[return-value]


def _input(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def _hx(layer: nn.RNNBase, h: Tensor, c: Tensor) -> Any:
    return (h, c) if layer.mode == "LSTM" else h


def _gradients(layer: nn.Module, results: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    loss = torch.zeros((), dtype=torch.float64)
    for value in results:
        loss = loss + (value * torch.randn(value.shape, generator=generator)).sum()
    leaves = [*leaves, *layer.parameters()]
    found = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros(0) if grad is None else grad for grad in found]


def _flat(layer: nn.RNNBase, output: Tensor, states: Any) -> list[Tensor]:
    return [output, *(states if layer.mode == "LSTM" else (states,))]


def _expected(
    layer: nn.RNNBase, x: Tensor, counts: list[int], h: Tensor, c: Tensor, bits: int,
    ranges: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    output, h, c = run_layers(layer, x, counts, h, c, Bits(bits, bits, bits), ranges)
    return [output, h, c] if layer.mode == "LSTM" else [output, h]


def _assert_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_states_and_gradients_equal_the_oracle(kind: str, bits: int) -> None:
    layer = _convert(_make(kind), bits)
    x, (h, c) = _input(T, N, IN), _states(layer)
    ours = _flat(layer, *layer(x, _hx(layer, h, c)))
    theirs = _expected(layer, x.flatten(0, 1), [N] * T, h, c, bits)
    theirs[0] = theirs[0].view(T, N, SIZE)
    _assert_equal(ours, theirs)
    _assert_equal(_gradients(layer, ours, [x, h, c]), _gradients(layer, theirs, [x, h, c]))


@pytest.mark.parametrize("options", [
    {"num_layers": 3}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True},
    {"bias": False}, {"num_layers": 2, "bidirectional": True, "bias": False},
])  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_layers_directions_and_missing_biases_equal_the_oracle(
    kind: str, options: dict[str, Any]
) -> None:
    layer = _convert(_make(kind, **options))
    x, (h, c) = _input(T, N, IN), _states(layer)
    ours = _flat(layer, *layer(x, _hx(layer, h, c)))
    theirs = _expected(layer, x.flatten(0, 1), [N] * T, h, c, 4)
    theirs[0] = theirs[0].unflatten(0, (T, N))
    _assert_equal(ours, theirs)
    _assert_equal(_gradients(layer, ours, [x, h, c]), _gradients(layer, theirs, [x, h, c]))


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_projected_lstm_equals_the_oracle(options: dict[str, Any]) -> None:
    layer = _convert(_make("lstm", proj_size=2, **options))
    x, (h, c) = _input(T, N, IN), _states(layer)
    ours = _flat(layer, *layer(x, (h, c)))
    theirs = _expected(layer, x.flatten(0, 1), [N] * T, h, c, 4)
    theirs[0] = theirs[0].unflatten(0, (T, N))
    _assert_equal(ours, theirs)
    _assert_equal(_gradients(layer, ours, [x, h, c]), _gradients(layer, theirs, [x, h, c]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_sequences_equal_the_oracle_with_fewer_rows_at_later_steps(
    kind: str, bidirectional: bool
) -> None:
    layer = _convert(_make(kind, bidirectional=bidirectional))
    (h, c), x = _states(layer), _input(5 + 3 + 1, IN)
    packed = pack_sequence(list(x.split([5, 3, 1])))
    output, states = layer(packed, _hx(layer, h, c))
    assert isinstance(output, PackedSequence)
    ours = _flat(layer, output.data, states)
    theirs = _expected(layer, packed.data, [3, 2, 2, 1, 1], h, c, 4)
    _assert_equal(ours, theirs)
    _assert_equal(_gradients(layer, ours, [x, h, c]), _gradients(layer, theirs, [x, h, c]))


@pytest.mark.parametrize("kind", KINDS)
def test_unsorted_packed_sequences_give_each_sequence_its_states(kind: str) -> None:
    layer = _convert(_make(kind, bidirectional=True))
    x, (h, c) = _input(T, N, IN).detach(), _states(layer)
    order = torch.tensor([1, 2, 0])  # the longest in the middle
    lengths = torch.tensor([5, 3, 1])
    packed = pack_padded_sequence(x, lengths)
    shuffled = pack_padded_sequence(x[:, order], lengths[order], enforce_sorted=False)
    _, states = layer(packed, _hx(layer, h, c))
    output, permuted = layer(shuffled, _hx(layer, h[:, order], c[:, order]))
    assert output.unsorted_indices is not None
    for one, other in zip(_flat(layer, x, states), _flat(layer, x, permuted), strict=True):
        if one is not x:
            torch.testing.assert_close(one[:, order], other)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_first_and_a_single_sequence_are_other_forms_of_the_same(kind: str) -> None:
    layer = _convert(_make(kind, num_layers=2))
    first = _convert(_make(kind, num_layers=2, batch_first=True))
    x, (h, c) = _input(T, N, IN), _states(layer)
    output, states = layer(x, _hx(layer, h, c))
    turned, turned_states = first(x.transpose(0, 1), _hx(layer, h, c))
    _assert_equal(_flat(layer, output, states), _flat(layer, turned.transpose(0, 1), turned_states))
    alone, alone_states = layer(x[:, 0], _hx(layer, h[:, 0], c[:, 0]))
    batch, batch_states = layer(x[:, :1], _hx(layer, h[:, :1], c[:, :1]))
    squeezed = [s.squeeze(1) for s in _flat(layer, batch, batch_states)]
    _assert_equal(_flat(layer, alone, alone_states), squeezed)


@pytest.mark.parametrize("kind", KINDS)
def test_no_first_state_means_zeros(kind: str) -> None:
    layer = _convert(_make(kind, bidirectional=True))
    x, zeros = _input(T, N, IN), torch.zeros(2, N, SIZE, dtype=torch.float64)
    ours, theirs = layer(x), layer(x, _hx(layer, zeros, zeros))
    _assert_equal(_flat(layer, *ours), _flat(layer, *theirs))


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_gives_every_time_step_the_running_range(kind: str) -> None:
    layer = _convert(_make(kind, num_layers=2))
    layer(0.5 * _input(T, N, IN))
    layer.eval()
    x, (h, c) = _input(T, N, IN), _states(layer)
    ours = _flat(layer, *layer(x, _hx(layer, h, c)))
    theirs = _expected(layer, x.flatten(0, 1), [N] * T, h, c, 4, layer.act_range.double())
    theirs[0] = theirs[0].unflatten(0, (T, N))
    # the kept ranges are float32: their ends are added in one order here and in that there
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_at_full_precision_it_is_the_float_layer_to_the_bit(kind: str) -> None:
    float_layer = _make(kind, num_layers=2, bidirectional=True).float()
    layer = _convert(copy.deepcopy(float_layer), None)
    x = torch.randn(T, N, IN)
    for one, other in zip(
        _flat(layer, *layer(x)), _flat(float_layer, *float_layer(x)), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_at_16_bits_float32_results_are_close_to_the_float_layer(kind: str) -> None:
    float_layer = _make(kind, num_layers=2, bidirectional=True).float()
    layer = _convert(copy.deepcopy(float_layer), 16, error_rounding="stochastic")
    x = torch.randn(T, N, IN, requires_grad=True)
    results = []
    for each in (layer, float_layer):
        output = each(x)[0]
        results.append(
            [output, *torch.autograd.grad(output.square().sum(), [x, *each.parameters()])]
        )
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(
            one, other, rtol=0, atol=2e-3 * float(other.detach().abs().max())
        )


def test_dropout_falls_between_the_layers_in_training_only() -> None:
    layer, plain = (_convert(_make("lstm", num_layers=2, dropout=p)) for p in (0.5, 0.0))
    x = _input(T, N, IN)
    torch.manual_seed(5)
    first, (h, _) = layer(x)
    expected, (plain_h, _) = plain(x)
    assert torch.equal(h[0], plain_h[0])  # before the dropout
    assert not torch.equal(h[1], plain_h[1])
    torch.manual_seed(5)
    assert torch.equal(layer(x)[0], first)
    for each in (layer, plain):
        each.act_range.copy_(plain.act_range)
    assert torch.equal(layer.eval()(x)[0], plain.eval()(x)[0])
    assert expected.shape == first.shape


@pytest.mark.parametrize(("x", "hx", "message"), [
    (torch.zeros(2, 2, 2, IN), None, "2-D or 3-D"),
    (torch.zeros(T, N, IN + 1), None, "input_size"),
    (torch.zeros(T, N, IN), (torch.zeros(1, N, 2), torch.zeros(1, N, 2)), r"hidden\[0\] size"),
    (torch.zeros(0, N, IN), None, "no time step"),
])  # fmt: skip
def test_wrong_shapes_are_refused(x: Tensor, hx: Any, message: str) -> None:
    layer = _convert(_make("lstm").float())
    with pytest.raises((ValueError, RuntimeError), match=message):
        layer(x, hx)


def test_an_empty_batch_works_as_in_torch() -> None:
    float_layer = _make("lstm").float()
    x = torch.zeros(T, 0, IN, requires_grad=True)
    layer = _convert(copy.deepcopy(float_layer))
    output, (h, c) = layer(x)
    assert output.shape == (T, 0, SIZE)
    assert h.shape == c.shape == (1, 0, SIZE)
    output.sum().backward()
    assert not any(p.grad.any() for p in layer.parameters())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_has_weights_of_its_own(duplicate: Callable[[Any], Any]) -> None:
    layer = _convert(_make("lstm"))
    other, x = duplicate(layer), _input(T, N, IN)
    assert torch.equal(other(x)[0], layer(x)[0])
    with torch.no_grad():
        other.weight_hh_l0.zero_()
    assert not torch.equal(other(x)[0], layer(x)[0])
    bc.unquantize_model(other)
    assert type(other) is nn.LSTM
    assert not torch.equal(other(x)[0], _make("lstm")(x)[0])  # the float kernels read them too


def test_a_weight_computed_by_a_parametrization_is_refused_with_the_reason() -> None:
    layer = _make("lstm")
    torch.nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    model = nn.Sequential(layer, nn.Linear(2, 2))
    bc.quantize_model(model)
    rows = {row.name: row for row in bc.audit(model).rows}
    assert not rows["0"].is_converted
    assert "parametrized" in str(bc.audit(model))


def test_the_audit_shows_it_converted_with_its_bits() -> None:
    model = nn.ModuleDict({"lstm": nn.LSTM(IN, SIZE), "gru": nn.GRU(IN, SIZE), "rnn": nn.RNN(3, 3)})
    bc.quantize_model(model)
    bc.set_precision(model, "w3a4e8")
    for row in bc.audit(model).rows:
        assert row.is_converted
        assert row.bits["weight"] == "3"


def test_autocast_leaves_grids_and_gates_alone() -> None:
    layer = _convert(_make("lstm").float())
    x = torch.randn(T, N, IN)
    plain = layer(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(x)[0], plain)


def test_bfloat16_models_run_and_keep_their_dtype() -> None:
    layer = _convert(_make("gru").bfloat16(), 8)
    x = torch.randn(T, N, IN, dtype=torch.bfloat16, requires_grad=True)
    output, h = layer(x)
    output.sum().backward()
    assert output.dtype == h.dtype == x.grad.dtype == torch.bfloat16
    assert layer.act_range.dtype == torch.float32
    assert x.grad.isfinite().all()
