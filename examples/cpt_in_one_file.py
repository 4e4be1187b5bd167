"""Cyclic Precision Training in one file: plain PyTorch and scikit-learn's digits.

The shortest complete CPT (Fu et al., ICLR 2021): the schedule of its equation 1, its quantizer
(SBM), a linear layer and a convolution that are quantized forward and backward, and a training
loop. bitcycle computes the same numbers; a test compares the two to 1e-9.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

Noise = Callable[[Tensor], Tensor]  # a tensor -> U(-1/2, 1/2) of its shape


# -- the schedule ---------------------------------------------------------------------------------


def cycle(step: int, total_steps: int, low: int, high: int, num_cycles: int) -> int:
    """Bits of a step: a cosine from low to high, num_cycles times (equation 1)."""
    phase = (step * num_cycles % total_steps) / total_steps  # in [0, 1)
    bits = low + 0.5 * (high - low) * (1 - math.cos(math.pi * phase))
    return round(round(bits, 9))  # half to even; nine digits, so that no libm changes a bit


# -- the quantizer --------------------------------------------------------------------------------


def to_grid(x: Tensor, bits: int, low: Tensor, high: Tensor, noise: Tensor | None = None) -> Tensor:
    """Round to 2^bits equally spaced values from low to high; with noise, stochastically."""
    levels = 2**bits - 1
    scale = (high - low) / levels
    scale = torch.where(scale == 0, 1.0, scale)  # a constant stays itself
    u = (x - low) / scale
    u = u if noise is None else u + noise
    return u.clamp(0, levels).round() * scale + low


def quantize_weight(w: Tensor, bits: int) -> Tensor:
    """One range per output channel, to nearest."""
    dims = tuple(range(1, w.dim()))
    return to_grid(w, bits, w.amin(dims, keepdim=True), w.amax(dims, keepdim=True))


def quantize_activation(a: Tensor, bits: int) -> Tensor:
    """One range for the batch, to nearest."""
    return to_grid(a, bits, a.min(), a.max())


def quantize_error(e: Tensor, bits: int, noise: Tensor) -> Tensor:
    """One range for the tensor, stochastic: a biased error would accumulate over steps."""
    return to_grid(e, bits, e.min(), e.max(), noise)


# -- the layers -----------------------------------------------------------------------------------
# The error is the gradient that arrives at a layer's output. Forward bits round weight and
# activation, backward bits the error; all three products of a layer read rounded operands. The
# rounding itself is passed straight through.


class QuantizedLinear(torch.autograd.Function):
    """a w^T + b."""

    @staticmethod
    def forward(ctx, a, w, b, forward_bits, backward_bits, noise):
        a, w = quantize_activation(a, forward_bits), quantize_weight(w, forward_bits)
        ctx.save_for_backward(a, w)
        ctx.backward_bits, ctx.noise = backward_bits, noise
        return a @ w.t() + b  # output: (N, in) x (out, in)

    @staticmethod
    def backward(ctx, error):
        a, w = ctx.saved_tensors
        e = quantize_error(error, ctx.backward_bits, ctx.noise(error))
        grad_input = e @ w
        grad_weight = e.t() @ a
        return grad_input, grad_weight, error.sum(0), None, None, None


class QuantizedConv(torch.autograd.Function):
    """A 3x3 convolution with padding 1."""

    @staticmethod
    def forward(ctx, a, w, b, stride, forward_bits, backward_bits, noise):
        a, w = quantize_activation(a, forward_bits), quantize_weight(w, forward_bits)
        ctx.save_for_backward(a, w)
        ctx.stride, ctx.backward_bits, ctx.noise = stride, backward_bits, noise
        return F.conv2d(a, w, b, stride=stride, padding=1)

    @staticmethod
    def backward(ctx, error):
        a, w = ctx.saved_tensors
        e = quantize_error(error, ctx.backward_bits, ctx.noise(error))
        grad_input = nn.grad.conv2d_input(a.shape, w, e, stride=ctx.stride, padding=1)
        grad_weight = nn.grad.conv2d_weight(a, w.shape, e, stride=ctx.stride, padding=1)
        return grad_input, grad_weight, error.sum((0, 2, 3)), None, None, None, None


# -- the network ----------------------------------------------------------------------------------


class ConvNet(nn.Module):
    """Two convolutions and a hidden linear layer, quantized; the last layer stays float32."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 4 * 4, 64)
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor, forward_bits: int, backward_bits: int, noise: Noise) -> Tensor:
        """(N, 1, 8, 8) -> logits (N, 10)."""
        bits = forward_bits, backward_bits, noise
        x = QuantizedConv.apply(x, self.conv1.weight, self.conv1.bias, 2, *bits).relu()
        x = QuantizedConv.apply(x, self.conv2.weight, self.conv2.bias, 1, *bits).relu()
        x = QuantizedLinear.apply(x.flatten(1), self.hidden.weight, self.hidden.bias, *bits).relu()
        return self.last(x)


# -- training -------------------------------------------------------------------------------------


def load_images(num_test: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Training images and targets, test images and targets."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=dtype).unsqueeze(1) / 16  # (N, 1, 8, 8) in [0, 1]
    targets = torch.tensor(digits.target)
    return images[num_test:], targets[num_test:], images[:num_test], targets[:num_test]


def train(
    model: ConvNet, images: Tensor, targets: Tensor, noise: Noise, *, steps: int
) -> list[float]:
    """CPT 4-8/8 with eight cycles; returns the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        batch = torch.randint(len(images), (64,))
        bits = cycle(step, steps, low=4, high=8, num_cycles=8)
        loss = F.cross_entropy(model(images[batch], bits, 8, noise), targets[batch])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    model = ConvNet()
    train_images, train_targets, test_images, test_targets = load_images(num_test=360)
    train(model, train_images, train_targets, lambda x: torch.rand_like(x) - 0.5, steps=300)
    with torch.no_grad():  # the range of the test batch; bitcycle keeps a running range instead
        predicted = model(test_images, 8, 8, torch.zeros_like).argmax(dim=1)
    accuracy = (predicted == test_targets).double().mean().item()
    print(f"test accuracy {100 * accuracy:.1f} % after 300 steps at 4 to 8 bits")
