"""The command line as a whole: discovery, errors, exit codes."""

import argparse
import subprocess
import sys

import pytest

import bitcycle.cli.ls
from bitcycle.cli.main import build_parser, main
from bitcycle.extras import MissingExtraError
from bitcycle.version import VERSION


def _raise(monkeypatch, error):
    def fail(arguments):
        raise error

    monkeypatch.setattr(bitcycle.cli.ls, "run", fail)


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"bitcycle {VERSION}\n"


def test_help_lists_the_commands(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "schedule" in out
    assert "ls" in out


@pytest.mark.parametrize("argv", [[], ["fly"], ["schedule"], ["schedule", "8", "--steps", "many"]])
def test_bad_usage_is_exit_code_2_and_one_error_line(argv, capsys):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1].startswith("bitcycle: error: ")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("low (8)"), 2, "bitcycle: error: low (8)\n"),
        (OSError(28, "No space left"), 1, "bitcycle: error: [Errno 28] No space left\n"),
        (MissingExtraError("pictures need"), 1, "bitcycle: error: pictures need\n"),
        (
            RuntimeError("odd"),
            1,
            "bitcycle: error: unexpected RuntimeError: odd (--debug shows where)\n",
        ),
        (KeyboardInterrupt(), 130, "bitcycle: interrupted\n"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(monkeypatch, capsys, error, code, line):
    _raise(monkeypatch, error)
    assert main(["ls", "schedules"]) == code
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("argv", [["--debug", "ls", "x"], ["ls", "x", "--debug"]])
def test_debug_shows_the_traceback(monkeypatch, argv):
    _raise(monkeypatch, ValueError("low (8)"))
    with pytest.raises(ValueError, match="low"):
        main(argv)


def test_every_command_sets_what_to_run():
    parser = build_parser()
    [commands] = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for name, command in commands.choices.items():
        assert callable(command.get_default("run")), name


def test_a_closed_pipe_ends_quietly():
    process = subprocess.Popen(
        [sys.executable, "-m", "bitcycle.cli.main", "ls", "schedules"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141
