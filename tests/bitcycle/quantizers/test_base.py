"""The quantizer boundary: `Quantized`, the registry of rules, and the grid they share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.formats.catalogue import FORMATS
from bitcycle.quantizers import SBM, WAGEUBN, AbsMax, DoReFa, PowerOfTwo, Quantizer, SBMFull
from bitcycle.quantizers.base import Quantized, make_quantizer, max_abs, round_to_grid, work_dtype


def test_codes_are_multiplied_out() -> None:
    codes = torch.tensor([0, 3, 7], dtype=torch.uint8)
    quantized = Quantized(codes=codes, scale=torch.tensor(0.5), offset=torch.tensor(-1.0))
    assert quantized.dequantize().tolist() == [-1.0, 0.5, 2.5]
    assert quantized.integer_codes() is codes


def test_values_give_their_codes_back() -> None:
    values = torch.tensor([-1.0, 0.5, 2.5])
    quantized = Quantized(values=values, scale=torch.tensor(0.5), offset=torch.tensor(-1.0))
    assert quantized.dequantize() is values
    assert quantized.integer_codes().tolist() == [0.0, 3.0, 7.0]


def test_scales_per_channel_broadcast() -> None:
    quantized = Quantized(
        codes=torch.tensor([[1, 2], [1, 2]]),
        scale=torch.tensor([[1.0], [10.0]]),
        offset=torch.tensor([[0.0], [5.0]]),
    )
    assert quantized.dequantize().tolist() == [[1.0, 2.0], [15.0, 25.0]]


def test_a_float_tensor_has_no_codes() -> None:
    quantized = Quantized(values=torch.ones(2))
    assert torch.equal(quantized.dequantize(), torch.ones(2))
    with pytest.raises(ValueError, match="no codes"):
        quantized.integer_codes()


def test_a_quantizer_is_made_from_its_name_or_taken_as_it_is() -> None:
    assert make_quantizer("sbm") == SBM()
    rule = SBM(zero="integer")
    assert make_quantizer(rule) is rule


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="did you mean 'sbm'"):
        make_quantizer("smb")


def test_a_format_without_a_rule_names_the_quantizer_that_has_one() -> None:
    with pytest.raises(ValueError, match="mxfp4.*quantizer='mx'"):
        SBM().check_kind(FORMATS["mxfp4"])


def test_what_is_neither_a_name_nor_an_object_is_refused() -> None:
    for wrong in (SBM, 8, None):
        with pytest.raises(ValueError, match="a quantizer is"):
            make_quantizer(wrong)  # type: ignore[arg-type]


X = torch.tensor([-1.0, -0.4, 0.1, 0.7, 2.0])
SCALE, OFFSET, LEVELS = torch.tensor(3 / 7), torch.tensor(-1.0), torch.tensor(7.0)
YES = torch.tensor(True)


def test_without_steps_codes_are_the_offset_to_the_last_bit() -> None:
    x = torch.full((3,), 0.1)
    coded = round_to_grid(x, SCALE, x[0], LEVELS, as_codes=True, has_steps=~YES)
    assert torch.equal(coded.dequantize(), x)


def test_half_precision_is_rounded_in_float32_and_returned_as_it_came() -> None:
    values = round_to_grid(X.half(), SCALE, OFFSET, LEVELS, has_steps=YES).dequantize()
    assert values.dtype == torch.float16
    assert work_dtype(X.bfloat16()) == torch.float32
    assert work_dtype(X.double()) == torch.float64


def test_the_largest_magnitude_may_be_at_either_end() -> None:
    assert max_abs(torch.tensor(-3.0), torch.tensor(2.0)) == 3
    assert max_abs(torch.tensor(-1.0), torch.tensor(2.0)) == 2


def test_wrong_options_are_refused() -> None:
    for kind, options, named in (
        (SBM, {"zero": "intger"}, "did you mean 'integer'"),
        (SBM, {"error_rounding": "up"}, "'up'"),
        (SBM, {"floor": -1e-8}, "-1e-08"),
        (SBM, {"floor": float("nan")}, "nan"),
        (SBM, {"grad_input_weight": "own"}, "'own'"),
        (SBM, {"aggregation": "int8"}, "'int8'"),
        (AbsMax, {"error_rounding": "x"}, "'x'"),
        (DoReFa, {"error_rounding": "down"}, "'down'"),
        (SBMFull, {"weight_range": "row"}, "'row'"),
        (SBMFull, {"norm": "rang"}, "did you mean 'range'"),
        (SBMFull, {"error_rounding": "up"}, "'up'"),
        (SBMFull, {"first_last": "float"}, "did you mean 'float32'"),
        (SBMFull, {"grad_weight_error": 24}, "24"),
        (SBMFull, {"grad_weight_error": "16"}, "'16'"),
        (WAGEUBN, {"total_steps": 0}, "total_steps"),
        (WAGEUBN, {"error_form": "flags"}, "did you mean 'flag'"),
        (WAGEUBN, {"norm": "range"}, "'range'"),
    ):
        with pytest.raises(ValueError, match=named):
            kind(**options)


RULES = ("prepare", "range_of", "encode", "quantize", "encode_error", "quantize_error")


def with_own(kind: type[Quantizer], rule: str) -> type[Quantizer]:
    """A subclass that halves the tensor before one of the rules."""
    original = getattr(kind, rule)

    def own(self: Quantizer, *args: Any, **options: Any) -> Any:
        place = next(i for i, x in enumerate(args) if isinstance(x, Tensor))
        return original(self, *args[:place], 0.5 * args[place], *args[place + 1 :], **options)

    return type("Own", (kind,), {rule: own})


def products(rules: Quantizer, kernel: str) -> list[Tensor]:
    torch.manual_seed(0)
    layer = bc.quantize_model(nn.Linear(12, 8), rules, kernel=kernel)
    bc.set_precision(layer, "w8a8e8")
    x = torch.rand(6, 12, requires_grad=True)
    output = layer(x)
    output.backward(torch.randn(6, 8))
    return [output.detach(), x.grad, layer.weight.grad]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", [SBM, AbsMax, PowerOfTwo, DoReFa, SBMFull])
def test_a_rule_of_a_subclass_counts_in_every_kernel(kind: type[Quantizer], rule: str) -> None:
    options = {"error_rounding": "nearest", "first_last": "quantized"}
    rules = with_own(kind, rule)(**options)
    expected, others = products(rules, "simulate"), products(kind(**options), "simulate")
    assert not all(map(torch.equal, expected, others))
    for ours, theirs in zip(products(rules, "native"), expected, strict=True):
        assert (ours - theirs).norm() <= 1e-3 * theirs.norm()
