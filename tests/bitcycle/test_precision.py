"""Precision: bits by role, and the texts that stand for them."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.bits import Bits
from bitcycle.formats import Format, list_formats, parse_format
from bitcycle.formats.catalogue import FORMATS
from bitcycle.precision import ROLES, Precision

bits = st.none() | st.integers(1, 32) | st.sampled_from(list_formats())
precisions = st.builds(Precision, weight=bits, act=bits, error=bits, grad=bits)


@given(precisions)
def test_the_short_form_round_trips(precision):
    assert Precision.parse(str(precision)) == precision


@given(st.integers(1, 32), st.integers(1, 32))
def test_the_forward_backward_form_names_all_four_roles(forward, backward):
    expected = Precision(weight=forward, act=forward, error=backward, grad=backward)
    assert Precision.parse(f"FW{forward}/BW{backward}") == expected


@given(precisions, st.sampled_from([str.upper, str.lower, lambda text: f"  {text} "]))
def test_case_and_outer_spaces_do_not_matter(precision, change):
    assert Precision.parse(change(str(precision))) == precision


def test_every_text_form_is_read():
    for text, expected in (
        ("fp32", Precision()),
        ("FW4", Precision(weight=4, act=4)),
        ("BW8", Precision(error=8, grad=8)),
        ("FWfp32/BW8", Precision(error=8, grad=8)),
        ("FW4/BWfp32", Precision(weight=4, act=4)),
        ("e8w4", Precision(weight=4, error=8)),
    ):
        assert Precision.parse(text) == expected


def test_a_precision_is_its_own_parse():
    precision = Precision(weight=3)
    assert Precision.parse(precision) is precision


def test_what_cannot_be_read_is_named():
    texts = ("", "FW4/", "4", "44", "w", "w4a", "FW4/FW8", "fp17", "-8", "w4 a4", "w=nvfp4;a=8",
             "w=nvfp4 a=8", "w==8", "w4w8", 4, None, ["w4"])  # fmt: skip
    for text in texts:
        with pytest.raises(ValueError, match=re.escape(repr(text))):
            Precision.parse(text)
    for text, role in (("x4", "x"), ("w4b8", "b"), ("W4A4Q2", "q")):
        with pytest.raises(ValueError, match=f"role '{role}'"):
            Precision.parse(text)


def test_bits_out_of_range_name_the_role_and_the_value():
    for value in (0, -1, 33, 4.0, True, "4"):
        for role in ROLES:
            with pytest.raises(ValueError, match=f"{role} bits .*{value!r}"):
                Precision(**{role: value})
    with pytest.raises(ValueError, match="error bits .*64"):
        Precision.parse("FW4/BW64")


def test_replace_changes_some_roles_and_knows_the_names():
    assert str(Precision.parse("w4a4").replace(act=8, error=None)) == "w4a8"
    with pytest.raises(ValueError, match="'acts'"):
        Precision().replace(acts=8)


def test_a_precision_is_frozen_and_hashable():
    with pytest.raises(AttributeError):
        Precision().weight = 4
    assert len({Precision(weight=4), Precision.parse("w4"), Precision()}) == 2


@given(precisions)
def test_quantized_roles_are_those_below_24_bits(precision):
    expected = [r for r, b in precision.items() if isinstance(b, Format) or (b or 32) < 24]
    assert list(precision.quantized_roles) == expected
    tops = [b for _, b in precision.items() if isinstance(b, int) and b < 24]
    assert precision.top == (max(tops) if tops else None)


def test_24_bits_and_more_are_float32_and_cost_32():
    read = [Bits.of(b) for b in (1, 23, 24, 32, None)]
    assert [b.is_float32 for b in read] == [False, False, True, True, True]
    assert [b.cost_bits for b in read] == [1, 23, 32, 32, 32]
    assert [b.grid_bits for b in read] == [1, 23, 0, 0, 0]
    assert [b.levels for b in read] == [1, 2**23 - 1, 0, 0, 0]
    assert [b.order for b in read] == [1, 23, 24, 32, 33]


def test_bits_are_read_from_what_users_write_and_from_json():
    for written, plain, text, kind in (
        (None, None, "fp32", None),
        ("fp32", None, "fp32", None),
        (8, 8, "8", "integer"),
        ("int8", 8, "8", "integer"),
        (32, 32, "32", None),
        ("E4M3", FORMATS["fp8"], "fp8", "fp8"),
        (FORMATS["bf16"], FORMATS["bf16"], "bf16", "float"),
        ("mxint8", FORMATS["mxint8"], "mxint8", "mx"),
    ):
        bits = Bits.of(written)
        assert (bits.plain, str(bits), bits.kind) == (plain, text, kind)
        assert Bits.of(json.loads(json.dumps(bits.to_json()))) == bits == Bits.of(bits)
    for wrong in (0, 33, 8.0, True, "8", b"8", []):
        with pytest.raises(ValueError, match=re.escape(f"{wrong!r}")):
            Bits.of(wrong)


def test_formats_are_read_by_role_and_by_pass():
    nvfp4, bf16 = parse_format("nvfp4"), parse_format("bf16")
    healed = Precision(weight=nvfp4, act=nvfp4, error=bf16, grad=bf16)
    assert Precision.parse("FWnvfp4/BWbf16") == healed
    assert str(healed) == "w=nvfp4,a=nvfp4,e=bf16,g=bf16"
    assert Precision.parse("W = nvfp4, a=NVFP4, e=8") == Precision(weight=nvfp4, act=nvfp4, error=8)
    assert Precision.parse("FWint8/BWfp32") == Precision(weight=8, act=8)
    assert Precision.parse("bf16") == Precision(weight=bf16, act=bf16, error=bf16, grad=bf16)
    assert Precision(weight="mxfp8").weight == parse_format("mxfp8")


def test_an_integer_precision_keeps_its_short_text():
    assert str(Precision.parse("w=4,a=4,e=8")) == "w4a4e8"


def test_a_wrong_format_is_named_with_a_guess():
    for text, named in (
        ("w=nvpf4", "did you mean 'nvfp4'"), ("w=4,w=8", "weight twice"), ("x=4", "role 'x'"),
        ("FWint17/BW8", "int17"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=named):
            Precision.parse(text)
    with pytest.raises(ValueError, match="weight bits: .*'nv'"):
        Precision(weight="nv")


def test_a_format_counts_the_bits_of_its_elements_and_is_no_grid_of_integers():
    read = [Bits.of(name) for name in ("nvfp4", "mxfp6", "fp8", "bf16")]
    assert [b.cost_bits for b in read] == [b.order for b in read] == [4, 6, 8, 16]
    assert [(b.is_float32, b.levels) for b in read] == [(False, 0)] * 4
    assert read[0].numbers == parse_format("nvfp4").numbers
    assert Bits.of(8).numbers == Bits.of(None).numbers == (0, 0, 0)
    assert Precision.parse("FWnvfp4/BW8").top == 8
    assert Precision.parse("FWnvfp4/BWnvfp4").top is None


# -- backward operands ----------------------------------------------------------------------------

formats = st.none() | st.integers(24, 32) | st.sampled_from(list_formats())
with_backward_operands = st.builds(
    Precision,
    weight=formats, act=formats, error=formats, grad=bits, backward_operands=st.just("backward"),
)  # fmt: skip


@given(with_backward_operands)
def test_the_text_of_backward_operands_round_trips_through_json(precision):
    again = Precision.parse(json.loads(json.dumps(str(precision))))
    assert again == precision
    assert again.backward_operands == "backward"


def test_the_text_shows_what_each_pass_reads():
    for text, weight, act, error in (
        ("w=bf16/nvfp4,a=bf16/nvfp4,e=nvfp4", "bf16", "bf16", "nvfp4"),
        ("w=nvfp4/fp32,a=nvfp4/fp32", "nvfp4", "nvfp4", None),
        ("w=fp32/mxfp8,a=bf16/mxfp8,e=mxfp8", None, "bf16", "mxfp8"),
    ):
        precision = Precision(weight=weight, act=act, error=error, backward_operands="backward")
        assert str(precision) == text
        assert Precision.parse(text) == precision
        assert precision.in_backward("weight") == precision.in_backward("act") == precision.error
    plain = Precision(weight="bf16", error="nvfp4")
    assert plain.in_backward("weight") == FORMATS["bf16"]
    assert "backward_operands" not in repr(plain)
    assert "backward_operands='backward'" in repr(precision)
    assert plain != Precision(weight="bf16", error="nvfp4", backward_operands="backward")


def test_a_text_whose_backward_bits_are_not_the_error_s_is_an_error():
    for text in (
        "w=bf16/mxfp8,a=bf16/mxfp8,e=mxfp4",  # another format than the error
        "w=bf16/mxfp8,a=bf16,e=mxfp8",  # one operand only
        "w=bf16/mxfp8,a=bf16/mxfp4,e=mxfp8",
        "w=bf16,a=bf16,e=bf16/mxfp8",  # an error is read in backward only
        "w=8/4,a=8/4,e=4",  # grids
    ):
        with pytest.raises(ValueError, match="backward|error"):
            Precision.parse(text)
    with pytest.raises(ValueError, match="'both'"):
        Precision(backward_operands="both")


def test_backward_operands_are_in_force_only_where_they_change_an_operand():
    roles = {"weight", "act", "error"}
    healed = Precision.parse("w=bf16/nvfp4,a=bf16/nvfp4,e=nvfp4,g=8")
    assert str(healed.in_force(roles)) == "w=bf16/nvfp4,a=bf16/nvfp4,e=nvfp4"
    same = Precision.parse("w=nvfp4/nvfp4,a=nvfp4/nvfp4,e=nvfp4")
    assert str(same.in_force(roles)) == "w=nvfp4,a=nvfp4,e=nvfp4"
    # errors without a rule are float32, and so are the operands of the backward products
    assert str(healed.in_force({"weight", "act"})) == "w=bf16/fp32,a=bf16/fp32"
    assert str(Precision(backward_operands="backward").in_force(roles)) == "fp32"
