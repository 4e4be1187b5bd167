"""Counts of recurrent layers by hand, and by the flop counter where torch runs plain products."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from bitcycle.cost import count_macs
from tests.cost.flops import counted_macs, measured_macs


def test_an_lstm_multiplies_four_gates_per_step() -> None:
    # T = 5, N = 2, input 3, hidden 4: 16 x 3 per row for the input, 16 x 4 for the state
    (row,) = count_macs(nn.LSTM(3, 4), torch.ones(5, 2, 3), batch_size=2).layers
    assert row.output == 10 * (16 * 3 + 16 * 4)
    assert row.grad_weight == 10 * (16 * 3 + 16 * 4)
    # neither the input nor the zero first state has a gradient: 8 rows of 10, state only
    assert row.grad_input == 8 * 16 * 4


def test_the_input_weight_is_read_once_and_the_state_weight_every_step() -> None:
    (row,) = count_macs(nn.LSTM(3, 4), torch.ones(5, 2, 3), batch_size=2).layers
    # act 10 x (3 + 4), weights 48 + 5 x 64, errors 10 x 16 for each of the two products
    assert [(p.matmul, p.elements) for p in row.products] == [
        ("output", (70, 368)),
        ("grad_input", (128, 256)),
        ("grad_weight", (320, 70)),
    ]


def test_a_state_that_has_a_gradient_adds_the_first_step() -> None:
    x, h = torch.ones(5, 2, 3), torch.zeros(1, 2, 4, requires_grad=True)
    (row,) = count_macs(nn.LSTM(3, 4), (x, (h, torch.zeros(1, 2, 4))), batch_size=2).layers
    assert row.grad_input == 10 * 16 * 4


def test_batch_first_swaps_time_and_samples() -> None:
    (row,) = count_macs(nn.LSTM(3, 4, batch_first=True), torch.ones(2, 5, 3)).layers
    assert (row.output, row.grad_input) == (1120, 512)


def test_one_sequence_without_a_batch_is_counted() -> None:
    (row,) = count_macs(nn.GRU(3, 4), torch.ones(5, 3), batch_size=1).layers
    assert (row.output, row.grad_input) == (5 * 12 * 7, 4 * 12 * 4)


def test_a_packed_batch_counts_its_real_rows() -> None:
    packed = pack_padded_sequence(torch.ones(5, 3, 3), torch.tensor([5, 3, 1]))
    (row,) = count_macs(nn.LSTM(3, 4), (packed,), batch_size=3).layers
    assert row.output == 9 * 16 * 7
    assert row.grad_input == 6 * 16 * 4


def test_a_padded_batch_of_full_length_equals_the_packed_one() -> None:
    x = torch.ones(5, 3, 3)
    packed = pack_padded_sequence(x, torch.tensor([5, 5, 5]))
    model = nn.LSTM(3, 4, 2, bidirectional=True)
    assert count_macs(model, (packed,), batch_size=3) == count_macs(model, x, batch_size=3)


RECURRENT = [
    (nn.LSTM, {}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    (nn.LSTM, {"proj_size": 2}),
    (nn.LSTM, {"num_layers": 2, "proj_size": 2, "bidirectional": True, "bias": False}),
    (nn.GRU, {"num_layers": 2}),
    (nn.GRU, {"bidirectional": True}),
    (nn.RNN, {"num_layers": 2, "nonlinearity": "relu"}),
]


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize(("kind", "options"), RECURRENT)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_flop_counter_agrees_when_torch_runs_plain_products(
    kind: type[nn.Module], options: dict[str, object], requires_grad: bool
) -> None:
    model = kind(3, 4, **options)
    x = torch.ones(5, 2, 3, requires_grad=requires_grad)
    with torch.backends.mkldnn.flags(enabled=False):  # the fused LSTM counts as nothing
        assert counted_macs(model, x) == measured_macs(model, x)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_a_cell_is_one_step(kind: type[nn.Module]) -> None:
    model, x = kind(3, 4), torch.ones(2, 3)
    gates = model.weight_ih.shape[0] // 4
    (row,) = count_macs(model, x).layers
    assert row.macs == {
        "output": 2 * gates * 4 * 7,
        "grad_input": 0,
        "grad_weight": 2 * gates * 4 * 7,
    }
    assert counted_macs(model, x) == measured_macs(model, x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_a_nested_tensor_is_listed_and_not_guessed() -> None:
    from bitcycle.cost.product import COUNTERS, Call, UncountedError

    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    with pytest.raises(UncountedError, match="nested"):
        COUNTERS["torch.nn.modules.rnn.LSTM"](Call(nn.LSTM(3, 4), (x,), {}, x))
