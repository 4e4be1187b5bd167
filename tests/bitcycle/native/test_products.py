"""Products of codes by the native library, against float64."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.grad import conv2d_input, conv2d_weight

from bitcycle.native import products
from bitcycle.native.library import library
from bitcycle.native.products import (
    Codes,
    conv_grad_input,
    conv_grad_weight,
    conv_output,
    gemm,
    gemm_folded,
    pack,
    pack_folded,
)

pytestmark = pytest.mark.skipif(library() is None, reason="the native library is not built")

ROUNDING = 2.0**-21  # of float32 sums of a few terms, relative to the sum of their sizes


@contextlib.contextmanager
def using(name: str) -> Iterator[None]:
    """Another instruction set for a while."""
    native = library()
    assert native is not None
    before = native.bitcycle_tiles(None)
    if native.bitcycle_tiles(name.encode()) is None:
        pytest.skip(f"this processor has no {name}")
    try:
        yield
    finally:
        native.bitcycle_tiles(before)


@pytest.fixture(params=["portable", "avx2", "avx512_vnni"])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    with using(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def draw(bits: int, *shape: int, scales: int = 1, seed: int = 0) -> Codes:
    generator = torch.Generator().manual_seed(seed + 100 * bits)
    return Codes(
        torch.randint(0, 2**bits, shape, dtype=torch.uint8, generator=generator),
        torch.rand(scales, generator=generator) * 0.1 + 0.01,
        torch.randn(scales, generator=generator),
        torch.tensor(2.0 ** (bits - 1)),
    )


def whole(codes: Tensor, bits: int) -> Codes:
    """Codes that are their own values."""
    return Codes(codes, torch.ones(1), torch.zeros(1), torch.tensor(2.0 ** (bits - 1)))


def _along(x: Tensor, codes: Tensor, axis: int) -> Tensor:
    shape = [1] * codes.dim()
    shape[axis] = -1
    return x.double().view(shape) if x.numel() > 1 else x.double()


def values(c: Codes, axis: int = 0) -> Tensor:
    return c.codes.double() * _along(c.scale, c.codes, axis) + _along(c.offset, c.codes, axis)


def sizes(c: Codes, axis: int = 0) -> Tensor:
    """How large the two terms of a value are together: what float32 rounds relative to."""
    scale, offset = _along(c.scale, c.codes, axis).abs(), _along(c.offset, c.codes, axis).abs()
    levels = 2 * c.half.double() - 1
    return c.codes.double() * 0 + scale * levels + offset


def assert_near(result: Tensor, expected: Tensor, allowed: Tensor | float) -> None:
    assert result.dtype == torch.float32
    assert result.shape == expected.shape
    excess = ((result.double() - expected).abs() - allowed).max()
    assert excess <= 0, f"off by {excess} more than allowed"


def check_gemm(x: Codes, y: Codes, bias: Tensor | None = None) -> None:
    expected = values(x) @ values(y, -2).mT
    size = sizes(x) @ sizes(y, -2).mT
    if bias is not None:
        expected, size = expected + bias, size + bias.abs()
    assert_near(gemm(x, y, bias), expected, ROUNDING * size)


# ---- matrices -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", list(itertools.product(range(1, 9), repeat=2)))
def test_every_pair_of_bits_is_exact(instruction_set, bits):
    x_bits, y_bits = bits
    x, y = draw(x_bits, 13, 70), draw(y_bits, 35, 70)
    exact = (x.codes.long() @ y.codes.long().mT).float()
    assert torch.equal(gemm(whole(x.codes, x_bits), whole(y.codes, y_bits)), exact)
    check_gemm(x, draw(y_bits, 35, 70, scales=35), torch.randn(35))
    for scales in (1, 35):
        y = draw(y_bits, 35, 70, scales=scales)
        check_gemm(draw(x_bits, 13, 70, scales=13), y, torch.randn(35))


def test_a_scale_of_a_row_reaches_only_that_row(instruction_set):
    x, y = draw(8, 70, 40, scales=70), draw(8, 90, 40, scales=90)
    alone = [Codes(x.codes[i], x.scale[i], x.offset[i], x.half) for i in range(70)]
    rows = [gemm(each._replace(codes=each.codes[None]), y) for each in alone]
    together = gemm(x, y)
    for i in range(70):
        size = sizes(alone[i]) @ sizes(y).mT
        assert_near(together[i], rows[i][0].double(), ROUNDING * size)
    x.scale[3] = float("nan")
    assert gemm(x, y).isnan().all(1).tolist() == [i == 3 for i in range(70)]


@pytest.mark.parametrize("y_code", ["lowest", "highest"])
@pytest.mark.parametrize("bits", [(8, 8), (8, 7), (7, 7), (8, 4), (4, 4), (2, 2)])
def test_extreme_codes_do_not_saturate(instruction_set, bits, y_code):
    x_bits, y_bits = bits
    x = torch.full((7, 256), 2**x_bits - 1, dtype=torch.uint8)
    y = torch.full((17, 256), 0 if y_code == "lowest" else 2**y_bits - 1, dtype=torch.uint8)
    exact = (x.long() @ y.long().mT).float()
    assert torch.equal(gemm(whole(x, x_bits), whole(y, y_bits)), exact)


@pytest.mark.parametrize("K", [1, 2**20, 2**20 + 3])
def test_short_and_long_sums(instruction_set, K):
    for y_code in (0, 255):
        x = draw(8, 2, K)._replace(codes=torch.full((2, K), 255, dtype=torch.uint8))
        y = draw(8, 3, K, scales=3)._replace(codes=torch.full((3, K), y_code, dtype=torch.uint8))
        check_gemm(x, y)
        check_gemm(x._replace(codes=x.codes.mT.contiguous().mT), y)


@pytest.mark.parametrize("shape", [(1, 1, 3), (6, 16, 4), (5, 33, 130), (300, 70, 65)])
@pytest.mark.parametrize("bits", [(4, 4), (8, 8)])
def test_any_strides_of_the_codes(instruction_set, shape, bits):
    M, N, K = shape
    layouts: list[Callable[[Tensor], Tensor]] = [
        lambda c: c,
        lambda c: c.mT.contiguous().mT,
        lambda c: c.repeat_interleave(3, 1)[:, ::3],
        lambda c: c[:1].expand_as(c),
        lambda c: c[:, :1].expand_as(c),
    ]
    for make_x, make_y in itertools.product(layouts, repeat=2):
        x, y = draw(bits[0], M, K), draw(bits[1], N, K)
        check_gemm(x._replace(codes=make_x(x.codes)), y._replace(codes=make_y(y.codes)))


@pytest.mark.parametrize(
    ("x_batch", "y_batch"),
    [((3,), (3,)), ((2, 3), (2, 3)), ((2, 1), (3,)), ((), (4,)), ((4,), ()), ((2, 1, 3), (5, 1))],
)
def test_batches_broadcast(instruction_set, x_batch, y_batch):
    for threads in (1, 2):
        torch.set_num_threads(threads)
        check_gemm(draw(8, *x_batch, 5, 9), draw(4, *y_batch, 7, 9, scales=7), torch.randn(7))


def test_heads_of_a_transposed_view_are_not_copied(instruction_set):
    x, y = draw(8, 2, 10, 4, 16), draw(5, 2, 11, 4, 16)
    x, y = (c._replace(codes=c.codes.transpose(1, 2)) for c in (x, y))
    check_gemm(x, y)


def test_nothing_to_sum_is_the_bias():
    bias = torch.randn(5)
    assert gemm(draw(4, 0, 3), draw(4, 5, 3), bias).shape == (0, 5)
    assert gemm(draw(4, 3, 4), draw(4, 0, 4)).shape == (3, 0)
    assert torch.equal(gemm(draw(4, 2, 0), draw(4, 5, 0), bias), bias.expand(2, 5))
    assert torch.equal(gemm_folded(draw(4, 2, 0), draw(4, 5, 0)), torch.zeros(2, 5))
    assert gemm(draw(4, 0, 2, 3), draw(4, 0, 5, 3)).shape == (0, 2, 5)
    geometry = ((1, 1), (1, 1), (1, 1), 1)
    empty = conv_output(draw(4, 0, 3, 5, 5), draw(4, 5, 3, 3, 3), bias, (5, 5), *geometry)
    assert empty.shape == (0, 5, 5, 5)
    nothing = conv_grad_weight(draw(4, 0, 5, 5, 5), draw(4, 0, 3, 5, 5), (5, 3, 3, 3), *geometry)
    assert torch.equal(nothing, torch.zeros(5, 3, 3, 3))


def test_scales_of_other_types_and_strides(instruction_set):
    x, y = draw(8, 4, 20), draw(8, 6, 20, scales=6)
    strided = y.scale.repeat_interleave(2)[::2]
    result = gemm(x._replace(scale=x.scale.double()), y._replace(scale=strided))
    assert torch.equal(result, gemm(x, y))


def test_nan_in_a_scale_is_seen_in_the_result(instruction_set):
    x, y = draw(8, 4, 20), draw(8, 6, 20, scales=20)
    y.scale[3] = float("nan")
    assert gemm_folded(x, y).isnan().all()


# ---- scales on the summed axis ------------------------------------------------------------------


def check_folded(x: Codes, y: Codes) -> None:
    """Within 2^-16 * max(row) * sum|other|, where `x` counts from the middle of its codes."""
    x_values, y_values = values(x, 1), values(y, 1)
    if x.scale.numel() > 1:
        unit = (y_values * x.scale).abs().amax(1)
        centred = (x.codes.double() - x.half).abs().sum(1, keepdim=True)
    else:
        unit, centred = y_values.abs().amax(1), x_values.abs().sum(1, keepdim=True)
    allowed = 2**-16 * 1.001 * unit * centred + ROUNDING * (sizes(x, 1) @ sizes(y, 1).mT)
    assert_near(gemm_folded(x, y), x_values @ y_values.mT, allowed)


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 17, 33), (40, 64, 300), (13, 100, 2051)])
@pytest.mark.parametrize("bits", [(2, 3), (5, 8), (8, 8)])
def test_folded_products_are_within_the_bound(instruction_set, shape, bits):
    M, N, K = shape
    for x_scales, x_turned, y_turned in itertools.product((1, K), (False, True), (False, True)):
        x, y = draw(bits[0], M, K, scales=x_scales), draw(bits[1], N, K, scales=K, seed=1)
        if x_turned:
            x = x._replace(codes=x.codes.mT.contiguous().mT)
        if y_turned:
            y = y._replace(codes=y.codes.mT.contiguous().mT)
        check_folded(x, y)


def test_folded_sums_of_extreme_codes_do_not_overflow(instruction_set):
    K = 2**20
    for code in (0, 255):
        x = whole(torch.full((2, K), code, dtype=torch.uint8), 8)
        y = draw(8, 2, K, scales=K)._replace(codes=torch.full((2, K), 255, dtype=torch.uint8))
        check_folded(x, y._replace(offset=torch.zeros(K)))


# ---- packed operands ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(20, 50, 65), (1, 16, 4), (3, 130, 33)])
@pytest.mark.parametrize("bits", [(4, 4), (8, 8), (8, 3)])
def test_packed_operands_give_the_same_bits(instruction_set, shape, bits):
    M, N, K = shape
    x, bias = draw(bits[0], M, K), torch.randn(N)
    y = draw(bits[1], N, K, scales=N)
    assert torch.equal(gemm(x, y, bias, packed=pack(x.half, y)), gemm(x, y, bias))
    y = draw(bits[1], N, K, scales=K)
    assert torch.equal(gemm_folded(x, y, bias, packed=pack_folded(y)), gemm_folded(x, y, bias))
    x = draw(bits[0], M, K, scales=K)
    assert torch.equal(gemm_folded(x, y, packed=pack_folded(y)), gemm_folded(x, y))


# ---- convolutions -------------------------------------------------------------------------------

PAIRS = st.tuples(st.integers(0, 3), st.integers(0, 3))


@st.composite
def convolutions(draw_from: st.DrawFn) -> dict:
    groups = draw_from(st.sampled_from([1, 1, 2, 3]))
    channels, columns = (
        draw_from(st.sampled_from([1, 2, 3, 4, 16, 18])),
        st.sampled_from([1, 3, 17]),
    )
    is_depthwise = draw_from(st.integers(0, 4)) == 0
    if is_depthwise:
        groups, channels, columns = draw_from(st.sampled_from([2, 16, 19])), 1, st.just(1)
    kernel = draw_from(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = draw_from(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    padding = draw_from(PAIRS)
    return {
        "bits": draw_from(st.tuples(*[st.integers(1, 8)] * 3)),
        "maps": draw_from(st.integers(1, 3)),
        "in": groups * channels,
        "out": groups * draw_from(columns),
        "size": [
            draw_from(st.integers(max(1, r - 2 * p), r + 8))
            for r, p in zip(reach, padding, strict=True)
        ],
        "kernel": kernel,
        "geometry": (
            draw_from(PAIRS.map(lambda p: (p[0] or 1, p[1] or 1))),
            padding,
            dilation,
            groups,
        ),
        "per_channel": draw_from(st.booleans()),
        "threads": draw_from(st.integers(1, 3)),
        "channels_last": draw_from(st.booleans()),
    }


def check_convolution(a: Codes, w: Codes, e: Codes, geometry: tuple) -> None:
    """All three products; `e` may reach further than the padding does."""
    stride, padding, dilation, groups = geometry
    Ho, Wo = e.codes.shape[2:]
    bias = torch.randn(w.codes.shape[0])
    needed = [
        (n - 1) * s + d * (k - 1) + 1 - size - p
        for n, s, d, k, size, p in zip(
            (Ho, Wo), stride, dilation, w.codes.shape[2:], a.codes.shape[2:], padding, strict=True
        )
    ]
    # the end of each axis padded as far as the last result reads, and cut where nothing does
    pads = (padding[1], needed[1], padding[0], needed[0])
    A, W, E, flat = F.pad(values(a), pads), values(w), values(e), (stride, 0, dilation, groups)
    sA, sW, sE = F.pad(sizes(a), pads), sizes(w), sizes(e)

    output = conv_output(a, w, bias, (Ho, Wo), *geometry)
    assert output.is_contiguous(memory_format=torch.channels_last)
    size = F.conv2d(sA, sW, bias.abs().double(), *flat)
    assert_near(output, F.conv2d(A, W, bias.double(), *flat), ROUNDING * size)

    def cut(x: Tensor) -> Tensor:
        return F.pad(x, [-p for p in pads])

    largest = W.abs().unflatten(0, (groups, -1)).amax((1, 3, 4)).flatten()[:, None, None]
    errors = conv2d_input(A.shape, torch.ones_like(W), E.abs(), *flat)
    size = conv2d_input(A.shape, sW, sE, *flat)
    allowed = 2**-16 * 1.001 * largest * cut(errors) + ROUNDING * cut(size)
    expected = cut(conv2d_input(A.shape, W, E, *flat))
    result = conv_grad_input(e, w, a.codes.shape[1:], *geometry)
    assert_near(result, expected, allowed)

    if e.scale.numel() == 1:
        size = conv2d_weight(sA, W.shape, sE, *flat)
        result = conv_grad_weight(e, a, w.codes.shape, *geometry)
        assert_near(result, conv2d_weight(A, W.shape, E, *flat), ROUNDING * size)


def make_convolution(case: dict, end: int = 0, maps_scales: bool = False) -> tuple:
    stride, padding, dilation, groups = case["geometry"]
    results = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1 + end
        for size, k, s, p, d in zip(
            case["size"], case["kernel"], stride, padding, dilation, strict=True
        )
    ]
    N, scales = case["maps"], case["out"] if case["per_channel"] else 1
    a = draw(case["bits"][0], N, case["in"], *case["size"])
    w = draw(case["bits"][1], case["out"], case["in"] // groups, *case["kernel"], scales=scales)
    e = draw(case["bits"][2], N, case["out"], *results, scales=N if maps_scales else 1, seed=1)
    if case["channels_last"]:
        a, w, e = (
            c._replace(codes=c.codes.contiguous(memory_format=torch.channels_last))
            for c in (a, w, e)
        )
    return a, w, e, case["geometry"]


@settings(max_examples=60)
@given(case=convolutions())
@pytest.mark.parametrize("name", ["portable", "avx2", "avx512_vnni"])
def test_convolutions_of_any_geometry(name, case):
    torch.set_num_threads(case["threads"])
    with using(name):
        check_convolution(*make_convolution(case))


SMALL = {
    "bits": (8, 8, 8),
    "maps": 3,
    "in": 18,
    "out": 20,
    "size": (6, 7),
    "kernel": (3, 2),
    "geometry": ((1, 1), (1, 0), (1, 1), 1),
    "per_channel": True,
    "channels_last": True,
}


def test_padding_that_ends_one_further_than_it_begins(instruction_set):
    check_convolution(*make_convolution(SMALL, end=1))
    depthwise = {**SMALL, "in": 20, "geometry": ((1, 1), (1, 0), (1, 1), 20)}
    check_convolution(*make_convolution(depthwise, end=1))


def test_an_error_scale_for_each_map(instruction_set):
    for groups in (1, 2, 20):
        case = {**SMALL, "in": 20, "geometry": ((2, 1), (1, 1), (1, 1), groups)}
        check_convolution(*make_convolution(case, maps_scales=True))


@pytest.mark.parametrize("code", [0, 255])
def test_sums_over_large_maps_do_not_overflow(instruction_set, code):
    geometry = ((1, 1), (0, 0), (1, 1), 1)
    a = whole(torch.full((1, 2, 300, 301), code, dtype=torch.uint8), 8)
    e = whole(torch.full((1, 2, 300, 301), 255, dtype=torch.uint8), 8)
    expected = torch.full((2, 2, 1, 1), 255.0 * code * 300 * 301)
    torch.testing.assert_close(conv_grad_weight(e, a, (2, 2, 1, 1), *geometry), expected)
    depthwise = conv_grad_weight(e, a, (2, 1, 1, 1), *geometry[:3], 2)
    torch.testing.assert_close(depthwise, expected[:, :1])


@pytest.mark.parametrize("code", [0, 255])
def test_sums_over_a_batch_and_over_a_long_row_do_not_overflow(instruction_set, code):
    geometry, former = ((1, 1), (0, 0), (1, 1), 1), torch.get_num_threads()
    try:
        for shape in ((8, 1, 128, 128), (1, 1, 1, 2**18 + 3), (3, 1, 2, 2**17)):
            a = whole(torch.full(shape, code, dtype=torch.uint8), 8)
            e = whole(torch.full(shape, 255, dtype=torch.uint8), 8)
            expected = torch.full((1, 1, 1, 1), 255.0 * code * a.codes.numel())
            for num_threads in (1, 2, 3):
                torch.set_num_threads(num_threads)
                grad = conv_grad_weight(e, a, (1, 1, 1, 1), *geometry)
                torch.testing.assert_close(grad, expected)
    finally:
        torch.set_num_threads(former)


def test_many_channels(instruction_set):
    case = {**SMALL, "maps": 1, "in": 4100, "out": 2, "size": (2, 2), "kernel": (1, 1)}
    check_convolution(*make_convolution(case))
    check_convolution(*make_convolution({**case, "in": 2, "out": 4100}))


# ---- threads, graphs, errors --------------------------------------------------------------------


def test_any_number_of_threads_gives_the_same_bits(instruction_set):
    x, y, z = draw(8, 70, 40), draw(8, 90, 40, scales=90), draw(8, 90, 40, scales=40)
    heads, rows = draw(8, 3, 70, 40), draw(8, 70, 40, scales=70)
    a, w, e, geometry = make_convolution({**SMALL, "maps": 7})
    d_a, d_w, d_e, d_geometry = make_convolution(
        {**SMALL, "in": 20, "geometry": ((1, 1), (1, 0), (1, 1), 20)}
    )

    def results() -> list[Tensor]:
        return [
            gemm(x, y),
            gemm_folded(x, z),
            gemm(heads, y),
            gemm(rows, y),
            conv_output(a, w, None, e.codes.shape[2:], *geometry),
            conv_grad_input(e, w, a.codes.shape[1:], *geometry),
            conv_grad_weight(e, a, w.codes.shape, *geometry),
            conv_output(d_a, d_w, None, d_e.codes.shape[2:], *d_geometry),
            conv_grad_input(d_e, d_w, d_a.codes.shape[1:], *d_geometry),
            conv_grad_weight(d_e, d_a, d_w.codes.shape, *d_geometry),
        ]

    torch.set_num_threads(1)
    alone = results()
    for threads in (2, 3):
        torch.set_num_threads(threads)
        for one, other in zip(alone, results(), strict=True):
            assert torch.equal(one, other)


def test_one_graph_serves_all_bits_and_batches():
    counter = CompileCounterWithBackend("aot_eager")
    _, w, _, geometry = make_convolution(SMALL)
    weight = draw(8, 5, 18)

    @torch.compile(backend=counter, fullgraph=True, dynamic=True)
    def products_of(x: Codes, a: Codes, e: Codes) -> tuple[Tensor, ...]:
        return (
            gemm(x, weight, packed=pack(x.half, weight)),
            gemm_folded(x, weight, packed=pack_folded(weight)),
            conv_output(a, w, None, e.codes.shape[2:], *geometry),
            conv_grad_input(e, w, a.codes.shape[1:], *geometry),
            conv_grad_weight(e, a, w.codes.shape, *geometry),
        )

    for bits, maps in ((8, 4), (8, 3), (3, 5), (2, 2)):
        a, _, e, _ = make_convolution({**SMALL, "bits": (bits, 8, bits), "maps": maps})
        x = draw(bits, maps, 18)
        results = products_of(x, a, e)
        assert torch.equal(results[0], gemm(x, weight))
        assert torch.equal(results[1], gemm_folded(x, weight))
        assert torch.equal(results[2], conv_output(a, w, None, e.codes.shape[2:], *geometry))
        assert torch.equal(results[3], conv_grad_input(e, w, a.codes.shape[1:], *geometry))
        assert torch.equal(results[4], conv_grad_weight(e, a, w.codes.shape, *geometry))
    assert counter.frame_count == 1


def test_operators_agree_with_their_fakes():
    x, y = draw(4, 2, 3, 5), draw(4, 7, 5)
    a, w, e, geometry = make_convolution(SMALL)
    checks = ("test_schema", "test_faketensor")
    ops = torch.ops.bitcycle
    torch.library.opcheck(ops.gemm, (*x, *y, None, None), test_utils=checks)
    torch.library.opcheck(ops.pack, (x.half, *y), test_utils=checks)
    torch.library.opcheck(ops.pack_folded, tuple(y), test_utils=checks)
    size, shape = e.codes.shape[2:], w.codes.shape
    torch.library.opcheck(ops.conv_output, (*a, *w, None, size, *geometry), test_utils=checks)
    in_size = a.codes.shape[1:]
    torch.library.opcheck(ops.conv_grad_input, (*e, *w, in_size, *geometry), test_utils=checks)
    torch.library.opcheck(ops.conv_grad_weight, (*e, *a, shape, *geometry), test_utils=checks)


def test_a_failed_allocation_is_an_error(monkeypatch):
    class Full:
        def bitcycle_gemm(self, arguments: bytes) -> int:
            return 1

    monkeypatch.setattr(products, "library", Full)
    with pytest.raises(MemoryError, match="bitcycle_gemm"):
        gemm(draw(4, 2, 3), draw(4, 2, 3))
