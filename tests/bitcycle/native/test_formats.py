"""The native library rounds to formats to the last bit as plain torch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.formats import list_formats, rounding
from bitcycle.formats.catalogue import Format
from bitcycle.native import encode
from bitcycle.native import formats as native
from bitcycle.native.library import library
from bitcycle.ops.layout import is_dense
from tests.bitcycle.native.test_encode import CONTENTS, KEY, LAYOUTS, same_bits

pytestmark = pytest.mark.skipif(library() is None, reason="the native library is not built")
properties = settings(max_examples=120, derandomize=True)

SHAPES = [
    (1, 1, 1, 1), (3, 5, 7, 1), (2, 33, 5, 4), (17, 31, 1, 1), (2, 70, 3, 3), (1, 1, 40, 300),
    (5, 1, 129, 2), (1, 2, 64, 96), (1, 1, 131, 130), (0, 3, 2, 1),
]  # fmt: skip
SIGNS = torch.tensor([1.0, -1, -1, 1, 1, 1, -1, 1, -1, -1, 1, -1, 1, 1, 1, -1])
BLOCKS = {"mx": 32, "nvfp4": 16, "fp8": 128}


@st.composite
def tensors(draw: Any) -> Tensor:
    shape = draw(st.sampled_from(SHAPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    x = torch.randn(shape, generator=generator)
    x = x * 2.0 ** torch.randint(-20, 20, shape, generator=generator)
    if x.numel():
        x = CONTENTS[draw(st.sampled_from(sorted(CONTENTS)))](x)
    return LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](x)


@st.composite
def where(draw: Any) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
    """Dimensions of blocks, and their sizes."""
    dims = draw(st.lists(st.integers(-4, 3), max_size=2, unique_by=lambda d: d % 4))
    sizes = draw(st.lists(st.sampled_from((None, 1, 5, 16, 32, 128)), min_size=2, max_size=2))
    return tuple(dims), tuple(sizes[: len(dims)])


def numbers_of(each: Format) -> Tensor:
    return torch.tensor(each.numbers, dtype=torch.int32)


def both(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """What a function makes with the library, and without."""
    ours = function(*args, **kwargs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "_functions", lambda: None)
        return ours, function(*args, **kwargs)


@properties
@given(x=tensors(), each=st.sampled_from(list_formats()), is_stochastic=st.booleans())
def test_elements(x: Tensor, each: Format, is_stochastic: bool) -> None:
    key = KEY if is_stochastic else None
    ours, plain = both(rounding.round_elements, x, numbers_of(each), key)
    assert same_bits(ours, plain)


@properties
@given(
    x=tensors(),
    each=st.sampled_from([each for each in list_formats() if each.kind != "float"]),
    place=where(),
    is_stochastic=st.booleans(),
    rounds_up=st.booleans(),
    tensor_scale=st.booleans(),
    is_transformed=st.booleans(),
)
def test_blocks(
    x: Tensor,
    each: Format,
    place: tuple[tuple[int, ...], tuple[int | None, ...]],
    is_stochastic: bool,
    rounds_up: bool,
    tensor_scale: bool,
    is_transformed: bool,
) -> None:
    dims, blocks = place
    ours, plain = both(
        rounding.round_blocks,
        x,
        numbers_of(each),
        kind=each.kind,
        dims=dims,
        blocks=blocks,
        scale="rceil" if rounds_up and each.kind == "mx" else "floor",
        tensor_scale=tensor_scale,
        key=KEY if is_stochastic else None,
        signs=SIGNS if is_transformed and dims else None,
    )
    assert same_bits(ours, plain)
    if ours.shape == x.shape and is_dense(x) and not is_transformed:
        assert is_dense(ours)
        assert x.numel() == 0 or x.is_contiguous() or ours.stride() == x.stride()


@pytest.mark.parametrize("each", [each for each in list_formats() if each.kind != "float"], ids=str)
@pytest.mark.parametrize("is_stochastic", [False, True])
def test_matrices_of_many_tasks(each: Format, is_stochastic: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(150, 700, generator=generator)
    size = BLOCKS[each.kind]
    for dims, blocks in (
        ((-1,), (size,)),
        ((0,), (size,)),
        ((0, 1), (size, size)),
        ((), ()),
        ((0,), (None,)),
        ((1,), (None,)),
    ):
        for signs in (None, SIGNS) if dims else (None,):
            ours, plain = both(
                rounding.round_blocks, x, numbers_of(each), kind=each.kind, dims=dims,
                blocks=blocks, key=KEY if is_stochastic else None, signs=signs,
            )  # fmt: skip
            assert same_bits(ours, plain), (dims, blocks, signs)


@pytest.mark.parametrize("inner", [1, 2, 3, 9, 63, 64, 65, 200, 2500])
def test_blocks_across_rows_of_every_width(inner: int) -> None:
    x = torch.randn(2, 37, inner, generator=torch.Generator().manual_seed(inner))
    for kind, name in (("mx", 4), ("nvfp4", 10)):
        numbers = numbers_of(list_formats()[name])
        for dims, blocks in (((1,), (BLOCKS[kind],)), ((0, 1), (2, 16))):
            ours, plain = both(
                rounding.round_blocks, x, numbers, kind=kind, dims=dims, blocks=blocks
            )
            assert same_bits(ours, plain), (kind, dims)


@properties
@given(x=tensors(), dim=st.integers(-4, 3))
def test_hadamard(x: Tensor, dim: int) -> None:
    ours, plain = both(rounding.hadamard, x, dim, SIGNS)
    assert same_bits(ours, plain)


def test_more_than_two_dimensions_of_blocks_are_left_to_torch() -> None:
    x = torch.randn(8, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    numbers = numbers_of(list_formats()[2])
    for_each_channel = rounding.round_blocks(
        x, numbers, kind="fp8", dims=(1, 2, 3), blocks=(None, None, None)
    )
    flat = rounding.round_blocks(x.flatten(1), numbers, kind="fp8", dims=(1,), blocks=(None,))
    assert torch.equal(for_each_channel.flatten(1), flat)


def test_a_traced_call_sees_torch_operations() -> None:
    assert not native.is_available(torch.zeros(3, requires_grad=True), torch.float32)


def test_numbers_of_threads_change_nothing() -> None:
    x = torch.randn(300, 200, generator=torch.Generator().manual_seed(3))
    numbers = numbers_of(list_formats()[10])
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(
                rounding.round_blocks(
                    x, numbers, kind="nvfp4", dims=(0,), blocks=(16,), key=KEY, signs=SIGNS
                )
            )
    finally:
        torch.set_num_threads(before)
    assert same_bits(found[0], found[1])
    assert same_bits(found[0], found[2])
