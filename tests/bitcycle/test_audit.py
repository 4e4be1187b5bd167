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
from bitcycle.convert import find_candidates
from bitcycle.functional_calls import MASKED_FUNCTIONS, watch_products
from bitcycle.memory import saved_bytes
from bitcycle.nn.activations import MASKED_MODULES
from bitcycle.nn.class_swap import qualified_name
from bitcycle.quantizers import QUANTIZERS
from tests.bitcycle import toys
from tests.bitcycle.toys import Attention, linears, net, randn


class Functional(nn.Module):
    """Multiplies in every way that needs no module."""

    def __init__(self, product):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.product = product

    def forward(self, x):
        return self.product(self.fc(x), self)


PRODUCTS = {
    "torch.matmul": lambda x, _: torch.matmul(x, x.transpose(1, 2)),
    "@": lambda x, _: x @ x.transpose(1, 2),
    "Tensor.matmul": lambda x, _: x.matmul(x.transpose(1, 2)),
    "torch.bmm": lambda x, _: torch.bmm(x, x.transpose(1, 2)),
    "torch.einsum": lambda x, _: torch.einsum("bij,bkj->bik", x, x),
    "F.scaled_dot_product_attention": lambda x, _: F.scaled_dot_product_attention(x, x, x),
    "F.linear": lambda x, model: F.linear(x, weight=model.fc.weight),
    "F.conv1d": lambda x, model: F.conv1d(x.transpose(1, 2), model.fc.weight[:, :, None]),
    "F.conv2d": lambda x, model: F.conv2d(x[..., None, None][0], model.fc.weight[..., None, None]),
    "F.bilinear": lambda x, model: F.bilinear(x, x, model.fc.weight[None]),
    "torch.addmm": lambda x, _: torch.addmm(x[0, 0, 0], x[0], x[0].t()),
    "torch.tensordot": lambda x, model: torch.tensordot(x, model.fc.weight, dims=1),
}


def square(x: torch.Tensor) -> torch.Tensor:
    return x @ x.t()


@pytest.mark.parametrize("call", PRODUCTS)
def test_a_functional_product_is_named_as_it_is_written(call):
    for model in (nn.Sequential(Functional(PRODUCTS[call])) for _ in range(2)):
        bc.quantize_model(model)
        assert [row.name for row in bc.audit(model).rows] == ["0.fc"]
        audit = bc.audit(model, randn(2, 3, 4))
        (row,) = audit.functional_rows
        assert audit.rows[1:] == audit.float_rows == (row,)
        assert (row.name, row.type, row.module) == (f"0: {call}", "functional", "0")
        assert (row.call, row.num_calls) == (call, 1)
        line = PRODUCTS[call].__code__.co_firstlineno
        assert row.where == (f"test_audit.py:{line}",)


def test_attention_of_four_dimensions_is_one_call_too():
    """Its kernel differs from that of three dimensions, its name does not."""
    model = Functional(lambda x, _: F.scaled_dot_product_attention(*[x[:, None]] * 3))
    (row,) = bc.audit(model, randn(2, 3, 4)).functional_rows
    assert row.call == "F.scaled_dot_product_attention"
    assert "nn.MultiheadAttention" in row.reason


def test_products_that_torch_does_not_name_are_found_by_their_operator():
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(square)
        for call, product in (
            ("mm", lambda x, _: scripted(x[0])),
            ("flex_attention", lambda x, _: flex_attention(*[x[:, None]] * 3)),
        ):
            (row,) = bc.audit(Functional(product), randn(2, 3, 4)).functional_rows
            assert (row.call, row.num_calls) == (call, 1)
            assert row.where[0].startswith("test_audit.py:")


def test_the_way_out_depends_on_the_call():
    for call, way in (
        ("@", "bitcycle.MatMul"),
        ("torch.einsum", "bitcycle.MatMul"),
        ("F.linear", "an nn.Linear"),
        ("F.conv2d", "an nn.Conv2d"),
        ("F.scaled_dot_product_attention", "bitcycle.MatMul"),
    ):
        (row,) = bc.audit(Functional(PRODUCTS[call]), randn(2, 3, 4)).functional_rows
        assert way in row.reason


def test_calls_in_nested_functions_belong_to_the_module_that_runs():
    def outer(x):
        def inner(y):
            return y @ y.transpose(1, 2)

        return inner(x)

    class Block(nn.Module):
        def forward(self, x, *, scale):
            return scale * outer(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x, *, scale):
            return [block(x, scale=scale) for block in self.blocks]

    rows = bc.audit(Net(), {"x": randn(2, 3, 4), "scale": 2.0}).functional_rows
    assert [row.name for row in rows] == ["blocks.0: @", "blocks.1: @"]
    assert len({row.where for row in rows}) == 1


def test_products_with_a_name_leave_nothing_functional():
    for model in (bc.quantize_model(Attention()), Attention()):
        rows = bc.audit(model, randn(2, 3, 4)).rows
        assert [row.name for row in rows] == ["qkv", "scores", "mix"]


def test_repeated_products_are_one_row_with_a_count():
    model = Functional(lambda x, _: x @ x.transpose(1, 2) @ x)
    (row,) = bc.audit(model, randn(2, 3, 4)).functional_rows
    assert (row.name, row.num_calls) == ("(the model itself): @", 2)


def test_rows_say_what_is_converted_and_why_the_rest_is_not():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Bilinear(4, 4, 4), nn.ReLU())
    bc.quantize_model(model, skip=["1"], kernel="simulate")
    rows = bc.audit(model)
    assert [row.name for row in rows.rows] == ["0", "1", "2"]
    assert [row.name for row in rows.converted_rows] == ["0"]
    assert [row.name for row in rows.float_rows] == ["1", "2"]
    first = rows["0"]
    assert (first.type, first.quantizer, first.kernel) == ("Linear", "SBM", "simulate")
    assert "left out by skip or only" in rows["1"].reason
    assert rows["2"].reason == "no quantized layer for Bilinear"


def test_bits_are_those_in_force_of_the_roles_that_a_layer_has():
    model = bc.quantize_model(nn.ModuleList([nn.Linear(4, 4), bc.MatMul()]))
    bc.set_precision(model, "FW4/BW8")
    row, product = bc.audit(model).rows
    assert row.bits == {"weight": "4", "act": "4", "error": "8", "grad": "fp32"}
    assert (row.precision, row.roles_without_rule) == ("w4a4e8", ("grad",))
    assert product.bits == {"act": "4", "error": "8"}  # without a weight
    assert product.roles_without_rule == ()
    bc.set_precision(model, "w4a24")
    expected = {"weight": "4", "act": "fp32", "error": "fp32", "grad": "fp32"}
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
        ("dorefa", "native", ["grad_weight of a convolution in float32"]),
        ("sbm_full", "native", ["grad_weight in float32: it reads a separate error"]),
        ("sbm", "native", []),
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
        (nn.Conv3d(2, 2, 3), "simulate", None),
        (nn.Conv2d(2, 2, 3), "native", None),
    ):
        reason = bc.audit(bc.quantize_model(nn.Sequential(layer), kernel=kernel))["0"].reason
        assert (f"multiplies in float32: {what}" in reason) == (what is not None)


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


def test_a_forward_pass_that_draws_numbers_and_counts_leaves_no_trace():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.fc(F.dropout(x, training=True)) @ torch.randn(4, 4)

    model = bc.quantize_model(Counter())
    state = torch.get_rng_state()
    assert len(bc.audit(model, randn(2, 4)).functional_rows) == 1
    assert model.calls == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


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
    with pytest.raises(KeyError, match="fc"):
        bc.audit(net())["fc"]


# -- the text --------------------------------------------------------------------------------------


@pytest.fixture
def _library(monkeypatch):
    file = sys.modules["bitcycle.audit"]
    monkeypatch.setattr(file, "describe", lambda: "native library: avx2, 2 threads")


class Decoder(nn.Module):
    """A language model in small: tied weights, and attention that no module owns."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.layers = nn.ModuleList([Functional(PRODUCTS["@"]) for _ in range(3)])
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x).sum()
        return self.head(x)


TOKENS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def test_the_text_without_inputs_says_what_was_not_looked_at():
    text = str(bc.audit(bc.quantize_model(Decoder())))
    assert "no bits are set yet" in text
    assert "4 of 4 modules that multiply are converted; products outside of modules" in text


@pytest.mark.usefixtures("_library")
def test_the_text_with_inputs_has_one_line_per_call():
    model = bc.quantize_model(Decoder(), skip=["head"])
    bc.set_precision(model, 4)
    line = PRODUCTS["@"].__code__.co_firstlineno
    assert str(bc.audit(model, TOKENS)).splitlines() == [
        "name           type       bits",
        "-------------  ---------  -------------",
        "embed          Embedding  not converted",
        "layers.0-2.fc  Linear x3  w4a4e4",
        "head           Linear     not converted",
        "",
        "functional product  in module            at",
        f"------------------  -------------------  {'-' * len(f'test_audit.py:{line}')}",
        f"@ x3                layers.0 and 2 more  test_audit.py:{line}",
        "",
        "embed stays float32: embeddings are converted only if named, as by only=['*']",
        "head stays float32: left out by skip or only, or never given to quantize_model",
        "@ stays float32: no module owns it; write it with bitcycle.MatMul to convert it",
        "weight gradients stay float32: SBM does not quantize them",
        "embed.weight (float32) and head.weight (float32) are one tensor",
        "no activation range observed yet: train, or use bitcycle.calibrate",
        "native library: avx2, 2 threads",
        "3 of 4 modules that multiply are converted; outside of modules 3 products stay float32",
    ]


def test_the_verbose_text_has_kernels_and_the_reasons_of_every_row():
    model = nn.ModuleList([nn.Linear(4, 4), nn.Bilinear(4, 4, 4), bc.MatMul()])
    bc.quantize_model(model, kernel="simulate")
    bc.set_precision(model, "FW4/BW8")
    rows = [" ".join(line.split()) for line in str(bc.audit(model, verbose=True)).splitlines()]
    assert rows[2:5] == [
        "0 Linear 4 4 8 fp32 SBM simulate unobserved asked for",
        "1 Bilinear float float float float - - - no quantized layer for Bilinear",
        "2 MatMul - 4 8 - SBM simulate unobserved asked for",
    ]


def test_long_names_are_shortened_in_the_middle_to_fit_a_hundred_columns():
    kind = type("AReallyVeryLongNameForALinearLayer", (nn.Bilinear,), {})
    inner = nn.ModuleDict({"projection_of_the_query": Decoder(), "other": kind(2, 2, 2)})
    for name in ("attention_with_relative_positions", "transformer_decoder", "text_model"):
        inner = nn.ModuleDict({name: inner})
    bc.set_precision(bc.quantize_model(inner), "FW4/BW8")
    run = inner.text_model.transformer_decoder.attention_with_relative_positions
    inner.forward = run.projection_of_the_query.forward
    for inputs in (None, TOKENS):
        text = str(bc.audit(inner, inputs))
        assert max(map(len, text.splitlines())) <= 100
        assert "text_model.transformer...tion_of_the_query.embed" in text
        assert "0-2.fc" in text


def test_rows_fold_only_where_one_number_differs_and_keep_their_order():
    def stage(bits):
        return nn.ModuleList([nn.ModuleDict({"a": nn.Linear(2, 2), "b": bits()}) for _ in "12"])

    model = nn.ModuleDict(
        {"s": nn.ModuleList([stage(bc.MatMul), stage(nn.ReLU)]), "fc": bc.MatMul()}
    )
    bc.quantize_model(model)
    names = [line.split("  ")[0] for line in str(bc.audit(model)).splitlines()[2:8]]
    assert names == ["s.0.0.a", "s.0.0-1.b", "s.0.1.a", "s.1.0.a", "s.1.1.a", "fc"]
    plain = str(bc.audit(linears(2, 2, 2))).splitlines()
    assert [line.split()[0] for line in plain[2:4]] == ["0", "1"]  # no block to fold


def test_layers_without_a_range_are_named_if_others_have_one():
    model = bc.quantize_model(linears(4, 4, 4))
    bc.set_precision(model, "w4a4")
    assert "no activation range observed yet: train" in str(bc.audit(model))
    model[0](randn(2, 4))
    assert "no activation range observed yet by 1: train" in str(bc.audit(model))
    model(randn(2, 4))
    assert "observed" not in str(bc.audit(model))


# -- embeddings and tied weights -------------------------------------------------------------------


def test_an_embedding_that_stays_float_has_a_row_with_the_way_out():
    class Positions(nn.Embedding):
        pass

    model = nn.ModuleList([
        nn.Embedding(5, 4), nn.Embedding(5, 4, sparse=True), Positions(5, 4), nn.Linear(4, 4),
    ])  # fmt: skip
    rows = bc.audit(bc.quantize_model(model)).rows
    assert [row.multiplies for row in rows] == [False, False, False, True]
    assert "only=['*']" in rows[0].reason
    assert "sparse gradients" in rows[1].reason
    assert rows[2].reason == "no quantized layer for Positions"
    model = bc.quantize_model(nn.ModuleList([nn.Embedding(5, 4), nn.Linear(4, 4)]), only=["*"])
    assert [row.is_converted for row in bc.audit(model).rows] == [True, True]


def test_a_tied_weight_comes_with_its_names_and_the_bits_of_each():
    model = bc.quantize_model(Decoder())
    bc.set_precision(model, "w4a4e8")
    (tied,) = bc.audit(model).tied_weights
    assert tied.bits == {"embed.weight": "fp32", "head.weight": "4"}
    bc.set_precision(bc.quantize_model(model, only=["embed", "layers", "head"]), "w4a4e8")
    (tied,) = bc.audit(model).tied_weights
    assert tied.bits == {"embed.weight": "4", "head.weight": "4"}


def test_a_module_with_two_names_is_one_row_and_both_are_named():
    block = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    audit = bc.audit(bc.quantize_model(nn.ModuleDict({"a": block, "b": block})))
    assert [row.name for row in audit.rows] == ["a.0", "a.1"]
    assert audit.shared_modules == (("a", "b"),)
    assert audit.tied_weights == ()
    assert "a and b are one module" in str(audit)


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


def test_an_audit_inside_autocast_names_its_dtype():
    model = bc.quantize_model(nn.Sequential(nn.Linear(4, 4)))
    bc.set_precision(model, 8)
    assert bc.audit(model).autocast is None
    assert "autocast" not in str(bc.audit(model))
    with torch.autocast("cpu", torch.bfloat16):
        inside = bc.audit(model, torch.ones(2, 4))
    assert inside.autocast == "bfloat16"
    assert "inside autocast converted layers take and return bfloat16" in " ".join(
        str(inside).split()
    )


# -- activations that no module owns ---------------------------------------------------------------


class Activated(nn.Module):
    """Activations as calls, between converted layers."""

    def __init__(self, activate, *, layers=3):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(layers)])
        self.activate = activate

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = self.activate(layer(x))
        return self.layers[-1](x)


@pytest.mark.parametrize(
    ("activate", "call", "instead"),
    [
        (lambda x: F.relu(x), "F.relu", "nn.ReLU"),
        (lambda x: F.relu(x, inplace=True), "F.relu", "nn.ReLU"),
        (lambda x: torch.relu(x), "torch.relu", "nn.ReLU"),
        (lambda x: x.relu(), "Tensor.relu", "nn.ReLU"),
        (lambda x: x.relu_(), "Tensor.relu_", "nn.ReLU"),
        (lambda x: F.dropout(x, 0.1), "F.dropout", "nn.Dropout"),
        (lambda x: F.dropout(x, 0.1, training=False), "F.dropout", "nn.Dropout"),
    ],
)
def test_a_functional_activation_is_named_with_what_its_module_would_keep(activate, call, instead):
    """Two calls on 16 x 32 floats: 4 bytes an element, or 1 bit."""
    model = bc.quantize_model(Activated(activate))
    audit = bc.audit(model, torch.randn(16, 32))
    (found,) = audit.functional_activations
    assert (found.call, found.instead, found.num_calls, found.module) == (call, instead, 2, "")
    assert (found.num_bytes, found.bytes_instead) == (2 * 16 * 32 * 4, 2 * 16 * 32 // 8)
    assert found.where[0].startswith("test_audit.py:")
    assert "4,096" in str(audit)
    assert "128" in str(audit)
    assert audit.functional_rows == ()


@pytest.mark.parametrize(
    "activate",
    [
        nn.ReLU(), nn.Dropout(0.1), F.gelu, torch.tanh, nn.ReLU6(),
        lambda x: F.dropout(x, p=0.0, training=True), lambda x: F.dropout(x, 0.0),
    ],
)  # fmt: skip
def test_modules_and_what_no_module_keeps_less_of_are_not_named(activate):
    model = bc.quantize_model(Activated(activate))
    assert bc.audit(model, torch.randn(16, 32)).functional_activations == ()


def test_without_inputs_or_converted_layers_no_activation_is_named():
    model = Activated(F.relu)
    assert "nn.ReLU" not in str(bc.audit(model, torch.randn(16, 32)))
    assert bc.audit(bc.quantize_model(model)).functional_activations == ()


def test_activations_inside_converted_layers_are_their_own_business():
    model = bc.quantize_model(nn.RNN(4, 4, nonlinearity="relu", dropout=0.1, num_layers=2))
    assert bc.audit(model, torch.randn(3, 2, 4)).functional_activations == ()


def test_a_functional_activation_keeps_what_the_audit_says():
    """By measurement: with modules the graph keeps this much less."""
    x, kept = torch.randn(16, 32), {}
    for activate in (F.relu, nn.ReLU()):
        model = bc.quantize_model(Activated(activate), kernel="simulate")
        bc.set_precision(model, 8)
        kept[activate is F.relu] = saved_bytes(model, x).num_bytes
        if activate is F.relu:
            (found,) = bc.audit(model, x).functional_activations
    assert kept[True] - kept[False] == found.num_bytes - found.bytes_instead


def test_every_activation_that_conversion_makes_smaller_has_its_functions():
    names = {qualified_name(kind) for kind in MASKED_FUNCTIONS}
    assert names == set(MASKED_MODULES)
