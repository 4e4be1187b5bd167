"""Jobs of the forking server are like processes of their own."""

import subprocess

import pytest

from tests.forking import run_script


def script(folder, text):
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_one_script_leaves_nothing_to_the_next(tmp_path):
    text = "import sys, bitcycle\nassert not hasattr(bitcycle, 'mark')\nbitcycle.mark = 1\n"
    path = script(tmp_path, text)
    assert [run_script(path, tmp_path).returncode for _ in range(2)] == [0, 0]


@pytest.mark.parametrize(
    ("text", "code", "shown"),
    [("1 / 0", 1, "ZeroDivisionError"), ("exit('no')", 1, "no")],
)
def test_exit_codes_and_tracebacks_are_told(tmp_path, text, code, shown):
    done = run_script(script(tmp_path, text), tmp_path)
    assert done.returncode == code
    assert shown in done.stderr


def test_what_takes_too_long_is_ended(tmp_path):
    path = script(tmp_path, "import time\ntime.sleep(60)\n")
    with pytest.raises(subprocess.TimeoutExpired):
        run_script(path, tmp_path, timeout=1)
