"""The command line in this process, and what every end of it must look like."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.cli.main import main


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def run(arguments: Sequence[str | Path]) -> Outcome:
    """`bitcycle` with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("always", BitcycleWarning)
        code = main([str(argument) for argument in arguments])
    return Outcome(code, out.getvalue(), err.getvalue())


def assert_graceful(outcome: Outcome) -> None:
    """Success, or one error in words: no traceback, and a message of our own."""
    assert outcome.code in (0, 1, 2), outcome
    errors = [line for line in outcome.err.splitlines() if line.startswith("bitcycle: error: ")]
    assert len(errors) == (outcome.code != 0), outcome
    assert "Traceback" not in outcome.err, outcome
    assert "error: unexpected" not in outcome.err, outcome
    assert len(outcome.err) < 20_000, f"{len(outcome.err)} characters: {outcome.err[:500]}"
