"""What a person sees while a study runs: plain lines here, a table on a terminal (`live`)."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from bitcycle.study.attempt import log_file, run_folder
from bitcycle.study.base import StudyRun
from bitcycle.study.moment import Moment, Paces, read_moment, seconds_left
from bitcycle.study.results import StudyResult
from bitcycle.train.progress import Show, duration
from bitcycle.train.result import RunResult

EVERY = 60.0  # seconds between two lines on what is running


class Watcher:
    """Keeps count and shows nothing; the others add what is seen."""

    def __init__(self) -> None:
        self.num_runs = self.num_done = self.num_failed = self.num_jobs = 0
        self.paces = Paces()
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
        """What there is and what will be done; runs that methods share are counted once."""
        states = {state.directory: state for row in before.methods for state in row.runs}
        for state in states.values():
            if state.result is not None and state.result.steps:
                self.paces.note(state.run, state.result.seconds / state.result.steps)
        self._waiting = {run.config.run_name: run for run in todo}
        self._width = max((len(title(run)) for run in todo), default=0)
        self.num_runs, self.num_jobs = len(states), num_jobs
        self.num_done = sum(state.state == "done" for state in states.values())
        left_alone = [s for s in states.values() if s.run.config.run_name not in self._waiting]
        self.num_failed = sum(state.state == "failed" for state in left_alone)
        self._say_beginning(before, len(todo))

    def _say_beginning(self, before: StudyResult, num_todo: int) -> None:
        going_on = sum(run_folder(run.config).exists for run in self._waiting.values())
        parts = [
            f"{self.num_done} done" if self.num_done else "",
            f"{self.num_failed} failed before (--retry-failed tries them again)"
            if self.num_failed
            else "",
            f"{going_on} to go on with" if going_on else "",
            f"{num_todo - going_on} to begin" if num_todo > going_on else "",
        ]
        self.say(
            f"{before.study.name}: {_count(self.num_runs, 'run')}: "
            f"{', '.join(filter(None, parts))}; {self.num_jobs} at a time"
        )

    def done(self, run: StudyRun) -> None:
        """It has its result."""
        self._waiting.pop(run.config.run_name, None)
        self.num_done += 1
        result = RunResult.read(run_folder(run.config).path)
        if result.steps:
            self.paces.note(run, result.seconds / result.steps)
        self.say(
            f"{self._place()} {title(run):<{self._width}}  {result.metric} {result.value:.2f}  "
            f"{duration(result.seconds)}{_with_warnings(run)}"
        )

    def failed(self, run: StudyRun, message: str) -> None:
        """It crashed."""
        self._waiting.pop(run.config.run_name, None)
        self.num_failed += 1
        self.say(f"{self._place()} {title(run):<{self._width}}  FAILED: {message}")

    def stopped(self, run: StudyRun, message: str) -> None:
        """A signal stopped it."""
        self.say(f"{title(run)}: {message}")

    def busy(self, run: StudyRun) -> None:
        """Another process has it."""
        if run.config.run_name not in self._busy:
            self._busy.add(run.config.run_name)
            self.say(f"{title(run)}: another process trains it; waiting for that")

    def look(self, running: Sequence[StudyRun]) -> None:
        """Called about twice a second."""
        moments = [(run, read_moment(run)) for run in running]
        for run, moment in moments:
            self.paces.note(run, moment.pace)
        names = {run.config.run_name for run in running}
        waiting = [run for name, run in self._waiting.items() if name not in names]
        self._show(moments, seconds_left(waiting, moments, self.paces, self.num_jobs))

    def _place(self) -> str:
        ended, width = self.num_done + self.num_failed, len(str(self.num_runs))
        return f"[{ended:>{width}}/{self.num_runs}]"

    def say(self, line: str) -> None:
        """A line that stays."""

    def _show(self, moments: Sequence[tuple[StudyRun, Moment]], left: float | None) -> None:
        """What is running now."""


class Lines(Watcher):
    """A line per event, and now and then one on what is running."""

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        super().__init__()
        self._write = write or (lambda line: print(line, flush=True))
        self._next = time.monotonic() + EVERY

    def say(self, line: str) -> None:
        """A line that stays."""
        self._write(line)

    def _show(self, moments: Sequence[tuple[StudyRun, Moment]], left: float | None) -> None:
        if time.monotonic() < self._next or not moments:
            return
        self._next = time.monotonic() + EVERY
        self.say(f"{self._place()} {_count(len(moments), 'run')} at work, left {duration(left)}")
        for run, moment in moments:
            self.say(f"    {title(run):<{self._width}}  {moment.text()}")


def make_watcher(show: Show) -> Watcher:
    """A live table on a terminal with rich, lines otherwise, unless told which."""
    if show == "auto":
        has_rich = importlib.util.find_spec("rich") is not None
        show = "bar" if has_rich and sys.stdout.isatty() else "lines"
    if show == "bar":
        from bitcycle.study.live import Live

        return Live()
    return Lines() if show == "lines" else Watcher()


def title(run: StudyRun) -> str:
    """How a run is called on the screen."""
    return f"{run.method.key} seed {run.seed}"


def _with_warnings(run: StudyRun) -> str:
    """Where to read what its process printed: of a run that is done, nothing but warnings."""
    log = log_file(run.config)
    return f"  warned: {log}" if log.exists() else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
