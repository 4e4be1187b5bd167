"""The trace of one batch: rows and products, what was not counted, and a model left as it was."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bitcycle as bc
from bitcycle.cost import LayerMacs, count_macs
from bitcycle.cost.count import FIXED, layer_products
from bitcycle_lab.models import build_model
from tests.bitcycle import toys
from tests.bitcycle.cost.flops import counted_macs, measured_macs

LAYER = LayerMacs(
    "fc",
    "Linear",
    tuple(
        layer_products(96, act=12, second=32, error=24, has_grad_input=True, has_grad_weight=True)
    ),
)


def test_amounts_at_bits_follow_the_three_products() -> None:
    amounts = LAYER.at_bits((2, 3, 5))  # weight, act, error
    assert amounts.bitops == {"output": 96 * 6, "grad_input": 96 * 10, "grad_weight": 96 * 15}
    assert amounts.batch_reads == 12 * 3 + 24 * 5 + (24 * 5 + 12 * 3)
    assert amounts.weight_reads == 2 * 32 * 2
    assert amounts.uniform_reads == 2 * (2 + 3 + 5)


def test_an_error_of_grad_weight_s_own_counts_there_alone() -> None:
    amounts = LAYER.at_bits((2, 3, 5), 32)
    assert amounts.bitops == {"output": 96 * 6, "grad_input": 96 * 10, "grad_weight": 96 * 3 * 32}
    assert amounts.batch_reads == 12 * 3 + 24 * 5 + (24 * 32 + 12 * 3)
    assert amounts.uniform_reads == 2 * (2 + 3) + 5 + 32
    assert LAYER.at_bits((2, 3, 5), 5) is LAYER.at_bits((2, 3, 5))


def test_amounts_are_computed_once_per_bits() -> None:
    assert LAYER.at_bits((2, 3, 5)) is LAYER.at_bits((2, 3, 5))


def test_a_product_with_fixed_coefficients_is_an_aggregation() -> None:
    products = layer_products(
        10, act=5, second=7, error=5, has_grad_input=True, has_grad_weight=False, second_role=FIXED
    )
    row = LayerMacs("conv", "GCNConv", tuple(products))
    assert row.is_aggregation
    assert not LAYER.is_aggregation
    assert row.at_bits((2, 3, 5)).bitops["output"] == 10 * 3 * 32


class Sub(nn.Linear):
    """Scales its weight, as weight standardization does: one product still."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.linear(input, self.weight * 2, self.bias)


class Twice(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(input, self.weight), self.weight)


class Wraps(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.inner = nn.Linear(4, 4)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.inner(input)


class Pair(nn.Linear):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return F.linear(x, self.weight), None


def test_a_net_of_three_layers_equals_the_hand_count() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10), nn.Linear(10, 4)
    )
    trace = count_macs(model, torch.ones(5, 3, 6, 6))
    # conv: 5 x 8 x 4 x 4 outputs x 27; linears: 5 x 128 x 10 and 5 x 10 x 4
    assert [(row.name, row.kind, row.output, row.grad_input, row.grad_weight)
            for row in trace.layers] == [
        ("0", "Conv2d", 17280, 0, 17280),
        ("3", "Linear", 6400, 6400, 6400),
        ("4", "Linear", 200, 200, 200),
    ]  # fmt: skip
    assert (trace.batch_size, trace.uncounted) == (5, ())
    assert trace.macs == {"output": 23880, "grad_input": 6600, "grad_weight": 23880}


def test_whole_models_agree_with_the_flop_counter() -> None:
    for name, options in (
        ("resnet20", {}),
        ("resnet8", {"num_classes": 100}),
        ("transformer_lm", {"vocab_size": 50, "dim": 32, "ffn_dim": 64, "num_layers": 2}),
        ("digits_resnet", {}),
    ):
        model = build_model(name, **options)
        inputs = model.example_inputs(batch_size=2)
        expected = measured_macs(model, inputs)
        assert counted_macs(model, inputs) == expected
        assert counted_macs(bc.quantize_model(model), inputs) == expected


def test_a_frozen_layer_has_no_grad_weight_and_needs_none_below_it() -> None:
    model = toys.linears(4, 8, 8, 2)
    model[0].requires_grad_(False)
    rows = count_macs(model, torch.ones(1, 4)).layers
    assert [(row.grad_input, row.grad_weight) for row in rows] == [(0, 0), (0, 64), (16, 16)]


def test_what_runs_without_gradients_has_only_an_output() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                x = self.body(x)
            return self.head(x)

    rows = count_macs(Frozen(), torch.ones(1, 4)).layers
    assert [(row.output, row.grad_input, row.grad_weight) for row in rows] == [
        (32, 0, 0),
        (16, 0, 16),
    ]


def test_gradients_are_counted_even_where_the_caller_has_them_off() -> None:
    model, x = nn.Linear(4, 2), torch.ones(1, 4)
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            assert count_macs(model, x).macs["grad_weight"] == 8


def test_a_layer_called_twice_adds_up() -> None:
    layer = nn.Linear(4, 4)
    (row,) = count_macs(nn.Sequential(layer, nn.ReLU(), layer), torch.ones(1, 4)).layers
    assert (row.name, row.output, row.grad_input, row.grad_weight) == ("0", 32, 16, 32)


def test_products_that_no_module_owns_have_a_row_where_they_ran() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.fc(x)
            return x @ x.T

    trace = count_macs(Net(), torch.ones(3, 4))
    assert [(row.name, row.kind, row.output) for row in trace.layers] == [
        ("", "Net", 36),
        ("fc", "Linear", 48),
    ]
    assert trace.uncounted == ()


def test_an_operator_without_a_formula_is_listed() -> None:
    trace = count_macs(nn.Sequential(nn.Linear(4, 4), toys.Trilinear()), torch.ones(3, 4))
    assert [row.name for row in trace.layers] == ["0"]
    assert trace.uncounted == ("1: _trilinear",)


def test_a_candidate_without_a_counter_is_listed() -> None:
    class Mine(nn.RNNCellBase):
        def __init__(self) -> None:
            super().__init__(4, 4, bias=False, num_chunks=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight_ih

    assert count_macs(Mine(), torch.ones(3, 4)).uncounted == (
        "(the model itself) (Mine): no MAC counter for this type",
    )


def test_a_layer_that_did_not_run_is_listed() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.auxiliary = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) + self.auxiliary(x) if self.training else self.fc(x)

    assert count_macs(Net(), torch.ones(3, 4)).uncounted == ("auxiliary (Linear): did not run",)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_a_scripted_part_is_listed() -> None:
    whole, part = (
        torch.jit.script(nn.Linear(4, 4)),
        torch.jit.script(nn.Sequential(nn.Linear(4, 4))),
    )
    trace = count_macs(nn.Sequential(nn.Linear(4, 4), whole, part), torch.ones(3, 4))
    assert [row.name for row in trace.layers] == ["0"]
    assert trace.uncounted == (
        "1 (RecursiveScriptModule): scripted: its calls cannot be traced",
        "2.0 (RecursiveScriptModule): scripted: its calls cannot be traced",
    )


def test_a_subclass_that_computes_one_product_counts_as_what_it_extends() -> None:
    trace = count_macs(nn.Sequential(Sub(4, 4), nn.Linear(4, 2)), torch.ones(3, 4))
    assert [(row.name, row.kind, row.output) for row in trace.layers] == [
        ("0", "Sub", 48),
        ("1", "Linear", 24),
    ]
    assert trace.uncounted == ()


def test_a_subclass_that_computes_something_else_is_not_guessed() -> None:
    trace = count_macs(nn.Sequential(Twice(4, 4), nn.Linear(4, 2)), torch.ones(3, 4))
    assert [(row.name, row.kind, row.output) for row in trace.layers] == [
        ("0", "Twice", 96),  # both of its products, as they ran
        ("1", "Linear", 24),
    ]
    assert trace.uncounted == ()
    trace = count_macs(nn.Sequential(Pair(4, 4)), {"input": torch.ones(3, 4)})
    assert trace.layers == ()
    assert trace.uncounted == ("0 (Pair): returns a tuple",)


def test_a_subclass_that_calls_a_layer_inside_is_counted_once() -> None:
    trace = count_macs(nn.Sequential(Wraps()), torch.ones(3, 4))
    assert [(row.name, row.output) for row in trace.layers] == [("0.inner", 48)]


def test_parametrized_layers_count_as_what_they_are() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)))
    trace = count_macs(model, torch.ones(3, 4))
    assert trace.macs == {"output": 24, "grad_input": 0, "grad_weight": 24}
    assert trace.uncounted == ()
    model = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(4, 2)))
    assert count_macs(model, torch.ones(3, 4)) == trace  # looking at its weight multiplies


def test_norms_are_noted_with_their_outputs_and_are_no_layers() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 6), nn.LayerNorm(6)
    )
    trace = count_macs(model, torch.ones(5, 2, 6, 6))
    assert [row.name for row in trace.layers] == ["0", "3"]
    assert [(n.name, n.kind, n.family, n.elements) for n in trace.norms] == [
        ("1", "BatchNorm2d", "batch", 5 * 4 * 16),
        ("4", "LayerNorm", "layer", 30),
    ]


def test_wrappers_change_nothing() -> None:
    model = toys.linears(4, 8, 2)
    plain = count_macs(model, torch.ones(3, 4))
    assert count_macs(nn.DataParallel(model), torch.ones(3, 4)) == plain


def test_the_batch_size_is_the_leading_dimension_of_the_first_tensor_unless_given() -> None:
    assert count_macs(nn.Linear(4, 2), torch.ones(3, 4)).batch_size == 3
    assert count_macs(nn.Linear(4, 2), {"input": torch.ones(3, 4)}).batch_size == 3
    assert count_macs(nn.LSTM(3, 4), torch.ones(5, 2, 3), batch_size=2).batch_size == 2


def test_inputs_without_a_batch_are_an_error_that_says_what_to_pass() -> None:
    class Net(nn.Module):
        def forward(self, scale: float) -> torch.Tensor:
            return torch.ones(1) * scale

    with pytest.raises(ValueError, match="batch_size"):
        count_macs(Net(), (2.0,))
    with pytest.raises(ValueError, match="got 0"):
        count_macs(nn.Linear(4, 2), torch.ones(0, 4))


def test_a_lazy_model_is_refused_and_left_alone() -> None:
    model = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(ValueError, match=r"0\.weight"):
        count_macs(model, torch.ones(1, 4))
    assert type(model[0]) is nn.LazyLinear


class Restless(nn.Module):
    """Draws random numbers and writes buffers whatever the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = x.mean(0)
        return F.dropout(self.fc(x), 0.5, training=True)


def test_random_states_and_buffers_are_as_before() -> None:
    model = Restless()
    last, state = model.last, torch.get_rng_state()
    count_macs(model, torch.ones(3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert model.calls == 0
    assert model.last is last


def test_a_quantized_model_keeps_bits_modes_ranges_and_noise() -> None:
    model = bc.quantize_model(toys.net())
    bits = bc.PrecisionScheduler(model, forward=4, backward=8, total_steps=9)
    model(toys.randn(2, 2, 6, 6)).sum().backward()
    bits.step()
    model.norm.eval()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    gradients = {name: p.grad for name, p in model.named_parameters()}
    count_macs(model, toys.randn(2, 2, 6, 6))
    assert str(bc.get_precision(model)) == "w4a4e8"
    assert model.training
    assert not model.norm.training
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert all(p.grad is gradients[name] for name, p in model.named_parameters())


def test_no_hook_stays_behind_even_when_the_model_fails() -> None:
    assert not nn.modules.module._has_any_global_hook()
    model = bc.quantize_model(nn.Linear(4, 2)).train()
    with pytest.raises(RuntimeError, match="shape"):
        count_macs(model, torch.ones(3, 5))
    count_macs(model, torch.ones(3, 4))
    assert not nn.modules.module._has_any_global_hook()
    assert not model._forward_hooks
    assert model.training
