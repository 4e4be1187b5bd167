"""Command lines as they were typed, without the folders of the machine they were typed on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import PurePath

from bitcycle.study.publish.commands import PLACES

FOLDERS = {**PLACES, "output": "RUNS"}
_PATH = re.compile(r"(?:~|\.{0,2}/).*|.*\.ya?ml")


def portable(words: Sequence[str]) -> list[str]:
    """Folders that have a place get it, of other paths the last part is left.

    >>> portable(["run", "~/mine.yaml", "--output=here", "--data.root", "/x/y", "--steps", "9"])
    ['run', 'mine.yaml', '--output', 'RUNS', '--data.root', 'DATA', '--steps', '9']
    """
    kept: list[str] = []
    left = iter(words)
    for word in left:
        key, has_value, _ = word.removeprefix("--").partition("=")
        if word.startswith("--") and key in FOLDERS:
            if not has_value:
                next(left, None)
            kept += [f"--{key}", FOLDERS[key]]
        else:
            kept.append(PurePath(word).name if _PATH.fullmatch(word) else word)
    return kept


def overrides_but(words: Sequence[str], left_out: Collection[str]) -> list[str]:
    """`--key value` words in a portable form, but those of some keys or groups of keys.

    >>> overrides_but(["--seed", "3", "--lr.policy=step", "--range_test.low", "2"],
    ...     ("seed", "range_test"))
    ['--lr.policy', 'step']
    """
    kept: list[str] = []
    left = iter(portable(words))
    for word in left:
        key, has_value, value = word.partition("=")
        if not has_value:
            value = next(left, "")
        name = key.removeprefix("--")
        if name not in left_out and name.partition(".")[0] not in left_out:
            kept += [key, value]
    return kept


def training_command(words: Sequence[str], *, threads: int | None = None) -> str | None:
    """What began a run, with its threads, to be typed; None when that was no command of ours.

    >>> training_command(["/opt/bin/bitcycle", "train", "a", "--quiet"], threads=1)
    'bitcycle train a --output RUNS --threads 1'
    """
    program, *rest = words or [""]
    is_ours = PurePath(program).name in ("bitcycle", "__main__.py", "main.py")
    if not is_ours or rest[:1] not in (["train"], ["study"]):
        return None
    kept = [word for word in portable(rest) if word != "--quiet"]
    for key, value in (("--output", FOLDERS["output"]), ("--threads", threads)):
        if value is not None and not any(word.partition("=")[0] == key for word in kept):
            kept += [key, str(value)]
    return shlex.join(["bitcycle", *kept])
