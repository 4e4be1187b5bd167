"""The studies that come with the package."""

from bitcycle.study.base import STUDIES
from bitcycle.study.listing import list_studies


def test_every_study_has_a_row_with_its_size_and_question():
    rows = {row["name"]: row for row in list_studies()}
    assert set(rows) == set(STUDIES)
    assert rows["demo"]["methods x seeds"] == "4 x 3"
    assert rows["demo"]["scale"] == "small"
    assert all(row["what"] for row in rows.values())
