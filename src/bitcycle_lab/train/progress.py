"""Progress of a run on the screen and in log.txt: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from bitcycle.files import Appender

Show = Literal["auto", "bar", "lines", "quiet"]


@dataclass(frozen=True)
class Status:
    """The numbers of one progress line."""

    step: int
    total_steps: int
    loss: float
    metric_name: str
    metric: float
    bits: str
    saved: float | None  # share of BitOPs saved so far against the static top; None: float32
    seconds_left: float | None

    def line(self) -> str:
        """The whole line, with the step and the time left."""
        place = f"step {self.step}/{self.total_steps}"
        return f"{place}  {self.text()}  left {duration(self.seconds_left)}"

    def text(self) -> str:
        """Loss, metric, bits and saving."""
        saved = "" if self.saved is None else f"  saved {100 * self.saved:.1f}%"
        return (
            f"loss {self.loss:.4f}  {self.metric_name} {self.metric:.2f}  bits {self.bits}{saved}"
        )


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds.

    >>> duration(3725), duration(59.6), duration(None)
    ('1:02:05', '1:00', '-')
    """
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Reporter:
    """Writes every line to the run's log and shows nothing. Subclasses show lines."""

    def __init__(self, log_file: Path | None = None) -> None:
        self._log_file = log_file
        self._log: Appender | None = None

    def __enter__(self) -> Self:
        if self._log_file is not None:
            self._log = Appender(self._log_file)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._log is not None:
            self._log.close()

    def say(self, line: str) -> None:
        """Log and show a line."""
        self.note(line)
        self._show(line)

    def note(self, line: str) -> None:
        """Log a line without showing it."""
        if self._log is not None:
            self._log.add(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}")

    def update(self, status: Status) -> None:
        """Report new metrics."""
        self.say(status.line())

    def advance(self, step: int) -> None:
        """Report that a step is done."""

    def _show(self, line: str) -> None:
        """Show a line on the screen."""


class Lines(Reporter):
    """Plain lines on standard output."""

    def _show(self, line: str) -> None:
        print(line, flush=True)


class Bar(Reporter):
    """A rich progress bar; lines stay above it. On a narrow terminal only its numbers."""

    def __init__(self, log_file: Path | None, title: str, total_steps: int) -> None:
        super().__init__(log_file)
        from rich import get_console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        is_wide = get_console().width >= 115
        self._progress: Any = Progress(
            *([TextColumn("{task.description}"), BarColumn(bar_width=20)] if is_wide else []),
            MofNCompleteColumn(), TextColumn("{task.fields[status]}"), TextColumn("left"),
            Remaining(compact=True),
        )  # fmt: skip
        self._bar = self._progress.add_task(title, total=total_steps, status="")

    def __enter__(self) -> Self:
        self._progress.start()
        return super().__enter__()

    def __exit__(self, *reason: Any) -> None:
        self._progress.stop()
        super().__exit__(*reason)

    def update(self, status: Status) -> None:
        """Show the metrics in the bar; log the whole line."""
        self.note(status.line())
        self._progress.update(self._bar, status=status.text())

    def advance(self, step: int) -> None:
        """Move the bar."""
        self._progress.update(self._bar, completed=step)

    def _show(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False)


def make_reporter(show: Show, *, log_file: Path | None, title: str, total_steps: int) -> Reporter:
    """The reporter for `show`; "auto" is a bar on a terminal with rich, plain lines otherwise."""
    if show == "auto":
        has_rich = importlib.util.find_spec("rich") is not None
        show = "bar" if has_rich and sys.stdout.isatty() else "lines"
    if show == "bar":
        return Bar(log_file, title, total_steps)
    return Lines(log_file) if show == "lines" else Reporter(log_file)
