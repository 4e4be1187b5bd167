"""A study on a terminal: a bar for the whole, a row for every run at work, lines above."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from bitcycle.study.base import StudyRun
from bitcycle.study.moment import Moment
from bitcycle.study.progress import Watcher, title
from bitcycle.train.progress import duration


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
