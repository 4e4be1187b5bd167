"""Products of codes in Triton's interpreter, against float64, int64 and `torch._int_mm`."""

import math

import pytest
import torch

from bitcycle.gpu import integers
from bitcycle.kernels import KERNELS, LinearGeometry, MatMulGeometry, gpu
from bitcycle.kernels.geometry import as_rows, transposed
from bitcycle.native.products import Codes
from bitcycle.quantizers.base import Quantized
from tests.bitcycle.kernels.operands import KINDS, LAYOUTS, exact, numbers, quantized, reach

LINEAR = KERNELS["gpu"].products(LinearGeometry())
MATMUL = KERNELS["gpu"].products(MatMulGeometry())


def assert_within(found, x, y, product, bias=0.0, tolerance=2.0**-21):
    """Each element is off by a share of the absolute terms of its sum."""
    expected = product(exact(x), exact(y)) + bias
    terms = product(reach(x), reach(y)) + abs(bias)
    assert found.shape == expected.shape
    assert found.dtype == torch.float32
    error = ((found.double() - expected).abs() / terms.clamp_min(1e-300)).max()
    assert error <= tolerance, f"off by {error:.2e} of the terms"


def assert_within_fold(found, x, y):
    """x (M, K), y (N, K) in 16 bits: half a unit of y for each x, and float32 rounding.

    The unit is max|y| / 32639; that of the native kernel is max|y| / 32767.
    """
    expected, values = exact(x) @ exact(y).t(), exact(y)
    bound = 1 / (2 * 32639) * exact(x).abs().sum(1)[:, None] * values.abs().amax(1)
    bound += 2.0**-21 * (reach(x) @ reach(y).t())
    assert ((found.double() - expected).abs() <= bound).all()


def times(x, y):
    return x @ y.transpose(-1, -2)


def grid(codes, scale=1.0, offset=0.0):
    return Codes.of(codes, scale=scale, offset=offset, bits=8)


@pytest.mark.parametrize("value", [0, 255])
@pytest.mark.parametrize("zero", [0, 128, 255])
def test_sums_are_exact_at_the_largest_codes(value, zero):
    x = torch.full((3, 1000), value, dtype=torch.uint8)
    x[1] = torch.arange(1000) % 256
    y = 255 - x
    found = integers.multiply(grid(x, offset=-zero), grid(y, offset=-zero))
    expected = (x.long() - zero) @ (y.long() - zero).t()
    assert expected.abs().max() < 2**26
    torch.testing.assert_close(found.double(), expected.double(), rtol=2.0**-24, atol=0)


ZEROS = torch.tensor([[0], [128], [255]])
LONG = (1 << 17) + 1  # 2^14 LONG does not fit in 32 bits


def extremes(length, seed):
    """Codes (9, length) of 0 and 255: all of one, of the other, and both; each for every zero."""
    mixed = 255 * torch.randint(2, (3, length), generator=torch.Generator().manual_seed(seed))
    mixed[:2] = torch.tensor([[0], [255]])
    return mixed.to(torch.uint8).repeat(3, 1), ZEROS.repeat_interleave(3, 0)


def int_mm(x, y):
    """x y^T of int8 by torch, whose 32 bits hold the sums of 2^16 products."""
    parts = zip(x.split(1 << 16, 1), y.split(1 << 16, 1), strict=True)
    return sum(torch._int_mm(a, b.t()).long() for a, b in parts)


@pytest.mark.parametrize("length", [500, LONG])
def test_sums_of_extreme_codes_are_those_of_int64_and_of_torch(length):
    (x, x_zeros), (y, y_zeros) = extremes(length, 0), extremes(length, 1)
    X, Y = ((codes.int() - 128).to(torch.int8) for codes in (x, y))
    dx, dy = 128 - x_zeros, 128 - y_zeros
    by_torch = int_mm(X, Y) + dy.t() * X.sum(1, keepdim=True) + dx * Y.sum(1) + length * dx * dy.t()
    expected = (x.long() - x_zeros) @ (y.long() - y_zeros).t()
    assert torch.equal(by_torch, expected)
    assert expected.abs().max() == 255**2 * length
    ones = torch.ones(9)
    grids = (ones, -x_zeros.flatten().float()), (ones, -y_zeros.flatten().float())
    found = integers.multiply(*(Codes(c, *g, ones) for c, g in zip((x, y), grids, strict=True)))
    assert torch.equal(found, expected.float())


@pytest.mark.parametrize(("length", "zero"), [(500, 0), (500, 255), (LONG, 255)])
def test_a_fold_at_extreme_codes_is_within_half_a_unit(length, zero):
    one, steps = torch.ones(1), torch.linspace(0.5, 1.5, length)
    x, y = (extremes(length, seed)[0][:3] for seed in range(2))
    a, b = Codes(x, one, -zero * one, one), Codes(y, steps, -zero * steps, one)
    found = integers.multiply_folded(a, b)
    assert_within_fold(
        found,
        Quantized(a.scale, a.offset, codes=x, half=128 * one),
        Quantized(steps, b.offset, codes=y, half=128 * one),
    )
    folded = integers.fold(b)
    X, d = (x.int() - 128).to(torch.int8), 128 - zero
    high, low = (
        int_mm(X, plane[:, :length].contiguous()) + d * plane.sum(1) for plane in folded[:2]
    )
    sizes = folded.unit.double() * (256 * high.abs() + low.abs())
    error = found.double() - folded.unit.double() * (256 * high + low)
    assert (error.abs() <= 2.0**-22 * sizes).all()


@pytest.mark.parametrize("length", [integers.MAX_SUMMED, integers.MAX_SUMMED + 1])
def test_sums_do_not_overflow(length):
    x = torch.full((2, length), 255, dtype=torch.uint8)
    x[1] = 0
    found = integers.multiply(grid(x), grid(x))  # z = 0: the widest sums
    assert found.tolist() == [[pytest.approx(255.0**2 * length, rel=2.0**-23), 0], [0, 0]]
    steps = grid(x)._replace(scale=torch.ones(length), offset=torch.full((length,), -255.0))
    found = integers.multiply_folded(grid(x), steps)
    assert found.tolist() == [[0, pytest.approx(-(255.0**2) * length, rel=2.0**-22)], [0, 0]]


def test_sums_in_chunks_are_those_at_once(monkeypatch):
    x, y = (quantized(numbers((70, 700), "centred", seed), (8, 8)) for seed in range(2))
    k = quantized(numbers((5, 700), "above", 2), (8, 8), keep=(1,))
    at_once = LINEAR.output(x, y, None), LINEAR.grad_input(x, transposed(k), torch.Size((70, 5)))
    monkeypatch.setattr(integers, "MAX_SUMMED", 128)
    in_chunks = LINEAR.output(x, y, None), LINEAR.grad_input(x, transposed(k), torch.Size((70, 5)))
    assert torch.equal(at_once[0], in_chunks[0])
    assert torch.equal(at_once[1], in_chunks[1])


@pytest.mark.parametrize(
    ("kind", "bits"), [*((kind, 8) for kind in KINDS), *(("relu", bits) for bits in range(2, 8))]
)
def test_a_linear_layer_at_any_bits(kind, bits, launched):
    a = quantized(
        numbers((3, 11, 70), kind, bits), (bits, 8), zero="integer" if bits % 2 else "real"
    )
    w = quantized(numbers((37, 70), "centred", bits + 1), (bits, 8), keep=(0,))
    e = quantized(numbers((3, 11, 37), "tiny", bits + 2), (8, 8))
    bias = numbers((37,), "above", bits + 3)
    launched.clear()
    found = LINEAR.output(a, w, bias)
    assert launched == ["_lay_out", "_multiply"]
    assert_within(found, a, w, times, bias.double())
    launched.clear()
    found = LINEAR.grad_input(e, w, torch.Size((3, 11, 70)))
    assert launched == ["_fold", "_multiply_folded"]
    assert_within_fold(found.flatten(0, 1), as_rows(e), transposed(w))
    launched.clear()
    found = LINEAR.grad_weight(e, a, torch.Size((37, 70)))
    assert launched == ["_lay_out", "_multiply"]
    assert_within(found, transposed(as_rows(e)), transposed(as_rows(a)), times)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 64, 3), (65, 130, 64), (129, 5, 191)])
def test_any_size_in_any_strides(shape, layout):
    M, N, K = shape
    a = quantized(numbers((M, K), "relu", 0), (8, 8), layout=layout)
    w = quantized(numbers((N, K), "centred", 1), (4, 8), keep=(0,), layout=layout)
    e = quantized(numbers((M, N), "centred", 2), (8, 8), layout=layout)
    assert_within(LINEAR.output(a, w, None), a, w, times)
    assert_within(LINEAR.grad_weight(e, a, torch.Size((N, K))), transposed(e), transposed(a), times)
    found = LINEAR.grad_input(e, w, torch.Size((M, K)))
    assert_within_fold(found, e, transposed(w))


def test_large_tiles_give_the_same(monkeypatch):
    a = quantized(numbers((1200, 9), "centred", 0), (8, 8))  # more than a group of tiles
    w = quantized(numbers((130, 9), "above", 1), (8, 8), keep=(0,))
    e = quantized(numbers((1200, 130), "above", 2), (8, 8))
    results = []
    for full in (0, 10**9):
        monkeypatch.setattr(integers, "_FULL", full)
        results += [LINEAR.output(a, w, None), LINEAR.grad_input(e, w, torch.Size((1200, 9)))]
    assert_within(results[0], a, w, times)
    assert_within_fold(results[1], e, transposed(w))
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])


def test_a_scale_per_row_of_either_operand(launched):
    a = quantized(numbers((2, 7, 33), "centred", 0), (8, 8), keep=(0, 1))
    w = quantized(numbers((5, 33), "centred", 1), (8, 8))
    e = quantized(numbers((2, 7, 5), "below", 2), (8, 8), keep=(0, 1))
    plain = quantized(numbers((2, 7, 5), "below", 3), (8, 8))
    for weight in (w, quantized(numbers((5, 33), "centred", 1), (8, 8), keep=(0,))):
        assert_within(LINEAR.output(a, weight, None), a, weight, times)
    found = LINEAR.grad_input(e, w, torch.Size((2, 7, 33)))
    assert_within(found, e, transposed(w), times)
    found = LINEAR.grad_weight(plain, a, torch.Size((5, 33)))
    assert_within_fold(found, transposed(as_rows(plain)), transposed(as_rows(a)))
    b = quantized(numbers((2, 7, 33), "centred", 4), (8, 8))
    found = LINEAR.grad_weight(e, b, torch.Size((5, 33)))
    assert_within_fold(found.t(), transposed(as_rows(b)), transposed(as_rows(e)))
    assert launched.count("_fold") == 2
    launched.clear()
    found = LINEAR.grad_weight(e, a, torch.Size((5, 33)))  # both have scales per token
    assert "_multiply" not in launched
    assert_within(found, transposed(as_rows(e)), transposed(as_rows(a)), times,
                  tolerance=2.0**-18)  # fmt: skip


@pytest.mark.parametrize(
    ("batch_a", "batch_b"), [((3,), (3,)), ((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3))]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_of_two_activations(batch_a, batch_b, layout, launched):
    both = torch.broadcast_shapes(batch_a, batch_b)
    a = quantized(numbers((*batch_a, 5, 70), "relu", 0), (8, 8), layout=layout)
    b = quantized(numbers((*batch_b, 70, 4), "above", 1), (6, 8), layout=layout)
    e = quantized(numbers((*both, 5, 4), "tiny", 2), (8, 8), layout=layout)
    launched.clear()
    assert_within(MATMUL.output(a, b, None), a, transposed(b), times)
    found = MATMUL.grad_input(e, b, a.codes.shape)
    assert_within(found, e, b, lambda x, y: times(x, y).sum_to_size(a.codes.shape))
    found = MATMUL.grad_weight(e, a, b.codes.shape)
    assert_within(found, e, a, lambda x, y: times(y.mT, x.mT).sum_to_size(b.codes.shape))
    assert launched == ["_lay_out", "_multiply"] * 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_result_in_another_dtype_is_the_float32_one_rounded_once(dtype, launched):
    a = quantized(numbers((2, 1, 30, 70), "relu", 0), (8, 8))
    b = quantized(numbers((3, 70, 40), "below", 1), (8, 8))  # some are too large for float16
    e = quantized(numbers((2, 3, 30, 40), "tiny", 2), (8, 8))  # some too small
    w = quantized(numbers((40, 70), "above", 3), (8, 8), keep=(0,))
    bias = numbers((40,), "below", 4)
    for product, *operands in (
        (LINEAR.output, a, w, bias),
        (LINEAR.grad_input, e, w, torch.Size((2, 3, 30, 70))),
        (LINEAR.grad_weight, e, quantized(numbers((6, 30, 70), "relu", 0), (8, 8)), (40, 70)),
        (MATMUL.output, a, b, None),
        (MATMUL.grad_input, e, b, torch.Size((2, 1, 30, 70))),
        (MATMUL.grad_weight, e, a, torch.Size((3, 70, 40))),
    ):
        launched.clear()
        expected = product(*operands)
        number = len(launched)
        found = product(*operands, dtype)
        assert launched[:number] == launched[number:]
        assert found.dtype == dtype
        assert torch.equal(found, expected.to(dtype))
        assert dtype == torch.float64 or not torch.equal(found.float(), expected)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize(
    ("x", "y", "scales", "is_folded", "is_turned"),
    [
        ((5, 9), (4, 9), 4, False, False),
        ((5, 9), (4, 9), 9, True, False),
        ((3, 5, 9), (3, 4, 9), 1, False, False),
        ((3, 5, 9), (4, 9), 4, False, True),
        ((3, 5, 9), (4, 9), 9, True, True),
        ((1, 5, 3, 7), (1, 4, 3, 7), 1, False, False),
        ((0, 5, 9), (4, 9), 4, False, True),
    ],
)
def test_the_operator_of_compiled_graphs_says_what_it_returns(
    x, y, scales, is_folded, is_turned, dtype
):
    first, second = (torch.randint(256, shape, dtype=torch.uint8) for shape in (x, y))
    one, many = torch.ones(1), torch.linspace(1, 2, scales)
    arguments = first, one, -one, second, many, -many, None, is_folded, is_turned, dtype
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(gpu.multiply_codes, arguments, test_utils=checks)


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0)])
def test_empty_operands(shape):
    M, N, K = shape
    grids = {"scale": torch.tensor(0.5), "offset": torch.tensor(-1.0), "half": torch.tensor(8.0)}
    x, y = (Quantized(codes=torch.ones(n, K, dtype=torch.uint8), **grids) for n in (M, N))
    assert LINEAR.output(x, y, torch.ones(N)).tolist() == torch.ones(M, N).tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["scale", "offset"])
def test_what_is_not_finite_stays(bad, place):
    x = quantized(numbers((4, 9), "centred", 0), (8, 8))
    rows = quantized(numbers((3, 9), "centred", 1), (8, 8), keep=(0,))
    columns = quantized(numbers((9, 3), "centred", 1), (8, 8), keep=(0,))
    clean = LINEAR.output(x, rows, None)
    for q in (rows, columns):
        getattr(q, place)[1] = bad
    found = LINEAR.output(x, rows, None)
    assert not found[:, 1].isfinite().any()
    assert torch.equal(found[:, ::2], clean[:, ::2])
    assert not LINEAR.grad_input(x, columns, torch.Size((4, 3))).isfinite().any()
    getattr(x, place).fill_(bad)
    clean = quantized(numbers((9, 3), "centred", 1), (8, 8), keep=(0,))
    assert not LINEAR.output(x, transposed(columns), None).isfinite().any()
    assert not LINEAR.grad_input(x, clean, torch.Size((4, 3))).isfinite().any()


@pytest.mark.parametrize(("first", "second"), [(1e-30, 1e-12), (1e-12, 1e-30), (1e-30, 1e-30)])
def test_tiny_scales_do_not_vanish(first, second):
    a = numbers((4, 9), "centred", 0)
    for keep in ((), (0,)):
        w = numbers((9, 3), "above", 1)
        x, y = quantized(a * first, (8, 8)), quantized(w * second, (8, 8), keep=keep)
        x1, y1 = quantized(a, (8, 8)), quantized(w, (8, 8), keep=keep)
        found = LINEAR.grad_input(x, y, torch.Size((4, 3)))
        if first * second < 1e-45:  # below the smallest float32
            assert found.tolist() == torch.zeros(4, 3).tolist()
            continue
        expected = LINEAR.grad_input(x1, y1, torch.Size((4, 3))).double() * first * second
        torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=2e-45)


def test_scales_with_gaps_and_one_offset_for_all():
    scale = torch.rand(7, 3)[:, :1] + 0.5
    codes = torch.arange(7 * 40).view(7, 40).to(torch.uint8)
    x = Quantized(scale, torch.tensor(-2.0), codes=codes, half=torch.tensor(128.0))
    dense = Quantized(scale.contiguous(), torch.full((7, 1), -2.0), codes=codes, half=x.half)
    y = quantized(numbers((5, 40), "centred", 0), (8, 8))
    assert torch.equal(LINEAR.output(x, y, None), LINEAR.output(dense, y, None))
