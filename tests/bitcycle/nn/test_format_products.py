"""Products at FP8, MX and NVFP4: each matmul reads operands in blocks of its own summed axis."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bitcycle as bc
from bitcycle.formats import round_to
from bitcycle.formats.rounding import round_blocks
from bitcycle.nn import rounding
from bitcycle.ops.noise import noise_key
from bitcycle.quantizers import FP8, MX, NVFP4, SBM, blocks

PLAIN_NVFP4 = NVFP4(error_rounding="nearest", weight_tiles=False, hadamard=False)
# quantizer, format and the options of `round_to` that give its values
RULES = {
    "mxfp8": (MX(), "mxfp8", {}),
    "mxfp4": (MX(), "mxfp4", {}),
    "mxfp6 rceil": (MX(scale="rceil"), "mxfp6", {"scale": "rceil"}),
    "nvfp4": (PLAIN_NVFP4, "nvfp4", {}),
    "fp8": (FP8(), "fp8", {}),
    "fp8 per row": (FP8(granularity="row"), "e5m2", {"granularity": "row"}),
}
rules = pytest.mark.parametrize("rule", RULES)


def converted(layer, quantizer, precision):
    bc.quantize_model(layer, quantizer)
    bc.set_precision(layer, precision)
    return layer


def both_passes(name):
    return f"FW{name}/BW{name}"


def backward(layer, x, e=None):
    """Output, error, grad_input and grad_weight of a layer."""
    x = x.clone().requires_grad_()
    y = layer(x)
    e = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)) if e is None else e
    y.backward(e)
    return y.detach(), e, x.grad, layer.weight.grad


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@rules
def test_a_linear_layer_rounds_along_features_then_outputs_then_tokens(rule):
    quantizer, name, options = RULES[rule]
    torch.manual_seed(0)
    layer, x = nn.Linear(72, 40), torch.randn(3, 17, 72)
    converted(layer, quantizer, both_passes(name))
    y, e, grad_input, grad_weight = backward(layer, x)

    def rounded(t, dim):
        return round_to(t, name, dim, **options)

    w = layer.weight.detach()
    assert_same(y, F.linear(rounded(x, -1), rounded(w, 1), layer.bias.detach()))
    assert_same(grad_input, rounded(e, -1) @ rounded(w, 0))
    tokens, errors = x.reshape(-1, 72), e.reshape(-1, 40)
    assert_same(grad_weight, rounded(errors, 0).T @ rounded(tokens, 0))
    assert_same(layer.bias.grad, e.sum((0, 1)))


@rules
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_rounds_along_channels_of_a_group_and_pixels_of_a_map(rule, groups):
    quantizer, name, options = RULES[rule]
    torch.manual_seed(0)
    layer = nn.Conv2d(80, 72, 3, stride=2, padding=1, groups=groups, bias=False)
    x = torch.randn(2, 80, 9, 7)
    converted(layer, quantizer, both_passes(name))
    y, e, grad_input, grad_weight = backward(layer, x)

    def by_channel(t):
        grouped = t.unflatten(1, (groups, -1))
        return round_to(grouped, name, 2, **options).reshape(t.shape)

    def by_pixel(t):
        return round_to(t.flatten(2), name, 2, **options).reshape(t.shape)

    w = layer.weight.detach()
    w_out = round_to(w, name, 1, **options)
    w_in = round_to(w.unflatten(0, (groups, -1)), name, 1, **options).reshape(w.shape)
    settings = {"stride": 2, "padding": 1, "groups": groups}
    assert_same(y, F.conv2d(by_channel(x), w_out, **settings))
    expected = torch.nn.grad.conv2d_input(x.shape, w_in, by_channel(e), **settings)
    assert_same(grad_input, expected)
    expected = torch.nn.grad.conv2d_weight(by_pixel(x), w.shape, by_pixel(e), **settings)
    assert_same(grad_weight, expected)


@rules
def test_a_transposed_convolution_sums_over_its_first_weight_axis(rule):
    quantizer, name, options = RULES[rule]
    torch.manual_seed(0)
    layer, x = nn.ConvTranspose1d(40, 36, 3, bias=False), torch.randn(2, 40, 11)
    converted(layer, quantizer, both_passes(name))
    y, e, grad_input, _ = backward(layer, x)
    w = layer.weight.detach()
    rounded_x = round_to(x, name, 1, **options)
    assert_same(y, F.conv_transpose1d(rounded_x, round_to(w, name, 0, **options)))
    expected = F.conv1d(round_to(e, name, 1, **options), round_to(w, name, 1, **options))
    assert_same(grad_input, expected)


@pytest.mark.parametrize(("quantizer", "name"), [(MX(), "mxfp8"), (FP8(), "fp8")])
def test_a_product_of_activations_rounds_both_along_the_summed_axis(quantizer, name):
    torch.manual_seed(0)
    layer = converted(bc.MatMul(), quantizer, both_passes(name))
    a, b = torch.randn(2, 33, 40, requires_grad=True), torch.randn(2, 40, 35, requires_grad=True)
    y = layer(a, b)
    e = torch.randn(y.shape)
    y.backward(e)
    with torch.no_grad():
        assert_same(y, round_to(a, name, -1) @ round_to(b, name, -2))
        assert_same(a.grad, round_to(e, name, -1) @ round_to(b, name, -1).mT)
        assert_same(b.grad, round_to(a, name, -2).mT @ round_to(e, name, -2))


def test_nvfp4_leaves_products_of_activations_in_bf16_unless_told_otherwise():
    torch.manual_seed(0)
    a, b = torch.randn(8, 32), torch.randn(32, 8)
    model = converted(bc.MatMul(), NVFP4(), "FWnvfp4/BWnvfp4")
    assert_same(model(a, b), a.bfloat16().float() @ b.bfloat16().float())
    assert "precision=a=bf16,e=bf16, quantizer=NVFP4" in repr(model)
    model = converted(bc.MatMul(), NVFP4(attention="nvfp4"), "FWnvfp4/BWnvfp4")
    assert_same(model(a, b), round_to(a, "nvfp4", -1) @ round_to(b, "nvfp4", 0))


def test_nvfp4_multiplies_one_weight_forward_and_backward():
    torch.manual_seed(0)
    layer = converted(nn.Linear(48, 40, bias=False), NVFP4(), "w=nvfp4")
    x = torch.eye(48)
    forward = layer(x).detach().T  # the weight that output multiplies
    _, e, grad_input, _ = backward(layer, x)
    assert_same(grad_input, e @ forward)
    assert not torch.equal(forward, layer.weight.detach())
    tiles = forward.abs().unfold(0, 16, 16).unfold(1, 16, 16).flatten(0, 1)  # 16 x 16 each
    assert max(len(tile.unique()) for tile in tiles) <= 8  # one scale times the values of e2m1


def test_the_hadamard_transform_changes_grad_weight_only_by_rounding():
    torch.manual_seed(0)
    x = torch.randn(37, 24)
    outlier = x.clone()
    outlier[5] *= 50
    for inputs in (x, outlier):
        exact = backward(nn.Linear(24, 16), inputs)
        torch.manual_seed(1)
        layers = [
            converted(nn.Linear(24, 16), NVFP4(error_rounding="nearest", hadamard=h), "e=nvfp4")
            for h in (True, False)
        ]
        e = exact[1]
        with_it, without = (backward(layer, inputs)[3] for layer in layers)
        expected = e.T @ inputs
        assert not torch.equal(with_it, without)
        for found in (with_it, without):
            assert (found - expected).norm() < 0.2 * expected.norm()


def test_errors_of_nvfp4_are_rounded_stochastically_and_independently_for_both_products():
    torch.manual_seed(0)
    x, e, rounds = torch.randn(20, 32), torch.rand(20, 32) * 2 - 1, 300
    e[::16], e[:, ::16] = 1.0, 1.0  # every block reaches the scale's maximum: nothing is clipped
    layer = converted(nn.Linear(32, 32, bias=False), NVFP4(hadamard=False), "e=nvfp4")
    float_layer = nn.Linear(32, 32, bias=False)
    float_layer.load_state_dict(bc.float_state_dict(layer))
    _, _, exact_input, exact_weight = backward(float_layer, x, e)
    inputs, weights = [], []
    for _ in range(rounds):
        layer.zero_grad()
        _, _, grad_input, grad_weight = backward(layer, x, e)
        inputs.append(grad_input)
        weights.append(grad_weight.clone())
    assert not torch.equal(inputs[0], inputs[1])
    for found, exact in ((inputs, exact_input), (weights, exact_weight)):
        stack = torch.stack(found)
        spread = stack.std(0).mean() / rounds**0.5
        assert (stack.mean(0) - exact).abs().mean() < spread  # 0.8 of it for an unbiased mean


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_rounds_the_hidden_state_at_every_step(make):
    torch.manual_seed(0)
    layer, x = make(40, 36), torch.randn(4, 3, 40, requires_grad=True)
    reference = make(40, 36)
    reference.load_state_dict(layer.state_dict())
    converted(layer, MX(), "FWmxfp8/BWmxfp8")
    y, _ = layer(x)
    y.square().sum().backward()
    with torch.no_grad():
        w_ih, w_hh = (round_to(w, "mxfp8", 1) for w in (layer.weight_ih_l0, layer.weight_hh_l0))
        reference.weight_ih_l0.copy_(w_ih)
        reference.weight_hh_l0.copy_(w_hh)
        state, outputs = None, []
        for step in round_to(x, "mxfp8", -1):
            out, state = reference(step[None], state)
            outputs.append(out)
            hidden = state[0] if isinstance(state, tuple) else state
            rounded = round_to(hidden, "mxfp8", -1)
            state = (rounded, state[1]) if isinstance(state, tuple) else rounded
        if make is not nn.GRU:  # a GRU adds its unrounded state, too
            assert_same(y, torch.cat(outputs))
    exact = make(40, 36)
    exact.load_state_dict(bc.float_state_dict(layer))
    x2 = x.detach().clone().requires_grad_()
    exact(x2)[0].square().sum().backward()
    assert (x.grad - x2.grad).norm() < 0.15 * x2.grad.norm()
    for name, parameter in exact.named_parameters():
        found = getattr(layer, name).grad
        assert (found - parameter.grad).norm() < 0.15 * parameter.grad.norm(), name


@pytest.mark.parametrize("quantizer", ["sbm", "dorefa", "wageubn", "absmax", "sbm_full"])
@pytest.mark.parametrize("kernel", ["simulate", "native", "bf16"])
def test_quantizers_of_integers_take_bf16_and_fp16(quantizer, kernel):
    torch.manual_seed(0)
    layer, x = nn.Linear(24, 16), torch.randn(9, 24)
    options = {"first_last": "quantized"}
    rule = bc.quantizers.QUANTIZERS[quantizer](**options)
    bc.quantize_model(layer, rule, kernel=kernel)
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        layer.zero_grad()
        bc.set_precision(layer, name)
        y, e, grad_input, grad_weight = backward(layer, x)

        def cast(t, dtype=dtype):
            return t.to(dtype).float()

        w = layer.weight.detach()
        tolerance = {"rtol": 1e-5, "atol": 1e-5}
        if dtype == torch.bfloat16 and layer.kernel.takes_bf16:
            tolerance = {"rtol": 2**-7, "atol": 2**-7}  # results have 8 bits
        assert_close = torch.testing.assert_close
        assert_close(y, F.linear(cast(x), cast(w), layer.bias.detach()), **tolerance)
        assert_close(grad_input, cast(e) @ cast(w), **tolerance)
        expected = cast(e).T @ cast(x)
        if "grad" in rule.roles:
            expected = cast(expected)
            tolerance = {"rtol": 2**-7, "atol": 1e-4}
        assert_close(grad_weight, expected, **tolerance)


def test_a_quantizer_without_a_rule_for_a_format_names_the_one_that_has():
    layer = bc.quantize_model(nn.Linear(4, 4))
    for name, quantizer in (("nvfp4", "nvfp4"), ("mxfp8", "mx"), ("fp8", "fp8")):
        with pytest.raises(ValueError, match=f"quantizer='{quantizer}'"):
            bc.set_precision(layer, both_passes(name))
    assert str(bc.get_precision(layer)) == "fp32"
    layer = bc.quantize_model(nn.Linear(4, 4), "nvfp4")
    with pytest.raises(ValueError, match="NVFP4.*mxfp4"):
        bc.set_precision(layer, "mxfp4")


@pytest.mark.parametrize("quantizer", ["fp8", "mx", "nvfp4"])
def test_block_quantizers_take_integers_with_one_range_per_tensor(quantizer):
    torch.manual_seed(0)
    layer, x = nn.Linear(24, 16, bias=False), torch.randn(9, 24)
    rule = bc.quantizers.QUANTIZERS[quantizer](error_rounding="nearest")
    converted(layer, rule, "FW6/BW8")
    y, e, grad_input, grad_weight = backward(layer, x)

    def on_grid(t, bits):
        sbm = SBM(error_rounding="nearest")
        within = (t.min(), t.max())
        return sbm.encode("act", t, torch.tensor(2**bits - 1), within).dequantize()

    w = layer.weight.detach()
    assert_same(y, F.linear(on_grid(x, 6), on_grid(w, 6)))
    assert_same(grad_input, on_grid(e, 8) @ on_grid(w, 6))
    assert_same(grad_weight, on_grid(e, 8).T @ on_grid(x, 6))


def test_roles_may_have_formats_of_different_kinds():
    torch.manual_seed(0)
    layer, x = nn.Linear(48, 32, bias=False), torch.randn(9, 48)
    converted(layer, PLAIN_NVFP4, "w=nvfp4,a=bf16,e=8")
    y, e, grad_input, grad_weight = backward(layer, x)
    w, a = layer.weight.detach(), x.bfloat16().float()
    assert_same(y, a @ round_to(w, "nvfp4", 1).T)
    on_grid = round_to(e, 8)
    assert_same(grad_input, on_grid @ round_to(w, "nvfp4", 0))
    assert_same(grad_weight, on_grid.T @ a)


@pytest.mark.parametrize("quantizer", ["fp8", "mx", "nvfp4"])
def test_a_nonfinite_input_is_found(quantizer):
    name = {"fp8": "fp8", "mx": "mxfp8", "nvfp4": "nvfp4"}[quantizer]
    layer = converted(nn.Linear(32, 8), quantizer, both_passes(name))
    x = torch.randn(4, 32)
    x[1, 3] = float("inf")
    layer(x)
    assert layer.health.isnan().tolist() == [False, True, False, False]


@pytest.mark.parametrize("quantizer", ["fp8", "mx", "nvfp4"])
def test_half_precision_models_keep_their_dtype(quantizer):
    name = {"fp8": "fp8", "mx": "mxfp8", "nvfp4": "nvfp4"}[quantizer]
    layer = nn.Linear(32, 8).bfloat16()
    converted(layer, quantizer, both_passes(name))
    x = torch.randn(4, 32, dtype=torch.bfloat16, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert {y.dtype, x.grad.dtype, layer.weight.grad.dtype} == {torch.bfloat16}


def noise_keys(monkeypatch, model, *inputs):
    """The keys of all stochastic roundings in a step."""
    keys = []

    def spy(clock):
        keys.append(tuple(clock.tolist()))
        return noise_key(clock)

    monkeypatch.setattr(rounding, "noise_key", spy)
    output = model(*inputs)
    (output[0] if isinstance(output, tuple) else output).sum().backward()
    return keys


@pytest.mark.parametrize("make", [nn.LSTM, nn.MultiheadAttention])
def test_every_rounding_of_a_step_has_noise_of_its_own(make, monkeypatch):
    is_lstm = make is nn.LSTM
    model = nn.LSTM(32, 32, bidirectional=True) if is_lstm else nn.MultiheadAttention(32, 2)
    converted(model, NVFP4(attention="nvfp4"), "FWnvfp4/BWnvfp4")
    x = torch.randn(4, 5, 32, requires_grad=True)
    keys = noise_keys(monkeypatch, model, *([x] if is_lstm else [x, x, x]))
    assert len(keys) > 8
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "precision", ["w=nvfp4,a=nvfp4", "e=bf16", "a=bf16,e=nvfp4", "w=nvfp4,e=8"]
)
def test_models_of_float64_mix_formats_and_float(precision):
    layer = nn.Linear(32, 8).double()
    converted(layer, NVFP4(), precision)
    x = torch.randn(5, 32, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert {y.dtype, x.grad.dtype, layer.weight.grad.dtype} == {torch.float64}


@pytest.mark.parametrize("quantizer", ["sbm", "nvfp4"])
def test_the_nonfinite_check_works_at_bf16(quantizer):
    layer = converted(nn.Linear(4, 4), quantizer, "bf16")
    x = torch.full((2, 4), float("nan"), requires_grad=True)
    layer(x)
    assert layer.health.isnan().tolist() == [False, True, False, False]
    layer.health.zero_()
    with torch.no_grad():
        layer.weight[0, 0] = float("inf")
    layer(torch.ones(2, 4))
    assert layer.health.isnan().tolist() == [True, False, False, False]
    layer.health.zero_()
    with torch.no_grad():
        layer.weight[0, 0] = 1.0
    layer(torch.ones(2, 4)).backward(torch.full((2, 4), float("inf")))
    assert layer.health.isnan().tolist() == [False, False, True, False]


@pytest.mark.parametrize("quantizer", ["sbm", "nvfp4"])
def test_errors_at_bf16_are_collected(quantizer):
    layer = converted(nn.Linear(4, 4), quantizer, "bf16")
    with bc.collect(layer) as stats:
        layer(torch.randn(3, 4)).square().sum().backward()
    norms = stats.gradient_noise()
    assert 0 < norms["noise_norm"] < 2**-7 * norms["gradient_norm"]


@pytest.mark.parametrize(
    ("quantizer", "name"), [(NVFP4(), "nvfp4"), (FP8(granularity="block"), "fp8"), (MX(), "mxfp4")]
)
def test_a_tied_embedding_reads_the_values_of_its_decoder(quantizer, name):
    torch.manual_seed(0)
    embedding, decoder = nn.Embedding(40, 48), nn.Linear(48, 40, bias=False)
    decoder.weight = embedding.weight
    model = nn.Sequential(embedding, decoder)
    bc.quantize_model(model, quantizer, only=["0", "1"])
    bc.set_precision(model, f"w={name}")
    rows = model[0](torch.arange(40))
    assert_same(model[1](torch.eye(48)).T, rows)


def test_an_input_without_gradient_is_not_rounded_for(monkeypatch):
    calls = []

    def spy(x, *args, **options):
        calls.append(options["dims"])
        return round_blocks(x, *args, **options)

    monkeypatch.setattr(blocks, "round_blocks", spy)
    layer = converted(nn.Linear(32, 8), MX(), "FWmxfp8/BWmxfp8")
    layer(torch.randn(4, 32)).sum().backward()
    assert calls == [(1,), (1,), (0,), (0,)]  # input, weight; error and input by token


def test_auto_waits_for_integers_or_bf16_before_it_chooses_a_kernel():
    layer = bc.quantize_model(nn.Linear(512, 512))
    bc.set_precision(layer, "fp16")
    x = torch.randn(64, 512)
    layer(x).sum().backward()
    assert layer.decision is None
    assert layer.kernel.is_undecided
    bc.set_precision(layer, "w8a8e8")
    layer(x).sum().backward()
    assert layer.decision.is_final
    assert not layer.kernel.is_undecided
