"""Tab-separated files of pairs, and what is said about damaged ones."""

import pytest

from bitcycle.data import DATASETS, Place
from bitcycle.data.pair_files import Row, read_rows
from tests.data.pair_layouts import some_pairs, write_lines, write_plain, write_released

PAIRS = some_pairs(4)


def rows_of(path):
    return list(read_rows(Place(info=DATASETS["pairs"], root=path.parent), path))


@pytest.mark.parametrize(
    "columns", ["label premise hypothesis", "premise hypo label", "premise hypothesis label"]
)
def test_columns_are_found_by_their_names(tmp_path, columns):
    rows = rows_of(write_plain(tmp_path / "x.tsv", PAIRS, columns))
    assert [(r.premise, r.hypothesis, r.label) for r in rows] == PAIRS
    assert [r.line for r in rows] == [2, 3, 4, 5]
    assert {r.language for r in rows} == {""}


def test_a_pair_whose_annotators_disagreed_is_left_out(tmp_path):
    pairs = [PAIRS[0], ("A .", "B .", "-"), PAIRS[1]]
    rows = rows_of(write_released(tmp_path / "x.txt", pairs))
    assert [(r.premise, r.hypothesis, r.label) for r in rows] == [pairs[0], pairs[2]]
    assert [r.line for r in rows] == [2, 4]


def test_quotes_empty_sentences_and_other_separators_are_text(tmp_path):
    path = write_lines(
        tmp_path / "x.tsv", "\ufeffpremise\thypothesis\tlabel\r", '"He said\t\u2028b"\tyes\r'
    )
    assert rows_of(path) == [Row(2, '"He said', '\u2028b"', "yes", "")]
    assert rows_of(write_lines(path, "premise\thypothesis\tlabel", "\t\tyes"))[0].premise == ""


def test_trailing_columns_that_are_not_read_may_be_absent(tmp_path):
    path = write_lines(tmp_path / "x.tsv", "label\tpremise\thypothesis\tnote\tmore", "yes\ta\tb")
    assert rows_of(path) == [Row(2, "a", "b", "yes", "")]


HEAD = "premise\thypothesis\tlabel"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "the file is empty"),
        ([HEAD], "there is no line after the names of the columns"),
        ([HEAD, "a\tb\tyes", "a\tb"], "line 3 has 2 tab-separated columns, line 1 names 3: premis"),
        ([HEAD, "", "a\tb\tyes"], "line 2 has 1 tab-separated column, line 1 names 3"),
        ([HEAD, "a\tb\tc\tyes"], "line 2 has 4 tab-separated columns, line 1 names 3"),
        (["a man\ta dog\tyes"], r"line 1 names no column for the premise \(premise or sentence1\)"),
        (
            ["premise\tlabel"],
            r"the hypothesis \(hypothesis or hypo or sentence2\); it is premise, ",
        ),
    ],
)
def test_a_damaged_file_is_an_error_with_the_line_and_what_is_expected(tmp_path, lines, problem):
    path = write_lines(tmp_path / "x.tsv", *lines)
    with pytest.raises(ValueError, match=problem) as error:
        rows_of(path)
    assert str(path) in str(error.value)
    assert "expected: train.tsv" in str(error.value)


def test_text_that_is_not_utf8_is_an_error_with_its_line(tmp_path):
    path = write_lines(tmp_path / "x.tsv", HEAD, "a\tb\tyes")
    path.write_bytes(path.read_bytes() + b"caf\xe9\tb\tyes\n")
    with pytest.raises(ValueError, match=r"line 3 is not UTF-8 text \(byte 3 of the line\)"):
        rows_of(path)
