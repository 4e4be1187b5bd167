"""All tables of a study, and their files."""

import pytest

from bitcycle.study.table import study_tables, write_tables
from tests.study.made_up import method, study_result

BASE = {0: 90.0, 1: 91.0, 2: 92.0}


def result(output, **changes):
    return study_result(
        [
            (method("static", 8, published={"accuracy": 92.57}), BASE, 2e12),
            (method("CPT_3-8", "CR:3-8:8", at=5), {0: 91.0, 1: 93.0, 2: 95.0}, 1e12),
        ],
        output=output,
        **{"baseline": "static", **changes},
    )


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("comparison", ["paper", "values", "differences", "budgets", "variance"]),
        ("suite", ["paper", "values", "differences", "relation", "budgets"]),
        ("critical-periods", ["values", "differences"]),
    ],
)
def test_each_kind_of_study_has_its_tables(tmp_path, kind, names):
    tables = study_tables(result(tmp_path, kind=kind))
    assert [table.name for table in tables] == [f"made-up-{name}" for name in names]
    assert "240 steps, 3 seeds" in tables[0].caption


def test_what_has_nothing_to_say_is_left_out(tmp_path):
    alone = study_result([(method("a", 8), {0: 1.0}, 1.0)], output=tmp_path)
    assert [table.name for table in study_tables(alone)] == ["made-up-paper", "made-up-values"]


def test_the_caption_explains_published_differences_only_where_there_are_some(tmp_path):
    both = [
        (method("static", 8, published={"accuracy": 92.0}), BASE, 2.0),
        (method("CPT", "CR:3-8:8", published={"accuracy": 93.0}), BASE, 1.0),
    ]
    with_them = study_tables(study_result(both, baseline="static"))[2].caption
    assert with_them.endswith("Published: the difference of the published values.")
    assert "Published" not in study_tables(result(tmp_path))[2].caption


def test_three_files_are_written_and_nothing_else(tmp_path):
    study = result(tmp_path)
    paths = write_tables(study)
    assert [path.name for path in paths] == ["table.md", "table.csv", "table.tex"]
    assert sorted(study.folder.iterdir()) == sorted(paths)
    markdown, csv, latex = (path.read_text(encoding="utf-8") for path in paths)
    assert markdown.startswith("# made-up\n\nNumbers of no training.\n\n**CPT\\_3-8 against")
    assert "| CPT\\_3-8 | 93.0 ± 2.0 |" in markdown
    assert csv.count("\n") == 3
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == 5
    assert r"CPT\_3-8 & 93.0 $\pm$ 2.0" in latex


def test_a_study_without_a_run_still_has_its_tables(tmp_path):
    empty = study_result([(method("a", 8), {}, 1.0), (method("b", 4), {}, 1.0)], output=tmp_path)
    write_tables(empty)
    assert "3 missing" in (empty.folder / "table.md").read_text(encoding="utf-8")
