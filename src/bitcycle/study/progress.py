"""What a person sees while a study runs: plain lines here, a table on a terminal (`live`)."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bitcycle.study.engines.base import is_held, log_file, run_folder
from bitcycle.study.results import MethodResult, RunState, StudyResult
from bitcycle.study.study import StudyRun
from bitcycle.tables import text_table
from bitcycle.tasks import TASKS
from bitcycle.train.progress import Show, duration
from bitcycle.train.result import RunResult
from bitcycle.train.run_directory import RunDirectory

TAIL = 16_384  # bytes: many lines


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One moment of a run; step 0 without the rest until its first line is written."""

    step: int = 0
    total_steps: int | None = None  # None: only the data can tell
    bits: str = "-"
    metric: str = ""
    value: float | None = None
    seconds: float = 0.0

    @property
    def pace(self) -> float | None:
        """Seconds a step."""
        return self.seconds / self.step if self.step and self.seconds else None

    def text(self) -> str:
        """Step, bits and metric in a few words."""
        total = "" if self.total_steps is None else f"/{self.total_steps}"
        value = "" if self.value is None else f"  {self.metric} {self.value:.2f}"
        return f"step {self.step}{total}  bits {self.bits}{value}"


def read_moment(run: StudyRun) -> Moment:
    """Of a run that may be writing at this moment, or have no folder yet."""
    metric = TASKS[run.config.task].metric
    line = _last_line(run_folder(run.config).metrics_file)
    if line is None:
        return Moment(total_steps=run.config.steps, metric=metric)
    return Moment(
        step=line["step"],
        total_steps=run.config.steps,
        bits=bits_text(line.get("bits", {})),
        metric=metric,
        value=line.get(metric),
        seconds=line.get("seconds", 0.0),
    )


def _last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line about training steps."""
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


def bits_text(bits: Mapping[str, Any]) -> str:
    """Forward / backward bits as the papers write them.

    >>> bits_text({"weight": 3, "act": 3, "error": 8, "grad": 8}), bits_text({"weight": None})
    ('3/8', 'fp32')
    >>> bits_text({"weight": [3, 8], "act": [3, 8], "error": 8, "grad": None})
    '3-8/8'
    """
    forward, backward = _bits(bits.get("weight")), _bits(bits.get("error"))
    return forward if forward == backward == "fp32" else f"{forward}/{backward}"


def _bits(value: Any) -> str:
    if isinstance(value, list):
        return f"{_bits(min(value))}-{_bits(max(value))}"
    return "fp32" if value is None or value == 32 else str(value)


class Paces:
    """Seconds a step of each configuration, as far as runs have shown it."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[int, float]] = {}

    def note(self, run: StudyRun, seconds_per_step: float | None) -> None:
        """What a run takes; the last word about it counts."""
        if seconds_per_step is not None:
            self._seen.setdefault(run.config.name, {})[run.seed] = seconds_per_step

    def of(self, run: StudyRun) -> float | None:
        """The mean over seeds of its configuration; over all configurations if it has none yet."""
        own = self._seen.get(run.config.name)
        means = [_mean(seeds.values()) for seeds in ([own] if own else self._seen.values())]
        return _mean(means) if means else None


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def seconds_left(
    waiting: Iterable[StudyRun],
    running: Iterable[tuple[StudyRun, Moment]],
    paces: Paces,
    num_jobs: int,
) -> float | None:
    """Until all are done, at the paces seen; None while there is no pace or length to go by."""
    unstarted = ((run, Moment(total_steps=run.config.steps)) for run in waiting)
    left: list[float] = []
    for run, moment in (*running, *unstarted):
        pace = moment.pace or paces.of(run)
        if pace is None or moment.total_steps is None:
            return None
        left.append(pace * (moment.total_steps - moment.step))
    if not left:
        return 0.0
    return max(sum(left) / num_jobs, max(left))


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


class Live(Watcher):
    """Redrawn in place with rich."""

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
        """Above the table."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _show(self, moments: Sequence[tuple[StudyRun, Moment]], left: float | None) -> None:
        self._screen.update(self.table(moments, left))

    def table(self, moments: Sequence[tuple[StudyRun, Moment]], left: float | None) -> Any:
        """The whole as a row, then the runs."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for _ in range(5):
            table.add_column(no_wrap=True)
        ended = self.num_done + self.num_failed
        shares = sum(m.step / m.total_steps for _, m in moments if m.total_steps)
        failed = f", {self.num_failed} failed" if self.num_failed else ""
        table.add_row(
            f"{ended}/{self.num_runs} runs{failed}",
            ProgressBar(total=max(1, self.num_runs), completed=ended + shares, width=20),
            f"left {duration(left)}",
        )
        for run, moment in moments:
            bar = ProgressBar(total=moment.total_steps or 1, completed=moment.step, width=20)
            of = "" if moment.total_steps is None else f"/{moment.total_steps}"
            value = "" if moment.value is None else f"{moment.metric} {moment.value:.2f}"
            table.add_row(
                Text(title(run)), bar, f"step {moment.step}{of}", f"bits {moment.bits}", value
            )
        return table


def status_text(result: StudyResult) -> str:
    """The table and the details below it."""
    header = ("method", "done", "started", "failed", "missing", "metric", "mean")
    rows = [_row(row, result) for row in result.methods]
    states = {s.directory: s for row in result.methods for s in row.runs}.values()
    parts = [
        text_table(header, rows, right=(1, 2, 3, 4, 6)),
        "",
        f"{sum(s.state == 'done' for s in states)} of {len(states)} runs done, below "
        f"{result.output}",
        *(_started(state) for state in states if state.state == "started"),
    ]
    if result.count("failed"):
        parts.append(failures_text(result))
    return "\n".join(parts)


def failures_text(result: StudyResult) -> str:
    """Every failed run with its error, and what to do."""
    states = {s.directory: s for row in result.methods for s in row.runs if s.state == "failed"}
    lines = [f"failed: {title(state.run)}: {state.error}" for state in states.values()]
    number = f"{len(lines)} run{'' if len(lines) == 1 else 's'} failed"
    return "\n".join([*lines, f"{number}; --retry-failed tries again"])


def _row(row: MethodResult, result: StudyResult) -> tuple[str, ...]:
    counts = [row.count(state) for state in ("done", "started", "failed", "missing")]
    values = list(row.values.values())
    mean = f"{sum(values) / len(values):.2f}" if values else "-"
    metric = result.study.metric(row.method.group)
    return (row.method.key, *map(str, counts), metric, mean)


def _started(state: RunState) -> str:
    at_work = is_held(RunDirectory(state.directory))
    how = "at work" if at_work else "interrupted, goes on from its checkpoint"
    return f"{how}: {title(state.run)}: {read_moment(state.run).text()}"
