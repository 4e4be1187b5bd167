"""What holds for every layer and for every quantizer: new ones are held to it too."""

import copy
import itertools
import pickle

import pytest
import torch

import bitcycle as bc
from bitcycle.nn import LAYERS, QuantizedLayer
from bitcycle.quantizers import QUANTIZERS
from tests.bitcycle.contracts.examples import EXAMPLES, first_result, map_floats, naming

BITS = ["fp32", "w2a2e2g2", "w4a4e4g4", "w8a8e8g8"]

# every quantizer on every layer, a case per kind of layer
KINDS = {
    "torch.nn.modules.conv.": "convolutions", "torch.nn.modules.rnn.": "recurrent",
    "torch.nn.modules.activation.": "attention", "torch_geometric.": "graphs",
    "transformers.": "transformers",
}  # fmt: skip
LAYERS_OF: dict[str, list[str]] = {}
for _name in LAYERS.names():
    _kind = next((kind for prefix, kind in KINDS.items() if _name.startswith(prefix)), "products")
    LAYERS_OF.setdefault(_kind, []).append(_name)


def every_pair(test):
    """The test of a layer and a quantizer, for every quantizer and every layer of a kind."""

    @pytest.mark.parametrize("quantizer", QUANTIZERS.names())
    @pytest.mark.parametrize("kind", LAYERS_OF)
    def of_all(kind, quantizer):
        for layer in LAYERS_OF[kind]:
            with naming(layer):
                test(layer, quantizer)

    of_all.__doc__ = test.__doc__
    return of_all


every_layer = pytest.mark.parametrize("layer", LAYERS.names())


def rules_of(quantizer):
    """A single layer is first and last, and may be all about edges."""
    return QUANTIZERS[quantizer](first_last="quantized", aggregation="quantized")


def converted(layer, quantizer="sbm", precision="fp32"):
    assert layer in EXAMPLES, f"add {layer} to tests/bitcycle/contracts/examples.py"
    module = bc.quantize_model(EXAMPLES[layer].module(), rules_of(quantizer))
    bc.set_precision(module, precision)
    return module


def run(module, tensors):
    """The output, and the gradients of inputs and parameters for a fixed error."""
    output = first_result(module, tensors)
    gradients = torch.autograd.grad(output, leaves(module, tensors), fixed_error(output))
    return [output, *gradients]


def leaves(module, tensors):
    return [*(x for x in tensors if x.requires_grad), *module.parameters()]


def fixed_error(output):
    return torch.randn(output.shape, generator=torch.Generator().manual_seed(2))


def equal(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@every_pair
def test_shapes_are_the_float_layers_and_values_are_finite(layer, quantizer):
    example = EXAMPLES[layer]
    module, tensors = converted(layer, quantizer), example.tensors()
    for precision in BITS:
        bc.set_precision(module, precision)
        for training in (True, False):  # the first observes a range for the second
            results = run(module.train(training), tensors)
            assert tuple(results[0].shape) == example.output
            for value, like in zip(results[1:], leaves(module, tensors), strict=True):
                assert value.shape == like.shape
                assert value.dtype == like.dtype
            finite = [bool(value.isfinite().all()) for value in results]
            assert all(finite), (precision, training)


@every_pair
def test_full_precision_is_the_float_layer_and_every_width_has_products_of_its_own(
    layer, quantizer
):
    tensors = EXAMPLES[layer].tensors()
    results = [run(converted(layer, quantizer, precision), tensors) for precision in BITS]
    float_module = EXAMPLES[layer].module()
    assert equal(results[0], run(float_module, tensors))
    names = [name for name, _ in float_module.named_parameters()]
    names = [*["product"] * (len(results[0]) - len(names)), *names]
    for ours, theirs in itertools.combinations(results, 2):
        for name, a, b, exact in zip(names, ours, theirs, results[0], strict=True):
            # a bias and its error are float32, and a first state of zeros makes the gradient of
            # its weight zero at every width
            if name.rpartition(".")[2] != "bias" and exact.any():
                assert not torch.equal(a, b), name


@every_layer
def test_without_bits_nothing_is_written_and_nothing_differs_from_the_float_layer(layer):
    tensors, float_module = EXAMPLES[layer].tensors(), EXAMPLES[layer].module()
    module = bc.quantize_model(EXAMPLES[layer].module(), rules_of("sbm"))
    before = [(buffer, buffer._version) for buffer in module.buffers()]
    for training in (True, False):
        expected = run(float_module.train(training), tensors)
        assert equal(run(module.train(training), tensors), expected)
        assert [(buffer, buffer._version) for buffer in module.buffers()] == before
    bc.set_precision(module, BITS[1])
    module.train()(*tensors)
    bc.set_precision(module, "w24a32e24")  # again after bits: 24 and more are float32
    assert equal(run(module, tensors), run(float_module.train(), tensors))
    if ".rnn." not in layer:  # torch's own have no bfloat16 on some processors
        with torch.autocast("cpu", torch.bfloat16):
            ours, theirs = (first_result(m, tensors) for m in (module, float_module))
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@every_pair
def test_a_constant_input_is_handled(layer, quantizer):
    module = converted(layer, quantizer, BITS[2])
    tensors = map_floats(
        lambda x: torch.full_like(x, 0.5).requires_grad_(), EXAMPLES[layer].tensors()
    )
    assert all(value.isfinite().all() for value in run(module, tensors))


@every_layer
def test_a_state_dict_has_the_float_keys_and_the_ranges_and_keeps_the_evaluation(layer):
    module, tensors = converted(layer, precision=BITS[2]), EXAMPLES[layer].tensors()
    assert list(bc.float_state_dict(module)) == list(EXAMPLES[layer].module().state_dict())
    ranges = set(module.state_dict()) - set(bc.float_state_dict(module))
    assert {key.rpartition(".")[2] for key in ranges} <= {"act_range"}
    kept = [m for m in module.modules() if isinstance(m, QuantizedLayer) and m.num_act_inputs]
    assert len(ranges) == len(kept)
    module(*tensors)
    other = converted(layer, precision=BITS[2])
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    other.load_state_dict(module.state_dict(), strict=True)
    beyond = map_floats(lambda x: 3 * x, tensors)  # clipped by the saved range, where there is one
    assert torch.equal(first_result(other.eval(), beyond), first_result(module.eval(), beyond))


@every_layer
def test_a_copy_computes_the_same(layer):
    module, tensors = converted(layer, precision=BITS[2]), EXAMPLES[layer].tensors()
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    expected = run(module, tensors)
    for other in copies:
        assert type(other) is type(module)
        assert equal(run(other, tensors), expected)


@every_pair
def test_the_audit_and_the_repr_tell_the_bits(layer, quantizer):
    module = converted(layer, quantizer, "FW4/BW8")
    row, *inner = bc.audit(module, tuple(EXAMPLES[layer].tensors())).rows
    assert all(other.is_converted for other in inner)
    assert row.is_converted
    assert f"{row.type}" == layer.rsplit(".", 1)[1]
    roles = QUANTIZERS[quantizer].roles
    bits = {"weight": "4", "act": "4", "error": "8", "grad": "8"}
    own = {role: bits[role] if role in roles else "fp32" for role in module.own_roles}
    assert row.bits == own
    assert f"precision={module.bits_in_force}" in repr(module)


@every_layer
def test_converting_back_is_exact(layer):
    module, tensors = converted(layer, precision=BITS[2]), EXAMPLES[layer].tensors()
    module(*tensors)
    float_module = EXAMPLES[layer].module()
    bc.unquantize_model(module)
    assert type(module) is type(float_module)
    assert vars(module).keys() == vars(float_module).keys()
    assert equal(run(module, tensors), run(float_module, tensors))


@pytest.mark.parametrize("quantizer", QUANTIZERS.names())
def test_an_embedding_has_bits_and_a_norm_between_layers_its_rule_or_none(quantizer):
    """Neither is a registered layer: one is converted by name, the other by some quantizers."""
    torch.manual_seed(0)
    tokens = torch.tensor([[0, 2, 2], [4, 1, 0]])
    layers = [torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(3)]
    model = bc.quantize_model(torch.nn.Sequential(*layers), rules_of(quantizer), only=["*"])
    exact = run(copy.deepcopy(model), [tokens])
    for precision in BITS[1:]:
        bc.set_precision(model, precision)
        rounded = model[0](tokens)
        assert not torch.equal(rounded, model[0].weight[tokens]), precision
        assert all(value.isfinite().all() for value in run(model, [tokens])), precision
    bc.set_precision(model, "fp32")
    assert equal(run(model, [tokens]), exact)
