"""The command line as a whole: discovery, errors, exit codes."""

import logging
import subprocess
import sys

import pytest

import bitcycle_lab.cli.ls
import bitcycle_lab.cli.train
from bitcycle.version import VERSION
from bitcycle_lab.cli.main import PATIENCE, build_parser, main, split_overrides


def _raise(monkeypatch, error):
    def fail(arguments):
        raise error

    monkeypatch.setattr(bitcycle_lab.cli.ls, "run", fail)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["trian", "digits"], "did you mean 'train'?"),
        (["cost", "x", "--forwards", "4"], "did you mean '--forward'?"),
        (["schedule", "8", "--zzz"], "--zzz\n"),
    ],
)
def test_a_misspelt_command_or_option_gets_the_likely_one(argv, message, capsys):
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"bitcycle {VERSION}\n"


def test_training_shows_the_log_of_the_library_equal_lines_once(monkeypatch, capsys):
    log = logging.getLogger("bitcycle")

    def run(arguments):
        for text in ("3 of 3 converted", "3 of 3 converted", "1 of 3 converted"):
            log.info(text)
        return 0

    for command in (bitcycle_lab.cli.train, bitcycle_lab.cli.ls):
        monkeypatch.setattr(command, "run", run)
    expected = "bitcycle: 3 of 3 converted\nbitcycle: 1 of 3 converted\n"
    for _ in range(2):  # the handler of the first command is gone
        assert main(["train", "digits"]) == 0
        assert capsys.readouterr().err == expected
    assert main(["ls", "schedules"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert main(["train", "digits"]) == 0
    assert capsys.readouterr().err == ""
    log.info("after the command")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("argv", [[], ["fly"], ["schedule", "8", "--steps", "many"]])
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
        (RuntimeError("odd"), 1, "bitcycle: error: unexpected RuntimeError: odd (--debug shows "),
        (KeyboardInterrupt(), 130, "bitcycle: interrupted\n"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(monkeypatch, capsys, error, code, line):
    _raise(monkeypatch, error)
    assert main(["ls", "schedules"]) == code
    error = capsys.readouterr().err
    assert error.startswith(line)
    assert error.count("\n") == 1


@pytest.mark.parametrize("argv", [["--debug", "ls", "x"], ["ls", "x", "--debug"]])
def test_debug_shows_the_traceback(monkeypatch, argv):
    _raise(monkeypatch, ValueError("low (8)"))
    with pytest.raises(ValueError, match="low"):
        main(argv)


def test_a_closed_pipe_ends_quietly():
    process = subprocess.Popen(
        [sys.executable, "-m", "bitcycle_lab.cli.main", "ls", "schedules"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_overrides_are_told_from_a_commands_own_options():
    _, commands = build_parser()
    words = "train --seed 3 a.yaml --quiet --lr.gamma=0.2 --resume auto --clip_norm -1 --debug"
    own, overrides = split_overrides(words.split(), commands)
    assert own == ["train", "a.yaml", "--quiet", "--resume", "auto", "--debug"]
    assert overrides == ["--seed", "3", "--lr.gamma=0.2", "--clip_norm", "-1"]

    words = ["schedule", "8", "--steps", "100", "--seed", "3"]  # takes no overrides
    assert split_overrides(words, commands) == (words, [])


@pytest.fixture
def second_process(monkeypatch):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    return waits


def test_only_the_first_process_prints(second_process, capsys):
    assert main(["ls", "schedules"]) == 0
    assert capsys.readouterr().out == ""
    assert second_process == []


def test_other_processes_leave_the_first_one_time_to_say_what_went_wrong(
    second_process, monkeypatch, capsys
):
    _raise(monkeypatch, ValueError("low (8)"))
    assert main(["ls", "schedules"]) == 2
    assert second_process == [PATIENCE]
    assert capsys.readouterr().err == "bitcycle [process 1]: error: low (8)\n"


def test_a_lost_connection_points_at_the_process_that_ended(monkeypatch, capsys):
    _raise(monkeypatch, RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:28397"))
    assert main(["ls", "schedules"]) == 1
    assert "another process of this run ended" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["study"]])
def test_an_unknown_command_lists_all_in_the_order_of_the_help(words, capsys):
    _, commands = build_parser()
    for word in words:
        commands = commands[word].get_default("commands")
    assert main([*words, "fly"]) == 2
    listed = capsys.readouterr().err.splitlines()[-1].rpartition("known: ")[2].split(", ")
    assert listed == list(commands)
    assert main([*words, "--help"]) == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:5] > "    -"]
    assert [name for name in shown if name in commands] == listed


def test_every_command_takes_an_import():
    parser, commands = build_parser()
    inner = [each for command in commands.values() for each in
             (command.get_default("commands") or {}).values()]  # fmt: skip
    for each in (parser, *commands.values(), *inner):
        assert "--import FILE" in each.format_help(), each.prog
