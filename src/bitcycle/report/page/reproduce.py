"""Exact configurations, and the commands that repeat the runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from bitcycle.report.page.chart import section
from bitcycle.report.page.escape import Html, tag
from bitcycle.report.page.recorded import RecordedMethod
from bitcycle.study.adjust import StudyOptions
from bitcycle.study.base import STUDIES
from bitcycle.study.options import read_options
from bitcycle.study.results import StudyResult
from bitcycle.train.configfile import to_yaml


def reproduce_section(methods: Sequence[RecordedMethod], command: str | None) -> Html:
    """`command`: what repeats all of it, where one command does."""
    whole = None
    if command is not None:
        whole = tag("div", tag("p", "All runs:"), _copyable(command))
    return section(
        "reproduce",
        "Reproduce",
        whole,
        tag("p", "One method: save its configuration to a file and train from it."),
        *(_method(method) for method in methods),
    )


def study_command(result: StudyResult) -> str:
    """What runs the study as it was run last."""
    name = result.study.name
    options = read_options(result.output, name) or StudyOptions()
    words = ["bitcycle", "study", "run", name if name in STUDIES.names() else f"{name}.yaml"]
    if options.seeds is not None:
        words += ["--seeds", *map(str, options.seeds)]
    threads = options.threads or options.default_threads
    if threads is not None:
        words += ["--threads", str(threads)]
    return shlex.join([*words, *options.overrides])


def _method(method: RecordedMethod) -> Html:
    config = method.result.method.config
    file = f"{config.name}.yaml"
    seeds = [run.seed for run in method.runs]
    again = ["--output", "again"]  # never into the folder of the run that is repeated
    commands = "\n".join(
        shlex.join(["bitcycle", "train", file, "--seed", str(seed), *again]) for seed in seeds
    )
    return tag(
        "details",
        tag("summary", method.title),
        _copyable(commands),
        tag("p", file, class_="file"),
        _copyable(_yaml(method)),
        _runs(method),
    )


def _yaml(method: RecordedMethod) -> str:
    """As the first run's folder has it; of a run that has not begun, as it will have it."""
    for run in method.begun:
        try:
            return (run.state.directory / "config.yaml").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
    return to_yaml(method.runs[0].state.run.config if method.runs else method.result.method.config)


def _runs(method: RecordedMethod) -> Html | None:
    """Folder and digest of each run: equal weights have equal digests."""
    done = [run for run in method.runs if run.state.result is not None]
    if not done:
        return None
    rows = [
        tag(
            "tr",
            tag("td", run.seed, class_="right"),
            tag("td", run.state.directory.name),
            tag("td", tag("code", run.state.result.weights_sha256[:16])),
            tag("td", _kernels(run.state.result.kernels)),
        )
        for run in done
        if run.state.result is not None
    ]
    titles = ("seed", "folder", "SHA-256 of the weights", "kernels")
    head = tag("tr", *(tag("th", title, scope="col") for title in titles))
    table = tag("table", tag("thead", head), tag("tbody", *rows))
    return tag("div", table, class_="scroll", tabindex=0)


def _kernels(kernels: dict[str, str]) -> str:
    names = list(kernels.values())
    counts = {name: names.count(name) for name in sorted(set(names))}
    return ", ".join(f"{name}: {n} layers" for name, n in counts.items()) or "float32"


def _copyable(text: str) -> Html:
    button = tag("button", "copy", type="button", class_="copy")
    return tag("div", button, tag("pre", tag("code", text), tabindex=0), class_="source")
