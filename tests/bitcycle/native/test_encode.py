"""The native library rounds, decodes and packs to the last bit as plain torch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bitcycle.native import encode
from bitcycle.native.library import library
from bitcycle.ops import affine, codes, noise, packing
from bitcycle.ops.layout import as_dense, flat, is_numbered_in_memory_order
from bitcycle.quantizers import SBM, AbsMax, DoReFa, Quantized, Quantizer, SBMFull

pytestmark = pytest.mark.skipif(library() is None, reason="the native library is not built")
properties = settings(max_examples=100, derandomize=True)

INF, NAN = float("inf"), float("nan")
KEY = torch.tensor([123, -456], dtype=torch.int32)
SPECIAL = [0.0, -0.0, INF, -INF, NAN, 1e-45, -1e-45, 1e-38, 3e38, -3e38]
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "turned": lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    "gaps": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
}
SHAPES = [(1, 1, 1, 1), (3, 5, 7, 1), (2, 6, 5, 4), (33, 1, 2, 1), (5, 37, 3, 3), (2, 3, 80, 90)]
CONTENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x * 3,
    "tiny": lambda x: x * 1e-40,
    "huge": lambda x: x * 1e38,
    "constant": lambda x: torch.full_like(x, -0.7),
    "zeros": lambda x: x * 0.0,
    "special": lambda x: _sprinkle(x, SPECIAL),
    "infinite": lambda x: _sprinkle(x, [INF, 1.0]),
    "halves": lambda x: (x * 4).round() / 2,
}


def _sprinkle(x: Tensor, values: list[float]) -> Tensor:
    out = x.flatten().clone()
    for place, value in enumerate(values):
        out[place * 7 % out.numel()] = value
    return out.view(x.shape)


@st.composite
def tensors(draw: Any) -> Tensor:
    shape = draw(st.sampled_from(SHAPES))
    seed = draw(st.integers(0, 9))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    x = CONTENTS[draw(st.sampled_from(sorted(CONTENTS)))](x)
    return LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](x)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal in shape, dtype and every bit, but for the payload of a NaN."""
    a, b = (torch.where(t.isnan(), NAN, t) if t.is_floating_point() else t for t in (a, b))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8))


def same_codes(a: Tensor, b: Tensor, values: Tensor) -> bool:
    """Equal where there is a value; a NaN has no code."""
    return a.dtype == b.dtype and torch.equal(a[~values.isnan()], b[~values.isnan()])


def _plain_range(x: Tensor, keep: int | None) -> tuple[Tensor, Tensor]:
    if keep is None:
        return x.amin(), x.amax()
    dims = [d for d in range(x.dim()) if d != keep]
    return x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)


@properties
@given(x=tensors(), keep=st.sampled_from((None, 0, 1, 2, 3)))
def test_ranges_of_tensors_and_channels(x: Tensor, keep: int | None) -> None:
    for ours, expected in zip(
        encode.value_range(as_dense(x), keep), _plain_range(x, keep), strict=True
    ):
        assert same_bits(ours + 0.0, expected + 0.0)  # of zeros with both signs, either is lowest


def test_a_nan_shows_in_the_range_wherever_it_is() -> None:
    for size in (1, 31, 32, 33, 16_384, 16_385, 50_000):
        for place in {0, size // 2, size - 1}:
            x = torch.zeros(size)
            x[place] = NAN
            assert all(end.isnan() for end in encode.value_range(x))


@properties
@given(
    x=tensors(),
    keep=st.sampled_from((None, 0, 1, 3)),
    bits=st.sampled_from((1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23)),
)
def test_values_and_codes(x: Tensor, keep: int | None, bits: int) -> None:
    levels = torch.tensor(2.0**bits - 1)
    low, high = _plain_range(x, keep)
    grid = affine.grid_step(low, high, levels), low, levels
    values, noisy = affine.round_nearest(x, *grid), affine.round_stochastic(x, *grid, KEY)
    assert same_bits(values, affine._nearest(x, *grid))
    assert same_bits(noisy, affine._stochastic(x, *grid, KEY))
    if bits > 8:
        return
    nearest, stochastic = codes.nearest_codes(x, *grid), codes.stochastic_codes(x, *grid, KEY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "_functions", lambda: None)
        assert same_codes(nearest, codes.nearest_codes(x, *grid), values)
        assert same_codes(stochastic, codes.stochastic_codes(x, *grid, KEY), noisy)
    assert same_bits(codes.decode(nearest, *grid[:2]), nearest * grid[0] + grid[1])
    if x.is_contiguous() or is_numbered_in_memory_order(x):
        assert nearest.stride() == stochastic.stride() == values.stride() == x.stride()


@properties
@given(
    x=tensors(),
    keep=st.sampled_from((None, 0, 1, 3)),
    bits=st.sampled_from((1, 2, 4, 7, 8)),
    rule=st.sampled_from(list(affine.Rule)),
    key=st.sampled_from((None, KEY)),
    dtype=st.sampled_from((torch.float32, torch.uint8)),
)
def test_bfloat16_has_the_ranges_codes_and_values_of_float32(
    x: Tensor,
    keep: int | None,
    bits: int,
    rule: affine.Rule,
    key: Tensor | None,
    dtype: torch.dtype,
) -> None:
    x = as_dense(x).to(torch.bfloat16)
    levels = torch.tensor(2**bits - 1, dtype=torch.int32)

    def everything(x: Tensor) -> list[Tensor]:
        low, high = encode.value_range(x, keep)
        grid = affine.grid_step(low, high, levels.float()), low, levels.float()
        own = encode.quantize(x, keep, levels, rule, key=key, dtype=dtype)
        given = encode.quantize(x, (low, high), levels, rule, key=key, dtype=dtype)
        return [low, high, encode.round_to_grid(x, *grid, key, dtype), *own, *given]

    for ours, expected in zip(everything(x), everything(x.float()), strict=True):
        assert same_bits(ours, expected)
        assert ours.stride() == expected.stride()


RULES: list[Quantizer] = [
    SBM(),
    SBM(zero="integer"),
    SBM(floor=1e-3),
    SBMFull(),
    DoReFa(),
    AbsMax(),
]


def _both(rule: Quantizer, *args: Any, **kwargs: Any) -> tuple[Quantized, Quantized]:
    """What a rule makes with the library, and without."""
    ours = rule.encode(*args, **kwargs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "_functions", lambda: None)
        return ours, rule.encode(*args, **kwargs)


@properties
@given(
    x=tensors(),
    rule=st.sampled_from(RULES),
    role=st.sampled_from(("act", "weight", "error")),
    bits=st.integers(1, 16),
    as_codes=st.booleans(),
    keep=st.sampled_from(((), (0,), (1,))),
)
def test_grids_of_rules(
    x: Tensor,
    rule: Quantizer,
    role: str,
    bits: int,
    as_codes: bool,
    keep: tuple[int, ...],
) -> None:
    as_codes = as_codes and bits <= 8
    levels = torch.tensor(2**bits - 1, dtype=torch.int32)
    within = rule.range_of(role, x, keep)
    ours, plain = _both(rule, role, x, levels, within, KEY, as_codes=as_codes)
    _assert_equal(ours, plain)
    at_once, own = rule.quantize(role, x, levels, keep, KEY, as_codes)
    _assert_equal(at_once, plain)
    assert all(same_bits(a + 0.0, b + 0.0) for a, b in zip(own, within, strict=True))


def _assert_equal(ours: Quantized, plain: Quantized) -> None:
    for name in ("scale", "offset", "values", "half"):
        one, other = getattr(ours, name), getattr(plain, name)
        assert (one is None) == (other is None)
        assert one is None or same_bits(one, other), name
    if plain.codes is not None:
        assert ours.codes is not None
        assert same_codes(ours.codes, plain.codes, plain.dequantize())


def test_results_depend_on_no_number_of_threads_and_no_instruction_set() -> None:
    x = torch.randn(7, 5, 61, 67, generator=torch.Generator().manual_seed(0))
    levels = torch.tensor(255, dtype=torch.int32)
    found = library()
    assert found is not None

    def everything() -> list[Tensor]:
        made = []
        for keep in (None, 0, 1, 3):
            low, high = encode.value_range(x, keep)
            for key in (None, KEY):
                for dtype in (torch.float32, torch.uint8):
                    made += encode.quantize(
                        x, (low, high), levels, affine.Rule.FROM_LOW, key=key, dtype=dtype
                    )
            made += [low, high]
        words = packing.pack_positive(flat(x))
        return [*made, words, packing.keep_positive(words, flat(x))]

    best, first = found.bitcycle_tiles(None), everything()
    for name in (b"portable", b"avx2", b"avx512_vnni"):
        if found.bitcycle_tiles(name) is not None:
            assert all(map(torch.equal, first, everything()))
    assert found.bitcycle_tiles(best) == best
    former = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert all(map(torch.equal, first, everything()))
    finally:
        torch.set_num_threads(former)


@properties
@given(
    count=st.sampled_from((0, 1, 2, 31, 32, 33, 1000, 16_384, 16_385, 70_001)),
    content=st.sampled_from(sorted(CONTENTS)),
)
def test_masks_and_nibbles(count: int, content: str) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(count))
    x = CONTENTS[content](x) if count else x
    words = packing.pack_positive(x)
    assert torch.equal(words, packing._pack_positive(x))
    for g in (x.flip(0), torch.tensor(2.5).expand(count)):
        kept, expected = packing.keep_positive(words, g), packing._keep_positive(words, g)
        assert torch.equal(kept.view(torch.int32), expected.view(torch.int32))
    numbers = torch.arange(count).remainder(16).to(torch.uint8)
    packed = packing.pack_nibbles(numbers)
    assert torch.equal(packed, packing._pack_nibbles(numbers))
    assert torch.equal(packing.unpack_nibbles(packed, count), numbers)
    assert torch.equal(packing._unpack_nibbles(packed, count), numbers)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=3, max_size=3))
def test_noise_keys(numbers: list[int]) -> None:
    clock = torch.tensor(numbers, dtype=torch.int32)
    plain = noise.noise_key(clock[:, None].contiguous())[:, 0]  # on tensors
    assert torch.equal(noise.noise_key(clock), plain)


def test_empty_tensors_have_grids_of_every_channel() -> None:
    levels = torch.tensor(3, dtype=torch.int32)
    for shape in ((0,), (2, 0), (0, 4)):
        for keep in ((), (0,)):
            x = torch.zeros(shape)
            within = affine.value_range(x, keep)
            ours, plain = _both(SBM(), "act", x, levels, within, as_codes=True)
            assert ours.codes is not None
            assert ours.codes.shape == x.shape
            assert same_bits(ours.scale, plain.scale)
            assert ours.dequantize().shape == x.shape


# -- where torch must see its own operations -----------------------------------------------------


class _Watch(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
def test_what_traces_or_watches_sees_torchs_operations() -> None:
    x = torch.randn(4, 4)
    assert encode.is_available(x, torch.float32)
    assert encode.is_available(torch.nn.Parameter(x).detach(), torch.float32)
    refused: list[bool] = []

    def note(x: Tensor) -> Tensor:
        refused.append(not encode.is_available(x, torch.float32))
        return x * 1

    note(x.requires_grad_())
    x = x.detach()
    note(x.double())
    note(x.to("meta"))
    note(torch.nn.Buffer(x).as_subclass(_Subclass))
    note(x.to_sparse())
    note(torch.complex(x, x).conj().imag)
    torch.vmap(note)(x)
    torch.func.grad(lambda x: note(x).sum())(x)
    torch.jit.trace(note, x, check_trace=False)
    with _Watch():
        note(x)
    assert len(refused) == 10
    assert all(refused)
    with torch.no_grad():  # as inside an autograd function
        assert encode.is_available(x.clone().requires_grad_(), torch.float32)


class _Subclass(Tensor):
    pass


def test_one_reduction_and_one_pass_round_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 16, 33, 33)
    called: list[str] = []
    real = encode._call()

    class Counting:
        scalar = real.scalar  # not a call

        def __getattr__(self, name: str) -> Any:
            called.append(name)
            return getattr(real, name)

    monkeypatch.setattr(encode, "_call", Counting)
    levels, rule = torch.tensor(255, dtype=torch.int32), SBM()
    for role, keep in (("act", ()), ("weight", (0,)), ("error", ())):
        for layout in ("contiguous", "channels last"):
            tensor = LAYOUTS[layout](x)
            within = rule.range_of(role, tensor, keep)
            rule.encode(role, tensor, levels, within, KEY, as_codes=True)
            assert called == ["range", "quantize"]
            called.clear()
            rule.quantize(role, tensor, levels, keep, KEY, as_codes=True)
            assert called == ["quantize"]
            called.clear()
