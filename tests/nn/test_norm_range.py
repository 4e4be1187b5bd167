"""Range BN: the published constants, the estimate, and what evaluation uses."""

from __future__ import annotations

import math

import pytest
import torch

from bitcycle.nn.norm_range import num_chunks, range_factor, range_scale

from ..toys import randn
from .norms import Normed, convert


@pytest.mark.parametrize(("m", "k"), [(8192, 0.12725), (2048, 0.13834), (512, 0.15294)])
def test_the_constant_has_its_published_values(m: int, k: float) -> None:
    assert range_factor(m) == pytest.approx(k, abs=5e-6)  # the specification's check values


@pytest.mark.parametrize(
    ("n", "chunks"),
    [(16 * 512, 16), (48, 16), (24, 12), (30, 15), (17, 1), (16, 8), (3, 1), (2, 1)],
)
def test_chunks_divide_the_values_and_hold_two_or_more(n: int, chunks: int) -> None:
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


def test_the_scale_of_gaussian_values_is_near_their_deviation() -> None:
    x = 3 * randn(64, 4, 16, 8)  # chunks of 512
    assert range_scale(x).tolist() == pytest.approx([3.0] * 4, rel=0.1)


def test_the_output_and_its_gradient_are_the_formula_s() -> None:
    model = Normed()
    norm = convert(model)
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


def test_running_statistics_move_by_nine_tenths_and_are_what_evaluation_uses() -> None:
    model = Normed()
    norm = convert(model)
    x = 3 * randn(4, 3, 4, 2) + 2
    model(x)
    mean, scale = 0.9 * x.mean((0, 2, 3)), 0.1 + 0.9 * range_scale(x)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, scale**2)  # a variance, as float models read it
    shape = (1, 3, 1, 1)
    y = randn(2, 3, 4, 2, seed=5)
    expected = norm.weight.view(shape) * (y - mean.view(shape)) / (scale.view(shape) + 1e-5)
    torch.testing.assert_close(model.eval()(y), expected + norm.bias.view(shape))
