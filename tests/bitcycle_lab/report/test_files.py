"""Pictures to files."""

import pytest

from bitcycle.schedules import Cycle
from bitcycle_lab.report import plot
from bitcycle_lab.report.files import check_path, save


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bits.jpg", r"\.png or \.svg"),
        ("bits", r"\.png or \.svg"),
        ("nowhere/bits.png", "does not exist; create it first"),
        ("folder.png", "is a directory; give a file name inside it"),
    ],
)
def test_a_bad_path_is_refused_clearly(tmp_path, name, message):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ValueError, match=message):
        check_path(tmp_path / name, ".png", ".svg")


def test_a_picture_is_written_whole(tmp_path):
    pytest.importorskip("matplotlib")
    target = tmp_path / "bits.png"
    target.write_bytes(b"old")
    save(plot(Cycle(3, 8, 2), total_steps=100), target)
    assert target.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_drawing_leaves_the_old_file_and_nothing_else(tmp_path):
    class Broken:
        def savefig(self, file, **_):
            file.write(b"half")
            raise RuntimeError("no ink")

    target = tmp_path / "bits.png"
    target.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="no ink"):
        save(Broken(), target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_path_that_ends_in_svg_gets_one_always_the_same(tmp_path):
    pytest.importorskip("matplotlib")
    target = save(plot(Cycle(3, 8, 2), total_steps=100), tmp_path / "bits.svg")
    first = target.read_bytes()
    assert b"<svg" in first
    assert list(tmp_path.iterdir()) == [target]
    save(plot(Cycle(3, 8, 2), total_steps=100), target)
    assert target.read_bytes() == first
