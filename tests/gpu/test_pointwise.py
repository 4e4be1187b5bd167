"""1x1 convolutions with kernel `gpu`: a residual block on the device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.quantizers.sbm import SBM

from .emulated import Counts, counted, is_emulated
from .models import assert_close, optimizer_of, set_step, state_of, train_step

pytestmark = pytest.mark.parametrize("rounding", ["triton"], indirect=True)

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
SHAPES = {1: (3, 6, 14), 2: (3, 6, 6, 8), 3: (2, 6, 4, 2, 4)}


class Bottleneck(nn.Module):
    """1x1, 1x1 with stride 2, 1x1, and a shortcut with stride 2."""

    def __init__(self, num_dims: int) -> None:
        super().__init__()
        conv, norm = CONVS[num_dims], NORMS[num_dims]
        self.reduce, self.stride = conv(6, 4, 1, bias=False), conv(4, 4, 1, stride=2)
        self.expand, self.norm = conv(4, 8, 1), norm(8)
        self.shortcut = conv(6, 8, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stride(self.reduce(x).relu()).relu()
        return (self.norm(self.expand(y)) + self.shortcut(x)).relu()


def train(num_dims: int, kernel: str, layout: torch.memory_format) -> tuple[dict, Counts]:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model, x = Bottleneck(num_dims), torch.randn(SHAPES[num_dims])
    model = bc.quantize_model(model.cuda(), SBM(), kernel=kernel)
    bc.set_precision(model, "FW8/BW8")
    x = x.cuda().contiguous(memory_format=layout).requires_grad_()
    optimizer = optimizer_of(model)
    for step in range(2):
        set_step(model, step)
        x.grad = None
        with counted() as counts:
            loss = train_step(model, optimizer, x)
    output = model(x)
    assert output.is_contiguous(memory_format=layout)
    return {"loss": loss.cpu(), "x.grad": x.grad.cpu(), **state_of(model)}, counts


@pytest.mark.parametrize(
    ("num_dims", "layout"),
    [
        (1, torch.contiguous_format),
        (2, torch.contiguous_format),
        (2, torch.channels_last),
        (3, torch.contiguous_format),
    ],
)
def test_a_residual_block_trains_as_with_products_of_values(num_dims, layout):
    ours, counts = train(num_dims, "gpu", layout)
    theirs, _ = train(num_dims, "simulate", layout)
    assert_close(ours, theirs, 2**-6)  # an error that is rounded to another level counts
    if is_emulated():
        launches = {name.removeprefix("triton::"): n for name, (n, _) in counts.operations.items()}
        assert (launches["multiply"], launches["multiply_folded"]) == (8, 4)
        assert not {"convolution", "convolution_backward", "centre"} & launches.keys()
        assert (counts.uploads, counts.reads, counts.waits) == (0, 0, 0)


@pytest.mark.skipif(not is_emulated(), reason="a real device counts nothing")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("stride", [1, 2])
def test_launches_of_a_layer(stride, layout):
    layer = bc.quantize_model(nn.Conv2d(8, 4, 1, stride=stride, bias=False).cuda(), kernel="gpu")
    bc.set_precision(layer, "w8a8e8")
    x, error = (
        torch.randn(shape).cuda().contiguous(memory_format=layout)
        for shape in ((2, 8, 8, 8), (2, 4, 8 // stride, 8 // stride))
    )
    for _ in range(2):
        with counted() as counts:
            layer(x.requires_grad_()).backward(error)
        x.grad = layer.weight.grad = None
    launches = {name.removeprefix("triton::"): n for name, (n, _) in counts.operations.items()}
    products = {"lay_out": 2, "multiply": 2, "fold": 1, "multiply_folded": 1}
    assert {name: launches.get(name) for name in products} == products
    # a stride: the pixels that count, for two products, and zeros between those of grad_input
    assert counts.launches == {1: 16, 2: 16 + 4}[stride], launches
