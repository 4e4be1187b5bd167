"""Progress of a study: where every run is, the time left, and what is shown of it.

`Watcher` counts runs and shows nothing, `EndedLines` prints a line per run that has ended, `Lines`
one per event, and `Live` redraws a table on a terminal. `status_text` is what `bitcycle study
status` prints.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, Self

from bitcycle.tables import text_table
from bitcycle_lab.study.engines.base import log_file
from bitcycle_lab.study.results import MethodResult, RunStatus, StudyResult, distinct_runs
from bitcycle_lab.study.study import StudyRun, run_directory
from bitcycle_lab.tasks.config import task_metric
from bitcycle_lab.train.progress import Show, duration
from bitcycle_lab.train.result import RunResult

TAIL = 16_384  # bytes at the end of metrics.jsonl that are read: many lines
LINE_SECONDS = 60.0  # between two lines about the running runs


# -- progress of one run --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """The progress of one run; step 0 without the rest before its first line is written."""

    step: int = 0
    total_steps: int | None = None  # None: only the data can tell
    bits: str = "-"
    metric: str = ""
    value: float | None = None
    seconds: float = 0.0

    @property
    def seconds_per_step(self) -> float | None:
        """Mean over the steps so far."""
        return self.seconds / self.step if self.step and self.seconds else None

    def texts(self) -> tuple[str, str, str]:
        """Step, bits and metric."""
        total = "" if self.total_steps is None else f"/{self.total_steps}"
        value = "" if self.value is None else f"{self.metric} {self.value:.2f}"
        return f"step {self.step}{total}", f"bits {self.bits}", value

    def __str__(self) -> str:
        return "  ".join(filter(None, self.texts()))


def read_progress(run: StudyRun) -> RunProgress:
    """The progress of a run that may be training, or may have no folder yet."""
    metric = task_metric(run.config.task).name
    line = _last_line(run_directory(run.config).metrics_file)
    if line is None:
        return RunProgress(total_steps=run.config.steps, metric=metric)
    return RunProgress(
        step=line["step"],
        total_steps=run.config.steps,
        bits=forward_backward_text(line.get("bits", {})),
        metric=metric,
        value=line.get(metric),
        seconds=line.get("seconds", 0.0),
    )


def _last_line(path: Path) -> dict[str, Any] | None:
    """The last complete line about training steps."""
    try:
        with path.open("rb") as handle:
            size = handle.seek(0, 2)
            handle.seek(max(0, size - TAIL))
            lines = handle.read().split(b"\n")
    except FileNotFoundError:
        return None
    for text in reversed(lines):
        try:
            line = json.loads(text)
        except ValueError:  # half a line, at either end
            continue
        if isinstance(line, dict) and line.get("kind") == "train":
            return line
    return None


def forward_backward_text(bits: Mapping[str, Any]) -> str:
    """Forward / backward bits as the papers write them.

    >>> forward_backward_text({"weight": 3, "act": 3, "error": 8, "grad": 8})
    '3/8'
    >>> forward_backward_text({"weight": None})
    'fp32'
    >>> forward_backward_text({"weight": [3, 8], "act": [3, 8], "error": 8, "grad": None})
    '3-8/8'
    >>> forward_backward_text({"weight": ["nvfp4", "bf16"], "error": "nvfp4"})
    'nvfp4-bf16/nvfp4'
    """
    forward, backward = _bits(bits.get("weight")), _bits(bits.get("error"))
    return forward if forward == backward == "fp32" else f"{forward}/{backward}"


def _bits(value: Any) -> str:
    if isinstance(value, list):
        return f"{_bits(value[0])}-{_bits(value[-1])}"  # sorted by the log
    return "fp32" if value is None or value == 32 else str(value)


# -- time left ------------------------------------------------------------------------------------


class StepSeconds:
    """Seconds per step of every configuration, as far as its runs have shown."""

    def __init__(self) -> None:
        self._by_config: dict[str, dict[int, float]] = {}

    def add(self, run: StudyRun, seconds: float | None) -> None:
        """Store the seconds per step of a run; a later value replaces an earlier one."""
        if seconds is not None:
            self._by_config.setdefault(run.config.name, {})[run.seed] = seconds

    def add_result(self, run: StudyRun, result: RunResult) -> None:
        """Store those of a finished run."""
        if result.steps:
            self.add(run, result.seconds / result.steps)

    def of(self, run: StudyRun) -> float | None:
        """The mean over seeds of the run's configuration; of all if it has none yet."""
        own = self._by_config.get(run.config.name)
        means = [fmean(seeds.values()) for seeds in ([own] if own else self._by_config.values())]
        return fmean(means) if means else None


def seconds_left(
    waiting: Iterable[StudyRun],
    running: Iterable[tuple[StudyRun, RunProgress]],
    step_seconds: StepSeconds,
    num_jobs: int,
) -> float | None:
    """Seconds until all runs are done; None while the time or number of steps is unknown."""
    unstarted = ((run, RunProgress(total_steps=run.config.steps)) for run in waiting)
    left: list[float] = []
    for run, progress in (*running, *unstarted):
        seconds = progress.seconds_per_step or step_seconds.of(run)
        if seconds is None or progress.total_steps is None:
            return None
        left.append(seconds * (progress.total_steps - progress.step))
    return max(sum(left) / num_jobs, max(left)) if left else 0.0


# -- while a study runs ---------------------------------------------------------------------------


class Watcher:
    """Counts the runs of a study and shows nothing; subclasses show what happens."""

    def __init__(self) -> None:
        self.num_runs = self.num_done = self.num_failed = self.num_jobs = 0
        self.step_seconds = StepSeconds()
        self._waiting: dict[str, StudyRun] = {}
        self._busy: set[str] = set()
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to close."""

    def begin(self, before: StudyResult, todo: Sequence[StudyRun], *, num_jobs: int) -> None:
        """Count the runs of the study and those to train."""
        runs = distinct_runs(before)
        for run in runs:
            if run.result is not None:
                self.step_seconds.add_result(run, run.result)
        self._waiting = {run.config.run_name: run for run in todo}
        self._width = max((len(title(run)) for run in todo), default=0)
        self.num_runs, self.num_jobs = len(runs), num_jobs
        self.num_done = sum(run.state == "done" for run in runs)
        left_alone = [run for run in runs if run.config.run_name not in self._waiting]
        self.num_failed = sum(run.state == "failed" for run in left_alone)
        num_resumed = sum(run_directory(run.config).exists for run in todo)
        counts = {
            "done": self.num_done,
            "failed before (--retry-failed tries them again)": self.num_failed,
            "to resume": num_resumed,
            "to start": len(todo) - num_resumed,
        }
        texts = [f"{number} {what}" for what, number in counts.items() if number > 0]
        self.say(
            f"{before.study.name}: {_count(self.num_runs, 'run')}: {', '.join(texts)}; "
            f"{num_jobs} at a time"
        )

    def done(self, run: StudyRun) -> None:
        """A run has its result."""
        self._waiting.pop(run.config.run_name, None)
        self.num_done += 1
        result = RunResult.read(run_directory(run.config).path)
        self.step_seconds.add_result(run, result)
        log = log_file(run.config)  # of a run that is done it holds nothing but warnings
        warned = f"  warned: {log}" if log.exists() else ""
        self.report(
            f"{self._counter()} {title(run):<{self._width}}  {result.metric} {result.value:.2f}  "
            f"{duration(result.seconds)}{warned}"
        )

    def failed(self, run: StudyRun, message: str) -> None:
        """A run crashed."""
        self._waiting.pop(run.config.run_name, None)
        self.num_failed += 1
        self.report(f"{self._counter()} {title(run):<{self._width}}  FAILED: {message}")

    def stopped(self, run: StudyRun, message: str) -> None:
        """A signal stopped a run."""
        self.say(f"{title(run)}: {message}")

    def busy(self, run: StudyRun) -> None:
        """Another process trains a run."""
        if run.config.run_name not in self._busy:
            self._busy.add(run.config.run_name)
            self.say(f"{title(run)}: another process trains it; waiting for that")

    def update(self, running: Sequence[StudyRun]) -> None:
        """Read and show the progress of the running runs; called about twice a second."""
        progress = [(run, read_progress(run)) for run in running]
        for run, each in progress:
            self.step_seconds.add(run, each.seconds_per_step)
        names = {run.config.run_name for run in running}
        waiting = [run for name, run in self._waiting.items() if name not in names]
        self._show(progress, seconds_left(waiting, progress, self.step_seconds, self.num_jobs))

    def _counter(self) -> str:
        ended, width = self.num_done + self.num_failed, len(str(self.num_runs))
        return f"[{ended:>{width}}/{self.num_runs}]"

    def say(self, line: str) -> None:
        """Show a line that stays."""

    def report(self, line: str) -> None:
        """Show the line of a run that has ended."""
        self.say(line)

    def _show(self, running: Sequence[tuple[StudyRun, RunProgress]], left: float | None) -> None:
        """Show the running runs. left: seconds until all are done."""


class Lines(Watcher):
    """Prints a line per event, and the running runs once a minute."""

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        super().__init__()
        self._write = write or (lambda line: print(line, flush=True))
        self._next = time.monotonic() + LINE_SECONDS

    def say(self, line: str) -> None:
        """Print a line."""
        self._write(line)

    def _show(self, running: Sequence[tuple[StudyRun, RunProgress]], left: float | None) -> None:
        if time.monotonic() < self._next or not running:
            return
        self._next = time.monotonic() + LINE_SECONDS
        self.say(f"{self._counter()} {_count(len(running), 'run')} at work, left {duration(left)}")
        for run, progress in running:
            self.say(f"    {title(run):<{self._width}}  {progress}")


class EndedLines(Watcher):
    """Prints a line per run that has ended, and nothing else."""

    def report(self, line: str) -> None:
        """Print the line."""
        print(line, flush=True)


class Live(Watcher):
    """Redraws a table of the running runs in place, with rich."""

    def __init__(self, console: Any = None) -> None:
        super().__init__()
        from rich import get_console
        from rich.live import Live as Screen

        self._console = console or get_console()
        self._screen: Any = Screen(console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._screen.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._screen.stop()

    def say(self, line: str) -> None:
        """Print a line above the table."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _show(self, running: Sequence[tuple[StudyRun, RunProgress]], left: float | None) -> None:
        self._screen.update(self.table(running, left))

    def table(self, running: Sequence[tuple[StudyRun, RunProgress]], left: float | None) -> Any:
        """A row for the study, then a row per running run."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for _ in range(5):
            table.add_column(no_wrap=True)
        ended = self.num_done + self.num_failed
        shares = sum(each.step / each.total_steps for _, each in running if each.total_steps)
        failed = f", {self.num_failed} failed" if self.num_failed else ""
        table.add_row(
            f"{ended}/{self.num_runs} runs{failed}",
            ProgressBar(total=max(1, self.num_runs), completed=ended + shares, width=20),
            f"left {duration(left)}",
        )
        for run, each in running:
            bar = ProgressBar(total=each.total_steps or 1, completed=each.step, width=20)
            table.add_row(Text(title(run)), bar, *each.texts())
        return table


def make_watcher(show: Show) -> Watcher:
    """A watcher by name; `auto`: a live table on a terminal with rich, lines otherwise."""
    if show == "auto":
        has_rich = importlib.util.find_spec("rich") is not None
        show = "bar" if has_rich and sys.stdout.isatty() else "lines"
    if show == "bar":
        return Live()
    return Lines() if show == "lines" else EndedLines()


def title(run: StudyRun) -> str:
    """The name of a run on the screen."""
    return f"{run.method.key} seed {run.seed}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# -- status ---------------------------------------------------------------------------------------


def status_text(result: StudyResult) -> str:
    """A table of all methods, then the runs that are training, interrupted or failed."""
    header = ("method", "done", "started", "failed", "missing", "metric", "mean")
    runs = distinct_runs(result)
    lines = [
        text_table(header, [_row(each, result) for each in result.methods], right=(1, 2, 3, 4, 6)),
        "",
        f"{sum(run.state == 'done' for run in runs)} of {len(runs)} runs done, below "
        f"{result.output}",
        *(_started(run) for run in runs if run.state == "started"),
    ]
    if result.count("failed"):
        lines.append(failures_text(result))
    return "\n".join(lines)


def _row(method: MethodResult, result: StudyResult) -> tuple[str, ...]:
    counts = [method.count(state) for state in ("done", "started", "failed", "missing")]
    values = list(method.values.values())
    mean = f"{sum(values) / len(values):.2f}" if values else "-"  # infinite where a run diverged
    metric = result.study.metric(method.method.group)
    return (method.method.key, *map(str, counts), metric, mean)


def _started(run: RunStatus) -> str:
    is_training = run_directory(run.config).is_locked
    how = "at work" if is_training else "interrupted, resumes from its checkpoint"
    return f"{how}: {title(run)}: {read_progress(run)}"


def failures_text(result: StudyResult) -> str:
    """Every failed run with its error, and how to try again."""
    failed = [run for run in distinct_runs(result) if run.state == "failed"]
    lines = [f"failed: {title(run)}: {run.error}" for run in failed]
    return "\n".join([*lines, f"{_count(len(lines), 'run')} failed; --retry-failed tries again"])
