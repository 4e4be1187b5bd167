"""What is seen while a run trains: lines, a bar or nothing; the log has the lines in any case."""

import io
import re
import sys

import pytest
import rich

from bitcycle_lab.train import run
from bitcycle_lab.train.progress import Bar, Lines, Status, make_reporter
from tests.bitcycle_lab.train.small import folder_of, small

STATUS = Status(
    step=50, total_steps=200, loss=1.23456, metric_name="accuracy", metric=67.891,
    bits="w4a4e8g8", saved=0.4321, seconds_left=125.0,
)  # fmt: skip
LINE = "step 50/200  loss 1.2346  accuracy 67.89  bits w4a4e8g8  saved 43.2%  left 2:05"


class Terminal(io.StringIO):
    """Standard output that says it is a terminal."""

    def isatty(self):
        return True


def make_terminal(monkeypatch):
    """Called by the test itself: pytest sets its own standard output after the fixtures."""
    screen = Terminal()
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(rich, "_console", None)  # the shared one keeps the width it was made with
    monkeypatch.setattr(sys, "stdout", screen)
    return screen


def show(kind, log):
    reporter = make_reporter(kind, log_file=log, title="small-seed0", total_steps=200)
    with reporter:
        reporter.say("resumed at step 40")
        reporter.advance(50)
        reporter.update(STATUS)
    return reporter


def test_plain_lines_say_everything(tmp_path, capsys):
    assert type(show("lines", tmp_path / "log.txt")) is Lines
    assert capsys.readouterr().out == f"resumed at step 40\n{LINE}\n"


def test_a_float32_run_has_no_saving_to_speak_of():
    line = Status(1, 2, 0.5, "perplexity", 101.0, "fp32", None, None).line()
    assert line == "step 1/2  loss 0.5000  perplexity 101.00  bits fp32  left -"


def test_a_terminal_gets_a_bar_with_step_loss_metric_bits_saving_and_time(tmp_path, monkeypatch):
    terminal = make_terminal(monkeypatch)
    assert type(show("auto", tmp_path / "log.txt")) is Bar
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    last = re.split(r"[\r\n]+", drawn.strip())[-1]
    for part in ("small-seed0", "50/200", "loss 1.2346", "accuracy 67.89", "w4a4e8g8",
                 "saved 43.2%", "left"):  # fmt: skip
        assert part in last
    assert "resumed at step 40" in drawn


@pytest.mark.parametrize("kind", ["auto", "bar", "quiet"])
def test_the_log_has_every_line_with_its_time(tmp_path, capsys, kind):
    show(kind, tmp_path / "log.txt")
    show(kind, tmp_path / "log.txt")  # a second run of the same folder adds to it
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line[20:] for line in lines] == ["resumed at step 40", LINE] * 2
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d .*", line) for line in lines)


def test_words_in_brackets_are_not_taken_for_colours(monkeypatch):
    terminal = make_terminal(monkeypatch)
    with make_reporter("bar", log_file=None, title="x", total_steps=2) as reporter:
        reporter.say("stays float32: layers[0] [bold]")
    assert "layers[0] [bold]" in terminal.getvalue()


def test_a_note_is_for_the_log_only(tmp_path, capsys):
    with make_reporter("lines", log_file=tmp_path / "log.txt", title="x", total_steps=2) as it:
        it.note("stopped: full disk")
    assert capsys.readouterr().out == ""
    assert (tmp_path / "log.txt").read_text().endswith(" stopped: full disk\n")


@pytest.mark.parametrize("kind", ["lines", "quiet"])
def test_a_whole_run_can_be_watched_in_every_way(tmp_path, capsys, kind):
    config = small(tmp_path)
    result = run(config, show=kind)
    shown = capsys.readouterr().out
    done = f"done: test accuracy {result.value:.2f} at w8a8"
    assert (done in shown) == (kind != "quiet")
    log = (folder_of(config) / "log.txt").read_text()
    assert done in log
    assert log.count("step 12/12  loss ") == 1
    if kind == "lines":
        assert [line[20:] for line in log.splitlines()] == shown.splitlines()
