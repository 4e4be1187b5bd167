"""Charts made of characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.schedules import parse_schedule
from bitcycle_lab.report.terminal import ASCII, BLOCKS, chart, ink_for
from tests.bitcycle.schedules.strategies import any_bits


def test_a_long_run_is_this_chart():
    values = parse_schedule("seq(LR:3-6:2@0.8, fp32)").values(1000)
    assert chart(values, width=46, ink=ASCII).splitlines() == [
        "fp32 |                                ########",
        "   6 |             :##             :##########",
        "   5 |        :#######        :###############",
        "   4 |  :#############  :#####################",
        "   3 |########################################",
        "     +----------------------------------------",
        "      0                                  1,000",
    ]


def test_formats_have_a_row_each_in_the_order_of_the_ladder():
    ladder = parse_schedule("LT:mxfp4,nvfp4,bf16:2")
    values = ladder.values(40)
    assert chart(values, width=27, ink=ASCII, definition=ladder.levels).splitlines() == [
        " bf16 |###              :##",
        "nvfp4 |#######:     #######",
        "mxfp4 |####################",
        "      +--------------------",
        "       0                 40",
    ]


def test_numbers_and_formats_share_a_chart():
    lines = chart(parse_schedule("seq(LR:3-5:1@0.5, bf16@0.8, fp32)").values(100)).splitlines()
    assert [line.split()[0] for line in lines[:-2]] == ["fp32", "bf16", "5", "4", "3"]


def test_a_long_ladder_shares_rows_and_both_ends_are_labelled():
    rungs = ",".join(map(str, [*range(1, 9), "mxint8", *range(9, 28), "fp32"]))
    lines = chart(parse_schedule(f"LR:{rungs}:1").values(1000)).splitlines()
    labels = [line.split()[0] for line in lines[:-2]]
    assert (labels[0], labels[-1], len(labels) <= 13) == ("fp32", "1", True)


def test_many_bit_widths_share_rows_and_both_ends_are_labelled():
    lines = chart(parse_schedule("CR:7-32:1").values(1000), width=60).splitlines()
    assert [line.split()[0] for line in lines[:-2]] == [
        "32", "29", "26", "23", "20", "17", "14", "11", "8", "7",
    ]  # fmt: skip


@given(
    values=st.lists(any_bits, min_size=1, max_size=300),
    width=st.integers(20, 200),
)
def test_a_chart_fits_its_width_and_height(values, width):
    lines = chart(values, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 16


def test_a_width_too_small_is_an_error():
    with pytest.raises(ValueError, match="width must be at least 20 characters, got 19"):
        chart([8], width=19)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", None, "no-such-encoding"])
def test_encodings_without_blocks_get_ascii(encoding):
    assert ink_for(encoding) is ASCII


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp437"])
def test_encodings_with_blocks_get_blocks(encoding):
    assert ink_for(encoding) is BLOCKS
