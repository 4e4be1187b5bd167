"""Which class a module becomes; copies, pickles, dtypes, devices and state dicts."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.nn import QuantizedLayer
from bitcycle.nn.activations import MaskedModule, can_convert_activation, convert_activation
from bitcycle.nn.class_swap import LAYERS, qualified_name, registered_base, swapped_class
from bitcycle.nn.settings import ModelState

from .layers import convert


class _Named(nn.Linear):
    """A subclass that adds nothing to the arithmetic."""


def test_a_subclass_becomes_a_quantized_subclass() -> None:
    layer = convert(_Named(4, 3), "w4")
    assert isinstance(layer, _Named)
    assert type(layer).__name__ == "Quantized_Named"
    assert type(layer) is swapped_class(LAYERS[qualified_name(nn.Linear)], _Named)
    assert registered_base(_Named) is nn.Linear
    assert registered_base(nn.ReLU) is None
    assert qualified_name(nn.Linear) == "torch.nn.modules.linear.Linear"


def test_a_type_made_on_demand_survives_copy_and_pickle() -> None:
    layer = convert(_Named(4, 3), "w4a4")
    layer.mixin = layer.float_type = "attributes of the user"  # type: ignore[assignment]
    x = torch.linspace(-1, 1, 8).view(2, 4)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):  # our own bytes
        assert type(again) is type(layer)
        assert torch.equal(again(x), layer(x))


def test_modules_that_conversion_would_change_are_left_alone() -> None:
    class Own(nn.ReLU):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return input

    taken = nn.ReLU()
    taken.shared = "the user's own"  # type: ignore[assignment]
    assert can_convert_activation(nn.ReLU())
    assert not any(map(can_convert_activation, (Own(), taken, nn.GELU(), nn.Linear(1, 1))))


def test_memory_is_saved_with_bits_for_ordinary_tensors_that_need_a_gradient() -> None:
    class Special(torch.Tensor):
        pass

    module, shared = nn.ReLU(), ModelState()
    convert_activation(module, shared)
    assert isinstance(module, MaskedModule)
    x = torch.ones(3, requires_grad=True)
    assert not module.saves_mask(x)
    shared.note_bits("layer", True)
    assert module.saves_mask(x)
    assert module.saves_mask(nn.Parameter(x))
    special = x.detach().as_subclass(Special).requires_grad_()
    sparse = x.detach().to_sparse().requires_grad_()
    assert not any(map(module.saves_mask, (x.detach(), special, sparse)))
    with torch.no_grad():
        assert not module.saves_mask(x)


def test_a_masked_module_can_be_given_to_another_model_and_back() -> None:
    module, one, other = nn.ReLU(), ModelState(), ModelState()
    convert_activation(module, one)
    assert can_convert_activation(module)
    convert_activation(module, other)
    assert isinstance(module, MaskedModule)
    assert module.shared is other
    module.become_float()
    assert type(module) is nn.ReLU
    assert vars(module) == vars(nn.ReLU())


def _model(precision: str = "w4a4e4") -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 4, 3), nn.ConvTranspose1d(4, 2, 3), nn.Linear(6, 3))
    bc.quantize_model(model)
    bc.set_precision(model, precision)
    return model


def _input() -> Tensor:
    return torch.linspace(-1, 2, 48).view(2, 4, 6)


def _trained() -> nn.Sequential:
    model = _model()
    model(_input()).sum().backward()
    return model


def _ranges(model: nn.Module) -> list[list[list[float]]]:
    return [m.act_range.tolist() for m in model.modules() if isinstance(m, QuantizedLayer)]


def _copy(model: nn.Module, how: str) -> nn.Module:
    if how == "deepcopy":
        return copy.deepcopy(model)
    if how == "pickle":
        return pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "save"])
def test_a_copy_computes_the_same_and_is_separate(how: str) -> None:
    model = _trained()
    twin = _copy(model, how)
    assert [type(m) for m in twin] == [type(m) for m in model]
    assert bc.get_precision(twin) == bc.get_precision(model)
    assert _ranges(twin) == _ranges(model)
    assert len({id(layer.shared) for layer in twin}) == 1
    assert twin[0].shared is not model[0].shared
    outputs = [m.eval()(_input()) for m in (model, twin)]
    assert torch.equal(*outputs)
    bc.set_precision(twin, "fp32")
    assert bc.get_precision(model) == bc.Precision(weight=4, act=4, error=4)
    assert torch.equal(model(_input()), outputs[0])


class _Mish(nn.ReLU):
    """A subclass that keeps its float type's forward."""


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "save"])
def test_layers_norms_embeddings_and_activations_are_swapped_by_one_mechanism(how: str) -> None:
    kinds = [_Named, nn.BatchNorm1d, nn.Embedding, nn.ReLU, _Mish, nn.Dropout, nn.Conv2d]
    model = nn.Sequential(
        _Named(4, 3), nn.BatchNorm1d(3), nn.Embedding(3, 2), nn.ReLU(), _Mish(), nn.Dropout(),
        nn.Conv2d(1, 1, 1),
    )  # fmt: skip
    bc.quantize_model(model, bc.quantizers.SBMFull(), only=[str(i) for i in range(len(kinds))])
    twin = _copy(model, how)
    names = [type(module).__name__ for module in twin]
    assert names == [
        "Quantized_Named", "RangeBatchNorm1d", "QuantizedEmbedding", "MaskedReLU", "Masked_Mish",
        "MaskedDropout", "QuantizedConv2d",
    ]  # fmt: skip
    assert [type(module) for module in twin] == [type(module) for module in model]
    assert [type(module) for module in bc.unquantize_model(twin)] == kinds


def test_a_copy_knows_that_its_bits_are_written() -> None:
    for how in ("deepcopy", "pickle"):
        twin = _copy(_trained(), how)
        for layer in twin:
            assert not layer.set_precision(layer.precision)
            layer.control.zero_()
            assert layer.set_precision(layer.precision)


def test_another_dtype_leaves_ranges_float32_and_the_control_int32() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        model = _trained()
        before = _ranges(model)
        controls = [layer.control.tolist() for layer in model]
        model.to(dtype)
        assert _ranges(model) == before  # and not rounded to that dtype
        assert [layer.control.tolist() for layer in model] == controls
        for layer in model:
            assert layer.weight.dtype == dtype
            assert (layer.act_range.dtype, layer.health.dtype) == (torch.float32, torch.float32)
            assert layer.control.dtype == torch.int32
        output = model(_input().to(dtype))
        output.float().sum().backward()
        assert output.dtype == dtype
        assert all(layer.weight.grad.dtype == dtype for layer in model)


def test_half_and_type_are_no_exception() -> None:
    for change in (nn.Module.half, lambda m: m.type(torch.float16), nn.Module.double):
        layer = convert(nn.Linear(4, 3), "w4a4e4")
        layer(torch.tensor([[0.1, 0.2, 0.3, 0.7]]))
        before = layer.act_range.clone()
        change(layer)
        assert torch.equal(layer.act_range, before)
        assert layer.control.dtype == torch.int32


def test_a_meta_model_that_is_materialized_empty_has_its_bits_and_no_ranges() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 3), bc.MatMul())
    bc.quantize_model(model)
    bc.set_precision(model, "w4a4e8")
    model.to_empty(device="cpu")
    for layer in model:
        assert layer.control[:4].tolist() == [15, 15, 255, 0]
        assert not layer.health.any()
        assert not layer.act_range.any()
        assert not layer.is_observed
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.fill_(0.0)
    assert model[0](torch.ones(1, 4)).tolist() == [[4.0, 4.0, 4.0]]


def test_a_meta_model_can_be_assigned_a_state() -> None:
    for source in ("converted", "float"):
        trained = _trained()
        state = trained.state_dict() if source == "converted" else bc.float_state_dict(trained)
        with torch.device("meta"):
            model = nn.Sequential(nn.Conv1d(4, 4, 3), nn.ConvTranspose1d(4, 2, 3), nn.Linear(6, 3))
        bc.quantize_model(model)
        bc.set_precision(model, "w4a4e4")
        model.load_state_dict(state, strict=True, assign=True)
        assert not any(t.is_meta for t in (*model.parameters(), *model.buffers()))
        assert [layer.control[:3].tolist() for layer in model] == [[15, 15, 15]] * 3
        assert [layer.is_observed for layer in model] == [source == "converted"] * 3
        assert torch.equal(model.train()(_input()), trained.train()(_input()))


def test_a_product_of_activations_on_meta_gets_real_buffers_from_either_state() -> None:
    trained = bc.quantize_model(nn.Sequential(bc.MatMul(), nn.Linear(2, 2)))
    bc.set_precision(trained, "a4")
    trained[0](torch.eye(2), torch.eye(2))
    for state in (trained.state_dict(), bc.float_state_dict(trained)):
        with torch.device("meta"):
            model = nn.Sequential(bc.MatMul(), nn.Linear(2, 2))
        bc.quantize_model(model)
        model.load_state_dict(state, assign=True)
        assert not any(t.is_meta for t in (*model.parameters(), *model.buffers()))
        assert model[0].is_observed == ("0.act_range" in state)


def test_a_state_saved_before_training_is_unobserved() -> None:
    model = _trained()
    model.load_state_dict(_model().state_dict(), strict=True)
    assert not any(layer.is_observed for layer in model)


def test_a_float_state_loads_strictly_and_makes_the_ranges_unobserved() -> None:
    model = _trained()
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Conv1d(4, 4, 3), nn.ConvTranspose1d(4, 2, 3), nn.Linear(6, 3))
    result = model.load_state_dict(plain.state_dict(), strict=True)
    assert result.missing_keys == result.unexpected_keys == []
    assert not any(layer.is_observed for layer in model)
    assert not any(layer.act_range.any() for layer in model)
    with bc.at_precision(model, "fp32"):
        assert torch.equal(model(_input()), plain(_input()))


def test_a_state_that_lacks_a_weight_is_still_refused() -> None:
    state = bc.float_state_dict(_trained())
    del state["2.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*2\.weight"):
        _model().load_state_dict(state, strict=True)


def test_a_copy_of_a_layer_compiled_in_place_uses_its_own_weights() -> None:
    layer = bc.quantize_model(nn.Linear(4, 4))
    layer.compile(backend="eager")
    x = torch.ones(1, 4)
    layer(x)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with torch.no_grad():
            copied.weight.zero_()
            copied.bias.zero_()
        assert not copied(x).any()


def test_ranges_that_were_loaded_are_known_after_a_move_at_once():
    model = _model()
    model.load_state_dict(_trained().state_dict())
    model.to("cpu")  # as trainers do before anybody looks at the ranges
    assert all(layer.is_observed for layer in model)
