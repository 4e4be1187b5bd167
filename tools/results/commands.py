"""The commands that repeat a result, without paths of the machine they ran on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePath

from bitcycle.data import DATASETS
from bitcycle.recipes import recipe
from bitcycle.study.study import STUDIES, Study, StudyOptions

FOLDERS = {"data.root": "DATA", "data.cache_dir": "CACHE", "model.path": "MODEL", "output": "RUNS"}
PATH = re.compile(r"(?:~|\.{0,2}/).*|.*\.ya?ml")


def run_command(study: Study, options: StudyOptions) -> str:
    """The command that trains the study.

    >>> run_command(STUDIES["digits"](), StudyOptions(seeds=(0, 1)))
    'bitcycle study run digits --output RUNS --seeds 0 1 --threads 1'
    """
    name = study.name if study.name in STUDIES.names() else f"{study.name}.yaml"
    words = ["bitcycle", "study", "run", name, "--output", "RUNS"]
    if options.seeds is not None:
        words += ["--seeds", *map(str, options.seeds)]
    threads = {method.config.threads for method in study.methods}
    if len(threads) == 1 and None not in threads:
        words += ["--threads", str(threads.pop())]
    words += portable(options.overrides)
    if "--data.root" not in words and datasets_to_download(study):
        words += ["--data.root", "DATA"]
    return shlex.join(words)


def gather_command(run: str) -> str:
    """The command that makes the page of a study from its runs.

    >>> gather_command("bitcycle study run digits --output RUNS")
    'python -m tools.results gather digits --output RUNS --to results'
    """
    return f"{run.replace('bitcycle study run', 'python -m tools.results gather', 1)} --to results"


def gather_files_command(files: str) -> str:
    """The command that makes the page of a measurement from its files."""
    return f"python -m tools.results gather {files} --to results"


def datasets_to_download(study: Study) -> tuple[str, ...]:
    """The datasets of the study that must be downloaded first."""
    names = dict.fromkeys(method.config.data.name for method in study.methods)
    return tuple(name for name in names if name in DATASETS and DATASETS[name].needs_root)


def recipe_needs_data(name: str) -> bool:
    """Whether a recipe needs a downloaded dataset; False for a name that is no recipe."""
    try:
        return DATASETS[recipe(name).data.name].needs_root
    except ValueError:
        return False


def portable(words: Iterable[str], *, without: Collection[str] = ()) -> list[str]:
    """A command line with placeholders for folders, and only the name of other paths.

    without: options, or groups of options, that are left out with their values.

    >>> portable(["~/mine.yaml", "--output=here", "--data.root", "/x/y", "--steps", "9"])
    ['mine.yaml', '--output', 'RUNS', '--data.root', 'DATA', '--steps', '9']
    >>> portable(["--seed", "3", "--lr.policy=step"], without=("seed",))
    ['--lr.policy', 'step']
    """
    kept: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("--"):
            kept.append(PurePath(word).name if PATH.fullmatch(word) else word)
            continue
        key, has_value, value = word.removeprefix("--").partition("=")
        if not has_value:
            value = left.pop(0) if left and not left[0].startswith("--") else ""
        if key not in without and key.partition(".")[0] not in without:
            kept += [f"--{key}", *portable(filter(None, [FOLDERS.get(key, value)]))]
    return kept


def training_command(words: Sequence[str], threads: int | None) -> str | None:
    """The command that started a run, with its threads; None if it was none of bitcycle.

    >>> training_command(["/opt/bin/bitcycle", "train", "a", "--quiet"], 1)
    'bitcycle train a --output RUNS --threads 1'
    """
    program, *rest = words or [""]
    is_ours = PurePath(program).name in ("bitcycle", "__main__.py", "main.py")
    if not is_ours or rest[:1] not in (["train"], ["study"]):
        return None
    kept = [word for word in portable(rest) if word != "--quiet"]
    for key, value in (("--output", "RUNS"), ("--threads", threads)):
        if value is not None and key not in kept:
            kept += [key, str(value)]
    return shlex.join(["bitcycle", *kept])


def without_paths(text: str) -> str:
    """An error message without the folders of the machine.

    >>> without_paths("OSError: no room in /home/me/runs/a (log: /home/me/runs/studies/a.txt)")
    'OSError: no room in a'
    """
    text = re.sub(r" \(log: .*\)$", "", text)
    text = re.sub(r"(?<![\w.])(?:~|\.\.?)?/(?:[^\s/'\"]+/)*([^\s/'\"]*)", r"\1", text)
    return text if len(text) <= 200 else f"{text[:200]}..."


def number_text(number: float) -> str:
    """The shortest text that reads back as this number.

    >>> number_text(20.0), number_text(200 / 7)
    ('20', '28.571428571428573')
    """
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)
