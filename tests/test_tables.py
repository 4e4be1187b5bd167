"""Plain-text tables."""

import pytest

from bitcycle.tables import text_table


def test_columns_are_as_wide_as_their_widest_cell():
    table = text_table(("a", "long name"), [("wide cell", "1"), ("x", "22")], right=[1])
    assert table.splitlines() == [
        "a          long name",
        "---------  ---------",
        "wide cell          1",
        "x                 22",
    ]


def test_a_table_without_rows_is_its_header():
    assert text_table(("a", "b"), []) == "a  b\n-  -"


def test_no_line_ends_in_spaces():
    table = text_table(("a", "b"), [("x", ""), ("y", "wide")])
    assert all(line == line.rstrip() for line in table.splitlines())


def test_a_row_of_the_wrong_length_is_an_error():
    with pytest.raises(ValueError, match="zip"):
        text_table(("a", "b"), [("only one",)])
