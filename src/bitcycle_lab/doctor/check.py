"""A comparison of the self-test, and the device that may be lost during one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

Outcome = Literal["passed", "failed", "not run"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison.

    by: the kernel or the library that is compared. error: of the worst element, as a share of what
    it may be. reason: why it failed or was not run.
    """

    by: str
    what: str  # a layer, or what was rounded
    bits: str = ""
    outcome: Outcome = "passed"
    error: float | None = None
    reason: str = ""


def first_line(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *lines[:1]])


class Device:
    """The device that is examined. An illegal access leaves a GPU unusable for the process."""

    def __init__(self, device: torch.device) -> None:
        self.torch = device
        self.lost_by = ""  # the check after which it no longer answered

    def run(self, by: str, what: str, bits: str, compare: Callable[[], float | None]) -> Check:
        """The check of a comparison: the error as a share of its bound, or a failure.

        `compare` returns None where a comparison has no measure. Any error but too little memory
        is a failure.
        """
        if self.lost_by:
            return Check(by=by, what=what, bits=bits, outcome="not run", reason=self.lost_reason)
        try:
            error = compare()
        except Exception as failure:
            return self.fail(by, what, bits, failure)
        if error is None or error <= 1:
            return Check(by=by, what=what, bits=bits, error=error)
        reason = f"off by {error:.3g} times what is allowed"
        return Check(by=by, what=what, bits=bits, outcome="failed", error=error, reason=reason)

    def fail(self, by: str, what: str, bits: str, error: Exception) -> Check:
        """What an error says of a check: too little memory is no failure.

        The device may be lost by it.
        """
        reason = first_line(error)
        if isinstance(error, torch.OutOfMemoryError):
            return Check(by=by, what=what, bits=bits, outcome="not run", reason=reason)
        if not self._answers():
            self.lost_by = f"{by}, {what} {bits}".strip()
        return Check(by=by, what=what, bits=bits, outcome="failed", reason=reason)

    @property
    def lost_reason(self) -> str:
        """Why nothing more runs on the device."""
        return f"{self.torch} no longer answers after {self.lost_by}"

    def _answers(self) -> bool:
        try:
            return bool((torch.zeros(1, device=self.torch) == 0).item())
        except RuntimeError:
            return False
