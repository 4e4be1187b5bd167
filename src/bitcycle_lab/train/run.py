"""Start or resume a training run: one configuration, one seed, one folder."""

from __future__ import annotations

import errno
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from bitcycle.audit import LEFT_OUT, audit
from bitcycle.files import write_json
from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.train.checkpoint import CheckpointError, Checkpoints, explain_load_errors
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.config_changes import (
    Change,
    changes_rates,
    check_changes,
    find_changes,
    is_free,
)
from bitcycle_lab.train.config_file import from_dict, to_dict
from bitcycle_lab.train.distributed import on_main
from bitcycle_lab.train.final_evaluation import make_result
from bitcycle_lab.train.loop import save_checkpoint, train
from bitcycle_lab.train.progress import Reporter, Show, make_reporter
from bitcycle_lab.train.range_test import complete_settings, find_lower_bound
from bitcycle_lab.train.result import RunResult, result_json
from bitcycle_lab.train.run_directory import ResumeEvent, RunDirectory, RunExistsError
from bitcycle_lab.train.session import Session, build_session, preserve_torch_settings
from bitcycle_lab.train.signals import Interrupted, StopRequest


def run(config: RunConfig, *, show: Show = "quiet") -> RunResult:
    """Train a new run. Raises ValueError if its folder holds another run."""
    config = config.with_backward()
    directory = RunDirectory(Path(config.output) / config.run_name)
    directory.check_idle()
    directory.check_free()  # before the data is read
    with preserve_torch_settings():
        session = build_session(config)
        if session.needs_range_test:
            complete_settings(config, session.task, session.total_steps)  # raises
        return _execute(session, directory, show, is_new=True)


def resume(run_dir: str | Path, *, show: Show = "quiet", accept_changes: bool = False) -> RunResult:
    """Resume a run from its last complete checkpoint. A finished run returns its result.

    Raises ValueError if config.yaml has changed since that checkpoint. accept_changes: train with
    the new values from there on; env.json and log.txt record them. The settings that define the
    run, such as model, data, seed and steps, cannot change.
    """
    directory = RunDirectory(run_dir)
    return _resume(directory, directory.read_config(), show, is_accepted=accept_changes)


def _resume(
    directory: RunDirectory,
    config: RunConfig,
    show: Show,
    *,
    is_accepted: bool = False,
    writes_config: bool = False,
) -> RunResult:
    if not directory.is_finished:
        directory.check_idle()
    try:
        changes = _changes_since_checkpoint(directory, config, is_accepted=is_accepted)
    except (OSError, ValueError):
        directory.check_idle()  # another process replaced what was being read
        raise
    if directory.is_finished:
        return RunResult.read(directory.path)
    with preserve_torch_settings():
        session = build_session(config, directory.path)
        return _execute(session, directory, show, changes, writes_config=writes_config)


def _changes_since_checkpoint(
    directory: RunDirectory, config: RunConfig, *, is_accepted: bool
) -> list[Change]:
    """The settings that changed since the last checkpoint; ValueError if they may not.

    Without a checkpoint: since the folder was created.
    """
    newest = Checkpoints(directory.checkpoints).read_newest("config")
    if newest is None:
        step, was = None, directory.read_first_config()
    else:
        step, settings = newest
        was = from_dict(settings, source="the checkpoint's configuration")
    if was is None:
        return []
    changes = find_changes(was, config)
    check_changes(
        changes,
        config.lr.policy,
        directory.path,
        step,
        is_finished=directory.is_finished,
        is_accepted=is_accepted,
    )
    return changes


def resume_or_run(config: RunConfig, *, show: Show = "quiet") -> RunResult:
    """Resume the run of this configuration if its folder exists; start it otherwise.

    Places and logs, such as output, data.root and tracking, may differ from those of the folder;
    its config.yaml then takes the new ones. Another change raises ValueError.
    """
    directory = RunDirectory(Path(config.output) / config.run_name)
    if not directory.exists:
        try:
            return run(config, show=show)
        except RunExistsError:
            if not directory.exists:
                raise
            # another process has trained it meanwhile
    config = from_dict(to_dict(config.with_backward()))  # as read from a file: bits "8" become 8
    changes = find_changes(directory.read_config(), config)
    if decisive := [change for change in changes if not is_free(change)]:
        raise ValueError(
            f"{directory.path} was started with other settings ({'; '.join(map(str, decisive))}); "
            "choose another --name or --output"
        )
    return _resume(directory, config, show, writes_config=bool(changes))


def _execute(
    session: Session,
    directory: RunDirectory,
    show: Show,
    changes: Sequence[Change] = (),
    *,
    is_new: bool = False,
    writes_config: bool = False,
) -> RunResult:
    try:
        with ExitStack() as lock:
            on_main(session, lambda: lock.enter_context(directory.locked()))
            if is_new:
                on_main(session, lambda: directory.create(session.config))
            result = _execute_locked(session, directory, show, changes, writes_config=writes_config)
    except CheckpointError:
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
            raise
        steps = Checkpoints(directory.checkpoints).steps()
        left = (
            f"the checkpoint of step {steps[-1]} is intact"
            if steps
            else "there is no checkpoint yet"
        )
        raise CheckpointError(
            f"{directory.path} cannot be written at step {session.step}: {error}; {left}"
        ) from error
    return result


def _execute_locked(
    session: Session,
    directory: RunDirectory,
    show: Show,
    changes: Sequence[Change],
    *,
    writes_config: bool,
) -> RunResult:
    with ExitStack() as stack:
        reporter = Reporter()
        if session.is_main:
            reporter = stack.enter_context(
                make_reporter(
                    show,
                    log_file=directory.log_file,
                    title=session.config.run_name,
                    total_steps=session.total_steps,
                )
            )
        stack.enter_context(_log_failure(reporter))
        is_resumed = _load_newest(session, directory, reporter, changes)
        if writes_config and session.is_main:
            directory.write_config(session.config)
        events = None
        if session.is_main:
            directory.write_missing(session.task.files())
            directory.continue_metrics(session.step if is_resumed else -1)
            stack.callback(directory.close)
            events = stack.enter_context(_events(session, directory))
        if not all(is_free(change) for change in changes):
            # the next resume compares config.yaml with the accepted settings
            keep = session.config.checkpoint.keep
            save_checkpoint(session, directory, Checkpoints(directory.checkpoints, keep=keep))
        _report_float_layers(session, reporter)
        stop_request = stack.enter_context(StopRequest().listening())
        if session.needs_range_test:
            find_lower_bound(session, directory, reporter, stop_request)
        train(session, directory, reporter, stop_request, events)
        result = make_result(session, directory)
        if session.is_main:
            write_json(directory.result_file, result_json(result))
        session.accelerator.wait_for_everyone()
        metric = result.metric
        num_uncounted = len(result.cost["uncounted"])
        but = f", {num_uncounted} products not counted" if num_uncounted else ""
        reporter.say(
            f"done: test {metric} {result.value:.2f} at {result.eval_precision}, "
            f"{result.cost['bitops']:.4g} BitOPs ({result.cost['convention']}{but})"
        )
        signum = stop_request.signum
        if signum is not None:  # during the final evaluation: a study must not start another run
            raise Interrupted(signum, f"stopped after the run finished, in {directory.path}")
    return result


def _load_newest(
    session: Session, directory: RunDirectory, reporter: Reporter, changes: Sequence[Change]
) -> bool:
    """Load the last complete checkpoint; returns whether there is one."""
    checkpoints = Checkpoints(directory.checkpoints)
    if session.is_main:
        directory.remove_leftovers()
        checkpoints.remove_leftovers()
    session.accelerator.wait_for_everyone()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BitcycleWarning)
        loaded = checkpoints.load_newest()
        if loaded is not None:
            with explain_load_errors(loaded[0]):
                session.load_state_dict(loaded[1])
            if changes_rates(changes):
                session.use_configured_rates()
    _check_same_step(None if loaded is None else loaded[0], session, directory)
    for warning in caught:
        reporter.say(f"warning: {warning.message}")
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    step = 0
    if loaded is not None:
        step = loaded[0]
        reporter.say(f"resumed at step {step}")
    for change in changes:
        since = "the run was created" if loaded is None else "the checkpoint"
        reporter.say(f"changed since {since}: {change}")
    if session.is_main and (changes or caught):
        messages = tuple(str(warning.message) for warning in caught)
        directory.add_history(ResumeEvent(step, tuple(changes), messages))
    return loaded is not None


def _check_same_step(step: int | None, session: Session, directory: RunDirectory) -> None:
    """Raise if ranks found different checkpoints: they would deadlock."""
    if session.world_size == 1:
        return
    steps: list[int | None] = [None] * session.world_size
    dist.all_gather_object(steps, step)
    if len(set(steps)) > 1:
        found = ", ".join("none" if one is None else str(one) for one in steps)
        raise CheckpointError(
            f"the processes found checkpoints of different steps in {directory.path} ({found}, by "
            "rank); --output must be on a shared filesystem"
        )


def _report_float_layers(session: Session, reporter: Reporter) -> None:
    if session.scheduler is None:
        return
    for row in audit(session.model).float_rows:
        if row.multiplies and row.reason != LEFT_OUT:
            reporter.say(f"stays float32: {row.name} ({row.reason})")


@contextmanager
def _events(session: Session, directory: RunDirectory) -> Iterator[Any]:
    """A TensorBoard writer, or None if tracking.tensorboard is off."""
    if not session.config.tracking.tensorboard:
        yield None
        return
    from torch.utils.tensorboard import SummaryWriter

    with _hide_thread_os_errors():
        writer = SummaryWriter(str(directory.events), purge_step=session.step + 1)
        try:
            yield writer
        except BaseException:
            with suppress(OSError):  # the first error is reported
                writer.close()
            raise
        writer.close()


@contextmanager
def _hide_thread_os_errors() -> Iterator[None]:
    """Hide OSErrors of TensorBoard's thread, which its writer raises again in this thread."""
    former = threading.excepthook

    def show(report: threading.ExceptHookArgs) -> None:
        if not isinstance(report.exc_value, OSError):
            former(report)

    threading.excepthook = show
    try:
        yield
    finally:
        threading.excepthook = former


@contextmanager
def _log_failure(reporter: Reporter) -> Iterator[None]:
    """Write the error that stops the run into its log."""
    try:
        yield
    except BaseException as error:
        with suppress(OSError):
            reporter.note(f"stopped: {str(error) or type(error).__name__}")
        raise
