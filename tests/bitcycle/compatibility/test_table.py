"""docs/compatibility.md and the tests beside this file say the same things."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parents[2] / "docs" / "compatibility.md"
ANSWERS = ("yes", "in part", "no")


def rows():
    """The cells of every row below a heading of three or more columns."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    cells = [[c.strip() for c in line.strip("|").split(" | ")] for line in lines if line[:1] == "|"]
    return [row for row in cells if len(row) == 4 and row[1] not in ("works", "---")]


def linked(row):
    """The test files that the last cell of a row names."""
    return [(TABLE.parent / link).resolve() for link in re.findall(r"\]\(([^)]+)\)", row[3])]


def functions_in(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name[:5] == "test_"]


FILES = sorted(path for path in HERE.glob("test_*.py") if path != Path(__file__))


def test_a_row_of_the_table_says_whether_it_works_and_names_its_test():
    for row in rows():
        assert row[1] in ANSWERS
        assert linked(row), f"{row[0]}: link to its test in the last column"
        for path in linked(row):
            assert path.is_file(), path
            assert functions_in(path), f"{path} has no test"


def test_a_test_of_compatibility_has_a_row_in_the_table():
    for path in FILES:
        assert any(path in linked(row) for row in rows()), f"{path.name} has no row in {TABLE.name}"


def test_there_are_rows():
    assert len(rows()) >= len(FILES)
