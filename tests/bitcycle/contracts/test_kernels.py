"""What holds for every registered kernel on every layer."""

import pytest
import torch

import bitcycle as bc
from bitcycle.kernels import KERNELS
from bitcycle.nn import LAYERS
from tests.bitcycle import naive
from tests.bitcycle.contracts.examples import EXAMPLES
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
