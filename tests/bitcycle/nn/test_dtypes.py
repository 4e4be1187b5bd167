"""A converted layer takes the dtypes that its float layer takes, and refuses the others alike."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.kernels import KERNELS
from bitcycle.nn import LAYERS
from bitcycle.quantizers import SBM, WAGEUBN, SBMFull
from tests.bitcycle.contracts.examples import EXAMPLES, first_result, map_floats

KERNELS_TO_TRY = [*KERNELS.names(), "auto"]
DTYPES = [torch.uint8, torch.int64, torch.float64, torch.float16, torch.bfloat16]
RULES = SBM(first_last="quantized", aggregation="quantized")


def outcome(module: nn.Module, inputs: list[torch.Tensor]) -> Any:
    """The error, or the shape of the output."""
    try:
        return first_result(module, inputs).shape
    except (RuntimeError, ValueError) as error:
        return type(error), str(error)


def autocast(is_on: bool) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16, enabled=is_on)


@pytest.mark.parametrize("layer", LAYERS.names())
def test_every_kernel_refuses_what_the_float_layer_refuses_and_with_its_message(layer):
    example = EXAMPLES[layer]
    for dtype in DTYPES:
        inputs = map_floats(lambda x, dtype=dtype: (9 * x.detach()).to(dtype), example.tensors())
        for is_on in (False, True):
            with autocast(is_on):
                expected = outcome(example.module(), inputs)
                for kernel in KERNELS_TO_TRY:
                    module = bc.quantize_model(example.module(), RULES, kernel=kernel)
                    bc.set_precision(module, "w4a4e8")
                    found = outcome(module, inputs)
                    assert found == expected, (dtype, is_on, kernel)


def dtypes(result: Any) -> Any:
    """The dtypes of an output and of states."""
    if isinstance(result, torch.Tensor):
        return result.dtype
    return tuple(map(dtypes, result)) if isinstance(result, tuple) else None


@pytest.mark.parametrize("layer", LAYERS.names())
def test_inside_autocast_a_layer_returns_the_dtypes_of_its_float_layer(layer):
    example = EXAMPLES[layer]
    for dtype in (torch.float32, torch.bfloat16):
        inputs = map_floats(lambda x, dtype=dtype: x.detach().to(dtype), example.tensors())
        with autocast(True):
            expected = dtypes(example.module()(*inputs))
            for kernel in KERNELS_TO_TRY:
                module = bc.quantize_model(example.module(), RULES, kernel=kernel)
                for precision in ("w4a4e8", "w8a8e8", "fp32"):  # as a schedule may
                    bc.set_precision(module, precision)
                    assert dtypes(module(*inputs)) == expected, (dtype, kernel, precision)


def test_an_image_of_bytes_is_refused_at_any_bits():
    """Kernels that carry codes took it, and cast the output back to bytes."""
    image = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8)
    model = bc.quantize_model(nn.Sequential(nn.Conv2d(3, 4, 3)), kernel="native")
    for precision in ("fp32", "w8a8e8"):
        bc.set_precision(model, precision)
        with pytest.raises(RuntimeError, match=r"Input type \(unsigned char\) and bias type"):
            model(image)
    assert model(image.float()).dtype == torch.float32


def test_integers_are_multiplied_exactly_where_the_float_module_takes_them():
    a, b = torch.tensor([[1, 2], [300, 4]]), torch.tensor([[5, 6], [7, 8]])
    product = bc.quantize_model(bc.MatMul(), kernel="native")
    bc.set_precision(product, "w2a2e2")
    assert product(a, b).tolist() == [[19, 22], [1528, 1832]]


def test_states_of_another_dtype_are_refused_too():
    x, h = torch.ones(3, 2, 4), torch.zeros(1, 2, 4, dtype=torch.float64)
    for layer, inputs in (
        (nn.GRU(4, 4), (x, h)),
        (nn.LSTM(4, 4), (x, (h, h))),
        (nn.GRUCell(4, 4), (x[0], h[0])),
        (nn.LSTMCell(4, 4), (x[0], (h[0], h[0]))),
        (nn.MultiheadAttention(4, 2), (x, x.double(), x.double())),
    ):
        expected = outcome(layer, inputs)
        assert expected[0] is RuntimeError
        bc.set_precision(bc.quantize_model(layer, kernel="native"), "w4a4e8")
        assert outcome(layer, inputs) == expected
    cell = nn.LSTMCell(4, 4)  # a cell state is not multiplied: the float cell takes any dtype
    states = torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.float64)
    assert cell(x[0], states)[1].dtype == torch.float64
    bc.set_precision(bc.quantize_model(cell, kernel="native"), "w4a4e8")
    assert cell(x[0], states)[0].shape == (2, 4)


def test_a_norm_takes_half_precision_and_refuses_integers_and_float64():
    for rules in (SBMFull(), WAGEUBN(first_last="quantized")):
        for dtype in DTYPES:
            model = nn.ModuleList([nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)])
            x = (9 * torch.randn(8, 4)).to(dtype)
            expected = outcome(model[1], [x])
            bc.set_precision(bc.quantize_model(model, rules, only=["*"]), "w4a4e8g8")
            assert type(model[1]) is not nn.BatchNorm1d
            assert outcome(model[1], [x]) == expected, (rules, dtype)


def test_an_operand_of_another_dtype_reaches_no_product():
    layer = bc.quantize_model(nn.Linear(4, 4), kernel="native")
    bc.set_precision(layer, "w4a4")
    geometry = bc.kernels.geometry.LinearGeometry()
    with pytest.raises(RuntimeError, match="torch.uint8 and torch.float32"):
        layer.multiply(geometry, torch.ones(2, 4, dtype=torch.uint8), layer.weight)


def test_embeddings_take_integers_and_refuse_floats():
    for embedding in (nn.Embedding(5, 4), nn.EmbeddingBag(5, 4)):
        model = nn.ModuleList([embedding, nn.Linear(4, 4)])
        tokens = torch.tensor([[0, 1], [2, 3]])
        inputs = [tokens, tokens.int(), tokens.float(), tokens.byte()]
        expected = [outcome(embedding, [x]) for x in inputs]
        bc.set_precision(bc.quantize_model(model, only=["*"]), "w4a4e8")
        assert [outcome(model[0], [x]) for x in inputs] == expected


def test_a_bias_or_mask_of_another_type_is_refused_as_the_float_layer_refuses_it():
    layer = nn.Linear(4, 4)
    layer.bias.data = layer.bias.data.double()
    attention = nn.MultiheadAttention(4, 2)
    x, mask = torch.ones(3, 1, 4), torch.zeros(3, 3, dtype=torch.float64)
    calls = [(layer, lambda m: m(x)), (attention, lambda m: m(x, x, x, attn_mask=mask))]
    for module, call in calls:
        with pytest.raises(RuntimeError) as refused:
            call(module)
        bc.set_precision(bc.quantize_model(module, kernel="native"), 8)
        with pytest.raises(RuntimeError) as own:
            call(module)
        assert str(own.value) == str(refused.value)


def test_complex_layers_are_refused_at_low_bits():
    layer = bc.quantize_model(nn.Linear(4, 4).to(torch.complex64))
    x = torch.ones(2, 4, dtype=torch.complex64)
    layer(x)  # float: torch computes it
    bc.set_precision(layer, 4)
    with pytest.raises(TypeError, match="torch.complex64 at w4a4e4"):
        layer(x)
