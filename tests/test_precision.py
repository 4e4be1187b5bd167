"""Precision: bits by role, and the texts that stand for them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.formats import Format, list_formats, parse_format
from bitcycle.precision import ROLES, Precision, check_bits, cost_bits, is_float

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
    assert [is_float(b) for b in (1, 23, 24, 32, None)] == [False, False, True, True, True]
    assert [cost_bits(b) for b in (1, 23, 24, 32, None)] == [1, 23, 32, 32, 32]


def test_checked_bits_come_back_unchanged():
    assert [check_bits(b) for b in (None, 1, 32)] == [None, 1, 32]
    with pytest.raises(ValueError, match="max_bits .*0"):
        check_bits(0, "max_bits")


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
    assert [cost_bits(parse_format(name)) for name in ("nvfp4", "mxfp6", "fp8", "bf16")] == [
        4, 6, 8, 16,
    ]  # fmt: skip
    assert not is_float(parse_format("bf16"))
    assert Precision.parse("FWnvfp4/BW8").top == 8
    assert Precision.parse("FWnvfp4/BWnvfp4").top is None
