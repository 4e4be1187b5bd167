"""SIGTERM and SIGINT as a wish to stop: the step is finished, a checkpoint written, then we go."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType


class Interrupted(Exception):
    """The run stopped because of a signal; its checkpoint is written."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(signum, message)  # both: an exception is pickled with what it was given
        self.signum = signum

    def __str__(self) -> str:
        return str(self.args[1])

    @property
    def exit_code(self) -> int:
        """The conventional one: 128 + the signal's number."""
        return 128 + self.signum


class StopWish:
    """Which signal, if any, has asked the run to stop."""

    def __init__(self) -> None:
        self.signum: int | None = None

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: at once
        self.signum = signum

    @contextmanager
    def listening(self) -> Iterator[StopWish]:
        """Handlers in place inside the `with`; the former ones come back after it.

        A signal that is ignored stays so: a script's background job is not meant by its Ctrl-C.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self  # only the main thread may handle signals
            return
        heard = [s for s in (signal.SIGTERM, signal.SIGINT)
                 if signal.getsignal(s) is not signal.SIG_IGN]  # fmt: skip
        former = {s: signal.signal(s, self._note) for s in heard}
        try:
            yield self
        finally:
            for signum, handler in former.items():
                signal.signal(signum, handler)


@contextmanager
def unheard_by_children() -> Iterator[None]:
    """Processes started inside never hear Ctrl-C, which would end them with a traceback each.

    Here it is put off to the end of the `with` at most: blocked, not ignored, so none is lost.
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
