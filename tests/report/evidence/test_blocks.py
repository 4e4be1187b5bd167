"""Parts of documents that are made."""

import pytest

from bitcycle.report.evidence.blocks import fill, fill_file
from bitcycle.report.evidence.render import add_data
from tests.study.publish.made import ALIKE, data_of, made
from tests.study.publish.test_reproduce import DATA

TEXT = "# Title\n\n<!-- made: headline -->\nold\n<!-- end -->\n\nmine\n"


@pytest.fixture
def folder(tmp_path):
    add_data(tmp_path / "results", "made-up", data_of(made(ALIKE)))
    add_data(tmp_path / "results", "studies", {"kind": "studies", **DATA})
    return tmp_path / "results"


def test_what_stands_between_the_marks_is_replaced_and_nothing_else(folder, tmp_path):
    text = fill(TEXT, folder, beside=tmp_path)
    assert text.startswith("# Title\n\n<!-- made: headline -->\n| study |")
    assert text.endswith("that of the default one.\n<!-- end -->\n\nmine\n")
    assert "[made-up](results/made-up.md)" in text
    assert fill(text, folder, beside=tmp_path) == text


def test_links_start_where_the_document_lies(folder, tmp_path):
    text = fill(TEXT, folder, beside=tmp_path / "docs")
    assert "[made-up](../results/made-up.md)" in text


def test_all_parts_can_be_made(folder, tmp_path):
    names = ("summary", "answer", "reproduce-full", "reproduce-small", "machine")
    parts = "".join(f"<!-- made: {name} -->\n<!-- end -->\n" for name in names)
    text = fill(parts, folder, beside=tmp_path)
    assert "Of 1 comparison of" in text
    assert "(made-up, CPT 3-8/8 against static 8/8).\n<!-- end -->" in text  # the loss allowed
    assert "| `big` | What? |" in text
    assert "Times are of one core of AMD EPYC" in text


def test_an_unknown_part_is_an_error(folder, tmp_path):
    with pytest.raises(ValueError, match="there is no made part 'fame'; known: headline"):
        fill("<!-- made: fame -->\n<!-- end -->", folder, beside=tmp_path)


def test_a_document_is_only_written_when_it_changes(folder, tmp_path):
    path = tmp_path / "README.md"
    path.write_text(TEXT)
    assert fill_file(path, folder)
    assert not fill_file(path, folder)
    path.write_text("nothing")
    with pytest.raises(ValueError, match="has no part to fill"):
        fill_file(path, folder)


def test_a_missing_or_damaged_file_of_times_is_named(folder, tmp_path):
    part = "<!-- made: machine -->\n<!-- end -->"
    add_data(folder, "studies", {"kind": "studies"})
    with pytest.raises(ValueError, match=r"studies\.json is damaged .*study_times\.py writes it"):
        fill(part, folder, beside=tmp_path)
    (folder / "data" / "studies.json").unlink()
    with pytest.raises(ValueError, match=r"there is no .*studies\.json; .*study_times\.py"):
        fill(part, folder, beside=tmp_path)


@pytest.mark.parametrize("name", ["headline", "summary", "answer"])
def test_without_a_comparison_a_sentence_says_so(tmp_path, name):
    text = fill(f"<!-- made: {name} -->\n<!-- end -->", tmp_path, beside=tmp_path)
    assert "\nNo finished study compares cyclic with static bits at the same top yet.\n" in text


def test_a_part_without_an_end_loses_nothing(folder):
    text = (
        "<!-- made: headline -->\nold\n\n## Mine\nprecious\n\n"
        "<!-- made: answer -->\nold\n<!-- end -->\n"
    )
    document = folder.parent / "mine.md"
    document.write_text(text)
    with pytest.raises(ValueError, match=r"mine\.md: the part 'headline' has no end"):
        fill_file(document, folder)
    assert document.read_text() == text
