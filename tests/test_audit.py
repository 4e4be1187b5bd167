"""audit: one row per product, with the reason, and nothing changed by looking."""

from __future__ import annotations

import copy
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bitcycle as bc
from bitcycle.audit import watch_products
from bitcycle.convert import find_candidates
from bitcycle.quantizers import QUANTIZERS
from tests import toys
from tests.toys import Attention, linears, net, randn


class Functional(nn.Module):
    """Multiplies in every way that needs no module."""

    def __init__(self, product):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.product = product

    def forward(self, x):
        return self.product(self.fc(x), self)


PRODUCTS = {
    "matmul": lambda x, _: torch.matmul(x, x.transpose(1, 2)),
    "@": lambda x, _: x @ x.transpose(1, 2),
    "einsum": lambda x, _: torch.einsum("bij,bkj->bik", x, x),
    "attention": lambda x, _: F.scaled_dot_product_attention(x, x, x),
    "attention, four dimensions": lambda x, _: F.scaled_dot_product_attention(
        x[:, None], x[:, None], x[:, None]
    ),
    "F.linear": lambda x, model: F.linear(x, model.fc.weight),
    "F.conv1d": lambda x, model: F.conv1d(x.transpose(1, 2), model.fc.weight[:, :, None]),
    "bilinear": lambda x, model: F.bilinear(x, x, model.fc.weight[None]),
    "addmm": lambda x, _: torch.addmm(x[0, 0, 0], x[0], x[0].t()),
}


def test_a_functional_product_is_found_with_example_inputs():
    for name in PRODUCTS:
        model = bc.quantize_model(nn.Sequential(Functional(PRODUCTS[name])))
        assert [row.name for row in bc.audit(model).rows] == ["0.fc"]
        rows = bc.audit(model, randn(2, 3, 4)).rows
        assert [row.is_converted for row in rows] == [True] + [False] * (len(rows) - 1)
        assert len(rows) > 1
        assert all(row.name.startswith("0: ") and row.type == "functional" for row in rows[1:])
        assert "bitcycle.MatMul" in rows[1].reason


def test_products_with_a_name_leave_nothing_functional():
    for model in (bc.quantize_model(Attention()), Attention()):
        rows = bc.audit(model, randn(2, 3, 4)).rows
        assert [row.name for row in rows] == ["qkv", "scores", "mix"]


def test_repeated_products_are_one_row_with_a_count():
    model = Functional(lambda x, _: x @ x.transpose(1, 2) @ x)
    (row,) = [row for row in bc.audit(model, randn(2, 3, 4)).rows if row.type == "functional"]
    assert row.name == "(the model itself): bmm x2"


def test_rows_say_what_is_converted_and_why_the_rest_is_not():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Bilinear(4, 4, 4), nn.ReLU())
    bc.quantize_model(model, skip=["1"], kernel="simulate")
    rows = bc.audit(model)
    assert [row.name for row in rows.rows] == ["0", "1", "2"]
    assert [row.name for row in rows.converted_rows] == ["0"]
    assert [row.name for row in rows.float_rows] == ["1", "2"]
    first = rows["0"]
    assert (first.type, first.quantizer, first.kernel) == ("Linear", "SBM", "simulate")
    assert "not chosen (skip, only" in rows["1"].reason
    assert rows["2"].reason == "no quantized layer for Bilinear"


def test_a_model_that_was_never_converted_is_all_float():
    rows = bc.audit(net(), randn(2, 2, 6, 6))
    assert [row.name for row in rows.float_rows] == ["conv", "head.0", "head.2"]
    assert rows.converted_rows == ()


def test_bits_are_shown_by_role_and_roles_without_a_rule_as_such():
    model = bc.quantize_model(linears(4, 4))
    bc.set_precision(model, "FW4/BW8")
    expected = {"weight": "4", "act": "4", "error": "8", "grad": "no rule"}
    assert bc.audit(model)["0"].bits == expected
    bc.set_precision(model, "w4a24")
    expected = {"weight": "4", "act": "24", "error": "fp32", "grad": "fp32"}
    assert bc.audit(model)["0"].bits == expected


def test_a_layer_is_unobserved_until_it_is_trained_with_bits_on_its_input():
    model = bc.quantize_model(linears(4, 4))
    model(randn(2, 4))
    assert bc.audit(model)["0"].is_observed is False
    bc.set_precision(model, "w4")
    model(randn(2, 4))
    assert bc.audit(model)["0"].is_observed is False
    bc.set_precision(model, "w4a4")
    model(randn(2, 4))
    assert bc.audit(model)["0"].is_observed is True


def test_products_that_a_rule_leaves_to_float32_are_named():
    for rules, kernel, notes in (
        ("dorefa", "native/dequantize/native", ["grad_weight of a convolution in float32"]),
        ("dorefa", "native/bf16/dequantize", ["grad_input in float32: one scale per sample"]),
        ("dorefa", "bf16", ["grad_input and grad_weight in float32: one scale per sample"]),
        ("sbm_full", "bf16", ["grad_weight in float32: it reads a separate error"]),
        ("sbm_full", "native", ["grad_weight in float32: it reads a separate error"]),
        ("sbm", "bf16", []),
        ("sbm", "native/native/native", []),
        ("sbm", "dequantize", []),
        ("dorefa", "simulate", []),
        ("dorefa", "auto", []),
    ):
        rules = QUANTIZERS[rules](first_last="quantized")
        reason = bc.audit(bc.quantize_model(linears(4, 4), rules, kernel=kernel))["0"].reason
        assert reason.count("in float32") == len(notes)
        assert all(note in reason for note in notes)


def test_what_auto_leaves_to_float32_is_named_when_it_is_decided():
    for rules, note in (("sbm_full", "separate error"), ("dorefa", "one scale per sample")):
        model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
        quantizer = QUANTIZERS[rules](first_last="quantized")
        bc.set_precision(bc.quantize_model(model, quantizer), "FW4/BW8")
        model(torch.randn(4, 16, 16, 16, requires_grad=True)).sum().backward()
        row = bc.audit(model)["0"]
        assert row.kernel == "simulate" or note in row.reason


def test_layers_that_native_has_no_product_of_are_named():
    for layer, kernel, what in (
        (nn.Conv3d(2, 2, 3), "native", "a convolution of 3 dimensions"),
        (nn.ConvTranspose2d(2, 2, 3), "native", "a transposed convolution"),
        (nn.ConvTranspose2d(2, 2, 3), "bf16", "a transposed convolution"),
        (nn.Conv3d(2, 2, 3), "bf16", None),
        (nn.Conv2d(2, 2, 3), "native", None),
    ):
        reason = bc.audit(bc.quantize_model(nn.Sequential(layer), kernel=kernel))["0"].reason
        assert (f"multiplies in float32: {what}" in reason) == (what is not None)


def test_the_kernel_comes_with_its_reason():
    model = bc.quantize_model(linears(4, 4), kernel="simulate")
    assert bc.audit(model)["0"].reason == "asked for"
    assert bc.audit(bc.quantize_model(linears(4, 4)))["0"].reason.startswith("auto: ")


def test_looking_changes_nothing():
    model = bc.quantize_model(net())
    bc.set_precision(model, {"conv": "w4a4e8", "head": "w8a8e8"})
    model(randn(4, 2, 6, 6)).sum().backward()
    model.head.eval()
    modes = [module.training for module in model.modules()]
    before = copy.deepcopy(model.state_dict())
    control = [layer.control.clone() for layer in (model.conv, model.head[0])]
    random_state = torch.get_rng_state()
    bc.audit(model, 100 * randn(2, 2, 6, 6))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    for layer, values in zip((model.conv, model.head[0]), control, strict=True):
        assert torch.equal(layer.control, values)
    assert {n: str(p) for n, p in bc.get_precision(model).items()} == {
        "conv": "w4a4e8",
        "head.0": "w8a8e8",
        "head.2": "w8a8e8",
    }
    assert torch.equal(torch.get_rng_state(), random_state)


def test_looking_does_not_count_as_evaluating_an_unobserved_model():
    model = bc.quantize_model(linears(4, 4))
    bc.set_precision(model, "w4a4")
    bc.audit(model, randn(2, 4))  # no warning, and the one that is due is still to come
    with pytest.warns(bc.BitcycleWarning, match="never observed"):
        model.eval()(randn(2, 4))


def test_an_error_in_the_model_leaves_no_trace():
    model = bc.quantize_model(net())
    bc.set_precision(model, "w4")
    with pytest.raises(RuntimeError):
        bc.audit(model, randn(2, 7, 6, 6))
    assert model.training
    assert str(bc.get_precision(model)) == "w4"
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


def test_example_inputs_are_a_tensor_a_tuple_or_a_dict():
    for inputs in ((randn(2, 3), randn(3, 2)), {"a": randn(2, 3), "b": randn(3, 2)}):
        (row,) = bc.audit(bc.quantize_model(bc.MatMul()), inputs).rows
        assert row.is_converted


def test_scripted_modules_own_their_products():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    model = bc.quantize_model(nn.Sequential(scripted, nn.Linear(4, 4)))
    rows = bc.audit(model, randn(2, 4))
    assert {row.name: row.is_converted for row in rows.rows} == {"0.0": False, "1": True}


def test_an_unknown_row_lists_the_rows():
    with pytest.raises(KeyError, match="no row 'fc'; rows: conv, head.0, head.2"):
        bc.audit(net())["fc"]


def test_the_table_is_readable(monkeypatch):
    file = sys.modules["bitcycle.audit"]
    monkeypatch.setattr(file, "describe", lambda: "native library: avx2, 2 threads")
    model = nn.ModuleList([nn.Linear(4, 4), nn.Bilinear(4, 4, 4)])
    bc.quantize_model(model, kernel="simulate")
    bc.set_precision(model, "FW4/BW8")
    assert str(bc.audit(model)).splitlines() == [
        "name  type      weight  act    error  grad     quantizer  kernel    ranges      why",
        "----  --------  ------  -----  -----  -------  ---------  --------  ----------  "
        "-------------------------------",
        "0     Linear    4       4      8      no rule  SBM        simulate  unobserved  asked for",
        "1     Bilinear  float   float  float  float    -          -         -           "
        "no quantized layer for Bilinear",
        "1 of 2 products converted",
        "native library: avx2, 2 threads",
    ]
    assert "native library" not in str(bc.audit(nn.Linear(2, 2)))  # which nothing here would use
    assert "(the model itself)" in str(bc.audit(bc.quantize_model(nn.Linear(2, 2))))


# -- which products run that no module owns -------------------------------------------------------


class Scores(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.T @ x


def test_a_product_is_found_where_it_runs_and_counted_by_operator() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Scores())
    with watch_products(model, find_candidates(model)) as watch:
        model(torch.ones(3, 4))
    assert watch.found == {("1", "mm"): 2}
    assert watch.lines() == ["1: mm x2"]


def test_without_owners_every_product_is_found() -> None:
    model = toys.linears(4, 4)
    with watch_products(model, []) as watch:
        model(torch.ones(3, 4))
    assert watch.lines() == ["0: addmm"]


def test_modes_come_back_after_an_error() -> None:
    model = toys.linears(4, 4).train()
    try:
        with watch_products(model, []):
            assert not model.training
            raise KeyError
    except KeyError:
        pass
    assert model.training
    assert model[0].training
