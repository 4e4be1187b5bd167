"""MACs of every kind of product, by hand and by torch's flop counter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import bitcycle as bc
from bitcycle.cost import COUNTERS, Call, Product, count_macs
from bitcycle.cost.count import UncountedError, add_up, layer_products
from bitcycle.nn.class_swap import LAYERS
from tests.bitcycle.cost.flops import counted_macs, measured_macs


def test_a_layer_has_three_products_of_equal_macs_and_its_own_operands() -> None:
    products = layer_products(
        96, act=12, second=32, error=24, has_grad_input=True, has_grad_weight=True
    )
    # spec: output = act x weight, grad_input = error x weight, grad_weight = error x act
    assert [(p.matmul, p.roles, p.macs, p.elements) for p in products] == [
        ("output", ("act", "weight"), 96, (12, 32)),
        ("grad_input", ("error", "weight"), 96, (24, 32)),
        ("grad_weight", ("error", "act"), 96, (24, 12)),
    ]


def test_gradients_that_nobody_needs_are_no_products() -> None:
    products = layer_products(
        96, act=12, second=32, error=24, has_grad_input=False, has_grad_weight=False
    )
    assert [p.matmul for p in products] == ["output"]


def test_the_bitops_of_a_product_are_macs_times_both_bits() -> None:
    p = Product(matmul="grad_input", roles=("error", "weight"), macs=10, elements=(5, 7))
    assert p.bitops({"weight": 3, "act": 4, "error": 8}) == 10 * 3 * 8
    assert p.traffic({"weight": 3, "act": 4, "error": 8}) == (5 * 8, 7 * 3)


def test_products_of_the_same_matmul_and_roles_add_up_in_the_order_of_the_matmuls() -> None:
    once = layer_products(6, act=2, second=3, error=4, has_grad_input=False, has_grad_weight=True)
    again = layer_products(
        60, act=20, second=30, error=40, has_grad_input=True, has_grad_weight=True
    )
    assert [(p.matmul, p.macs, p.elements) for p in add_up([*once, *again])] == [
        ("output", 66, (22, 33)),
        ("grad_input", 60, (40, 30)),
        ("grad_weight", 66, (44, 22)),
    ]


def test_every_type_that_can_be_converted_has_a_counter() -> None:
    assert [name for name in LAYERS if name not in COUNTERS] == []


def test_arguments_are_found_by_position_and_by_name() -> None:
    by_position = Call(nn.ReLU(), (1, 2), {}, None)
    by_name = Call(nn.ReLU(), (1,), {"hx": 2}, None)
    assert by_position.argument(1, "hx") == by_name.argument(1, "hx") == 2
    assert by_name.optional(2, "other") is None
    with pytest.raises(UncountedError, match="called without 'other'"):
        by_name.argument(2, "other")


def test_nothing_needs_a_gradient_when_the_output_has_no_graph() -> None:
    x = torch.ones(2, requires_grad=True)
    assert Call(None, (x,), {}, x * 2).needs(x)
    assert not Call(None, (x,), {}, (x * 2).detach()).needs(x)
    assert not Call(None, (x,), {}, x * 2).needs(None, torch.ones(2))


def only_row(model: nn.Module, *inputs: torch.Tensor):
    (row,) = count_macs(model, inputs).layers
    return row


def test_a_linear_layer_multiplies_rows_times_in_times_out() -> None:
    row = only_row(nn.Linear(5, 3), torch.ones(2, 7, 5, requires_grad=True))
    assert row.macs == {"output": 210, "grad_input": 210, "grad_weight": 210}  # 2 x 7 x 5 x 3
    # act 2 x 7 x 5, weight 5 x 3, error 2 x 7 x 3
    assert [p.elements for p in row.products] == [(70, 15), (42, 15), (42, 70)]


def test_a_vector_without_a_batch_is_one_row() -> None:
    assert only_row(nn.Linear(5, 3), torch.ones(5)).output == 15


def test_a_convolution_multiplies_outputs_times_channels_times_kernel() -> None:
    # (2, 6, 8, 8) -> (2, 4, 4, 4): 128 outputs x 6 channels x 9 taps
    row = only_row(nn.Conv2d(6, 4, 3, stride=2, padding=1), torch.ones(2, 6, 8, 8))
    assert row.macs == {"output": 6912, "grad_input": 0, "grad_weight": 6912}


def test_groups_divide_the_input_channels() -> None:
    # (2, 6, 8, 8) -> (2, 4, 6, 6): 288 outputs x 3 channels of the group x 9 taps; the flop counter
    # takes grad_weight times groups here
    row = only_row(nn.Conv2d(6, 4, 3, groups=2), torch.ones(2, 6, 8, 8, requires_grad=True))
    assert row.macs == {"output": 7776, "grad_input": 7776, "grad_weight": 7776}


def test_a_transposed_convolution_spreads_every_input_element() -> None:
    # 2 x 6 x 5 x 5 = 300 inputs, each to 4 / 2 channels x 9 taps
    row = only_row(nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2), torch.ones(2, 6, 5, 5))
    assert row.output == 5400


def test_a_matmul_has_two_activations_and_broadcasts() -> None:
    a, b = torch.ones(2, 3, 4, 5, requires_grad=True), torch.ones(3, 5, 6, requires_grad=True)
    row = only_row(bc.MatMul(), a, b)
    # 2 x 3 batches of 4 x 5 x 6; 120 and 90 elements in, 144 out
    assert row.macs == {"output": 720, "grad_input": 720, "grad_weight": 720}
    assert [(p.roles, p.elements) for p in row.products] == [
        (("act", "act"), (120, 90)),
        (("error", "act"), (144, 90)),
        (("error", "act"), (144, 120)),
    ]


def test_a_matmul_of_vectors_counts_every_multiplication() -> None:
    for a, b, macs in (((4,), (4,), 4), ((3, 4), (4,), 12), ((4,), (2, 4, 5), 40)):
        assert only_row(bc.MatMul(), torch.ones(a), torch.ones(b)).output == macs


def test_a_bilinear_layer_is_two_products() -> None:
    inputs = torch.ones(7, 3, requires_grad=True), torch.ones(7, 4, requires_grad=True)
    row = only_row(nn.Bilinear(3, 4, 5), *inputs)
    # W x2: 7 x 5 x 3 x 4 = 420, then times x1: 7 x 5 x 3 = 105
    assert row.macs == {"output": 525, "grad_input": 525, "grad_weight": 525}


def test_the_flop_counter_agrees() -> None:
    for model, shape in (
        (nn.Linear(6, 5), (4, 6)),
        (nn.Linear(6, 5, bias=False), (4, 3, 6)),
        (nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
        (nn.Conv1d(4, 6, 3, padding="same", dilation=2), (2, 4, 9)),
        (nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)), (2, 4, 9, 8)),
        (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 4, 9, 8)),
        (nn.Conv2d(4, 6, 3), (4, 9, 8)),
        (nn.Conv3d(2, 3, 2, stride=2), (2, 2, 4, 5, 6)),
        (nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1), (2, 4, 9)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, dilation=2), (2, 4, 5, 6)),
        (nn.ConvTranspose3d(2, 3, 2, stride=2), (2, 2, 3, 4, 5)),
    ):
        for requires_grad in (False, True):
            x = torch.ones(shape, requires_grad=requires_grad)
            expected = measured_macs(model, x)
            assert counted_macs(model, x) == expected
            bc.quantize_model(model)
            assert counted_macs(model, x) == expected
            bc.unquantize_model(model)


def test_attention_is_four_projections_and_two_products() -> None:
    x = torch.ones(2, 5, 8, requires_grad=True)
    trace = count_macs(nn.MultiheadAttention(8, 2, batch_first=True), (x, x, x))
    (row,) = trace.layers
    # N = 2, L = S = 5, E = 8: 4 projections of 10 x 64, 2 products of 2 x 5 x 5 x 8
    assert row.macs == dict.fromkeys(("output", "grad_input", "grad_weight"), 2560 + 800)
    assert trace.uncounted == ()  # out_proj is read, never called: it is in the row
    by_roles = {(p.matmul, p.roles): p.macs for p in row.products}
    assert by_roles["output", ("act", "weight")] == 2560
    assert by_roles["output", ("act", "act")] == 800


def test_the_flop_counter_agrees_on_attention() -> None:
    for options in (
        {},
        {"batch_first": True},
        {"kdim": 6, "vdim": 4},
        {"add_bias_kv": True, "add_zero_attn": True},
        {"bias": False},
    ):
        for requires_grad in (False, True):
            model = nn.MultiheadAttention(8, 2, **options)
            widths = 8, options.get("kdim", 8), options.get("vdim", 8)
            lengths = (3, 3, 3) if options.get("batch_first") else (3, 5, 5)
            shapes = [(n, 2, w) for n, w in zip(lengths, widths, strict=True)]
            q, k, v = (torch.ones(shape, requires_grad=requires_grad) for shape in shapes)
            assert counted_macs(model, (q, k, v)) == measured_macs(model, (q, k, v))


def test_a_sequence_without_a_batch_is_counted() -> None:
    x = torch.ones(5, 8)
    (row,) = count_macs(nn.MultiheadAttention(8, 2), (x, x, x), batch_size=1).layers
    assert row.output == 4 * 5 * 64 + 2 * 25 * 8


def test_a_frozen_encoder_layer_does_not_take_the_path_that_skips_its_modules() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).requires_grad_(False)
    trace = count_macs(model, torch.ones(2, 5, 8))
    assert [layer.name for layer in trace.layers] == ["self_attn", "linear1", "linear2"]
    assert trace.macs["grad_weight"] == 0
    assert trace.uncounted == ()
    assert torch.backends.mha.get_fastpath_enabled()


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
def test_the_flop_counter_agrees_when_torch_runs_plain_products() -> None:
    for kind, options in RECURRENT:
        for requires_grad in (False, True):
            model = kind(3, 4, **options)
            x = torch.ones(5, 2, 3, requires_grad=requires_grad)
            with torch.backends.mkldnn.flags(enabled=False):  # the fused LSTM counts as nothing
                assert counted_macs(model, x) == measured_macs(model, x)


def test_a_cell_is_one_step() -> None:
    for kind in (nn.RNNCell, nn.LSTMCell, nn.GRUCell):
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
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    with pytest.raises(UncountedError, match="nested"):
        COUNTERS["torch.nn.modules.rnn.LSTM"](Call(nn.LSTM(3, 4), (x,), {}, x))


class Compute(nn.Module):
    """Runs a function of x and a (4, 4) parameter, without any layer."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.w = function, nn.Parameter(torch.ones(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.w)


def sdpa(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q = (x @ w).unsqueeze(1)  # (N, 1, T, 4)
    return F.scaled_dot_product_attention(q, q, q)


def test_the_flop_counter_agrees_on_products_without_a_module() -> None:
    for function in (
        lambda x, w: x @ w,
        lambda x, w: w @ x.transpose(1, 2),
        lambda x, w: (x * w[0]) @ x.transpose(1, 2),
        lambda x, w: torch.einsum("nti,ij,nuj->ntu", x, w, x),
        lambda x, w: F.linear(x, w, w[0]),
        lambda x, w: torch.addmm(w, x[0, :4], w),
        lambda x, w: torch.baddbmm(x @ x.transpose(1, 2), x * w[0], x.transpose(1, 2)),
        lambda x, w: F.conv1d(x.transpose(1, 2), w.unsqueeze(-1)),
        lambda x, w: F.conv_transpose1d(x.transpose(1, 2), w[:, :, None].repeat(1, 1, 3)),
    ):
        for requires_grad in (False, True):
            model, x = Compute(function), torch.ones(2, 5, 4, requires_grad=requires_grad)
            assert counted_macs(model, x) == measured_macs(model, x)


def test_vectors_are_counted() -> None:
    # mv: 4 x 4; dot: 4
    (row,) = count_macs(
        Compute(lambda x, w: (w @ x[0, 0]).dot(x[0, 1])), torch.ones(2, 5, 4)
    ).layers
    assert row.output == 16 + 4


def test_fused_attention_is_two_products_of_every_query_with_every_key() -> None:
    (row,) = count_macs(Compute(sdpa), torch.ones(2, 5, 4)).layers
    # x w: 2 x 5 x 4 x 4; scores and mixing: 2 x 5 x 5 x 4 each
    assert row.output == 160 + 2 * 200
    assert row.grad_input == 2 * 200  # x has no gradient, the queries and the scores have
    assert row.grad_weight == 160 + 2 * 200


def test_a_parameter_is_a_weight_and_is_read_once_a_step() -> None:
    for function in (lambda x, w: x @ w, lambda x, w: w @ x.transpose(1, 2)):
        (row,) = count_macs(Compute(function), torch.ones(2, 5, 4)).layers
        assert row.output == 160
        assert ("act", "weight") in [p.roles for p in row.products]


def test_a_function_without_gradients_has_only_an_output() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x @ w

    (row,) = count_macs(Compute(function), torch.ones(2, 5, 4, requires_grad=True)).layers
    assert row.macs == {"output": 160, "grad_input": 0, "grad_weight": 0}


class Conv1D(nn.Module):
    """As in transformers: a linear layer with a weight (in, out)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def test_the_linear_layer_of_transformers_is_counted_by_its_name() -> None:
    module, x = Conv1D(), torch.ones(3, 4)
    products = COUNTERS["transformers.pytorch_utils.Conv1D"](Call(module, (x,), {}, module(x)))
    assert [(p.matmul, p.macs) for p in products] == [("output", 72), ("grad_weight", 72)]


def bert(attention: str) -> tuple[nn.Module, dict[str, object]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, attn_implementation=attention,
    )  # fmt: skip
    tokens = torch.arange(14).view(2, 7)
    return transformers.BertModel(config), {"input_ids": tokens, "return_dict": False}


def test_the_flop_counter_agrees_on_a_bert() -> None:
    model, inputs = bert("eager")
    expected = measured_macs(model, inputs)
    assert counted_macs(model, inputs) == expected
    assert counted_macs(bc.quantize_model(model), inputs) == expected


def test_fused_attention_counts_as_much_as_plain_attention() -> None:
    # the flop counter takes what the fused backward pass computes again, and nothing on the CPU
    assert counted_macs(*bert("sdpa")) == counted_macs(*bert("eager"))


def test_the_attention_of_a_converted_bert_follows_its_bits_and_has_rows_of_its_own() -> None:
    model, inputs = bert("sdpa")
    bc.quantize_model(model, skip=["pooler"])
    cost = bc.training_cost(model, inputs, forward=4, backward=8, total_steps=100, batch_size=2)
    # 2 sequences x 2 products x 7 x 7 x 16, each at output, grad_input and grad_weight
    rows = {layer.name: layer.bitops for layer in cost.layers}
    bits = 4 * 4 + 8 * 4 + 8 * 4
    assert rows["encoder.layer.1.attention.self"] == 100 * 2 * 2 * 7 * 7 * 16 * bits
    assert rows["pooler.dense"] == 100 * 3 * 2 * 16 * 16 * 1024  # of the first token
    assert cost.uncounted == ()
