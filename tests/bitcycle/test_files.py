"""Files are whole or as they were before."""

import errno
import os
from pathlib import Path

import pytest

from bitcycle.files import Appender, write_text


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    write_text(path, "new \N{SNOWMAN}")
    assert path.read_text(encoding="utf-8") == "new \N{SNOWMAN}"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failure_leaves_the_old_content_and_no_other_file(tmp_path, monkeypatch, function):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if function == "fsync" else (Path, "replace")), fail)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), fsync(handle))[1])
    monkeypatch.setattr(Path, "replace", lambda a, b: (calls.append("rename"), replace(a, b))[1])
    write_text(tmp_path / "a.txt", "text")
    assert calls == ["fsync", "rename", "fsync"]  # the file, its name, the folder's entry


def test_an_appended_line_is_in_the_file_at_once(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    lines = Appender(path)
    lines.add("tw\N{LATIN SMALL LETTER O WITH DIAERESIS}")
    assert path.read_text(encoding="utf-8") == "one\ntw\N{LATIN SMALL LETTER O WITH DIAERESIS}\n"
    lines.sync()
    lines.close()


def test_a_line_that_the_disk_takes_in_pieces_is_written_whole(tmp_path):
    class Slow:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            return self.file.write(bytes(data[:3]))

    path = tmp_path / "a.txt"
    lines = Appender(path)
    lines._file = Slow(lines._file)
    lines.add("a line of some length")
    assert path.read_text() == "a line of some length\n"


def test_closing_after_a_failed_line_does_not_fail_again(tmp_path):
    """With a buffer the rest would be tried once more, and hide the first error."""
    full = Path("/dev/full")  # every write to it ends with "no space left"
    lines = Appender(full)
    with pytest.raises(OSError, match="No space left") as caught:
        lines.add("a line")
    assert caught.value.errno == errno.ENOSPC
    lines.close()
