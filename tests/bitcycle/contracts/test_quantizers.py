"""What holds for every registered quantizer on its own."""

import copy
import dataclasses
import pickle

import pytest
import torch

import bitcycle as bc
from bitcycle.kernels import KERNELS, native
from bitcycle.precision import ROLES
from bitcycle.quantizers import QUANTIZERS, make_quantizer
from tests.bitcycle.contracts.examples import EXAMPLES
from tests.bitcycle.contracts.test_layers import fixed_error, run
from tests.bitcycle.toys import net, randn

pytestmark = pytest.mark.parametrize("name", QUANTIZERS.names())


def test_it_is_frozen_equal_to_its_copies_and_hashable(name):
    quantizer = make_quantizer(name)
    pickled = pickle.loads(pickle.dumps(quantizer))
    for other in (make_quantizer(name), copy.deepcopy(quantizer), pickled):
        assert other == quantizer
        assert hash(other) == hash(quantizer)
    for field in dataclasses.fields(quantizer):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(quantizer, field.name, None)


def test_it_has_rules_for_known_roles_and_at_least_weight_and_act(name):
    assert {"weight", "act"} <= make_quantizer(name).roles <= set(ROLES)


def test_its_integer_range_is_no_wider_than_its_bits(name):
    for bits in range(1, 17):
        ends = make_quantizer(name).integer_range(bits)
        if ends is not None:
            low, high = ends
            assert low < high
            assert high - low + 1 <= 2**bits


def products(rules, kernel, layer, bits, error):
    """Output and gradients of a single layer."""
    module = bc.quantize_model(EXAMPLES[layer].module(), rules, kernel=kernel)
    bc.set_precision(module, bc.Precision(weight=bits, act=bits, error=error))
    return run(module, EXAMPLES[layer].tensors())


def test_every_kernel_multiplies_its_operands(name, monkeypatch):
    for layer in ("torch.nn.modules.linear.Linear", "torch.nn.modules.conv.Conv2d"):
        for bits in (2, 4, 8):
            kind = QUANTIZERS[name]
            rules = kind(first_last="quantized")
            expected = products(rules, "simulate", layer, bits, bits)
            with monkeypatch.context() as patch:  # float products of the values of codes
                patch.setattr(native, "HAS_LIBRARY", False)
                actual = products(rules, "native", layer, bits, bits)  # noise is a function
            assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))

            # other kernels may lay out their results, and so number their noise, in another order
            options = {field.name for field in dataclasses.fields(kind)} & {"error_rounding"}
            rules = kind(first_last="quantized", **dict.fromkeys(options, "nearest"))
            error = None if rules.has_stochastic_error else bits
            expected = products(rules, "simulate", layer, bits, error)
            for kernel in KERNELS:
                actual = products(rules, kernel, layer, bits, error)
                for a, b in zip(actual, expected, strict=True):
                    atol = 1e-4 * b.abs().max().item()
                    assert torch.allclose(a, b, rtol=0, atol=atol), kernel


def test_its_codes_are_in_its_integer_range_and_multiply_out_to_its_values(name):
    for bits in range(1, 9):
        quantizer = make_quantizer(name)
        ends = quantizer.integer_range(bits)
        if ends is None:
            continue
        levels = torch.tensor(2**bits - 1, dtype=torch.int32)
        key = torch.tensor([5, 6], dtype=torch.int32)
        for role in quantizer.roles - {"grad"}:
            x = quantizer.prepare(role, randn(6, 5), levels)
            within = quantizer.range_of(role, x, (0,) if role == "weight" else ())
            values = quantizer.encode(role, x, levels, within, key)
            codes = quantizer.encode(role, x, levels, within, key, as_codes=True)
            assert codes.codes.dtype == torch.uint8
            assert ends[0] <= int(codes.codes.min()) <= int(codes.codes.max()) <= ends[1]
            assert torch.equal(codes.dequantize(), values.dequantize())
            assert values.dequantize().unique().numel() <= 2**bits * (
                6 if values.scale.dim() else 1
            )
            assert codes.half == 2 ** (bits - 1)


@pytest.mark.parametrize("form", ["CR:3-8:2", "plateau:3-8:window=1:patience=0"])
def test_it_trains_on_a_schedule(name, form):
    model = bc.quantize_model(net(), QUANTIZERS[name](first_last="quantized"), kernel="simulate")
    scheduler = bc.PrecisionScheduler(model, forward=form, backward=8, total_steps=16)
    for _ in range(16):
        model.zero_grad()
        model(randn(4, 2, 6, 6)).backward(randn(4, 3, seed=2))
        assert all(p.grad.isfinite().all() for p in model.parameters())
        scheduler.step(dict.fromkeys(scheduler.needs, 1.0))


def test_a_copy_of_a_whole_model_computes_the_same_and_float_weights_load(name):
    model = bc.quantize_model(net(), QUANTIZERS[name](first_last="quantized"), kernel="simulate")
    bc.set_precision(model, "FW4/BW8")
    x = randn(4, 2, 6, 6)
    model.drop.eval()
    other = copy.deepcopy(model)
    ours, theirs = model(x), other(x)
    assert torch.equal(ours, theirs)
    error = fixed_error(ours)
    ours.backward(error)
    theirs.backward(error)
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)
    net().load_state_dict(bc.float_state_dict(model), strict=True)
    bc.unquantize_model(model)
    assert [type(m) for m in model.modules()] == [type(m) for m in net().modules()]
