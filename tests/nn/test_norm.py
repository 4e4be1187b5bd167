"""BatchNorms under a rule: swap, state and copies, whatever the rule."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

import bitcycle as bc
from bitcycle.nn.norm import NORMS, QuantizedNorm
from bitcycle.quantizers import SBM, WAGEUBN, SBMFull

from ..toys import net, randn
from .norms import INPUTS, Normed, convert

RULES = {"range": SBMFull(), "grid": WAGEUBN(first_last="quantized")}
pytestmark = pytest.mark.parametrize("rule", sorted(RULES))


def test_every_rule_is_tried_here(rule: str) -> None:
    assert set(RULES) == set(NORMS)


@pytest.mark.parametrize("kind", INPUTS)
def test_full_precision_is_bit_identical(rule: str, kind: type[nn.Module]) -> None:
    x = randn(*INPUTS[kind])
    ours, theirs = Normed(kind), Normed(kind)
    convert(ours, RULES[rule], "fp32")
    assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours.eval()(x), theirs.eval()(x))
    assert torch.equal(ours.norm.running_var, theirs.norm.running_var)


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_gradients_are_finite(
    rule: str, kind: type[nn.Module], bits: int, training: bool
) -> None:
    model = Normed(kind)
    norm = convert(model, RULES[rule], f"FW{bits}/BW8").train(training)
    x = randn(*INPUTS[kind]).requires_grad_()
    output = model(x)
    assert output.shape == x.shape
    grads = torch.autograd.grad(output, [x, norm.weight, norm.bias], randn(*x.shape, seed=2))
    assert all(g.isfinite().all() for g in (output, *grads))


def test_the_state_is_a_float_batchnorm_s(rule: str) -> None:
    model = Normed()
    convert(model, RULES[rule])
    model(randn(*INPUTS[nn.BatchNorm2d]))
    keys = set(model.state_dict()) - {"linear.act_range"}
    assert keys == set(Normed().state_dict())
    fresh = Normed()
    fresh.load_state_dict(bc.float_state_dict(model), strict=True)
    again = Normed()
    convert(again, RULES[rule])
    again.load_state_dict(model.state_dict(), strict=True)
    x = randn(*INPUTS[nn.BatchNorm2d], seed=3)
    assert torch.equal(again.eval()(x), model.eval()(x))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_computes_the_same(rule: str, duplicate) -> None:
    model = Normed()
    convert(model, RULES[rule])
    other, x = duplicate(model), randn(*INPUTS[nn.BatchNorm2d])
    assert type(other.norm) is type(model.norm)
    assert torch.equal(other(x), model(x))


def test_converting_back_restores_the_float_module(rule: str) -> None:
    model = Normed()
    convert(model, RULES[rule])
    bc.unquantize_model(model)
    assert type(model.norm) is nn.BatchNorm2d
    assert vars(model.norm).keys() == vars(Normed().norm).keys()
    assert model.norm._non_persistent_buffers_set == Normed().norm._non_persistent_buffers_set


def test_another_quantizer_brings_its_own_rule_and_bits_stay(rule: str) -> None:
    model = Normed()
    convert(model, RULES[rule], "w4a4e8")
    other = next(name for name in RULES if name != rule)
    bc.quantize_model(model, RULES[other])
    assert model.norm.rule == other
    assert str(model.norm.precision) == "w4a4e8"
    bc.quantize_model(model, SBM())
    assert type(model.norm) is nn.BatchNorm2d


def test_skip_leaves_a_norm_float_and_the_audit_says_so(rule: str) -> None:
    model = bc.quantize_model(Normed(), RULES[rule], skip=["norm"])
    assert type(model.norm) is nn.BatchNorm2d
    row = bc.audit(model)["norm"]
    assert not row.is_converted
    assert "or not chosen" in row.reason
    assert "1 of 1 products converted" in str(bc.audit(model))


def test_the_audit_names_the_rule(rule: str) -> None:
    model = Normed()
    convert(model, RULES[rule])
    row = bc.audit(model)["norm"]
    assert (row.type, row.is_converted, row.multiplies) == ("BatchNorm2d", True, False)
    assert row.reason == f"normalizes by the rule {rule!r}"


def test_other_normalizations_stay_as_they_are(rule: str) -> None:
    class Own(nn.BatchNorm2d):
        pass

    for kind in (Own, nn.SyncBatchNorm):
        model = bc.quantize_model(Normed(kind), RULES[rule])
        assert type(model.norm) is kind
        assert f"for {kind.__name__}" in bc.audit(model)["norm"].reason


def test_a_quantizer_without_a_rule_leaves_batchnorms_alone(rule: str) -> None:
    assert type(bc.quantize_model(Normed()).norm) is nn.BatchNorm2d


@pytest.mark.parametrize("options", [{"affine": False}, {"track_running_stats": False}])
def test_norms_without_parameters_or_running_statistics_work(rule: str, options: dict) -> None:
    model = Normed(**options)
    convert(model, RULES[rule])
    x = randn(*INPUTS[nn.BatchNorm2d])
    assert model(x).isfinite().all()
    assert model.eval()(x).isfinite().all()


def test_one_value_per_channel_is_an_error_as_in_torch(rule: str) -> None:
    model = Normed(nn.BatchNorm1d)
    convert(model, RULES[rule])
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(randn(1, 3))


def test_a_wrong_number_of_dimensions_is_an_error_as_in_torch(rule: str) -> None:
    model = Normed()
    convert(model, RULES[rule])
    with pytest.raises(ValueError, match="expected 4D input"):
        model(randn(4, 3))


def test_statistics_can_be_estimated_anew(rule: str) -> None:
    """`update_bn` sets momentum=None and expects the plain mean over its batches."""
    model = Normed()
    norm = convert(model, RULES[rule])
    batches = [randn(*INPUTS[nn.BatchNorm2d], seed=seed) + seed for seed in range(3)]
    update_bn(batches, model)
    expected = torch.stack([x.mean((0, 2, 3)) for x in batches]).mean(0)
    torch.testing.assert_close(norm.running_mean, expected)
    assert norm.momentum == 0.1


def test_evaluation_leaves_the_statistics(rule: str) -> None:
    model = Normed()
    norm = convert(model, RULES[rule])
    model(randn(*INPUTS[nn.BatchNorm2d]))
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    model.eval()(randn(*INPUTS[nn.BatchNorm2d], seed=3))
    assert all(torch.equal(value, before[key]) for key, value in norm.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_dtype_is_the_input_s(rule: str, dtype: torch.dtype) -> None:
    model = Normed()
    convert(model, RULES[rule])
    model = model.double() if dtype == torch.float64 else model
    assert model(randn(*INPUTS[nn.BatchNorm2d]).to(dtype)).dtype == dtype


def test_a_scheduler_drives_it_with_the_layers(rule: str) -> None:
    model = bc.quantize_model(net(), RULES[rule], kernel="simulate")
    assert isinstance(model.norm, QuantizedNorm)
    scheduler = bc.PrecisionScheduler(model, forward="CR:3-8:1", backward=8, total_steps=8)
    model(randn(4, 2, 6, 6)).sum().backward()
    scheduler.step()
    assert model.norm.precision == model.conv.precision


def test_the_cost_is_that_of_the_products(rule: str) -> None:
    x = randn(4, 2, 6, 6)
    before = bc.training_cost(bc.quantize_model(net()), x, forward=4, backward=8, total_steps=2)
    model = bc.quantize_model(net(), RULES[rule])
    after = bc.training_cost(model, x, forward=4, backward=8, total_steps=2)
    assert after.uncounted == before.uncounted
    assert after.by_layer().keys() == before.by_layer().keys()
