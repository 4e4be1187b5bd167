"""Products of linear layers, convolutions and named matrix products."""

from __future__ import annotations

from torch import Tensor

from bitcycle.cost.product import COUNTERS, Call, Product, layer_products


@COUNTERS.register("torch.nn.modules.linear.Linear")
def count_linear(call: Call) -> list[Product]:
    """(..., in) x (in, out): every output element sums over in, so elements(output) x in MACs."""
    x: Tensor = call.argument(0, "input")
    return with_weight(call, x, call.result.numel() * x.shape[-1])


@COUNTERS.register("torch.nn.modules.conv.Conv1d")
@COUNTERS.register("torch.nn.modules.conv.Conv2d")
@COUNTERS.register("torch.nn.modules.conv.Conv3d")
def count_convolution(call: Call) -> list[Product]:
    """elements(output) x Cin / groups x kernel MACs; taps on the padding are computed too."""
    taps = call.module.weight.numel() // call.module.out_channels  # (Cout, Cin / groups, *kernel)
    return with_weight(call, call.argument(0, "input"), call.result.numel() * taps)


@COUNTERS.register("torch.nn.modules.conv.ConvTranspose1d")
@COUNTERS.register("torch.nn.modules.conv.ConvTranspose2d")
@COUNTERS.register("torch.nn.modules.conv.ConvTranspose3d")
def count_transposed_convolution(call: Call) -> list[Product]:
    """elements(input) x Cout / groups x kernel MACs: each input element is spread over these."""
    x: Tensor = call.argument(0, "input")
    taps = call.module.weight.numel() // call.module.in_channels  # (Cin, Cout / groups, *kernel)
    return with_weight(call, x, x.numel() * taps)


def with_weight(call: Call, x: Tensor, macs: int) -> list[Product]:
    """The products of x and the module's one weight."""
    weight: Tensor = call.module.weight
    return layer_products(
        macs,
        act=x.numel(),
        second=weight.numel(),
        error=call.result.numel(),
        has_grad_input=call.needs(x),
        has_grad_weight=call.needs(weight),
    )


@COUNTERS.register("bitcycle.matmul.MatMul")
def count_matmul(call: Call) -> list[Product]:
    """(..., M, K) x (..., K, N): elements(output) x K MACs; both operands are activations."""
    a: Tensor = call.argument(0, "a")
    b: Tensor = call.argument(1, "b")
    return layer_products(
        call.result.numel() * a.shape[-1],
        act=a.numel(),
        second=b.numel(),
        error=call.result.numel(),
        has_grad_input=call.needs(a),
        has_grad_weight=call.needs(b),
        second_role="act",
    )


@COUNTERS.register("torch.nn.modules.linear.Bilinear")
def count_bilinear(call: Call) -> list[Product]:
    """y_o = x1' W_o x2 as two products: v = W x2 (N o i j MACs), then y = v x1 (N o i MACs)."""
    x1: Tensor = call.argument(0, "input1")
    x2: Tensor = call.argument(1, "input2")
    weight: Tensor = call.module.weight  # (o, i, j)
    num_outputs = call.result.numel()  # N o
    v = num_outputs * x1.shape[-1]  # elements of v: N o i
    first = layer_products(
        v * x2.shape[-1],
        act=x2.numel(),
        second=weight.numel(),
        error=v,
        has_grad_input=call.needs(x2),
        has_grad_weight=call.needs(weight),
    )
    return first + layer_products(
        v,
        act=x1.numel(),
        second=v,
        error=num_outputs,
        has_grad_input=call.needs(x1),
        has_grad_weight=call.needs(x2, weight),
        second_role="act",
    )
