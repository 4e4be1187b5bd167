"""bitcycle completion."""

import shutil
import subprocess

import pytest

from bitcycle_lab.cli.main import build_parser, main

pytest.importorskip("shtab")


def completed(script, words):
    """What bash offers for the last word, as it would ask after a tab."""
    quoted = " ".join(f"'{word}'" for word in words)
    asking = f"""
{script}
COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
function=$(complete -p bitcycle | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
$function bitcycle '{words[-1]}' '{words[-2]}'
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", asking], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return [word.strip() for word in done.stdout.split()]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_and_their_choices(capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    _, commands = build_parser()
    assert set(commands) <= set(completed(script, ["bitcycle", ""]))
    assert completed(script, ["bitcycle", "tra"]) == ["train"]
    assert "--print-config" in completed(script, ["bitcycle", "train", "--pr"])
    choices = completed(script, ["bitcycle", "eval", "--checkpoint", ""])
    assert {"last", "best"} <= set(choices)


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_a_script_is_printed(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "bitcycle" in capsys.readouterr().out
