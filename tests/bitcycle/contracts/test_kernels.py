"""What holds for every registered kernel on every layer."""

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.kernels import KERNELS
from bitcycle.nn import LAYERS
from tests.bitcycle import naive
from tests.bitcycle.contracts.examples import EXAMPLES, Example, first_result, naming
from tests.bitcycle.contracts.test_layers import fixed_error, run

# recurrent and attention layers multiply many times, graph layers have a scale per node:
# their own tests hold them to an oracle
OTHERS = ("torch.nn.modules.rnn.", "torch.nn.modules.activation.", "torch_geometric.")
SINGLE = [name for name in LAYERS.names() if not name.startswith(OTHERS)]

pytestmark = pytest.mark.parametrize("kernel", KERNELS.names())


def test_its_three_products_are_the_float_products_of_the_quantized_operands(kernel):
    for layer in SINGLE:
        for bits in (2, 4, 7, 8):
            quantizer = bc.quantizers.SBM(error_rounding="nearest")
            module = bc.quantize_model(EXAMPLES[layer].module(), quantizer, kernel=kernel)
            assert bc.audit(module)[""].kernel == kernel, layer
            bc.set_precision(module, f"w{bits}a{bits}e{bits}")
            tensors = EXAMPLES[layer].tensors()
            ours = run(module, tensors)

            # the same operands on the same grids, in float64 and by autograd
            with torch.no_grad():
                operands = [naive.per_tensor(x, bits).double() for x in tensors]
                float_module = EXAMPLES[layer].module().double()
                if hasattr(float_module, "weight"):
                    is_turned = layer.endswith(
                        "Conv1D"
                    )  # (in, out), as one group of a transposed one
                    groups = (
                        module.groups if getattr(module, "transposed", False) else int(is_turned)
                    )
                    float_module.weight.copy_(naive.per_channel(module.weight, bits, groups))
                error = naive.per_tensor(fixed_error(ours[0]), bits).double()
            leaves = [operand.requires_grad_() for operand in operands]
            output = float_module(*leaves)
            wanted = [p for n, p in float_module.named_parameters() if n == "weight"]
            theirs = [output, *torch.autograd.grad(output, [*leaves, *wanted], error)]
            for a, b in zip(ours, theirs, strict=False):  # the bias and its gradient are float32
                atol = 1e-4 * b.abs().max().item()
                assert torch.allclose(a.double(), b, atol=atol), (layer, bits)


# weights with dimensions of one element, whose strides say nothing about memory
THIN = {
    "one input channel": Example(lambda: nn.Conv2d(1, 4, 3), ((2, 1, 6, 5),), (2, 4, 4, 3)),
    "one output channel": Example(lambda: nn.Conv2d(3, 1, 3), ((2, 3, 6, 5),), (2, 1, 4, 3)),
    "1x1": Example(lambda: nn.Conv2d(3, 4, 1), ((2, 3, 6, 5),), (2, 4, 6, 5)),
    "1x3": Example(lambda: nn.Conv2d(3, 4, (1, 3)), ((2, 3, 6, 5),), (2, 4, 6, 3)),
    "depthwise": Example(lambda: nn.Conv2d(4, 4, 3, groups=4), ((2, 4, 6, 5),), (2, 4, 4, 3)),
    "1D": Example(lambda: nn.Conv1d(1, 4, 3), ((2, 1, 6),), (2, 4, 4)),
    "1D depthwise": Example(lambda: nn.Conv1d(4, 4, 3, groups=4), ((2, 4, 6),), (2, 4, 4)),
    "1D of one tap": Example(lambda: nn.Conv1d(3, 4, 1), ((2, 3, 6),), (2, 4, 6)),
    "transposed": Example(lambda: nn.ConvTranspose2d(1, 4, 3), ((2, 1, 4, 4),), (2, 4, 6, 6)),
    "3D": Example(lambda: nn.Conv3d(1, 4, 1), ((2, 1, 3, 3, 3),), (2, 4, 3, 3, 3)),
    "one feature": Example(lambda: nn.Linear(1, 5), ((4, 1),), (4, 5)),
    "one output": Example(lambda: nn.Linear(5, 1), ((4, 5),), (4, 1)),
    "LSTM": Example(lambda: nn.LSTM(1, 1), ((2, 3, 1),), (2, 3, 1)),
    "Conv1D": Example(
        lambda: pytest.importorskip("transformers.pytorch_utils").Conv1D(1, 5), ((4, 5),), (4, 1)
    ),
}


@pytest.mark.parametrize("quantizer", ["sbm", "mx"])  # of codes and of values
@pytest.mark.parametrize("is_channels_last", [False, True])
def test_gradients_have_the_strides_of_their_parameters(kernel, quantizer, is_channels_last):
    """DDP copies gradients with other strides at every step, and warns."""
    for name, example in {**EXAMPLES, **THIN}.items():
        module, tensors = example.module(), example.tensors()
        if is_channels_last:
            for x in (*module.parameters(), *tensors):
                if x.dim() == 4:
                    x.data = x.data.contiguous(memory_format=torch.channels_last)
        precision = "w4a4e4" if quantizer == "sbm" else "mxfp8"
        with naming(name):
            bc.quantize_model(module, quantizer, kernel=kernel)
            bc.set_precision(module, precision)
            output = first_result(module, tensors)
            assert output.shape == example.output
            output.sum().backward()
            for parameter in module.parameters():
                assert parameter.grad.stride() == parameter.stride(), name
