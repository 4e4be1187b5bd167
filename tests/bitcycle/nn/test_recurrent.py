"""Converted recurrent layers against a slow loop over time steps; their ranges and noise."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence
from torch.utils.checkpoint import checkpoint

import bitcycle as bc
from bitcycle.kernels import make_kernel
from bitcycle.kernels.choice import Recurrence
from bitcycle.nn.control import advance_clocks
from bitcycle.nn.recurrent_product import Gates, GRUGates, LSTMGates, RNNGates, TimeSteps

from .layers import convert
from .recurrent_oracle import Bits, next_state, run_direction, run_layers

STOCHASTIC = {"error_rounding": "stochastic"}


def _lstm(precision: str | None = "w4a4e4", **options: Any) -> Any:
    torch.manual_seed(0)
    rules = {k: options.pop(k) for k in ("error_rounding", "grad_input_weight") if k in options}
    return convert(nn.LSTM(4, 6, **options), precision, **rules)


def _grads(layer: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in layer.parameters() if p.grad is not None]


def test_there_is_a_range_for_x_and_one_for_h_per_layer_and_direction() -> None:
    assert _lstm(num_layers=3, bidirectional=True).act_range.shape == (12, 3)
    assert _lstm(num_layers=2, proj_size=2).act_range.shape == (6, 3)
    assert convert(nn.GRUCell(4, 6)).act_range.shape == (2, 3)


def test_the_running_range_of_h_spans_all_time_steps_and_moves_once_per_call() -> None:
    layer, x = _lstm(None), torch.randn(7, 3, 4)
    bc.set_precision(layer, "w16a16")
    output, _ = layer(x)
    states = torch.cat([torch.zeros(1, 3, 6), output[:-1]])  # h before each step
    expected = torch.stack([torch.tensor(1.0), states.min(), states.max() - states.min()])
    torch.testing.assert_close(layer.act_range[1], expected.detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(layer.act_range[0, 1:], torch.stack([x.min(), x.max() - x.min()]))
    layer(x)
    assert layer.act_range[:, 0].tolist() == [2.0, 2.0]


def test_evaluation_observes_nothing() -> None:
    layer, x = _lstm(), torch.randn(7, 3, 4)
    layer(x)
    before = layer.act_range.clone()
    layer.eval()(3 * x)
    assert torch.equal(layer.act_range, before)


def test_a_layer_that_never_trained_warns_in_evaluation_and_takes_each_steps_range() -> None:
    layer, x = _lstm(), torch.randn(7, 3, 4)
    twin = copy.deepcopy(layer)
    with pytest.warns(bc.BitcycleWarning, match="never observed"):
        output, _ = layer.eval()(x)
    assert torch.equal(output, twin(x)[0])


def test_calibration_observes_h_even_at_full_precision() -> None:
    layer, x = _lstm(None), torch.randn(7, 3, 4)
    bc.calibrate(layer, [x, 2 * x])
    assert layer.act_range[:, 0].tolist() == [2.0, 2.0]
    assert (layer.act_range[1, 2] > 0).all()


def _same_error_at_every_step(seed: int, kind: Any = nn.RNN) -> Tensor:
    """The hidden state's weight gradient by time step, for one error and one state in all."""
    torch.manual_seed(0)
    float_layer = kind(4, 6, nonlinearity="relu", bias=False)
    nn.init.zeros_(float_layer.weight_hh_l0)  # no error comes from later steps
    layer = convert(float_layer, "e3", seed=seed, **STOCHASTIC)
    x = torch.rand(1, 2, 4).expand(5, 2, 4)
    nn.init.constant_(layer.weight_ih_l0, 0.1)
    rows = []
    for t in range(1, 5):
        layer.zero_grad()
        advance_clocks([layer], 0)
        output, _ = layer(x)
        mask = torch.zeros(5, 1, 1)
        mask[t] = 1
        error = torch.randn(2, 6, generator=torch.Generator().manual_seed(1)) * mask
        output.backward(error)
        rows.append(layer.weight_hh_l0.grad.clone())
    return torch.stack(rows)


def test_the_noise_of_every_time_step_and_of_every_seed_differs() -> None:
    grads = _same_error_at_every_step(seed=0)
    assert grads.abs().sum() > 0
    for t in range(4):
        for earlier in range(t):
            assert not torch.equal(grads[t], grads[earlier])
    assert not torch.equal(grads, _same_error_at_every_step(seed=1))
    assert torch.equal(grads, _same_error_at_every_step(seed=0))


def test_the_products_of_a_layer_do_not_share_noise() -> None:
    """With x and h equal, their weight gradients would be equal if the errors were."""
    torch.manual_seed(0)
    float_layer = nn.RNN(6, 6, nonlinearity="relu", bias=False)
    x, error = torch.rand(1, 4, 6), torch.randn(1, 4, 6)
    for precision, are_equal in (("w32a32e32", True), ("e2", False)):
        layer = convert(copy.deepcopy(float_layer), precision, **STOCHASTIC)
        layer(x, x)[0].backward(error)
        grads = layer.weight_ih_l0.grad, layer.weight_hh_l0.grad
        assert torch.allclose(*grads) == are_equal


def test_stochastic_errors_have_the_nearest_ones_mean() -> None:
    """Averaged over clocks, the gradients are those of the unrounded error."""
    layer = _lstm("e4", **STOCHASTIC)
    x, exact = torch.randn(4, 3, 4), _lstm("w32a32")
    sums = [torch.zeros_like(p) for p in layer.parameters()]
    for step in range(100):
        layer.zero_grad()
        advance_clocks([layer], step)
        layer(x)[0].sum().backward()
        for total, grad in zip(sums, _grads(layer), strict=True):
            total += grad / 100
    exact(x)[0].sum().backward()
    for mean, expected in zip(sums, _grads(exact), strict=True):
        torch.testing.assert_close(mean, expected, rtol=0, atol=0.06 * float(expected.abs().max()))


def test_gradient_checkpointing_changes_nothing() -> None:
    for reentrant in (True, False):
        plain = _lstm(num_layers=2, bidirectional=True, proj_size=3, **STOCHASTIC)
        other = copy.deepcopy(plain)
        x = torch.randn(5, 3, 4, requires_grad=True)
        for factor in (1.0, 3.0):
            plain(factor * x)[0].square().sum().backward()
            output = checkpoint(other, factor * x, use_reentrant=reentrant)[0]
            output.square().sum().backward()
            for one, two in zip(_grads(plain), _grads(other), strict=True):
                assert torch.equal(one, two)
            for one, two in zip(plain.buffers(), other.buffers(), strict=True):
                assert torch.equal(one, two)


def test_a_resumed_step_has_the_same_noise() -> None:
    layer, x = _lstm(**STOCHASTIC), torch.randn(5, 3, 4)
    results = []
    for step in (7, 8, 7):
        layer.zero_grad()
        advance_clocks([layer], step)
        layer(x)[0].sum().backward()
        results.append(layer.weight_hh_l0.grad.clone())
    assert torch.equal(results[0], results[2])
    assert not torch.equal(results[0], results[1])


def test_the_weights_are_put_on_their_grid_once_per_call() -> None:
    layer = _lstm(num_layers=2)
    with bc.collect(layer) as statistics:
        layer(torch.randn(9, 3, 4))[0].sum().backward()
    assert statistics["", "weight"].num_calls == 4
    assert statistics["", "act"].num_calls == 2 * (1 + 9)
    assert statistics["", "error"].num_calls == 2 * (1 + 9)


def test_a_nan_in_a_hidden_state_is_seen() -> None:
    layer = _lstm()
    state = torch.zeros(1, 3, 6)
    state[0, 1, 2] = float("nan")
    layer(torch.randn(5, 3, 4), (state, torch.zeros(1, 3, 6)))
    assert layer.health[1].isnan()
    assert layer.act_range.isfinite().all()


def test_native_gives_what_simulate_gives() -> None:
    for grid in ("shared", "per_input_channel"):
        rules = bc.quantizers.SBM(error_rounding="nearest", grad_input_weight=grid)
        results = []
        for name in ("simulate", "native"):
            torch.manual_seed(0)
            layer = bc.quantize_model(
                nn.LSTM(8, 16, 2, proj_size=5), rules, kernel=name, max_bits=7
            )
            bc.set_precision(layer, "w7a7e7")
            x = torch.randn(5, 3, 8, requires_grad=True)
            output, states = layer(x)
            (output.sum() + states[1].sum()).backward()
            results.append([output, x.grad, *_grads(layer)])
        for one, other in zip(*results, strict=True):
            # a code that falls on the other side of a tie, in a step or two: 1/127 of a range
            torch.testing.assert_close(
                one, other, rtol=0, atol=0.02 * float(one.detach().abs().max())
            )


def test_codes_of_at_most_4_bits_are_kept_two_per_byte_and_change_nothing() -> None:
    results = []
    for max_bits in (4, 8):
        torch.manual_seed(0)
        layer = bc.quantize_model(nn.LSTM(8, 15), kernel="native", max_bits=max_bits)
        bc.set_precision(layer, "w4a4e4")
        layer(torch.randn(5, 3, 8))[0].sum().backward()
        results.append(_grads(layer))
    assert all(map(torch.equal, *results))


def test_auto_decides_one_kernel_for_all_products_in_the_first_training_step() -> None:
    layer = bc.quantize_model(nn.LSTM(4, 6))
    bc.set_precision(layer, "w4a4e4")
    layer(torch.randn(5, 3, 4))
    assert layer.kernel.name == "simulate"
    assert layer.kernel_reason == "auto: too small to gain"


def test_auto_weighs_the_products_of_every_time_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def decide(*args: object, recurrence: object, **kwargs: object) -> object:
        seen.append(recurrence)
        return make_kernel("simulate"), "auto: measured"

    monkeypatch.setattr("bitcycle.nn.layer.decide_kernel", decide)
    layer = bc.quantize_model(nn.LSTM(4, 6, proj_size=5))
    bc.set_precision(layer, "w4a4e4")
    layer(torch.randn(7, 3, 4))
    assert seen == [Recurrence(rows=3, num_steps=7, w_shape=(24, 5))]


def test_compiled_models_break_at_the_layer_and_compute_the_same() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.ModuleDict({"lstm": nn.LSTM(4, 6), "fc": nn.Linear(6, 2)})
    model.forward = lambda x: model["fc"](model["lstm"](x)[0].relu())  # type: ignore[method-assign]
    bc.quantize_model(model, bc.quantizers.SBM(error_rounding="nearest"))
    x = torch.randn(5, 3, 4)
    bc.set_precision(model, "w4a4e4")
    expected = model.forward(x)
    compiled = torch.compile(model.forward, backend="eager")(x)
    torch.testing.assert_close(compiled, expected)
    torch._dynamo.reset()


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


def _check(layer: Any, bits: int) -> None:
    x, (h, c) = _input(T, N, IN), _states(layer)
    ours = _flat(layer, *layer(x, _hx(layer, h, c)))
    theirs = _expected(layer, x.flatten(0, 1), [N] * T, h, c, bits)
    theirs[0] = theirs[0].unflatten(0, (T, N))
    _assert_equal(ours, theirs)
    _assert_equal(_gradients(layer, ours, [x, h, c]), _gradients(layer, theirs, [x, h, c]))


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_states_and_gradients_equal_the_oracle(kind: str) -> None:
    for bits in (2, 4, 8):
        _check(_convert(_make(kind), bits), bits)
    for options in (
        {"num_layers": 3}, {"bidirectional": True}, {"bias": False},
        {"num_layers": 2, "bidirectional": True, "bias": False},
    ):  # fmt: skip
        _check(_convert(_make(kind, **options)), 4)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_projected_lstm_equals_the_oracle() -> None:
    for options in ({}, {"num_layers": 2, "bidirectional": True}):
        _check(_convert(_make("lstm", proj_size=2, **options)), 4)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_equal_the_oracle_with_fewer_rows_at_later_steps(kind: str) -> None:
    for bidirectional in (False, True):
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


def test_autocast_leaves_grids_and_gates_alone() -> None:
    layer = _convert(_make("lstm").float())
    x = torch.randn(T, N, IN)
    plain = layer(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(x)[0]
    assert torch.equal(output, plain.bfloat16())  # rounded at the end, and nowhere else


def test_bfloat16_models_run_and_keep_their_dtype() -> None:
    layer = _convert(_make("gru").bfloat16(), 8)
    x = torch.randn(T, N, IN, dtype=torch.bfloat16, requires_grad=True)
    output, h = layer(x)
    output.sum().backward()
    assert output.dtype == h.dtype == x.grad.dtype == torch.bfloat16
    assert layer.act_range.dtype == torch.float32
    assert x.grad.isfinite().all()


MODES = {
    "LSTM": lambda: nn.LSTMCell(4, 6),
    "GRU": lambda: nn.GRUCell(4, 6),
    "RNN_TANH": lambda: nn.RNNCell(4, 6),
    "RNN_RELU": lambda: nn.RNNCell(4, 6, bias=False, nonlinearity="relu"),
}


def _cell(mode: str, precision: str | None = "w4a4e4") -> Any:
    torch.manual_seed(0)
    return convert(MODES[mode]().double(), precision)


def _tensors() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(3, n, generator=generator, dtype=torch.float64).requires_grad_()
        for n in (4, 6, 6)
    ]


def _cell_states(mode: str, results: Any) -> list[Tensor]:
    return list(results) if mode == "LSTM" else [results]


@pytest.mark.parametrize("mode", MODES)
def test_cells_equal_the_oracle(mode: str) -> None:
    cell, (x, h, c) = _cell(mode), _tensors()
    ours = _cell_states(mode, cell(x, (h, c) if mode == "LSTM" else h))
    weights = {name: p for name, p in cell.named_parameters()}
    _, *theirs = run_direction(mode, x, [3], weights, h, c, Bits(4, 4, 4))
    theirs = theirs[: len(ours)]
    leaves = [x, h, *([c] if mode == "LSTM" else []), *cell.parameters()]
    for results in (ours, theirs):
        loss = sum((value * torch.linspace(-1, 2, 18).view(3, 6)).sum() for value in results)
        results += torch.autograd.grad(loss, leaves)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("mode", MODES)
def test_no_state_of_a_cell_means_zeros_and_one_sample_needs_no_batch(mode: str) -> None:
    cell, (x, _, _) = _cell(mode), _tensors()
    twin, zeros = copy.deepcopy(cell), torch.zeros(1, 6, dtype=torch.float64)
    alone = _cell_states(mode, cell(x[0]))
    batch = _cell_states(mode, twin(x[:1], (zeros, zeros) if mode == "LSTM" else zeros))
    for one, other in zip(alone, batch, strict=True):
        assert one.shape == (6,)
        assert torch.equal(one, other[0])


@pytest.mark.parametrize(("x", "h", "message"), [
    (torch.zeros(2, 3, 4), None, "3"),
    (torch.zeros(3, 5), None, "5 features"),
    (torch.zeros(3, 4), torch.zeros(2, 6), r"\(2, 6\)"),
])  # fmt: skip
def test_wrong_shapes_of_a_cell_are_refused(x: Tensor, h: Tensor | None, message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        _cell("GRU")(x.double(), h if h is None else h.double())


GATES: dict[str, Gates] = {
    "LSTM": LSTMGates(), "GRU": GRUGates(), "RNN_TANH": RNNGates("tanh"),
    "RNN_RELU": RNNGates("relu"),
}  # fmt: skip


@pytest.mark.parametrize("mode", GATES)
def test_a_step_and_its_backward_equal_autograd(mode: str) -> None:
    gates, size, rows = GATES[mode], 5, 3
    torch.manual_seed(0)
    x, p = (torch.randn(rows, gates.count * size, dtype=torch.float64) for _ in range(2))
    h, c, dh, dc = (torch.randn(rows, size, dtype=torch.float64) for _ in range(4))
    leaves = [v.clone().requires_grad_() for v in (x, p, h, c)]
    new_h, new_c = next_state(mode, *leaves)
    loss = (new_h * dh).sum() + ((new_c * dc).sum() if mode == "LSTM" else 0)
    to_x, to_p, to_h, to_c = torch.autograd.grad(loss, leaves, allow_unused=True)

    saved = tuple(torch.empty(rows, n * size, dtype=torch.float64) for n in gates.saved_widths)
    is_lstm = mode == "LSTM"
    after, after_c = gates.step(x, p.clone(), h, c if is_lstm else None, saved)
    dx = torch.empty_like(x)
    dproduct = dx if gates.has_one_error else torch.empty_like(x)
    direct, cell = gates.backward_step(
        gates.derivatives(saved), dh, dc if is_lstm else None, dx, dproduct
    )
    torch.testing.assert_close(after, new_h.detach())
    torch.testing.assert_close(dx, to_x)
    torch.testing.assert_close(dproduct, to_p)
    if mode == "GRU":
        torch.testing.assert_close(direct, to_h)
    else:
        assert direct is None
        assert to_h is None
    if is_lstm:
        torch.testing.assert_close(after_c, new_c.detach())
        torch.testing.assert_close(cell, to_c)


def test_joining_what_was_split_gives_the_rows_back() -> None:
    for counts in ((4,), (3, 3), (3, 2, 2, 1), (0, 0)):
        for is_reversed in (False, True):
            steps, rows = TimeSteps(counts, is_reversed), torch.randn(sum(counts), 2)
            parts = steps.split(rows)
            assert [len(part) for part in parts] == list(counts[::-1] if is_reversed else counts)
            assert torch.equal(steps.join(parts), rows)
