"""SIGTERM and SIGINT request a stop: the run finishes its step, writes a checkpoint and exits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType


class Interrupted(Exception):
    """A signal stopped the run after it wrote a checkpoint."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(signum, message)  # pickle passes both to __init__
        self.signum = signum

    def __str__(self) -> str:
        return str(self.args[1])

    @property
    def exit_code(self) -> int:
        """128 plus the number of the signal, as shells report it."""
        return 128 + self.signum


class StopRequest:
    """Records the first signal that asks the run to stop."""

    def __init__(self) -> None:
        self.signum: int | None = None

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt  # the second Ctrl-C stops at once
        self.signum = signum

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Handle SIGTERM and SIGINT inside the `with`, then restore the previous handlers.

        Signals that the process ignores stay ignored: a shell starts background jobs so that
        Ctrl-C does not reach them.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self  # Python handles signals in the main thread only
            return
        handled = [s for s in (signal.SIGTERM, signal.SIGINT)
                   if signal.getsignal(s) is not signal.SIG_IGN]  # fmt: skip
        former = {s: signal.signal(s, self._note) for s in handled}
        try:
            yield self
        finally:
            for signum, handler in former.items():
                signal.signal(signum, handler)


@contextmanager
def block_sigint() -> Iterator[None]:
    """Block SIGINT so that processes started inside the `with` do not receive Ctrl-C.

    Each of them would print a traceback. This process receives a blocked signal at the end of the
    `with`: none is lost.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # its start would unblock the signal
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
