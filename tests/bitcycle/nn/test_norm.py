"""BatchNorms under a rule: swap, state and copies; both rules by their formulas."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

import bitcycle as bc
from bitcycle.nn.norm import QuantizedNorm, num_chunks, range_factor, range_scale
from bitcycle.quantizers import SBM, WAGEUBN, SBMFull
from bitcycle.quantizers.wageubn import activation_error

from ..toys import net, randn
from .norms import INPUTS, Normed, convert

RULES = {"range": SBMFull(), "grid": WAGEUBN(first_last="quantized")}
every_rule = pytest.mark.parametrize("rule", sorted(RULES))


@every_rule
def test_full_precision_is_bit_identical(rule: str) -> None:
    for kind in INPUTS:
        x = randn(*INPUTS[kind])
        ours, theirs = Normed(kind), Normed(kind)
        convert(ours, RULES[rule], "fp32")
        assert torch.equal(ours(x), theirs(x))
        assert torch.equal(ours.eval()(x), theirs.eval()(x))
        assert torch.equal(ours.norm.running_var, theirs.norm.running_var)


@every_rule
def test_outputs_and_gradients_are_finite(rule: str) -> None:
    for kind in INPUTS:
        for bits in (2, 4, 8):
            for training in (True, False):
                model = Normed(kind)
                norm = convert(model, RULES[rule], f"FW{bits}/BW8")
                x = randn(*INPUTS[kind]).requires_grad_()
                model(x)  # Range BN observes the range of its input
                norm.train(training)
                output = model(x)
                assert output.shape == x.shape
                grads = torch.autograd.grad(
                    output, [x, norm.weight, norm.bias], randn(*x.shape, seed=2)
                )
                assert all(g.isfinite().all() for g in (output, *grads))


@every_rule
def test_the_state_is_a_float_batchnorm_s(rule: str) -> None:
    model = Normed()
    convert(model, RULES[rule])
    model(randn(*INPUTS[nn.BatchNorm2d]))
    ranges = {"linear.act_range"} | ({"norm.act_range"} if rule == "range" else set())
    assert set(model.state_dict()) == set(Normed().state_dict()) | ranges
    fresh = Normed()
    fresh.load_state_dict(bc.float_state_dict(model), strict=True)
    again = Normed()
    convert(again, RULES[rule])
    again.load_state_dict(model.state_dict(), strict=True)
    x = randn(*INPUTS[nn.BatchNorm2d], seed=3)
    assert torch.equal(again.eval()(x), model.eval()(x))


@every_rule
def test_a_copy_computes_the_same(rule: str) -> None:
    for duplicate in (copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))):
        model = Normed()
        convert(model, RULES[rule])
        other, x = duplicate(model), randn(*INPUTS[nn.BatchNorm2d])
        assert type(other.norm) is type(model.norm)
        assert torch.equal(other(x), model(x))


@every_rule
def test_converting_back_restores_the_float_module(rule: str) -> None:
    model = Normed()
    convert(model, RULES[rule])
    bc.unquantize_model(model)
    assert type(model.norm) is nn.BatchNorm2d
    assert vars(model.norm).keys() == vars(Normed().norm).keys()
    assert model.norm._non_persistent_buffers_set == Normed().norm._non_persistent_buffers_set


@every_rule
def test_another_quantizer_brings_its_own_rule_and_bits_stay(rule: str) -> None:
    model = Normed()
    convert(model, RULES[rule], "w4a4e8")
    other = next(name for name in RULES if name != rule)
    bc.quantize_model(model, RULES[other])
    assert model.norm.rule == other
    assert str(model.norm.precision) == "w4a4e8"
    bc.quantize_model(model, SBM())
    assert type(model.norm) is nn.BatchNorm2d


@every_rule
def test_skip_leaves_a_norm_float_and_the_audit_says_so(rule: str) -> None:
    model = bc.quantize_model(Normed(), RULES[rule], skip=["norm"])
    assert type(model.norm) is nn.BatchNorm2d
    row = bc.audit(model)["norm"]
    assert not row.is_converted
    assert "or not chosen" in row.reason
    assert "1 of 1 modules that multiply are converted" in str(bc.audit(model))


@every_rule
def test_other_normalizations_stay_as_they_are(rule: str) -> None:
    class Own(nn.BatchNorm2d):
        pass

    for kind in (Own, nn.SyncBatchNorm):
        model = bc.quantize_model(Normed(kind), RULES[rule])
        assert type(model.norm) is kind
        assert f"for {kind.__name__}" in bc.audit(model)["norm"].reason


def test_a_quantizer_without_a_rule_leaves_batchnorms_alone() -> None:
    assert type(bc.quantize_model(Normed()).norm) is nn.BatchNorm2d


@every_rule
def test_norms_without_parameters_or_running_statistics_work(rule: str) -> None:
    for options in ({"affine": False}, {"track_running_stats": False}):
        model = Normed(**options)
        convert(model, RULES[rule])
        x = randn(*INPUTS[nn.BatchNorm2d])
        assert model(x).isfinite().all()
        assert model.eval()(x).isfinite().all()


@every_rule
def test_one_value_per_channel_is_an_error_as_in_torch(rule: str) -> None:
    model = Normed(nn.BatchNorm1d)
    convert(model, RULES[rule])
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(randn(1, 3))


@every_rule
def test_a_wrong_number_of_dimensions_is_an_error_as_in_torch(rule: str) -> None:
    model = Normed()
    convert(model, RULES[rule])
    with pytest.raises(ValueError, match="expected 4D input"):
        model(randn(4, 3))


@every_rule
def test_statistics_can_be_estimated_anew(rule: str) -> None:
    """`update_bn` sets momentum=None and expects the plain mean over its batches."""
    model = Normed()
    norm = convert(model, RULES[rule], "w8e8")  # no rounding of the input
    batches = [randn(*INPUTS[nn.BatchNorm2d], seed=seed) + seed for seed in range(3)]
    update_bn(batches, model)
    expected = torch.stack([x.mean((0, 2, 3)) for x in batches]).mean(0)
    torch.testing.assert_close(norm.running_mean, expected)
    assert norm.momentum == 0.1


@every_rule
def test_evaluation_leaves_the_statistics(rule: str) -> None:
    model = Normed()
    norm = convert(model, RULES[rule])
    model(randn(*INPUTS[nn.BatchNorm2d]))
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    model.eval()(randn(*INPUTS[nn.BatchNorm2d], seed=3))
    assert all(torch.equal(value, before[key]) for key, value in norm.state_dict().items())


@every_rule
def test_the_dtype_is_the_input_s(rule: str) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        model = Normed()
        convert(model, RULES[rule])
        model = model.double() if dtype == torch.float64 else model
        assert model(randn(*INPUTS[nn.BatchNorm2d]).to(dtype)).dtype == dtype


@every_rule
def test_a_scheduler_drives_it_with_the_layers(rule: str) -> None:
    model = bc.quantize_model(net(), RULES[rule], kernel="simulate")
    assert isinstance(model.norm, QuantizedNorm)
    scheduler = bc.PrecisionScheduler(model, forward="CR:3-8:1", backward=8, total_steps=8)
    model(randn(4, 2, 6, 6)).sum().backward()
    scheduler.step()
    assert model.norm.precision == model.conv.precision


GRID = WAGEUBN(first_last="quantized")
SHAPE = (1, 3, 1, 1)


def q(x: torch.Tensor, bits: int) -> torch.Tensor:
    return torch.round(x * 2 ** (bits - 1)) / 2 ** (bits - 1)


def test_the_output_is_the_formula_s_at_8_bits() -> None:
    model = Normed()
    norm = convert(model, GRID)
    x = 2 * randn(4, 3, 4, 2) + 1
    var, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    normal = q((x - q(mean, 16).view(SHAPE)) / q((var + 1e-5).sqrt(), 16).view(SHAPE), 8)
    expected = q(norm.weight, 8).view(SHAPE) * normal + q(norm.bias, 8).view(SHAPE)
    assert torch.equal(model(x), expected)
    # evaluation: the same with running statistics, which move as a float BatchNorm's
    fresh = Normed()
    fresh(x)
    torch.testing.assert_close(norm.running_mean, fresh.norm.running_mean)
    torch.testing.assert_close(norm.running_var, fresh.norm.running_var)
    mean, std = q(norm.running_mean, 16), q((norm.running_var + 1e-5).sqrt(), 16)
    normal = q((x - mean.view(SHAPE)) / std.view(SHAPE), 8)
    expected = q(norm.weight, 8).view(SHAPE) * normal + q(norm.bias, 8).view(SHAPE)
    assert torch.equal(model.eval()(x), expected)


def test_bits_of_a_role_touch_only_its_quantities() -> None:
    x = randn(4, 3, 4, 2)
    float_output = Normed()(x)
    by_weight, by_act = Normed(), Normed()
    norm = convert(by_weight, GRID, "w3")
    convert(by_act, GRID, "a3")
    plain = (float_output - Normed().norm.bias.view(SHAPE)) / Normed().norm.weight.view(SHAPE)
    expected = plain * q(norm.weight, 3).view(SHAPE) + q(norm.bias, 3).view(SHAPE)
    torch.testing.assert_close(by_weight(x), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(by_act(x), float_output, atol=1e-3)


def test_the_arriving_error_is_rounded_and_the_rest_is_straight_through() -> None:
    x, e = randn(4, 3, 4, 2), randn(4, 3, 4, 2, seed=2)
    model, theirs = Normed(), Normed()
    norm = convert(model, GRID, "e4")
    model(x).backward(e)
    rounded = activation_error(e, torch.tensor(15), e.abs().max())
    theirs(x).backward(rounded)
    torch.testing.assert_close(norm.weight.grad, theirs.norm.weight.grad)
    torch.testing.assert_close(norm.bias.grad, theirs.norm.bias.grad)

    leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    model, theirs = Normed(), Normed()
    convert(model, GRID, "w16a16")  # fine grids: close to the float gradient
    model(leaf).backward(e)
    theirs(other).backward(e)
    torch.testing.assert_close(leaf.grad, other.grad, rtol=1e-2, atol=1e-3)


def test_a_constant_channel_stays_finite_at_every_width() -> None:
    for bits in (2, 4, 8):
        model = Normed(eps=1e-12)
        convert(model, GRID, f"FW{bits}/BW{bits}")
        x = torch.full((4, 3, 4, 2), 0.3, requires_grad=True)
        output = model(x)
        output.sum().backward()
        assert output.isfinite().all()
        assert x.grad.isfinite().all()


def test_the_constant_has_its_published_values() -> None:
    for m, k in ((8192, 0.12725), (2048, 0.13834), (512, 0.15294)):
        assert range_factor(m) == pytest.approx(k, abs=5e-6)  # the specification's check values


def test_chunks_divide_the_values_and_hold_two_or_more() -> None:
    for n, chunks in (
        (16 * 512, 16),
        (48, 16),
        (24, 12),
        (30, 15),
        (17, 1),
        (16, 8),
        (3, 1),
        (2, 1),
    ):
        assert num_chunks(n) == chunks


def test_the_scale_is_the_mean_range_of_16_chunks_in_order() -> None:
    x = randn(8, 2, 4, 2)
    for c in range(2):
        values = x[:, c].flatten().tolist()  # sample by sample
        chunks = [values[i : i + 4] for i in range(0, 64, 4)]
        spread = sum(max(chunk) for chunk in chunks) / 16 - sum(min(chunk) for chunk in chunks) / 16
        expected = spread * 0.5 * 0.35 * (1 + math.sqrt(math.pi * math.log(4)))
        expected /= math.sqrt(2 * math.log(4))
        assert range_scale(x)[c].item() == pytest.approx(expected, rel=1e-5)


def test_the_output_and_its_gradient_are_the_formula_s_at_fine_grids() -> None:
    model = Normed()
    norm = convert(model, precision="w20")  # only gamma and beta, on 20 bits
    x = randn(4, 3, 4, 2).requires_grad_()
    e = randn(4, 3, 4, 2, seed=2)
    shape = (1, 3, 1, 1)
    mean = x.mean((0, 2, 3), keepdim=True)
    expected = norm.weight.view(shape) * (x - mean) / (range_scale(x).view(shape) + 1e-5)
    expected = expected + norm.bias.view(shape)
    output = model(x)
    torch.testing.assert_close(output, expected)
    theirs = torch.autograd.grad(expected, x, e)
    torch.testing.assert_close(torch.autograd.grad(output, x, e), theirs)


def on_grid(x: torch.Tensor, bits: int, low: float, high: float) -> torch.Tensor:
    step = (high - low) / (2**bits - 1)
    return torch.round((x.clamp(low, high) - low) / step) * step + low


def over_all(x: torch.Tensor, bits: int) -> torch.Tensor:
    return on_grid(x, bits, x.min().item(), x.max().item())


@pytest.mark.parametrize("bits", [3, 8])
def test_input_deviation_and_parameters_are_on_grids_and_the_error_too(bits: int) -> None:
    rules = SBMFull(error_rounding="nearest")
    model = Normed()
    norm = convert(model, rules, f"FW{bits}/BW4")
    x, e = (3 * randn(4, 3, 4, 2) + 2).requires_grad_(), randn(4, 3, 4, 2, seed=2)
    samples = x.detach().flatten(1)
    low, high = float(samples.amin(1).mean()), float(samples.amax(1).mean())
    leaf = on_grid(x.detach(), bits, low, high).requires_grad_()
    factor = 1 / (range_scale(leaf) + 1e-5)
    factor = factor + (over_all(factor, bits) - factor).detach()  # straight through
    gamma, beta = over_all(norm.weight.detach(), bits), over_all(norm.bias.detach(), bits)
    plain = (leaf - leaf.mean((0, 2, 3), keepdim=True)) * factor.view(SHAPE)
    expected = gamma.view(SHAPE) * plain + beta.view(SHAPE)
    output = model(x)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
    found = torch.autograd.grad(output, [x, norm.weight, norm.bias], e)
    rounded = over_all(e, 4)
    (theirs,) = torch.autograd.grad(expected, leaf, rounded)
    torch.testing.assert_close(found[0], theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        found[1], (rounded * plain.detach()).sum((0, 2, 3)), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(found[2], rounded.sum((0, 2, 3)), rtol=1e-4, atol=1e-4)


def test_bits_of_a_role_round_only_its_part_of_range_bn() -> None:
    x = randn(4, 3, 4, 2)
    outputs = {}
    for text in ("w20", "w2", "a2", "e2"):
        model = Normed()
        convert(model, precision=text)
        outputs[text] = model(x).detach()
    assert not torch.allclose(outputs["w2"], outputs["w20"], atol=1e-2)
    assert not torch.allclose(outputs["a2"], outputs["w20"], atol=1e-2)
    torch.testing.assert_close(outputs["e2"], outputs["w20"])  # errors are of the backward pass


def test_the_error_of_range_bn_is_rounded_stochastically_without_bias() -> None:
    model = Normed(affine=False)
    convert(model, precision="e3")
    x, e = randn(4, 3, 4, 2), randn(4, 3, 4, 2, seed=2)
    reference = x.clone().requires_grad_()
    scale = range_scale(reference).view(SHAPE) + 1e-5
    ((reference - reference.mean((0, 2, 3), keepdim=True)) / scale).backward(e)
    found = []
    for _ in range(400):
        leaf = x.clone().requires_grad_()
        model(leaf).backward(e)
        found.append(leaf.grad)
    stack = torch.stack(found)
    assert not torch.equal(stack[0], stack[1])
    # six standard errors; the mean of 400 unbiased values is off by 0.8 of one on average
    spread = stack.std(0) / 20
    assert ((stack.mean(0) - reference.grad).abs() < 6 * spread + 1e-6).float().mean() > 0.98


def test_range_bn_evaluates_with_the_running_range_of_its_input() -> None:
    """0.1 old + 0.9 new, from the first batch on: an outlier is clipped in evaluation."""
    model = Normed()
    norm = convert(model)
    batches = [randn(4, 3, 4, 2, seed=seed) * (1 + seed) for seed in range(2)]
    for x in batches:
        model(x)
    lows = [x.flatten(1).amin(1).mean() for x in batches]
    highs = [x.flatten(1).amax(1).mean() for x in batches]
    low = 0.1 * lows[0] + 0.9 * lows[1]
    spread = 0.1 * (highs[0] - lows[0]) + 0.9 * (highs[1] - lows[1])
    torch.testing.assert_close(norm.act_range[0], torch.stack([torch.tensor(2.0), low, spread]))
    model.eval()
    y = randn(4, 3, 4, 2, seed=5)
    far, further = y.clone(), y.clone()
    far[0, 0, 0, 0], further[0, 0, 0, 0] = 50.0, 500.0
    assert torch.equal(model(far), model(further))


def test_calibration_observes_the_input_of_range_bn_at_any_bits() -> None:
    for text in ("fp32", "FW8/BW8"):
        model = bc.quantize_model(net(), SBMFull(), kernel="simulate")
        bc.set_precision(model, text)
        assert bc.audit(model)["norm"].is_observed is False
        bc.calibrate(model, [randn(4, 2, 6, 6)])
        assert bc.audit(model)["norm"].is_observed


def test_running_statistics_move_by_nine_tenths_and_are_what_evaluation_uses() -> None:
    model = Normed()
    norm = convert(model, precision="w20")
    x = 3 * randn(4, 3, 4, 2) + 2
    model(x)
    mean, scale = 0.9 * x.mean((0, 2, 3)), 0.1 + 0.9 * range_scale(x)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, scale**2)  # a variance, as float models read it
    shape = (1, 3, 1, 1)
    y = randn(2, 3, 4, 2, seed=5)
    expected = norm.weight.view(shape) * (y - mean.view(shape)) / (scale.view(shape) + 1e-5)
    torch.testing.assert_close(model.eval()(y), expected + norm.bias.view(shape))
