"""The rules of sbm: which tensor gets which range and which rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bitcycle.quantizers import SBM, sbm
from bitcycle.quantizers.base import Quantized

X = torch.tensor([-1.0, -0.4, 0.1, 0.7, 2.0])
KEY = torch.tensor([123, 456], dtype=torch.int32)


def _encode(
    x: Tensor, bits: int, role: str = "act", within: tuple[float, float] | None = None,
    key: Tensor | None = None, keep: tuple[int, ...] = (), **options: object,
) -> Quantized:  # fmt: skip
    rule = SBM(**options)
    span = rule.range_of(role, x, keep) if within is None else tuple(map(torch.tensor, within))
    return rule.encode(role, x, torch.tensor(2**bits - 1, dtype=torch.int32), span, key)


@pytest.mark.parametrize("role", ["weight", "act", "error"])
@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        # the specification's check values; .1 and .7 are exact ties at 8 bits
        (3, [-1.0, -0.571429, 0.285714, 0.714286, 2.0]),
        (8, [-1.0, -0.4, 0.105882, 0.694118, 2.0]),
    ],
)
def test_the_check_values_of_the_specification(role: str, bits: int, expected: list[float]) -> None:
    values = _encode(X, bits, role).dequantize()
    torch.testing.assert_close(values, torch.tensor(expected), rtol=0, atol=1e-6)


def test_the_check_values_of_a_fixed_range() -> None:
    # the specification's check values: range [0, 1.5], 3 bits; .75 is an exact tie
    values = _encode(torch.tensor([2.0, -0.3, 0.75]), 3, within=(0.0, 1.5)).dequantize()
    torch.testing.assert_close(values, torch.tensor([1.5, 0.0, 0.857143]), rtol=0, atol=1e-6)


def test_a_weight_has_a_grid_per_output_channel() -> None:
    w = torch.tensor([[0.0, 0.2, 1.0], [0.0, 20.0, 100.0]])
    values = _encode(w, 1, "weight", keep=(0,)).dequantize()
    assert values.tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 100.0]]


def test_an_integer_zero_puts_0_on_the_grid() -> None:
    # range [-1, 2], 3 bits: s = 3/7, -min/s = 7/3 rounds to 2 steps below 0, 5 above
    quantized = _encode(torch.cat([X, torch.zeros(1)]), 3, zero="integer")
    s = 3 / 7
    assert quantized.offset is not None
    assert quantized.offset.item() == pytest.approx(-2 * s)
    expected = [-2 * s, -1 * s, 0.0, 2 * s, 5 * s, 0.0]
    assert quantized.dequantize().tolist() == pytest.approx(expected)
    assert quantized.dequantize()[-1] == 0.0


@pytest.mark.parametrize(("low", "high", "widened"), [(1.0, 2.0, 2.0), (-2.0, -1.0, 2.0)])
def test_an_integer_zero_widens_the_range_to_include_0(
    low: float, high: float, widened: float
) -> None:
    quantized = _encode(torch.tensor([low, high]), 2, zero="integer")
    assert quantized.scale is not None
    assert quantized.scale.item() == pytest.approx(widened / 3)


def test_after_a_relu_the_two_zeros_coincide() -> None:
    x = X.relu()
    real, integer = _encode(x, 3, zero="real"), _encode(x, 3, zero="integer")
    assert torch.equal(real.dequantize(), integer.dequantize())


def test_a_floor_reproduces_the_reference_s_smallest_step() -> None:
    e = torch.tensor([0.0, 0.4e-8, 1.6e-8, 1e-5])
    # 16 bits over 1e-5 would be a step of 1.5e-10; the reference's is 1e-8
    floored = _encode(e, 16, "error", error_rounding="nearest", floor=1e-8)
    assert floored.dequantize().tolist() == pytest.approx([0.0, 0.0, 2e-8, 1e-5], abs=1e-12)
    free = _encode(e, 16, "error", error_rounding="nearest")
    assert free.dequantize().tolist() == pytest.approx(e.tolist(), abs=0.8e-10)


@pytest.mark.parametrize("floor", [0.0, 1e-8])
@pytest.mark.parametrize("value", [0.0, -0.1, 1 / 3, 1e-30, 12345.678])
@pytest.mark.parametrize("role", ["weight", "act", "error"])
def test_a_constant_tensor_is_reproduced_exactly(role: str, value: float, floor: float) -> None:
    x = torch.full((3, 2), value)
    keep = (0,) if role == "weight" else ()
    quantized = _encode(x, 2, role, key=KEY, keep=keep, floor=floor)
    assert torch.equal(quantized.dequantize(), x)


def test_only_the_error_is_rounded_stochastically() -> None:
    torch.manual_seed(0)
    x = torch.randn(100)
    nearest = _encode(x, 3, "error", error_rounding="nearest", key=KEY).dequantize()
    for role in ("weight", "act"):
        assert torch.equal(_encode(x, 3, role, key=KEY).dequantize(), nearest)
    stochastic = _encode(x, 3, "error", key=KEY).dequantize()
    assert not torch.equal(stochastic, nearest)
    assert torch.equal(_encode(x, 3, "error", key=KEY).dequantize(), stochastic)


def test_a_stochastic_error_is_unbiased() -> None:
    torch.manual_seed(0)
    e = torch.randn(50)
    rule, levels = SBM(), torch.tensor(7)
    num = 4000
    keys = torch.randint(-(2**31), 2**31 - 1, (num, 2), dtype=torch.int32)
    within = rule.range_of("error", e)
    mean = torch.zeros(50, dtype=torch.float64)
    for key in keys:
        mean += rule.encode("error", e, levels, within, key).dequantize() / num
    step = float((e.max() - e.min()) / 7)
    inner = (e > e.min()) & (e < e.max())  # the two ends are on the grid
    torch.testing.assert_close(mean.float()[~inner], e[~inner])
    place = ((e - e.min()).double() / step) % 1
    z_squares = (mean - e)[inner] ** 2 / (step**2 * place * (1 - place) / num)[inner]
    # 48 squares of standard normals: chi-square, 1e-6 two-sided [14.2, 112.0]
    assert 14.2 < float(z_squares.sum()) < 112.0


def test_both_products_of_a_backward_pass_get_the_same_error() -> None:
    rule = SBM()
    for_input, for_weight = rule.encode_error(X, torch.tensor(7), rule.range_of("error", X), KEY)
    assert for_input is for_weight


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("role", ["weight", "act", "error"])
def test_grids_of_half_precision_tensors_are_computed_in_float32(
    role: str, dtype: torch.dtype
) -> None:
    x = X.to(dtype)
    quantized = _encode(x, 6, role, error_rounding="nearest")
    assert quantized.scale is not None
    assert quantized.scale.dtype == torch.float32
    assert quantized.dequantize().dtype == dtype
    expected = _encode(x.float(), 6, role, error_rounding="nearest").dequantize().to(dtype)
    assert torch.equal(quantized.dequantize(), expected)


def test_a_float16_range_wider_than_float16_reaches_is_finite() -> None:
    x = torch.tensor([-60000.0, 0.0, 60000.0], dtype=torch.float16)
    low, high = SBM().range_of("act", x)
    assert (high - low).item() == 120000.0
    assert _encode(x, 2).dequantize().isfinite().all()


def test_float64_keeps_its_precision() -> None:
    x = X.double()
    quantized = _encode(x, 20)
    assert quantized.dequantize().dtype == torch.float64
    step = 3 / (2**20 - 1)
    expected = torch.round((x + 1) / step) * step - 1
    torch.testing.assert_close(quantized.dequantize(), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), ()])
@pytest.mark.parametrize("role", ["weight", "act", "error"])
def test_empty_and_0_d_tensors_pass_through(role: str, shape: tuple[int, ...]) -> None:
    x = torch.full(shape, 0.3)
    keep = (0,) if role == "weight" and shape else ()
    assert torch.equal(_encode(x, 3, role, keep=keep, key=KEY).dequantize(), x)


def test_codes_are_whole_numbers_from_0_to_the_level_count() -> None:
    assert _encode(X, 3).integer_codes().tolist() == [0.0, 1.0, 3.0, 4.0, 7.0]
    assert SBM().integer_range(3) == (0, 7)
    assert SBM().integer_range(8) == (0, 255)
    assert SBM().integer_range(9) is None


def test_ranges_are_shared_between_processes_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_another_process(ends: Tensor, op: object) -> None:
        assert op == torch.distributed.ReduceOp.MAX
        ends.copy_(torch.maximum(ends, torch.tensor([5.0, 1.0])))  # it has the range [-5, 1]

    monkeypatch.setattr(sbm, "_is_distributed", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", with_another_process)
    synced = SBM(sync_ranges=True)
    for role in ("act", "error"):
        assert [end.item() for end in synced.range_of(role, X)] == [-5.0, 2.0]
        assert [end.item() for end in SBM().range_of(role, X)] == [-1.0, 2.0]
    # weights are the same on every process
    assert [end.item() for end in synced.range_of("weight", X)] == [-1.0, 2.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"zero": "intger"}, "unknown SBM zero 'intger'; known: integer, real; did you mean"),
        ({"error_rounding": "up"}, "unknown SBM error_rounding 'up'; known: nearest, stochastic"),
        ({"floor": -1e-8}, r"SBM floor \(-1e-08\) must be 0 or a small positive step"),
        ({"floor": float("nan")}, "must be 0 or a small positive step"),
    ],
)
def test_wrong_options_are_refused_with_the_choices(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SBM(**options)


def test_sbm_has_no_rule_for_the_weight_gradient() -> None:
    assert SBM().roles == {"weight", "act", "error"}
    assert torch.equal(SBM().encode_grad(X, torch.tensor(3), KEY), X)
