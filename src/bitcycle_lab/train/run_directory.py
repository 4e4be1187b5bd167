"""The folder of a run: its files, its lock, its metrics, and the list of runs below a folder.

config.yaml is the whole configuration, env.json the environment, metrics.jsonl a line per log or
evaluation, checkpoints/ the state to resume from, result.json the outcome, events/ TensorBoard's.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from bitcycle.files import Appender, write_json, write_text
from bitcycle.version import VERSION
from bitcycle_lab.plugins import imported_plugins
from bitcycle_lab.train.checkpoint import Checkpoints
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.config_changes import Change
from bitcycle_lab.train.config_file import from_dict, read_config, to_dict, to_yaml

LOCK = ".lock"
_UNKNOWN = re.compile("unknown (schedule|quantizer|model|dataset)")  # what --import can add
_PATIENCE = 0.2  # seconds: who asks whether a run is locked holds its lock for a moment
MACHINE = ("bitcycle", "torch", "python", "processor", "cpu_capability", "device", "num_cpus")


@dataclass(frozen=True)
class ResumeEvent:
    """The settings that changed when a run was resumed at a step, and warnings, as about data."""

    step: int
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]


class RunBusyError(ValueError):
    """Another process trains the run."""


class RunExistsError(ValueError):
    """The folder of a new run has files already."""


class RunDirectory:
    """The files of one run: config.yaml, env.json, metrics.jsonl, checkpoints/, result.json, ..."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.result_file = self.path / "result.json"
        self.log_file = self.path / "log.txt"
        self.checkpoints = self.path / "checkpoints"
        self.events = self.path / "events"
        self._metrics: Appender | None = None

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return self.config_file.exists()

    @property
    def is_finished(self) -> bool:
        """Whether the run has written its result."""
        return self.result_file.exists()

    def check_free(self) -> None:
        """Raise unless the folder can take a new run."""
        if self.path.exists() and not self._is_free():
            raise RunExistsError(
                f"{self.path} is not empty; resume the run with --resume auto, or choose another "
                "--name, --seed or --output"
            )

    def create(self, config: RunConfig) -> None:
        """Write configuration and environment into the folder, which must be free and locked."""
        self.check_free()
        self.path.mkdir(parents=True, exist_ok=True)
        started = {**environment(), "config": to_dict(config)}
        write_json(self.path / "env.json", started)
        self.write_config(config)  # last: it makes the folder a run

    def write_config(self, config: RunConfig) -> None:
        """Write config.yaml."""
        write_text(self.config_file, to_yaml(config))

    def write_missing(self, files: Mapping[str, str]) -> None:
        """Write files of the run's task that do not exist yet."""
        for name, text in files.items():
            if not (self.path / name).exists():
                write_text(self.path / name, text)

    def _is_free(self) -> bool:
        """Whether the folder is empty, apart from leftovers of a process killed in `create`."""
        return self.path.is_dir() and all(
            entry.name in ("env.json", LOCK) or _is_leftover(entry) for entry in self.path.iterdir()
        )

    def remove_leftovers(self) -> None:
        """Delete the incomplete files of a killed process."""
        for entry in self.path.iterdir():
            if _is_leftover(entry):
                entry.unlink(missing_ok=True)

    def read_config(self) -> RunConfig:
        """The configuration in config.yaml."""
        if not self.exists:
            raise ValueError(f"{self.path} is not a run: it has no config.yaml")
        try:
            return read_config(self.config_file, default_form=None)
        except ValueError as error:
            if not _UNKNOWN.search(str(error)):
                raise
            found = self.read_environment().get("imports")
            files = found if isinstance(found, list) else []
            options = " ".join(f"--import {file}" for file in files or ["FILE"])
            raise ValueError(f"{error} (what is not of this package needs {options})") from None

    def read_first_config(self) -> RunConfig | None:
        """The configuration of `create`, from env.json; None if that is lost."""
        settings = self.read_environment().get("config")
        if settings is None:
            return None
        return from_dict(settings, source=f"the configuration in {self.path / 'env.json'}")

    def read_environment(self) -> dict[str, Any]:
        """The environment the run started in; empty if env.json is lost."""
        try:
            found = json.loads((self.path / "env.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def add_history(self, event: ResumeEvent) -> None:
        """Append to `history` in env.json."""
        found = self.read_environment()
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "resumed_at": event.step,
            "changes": {change.key: [change.was, change.now] for change in event.changes},
            "warnings": list(event.warnings),
        }
        history = found["history"] if isinstance(found.get("history"), list) else []
        write_json(self.path / "env.json", {**found, "history": [*history, entry]})

    def read_history(self) -> list[ResumeEvent]:
        """What changed when the run was resumed; entries that cannot be read are left out."""
        entries = self.read_environment().get("history")
        found = []
        for entry in entries if isinstance(entries, list) else []:
            try:
                changes = [Change(key, was, now) for key, (was, now) in entry["changes"].items()]
                warnings = tuple(map(str, entry["warnings"]))
                found.append(ResumeEvent(int(entry["resumed_at"]), tuple(changes), warnings))
            except (LookupError, TypeError, ValueError, AttributeError):
                continue
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run for this process. Raises RunBusyError if another process has it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("a+", encoding="utf-8") as handle:
            if not _lock(handle):
                raise self._busy()
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
            yield

    @property
    def is_locked(self) -> bool:
        """Whether a process is training this run."""
        try:
            with (self.path / LOCK).open("rb") as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no such folder: whoever writes there says more
            return False
        return False

    def check_idle(self) -> None:
        """Raise RunBusyError if a process is training this run."""
        if self.is_locked:
            raise self._busy()

    def _busy(self) -> RunBusyError:
        try:
            owner = (self.path / LOCK).read_text(encoding="utf-8").strip()
        except OSError:
            owner = ""
        return RunBusyError(
            f"another process trains this run, {self.path} (pid {owner or 'unknown'}); wait until "
            "it ends, or stop it"
        )

    def continue_metrics(self, step: int) -> None:
        """Open metrics.jsonl for appending and remove the lines after `step`, -1: all.

        Raises ValueError if the lines that the checkpoint of this step relies on are damaged.
        """
        texts = self._metrics_texts()
        lines = [_read_line(text) for text in texts]
        places = [place for place, line in enumerate(lines) if line and line["step"] <= step]
        last = places[-1] if places else -1
        for place, (text, line) in enumerate(zip(texts, lines, strict=True)):
            # what follows the last of these lines was not yet flushed and may be cut
            if step >= 0 and line is None and (place < last or not _is_cut(text)):
                raise ValueError(
                    f"{self.metrics_file}, line {place + 1}, is damaged and has no metrics; restore"
                    " the file, or delete it to continue without the metrics so far"
                )
        write_text(self.metrics_file, "".join(json.dumps(lines[place]) + "\n" for place in places))
        self._metrics = Appender(self.metrics_file)

    def add_metrics(self, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        assert self._metrics is not None
        self._metrics.add(json.dumps(line))

    def sync_metrics(self) -> None:
        """Flush metrics.jsonl to disk, before a checkpoint that relies on its lines."""
        assert self._metrics is not None
        self._metrics.sync()

    def read_metrics(self) -> list[dict[str, Any]]:
        """The complete lines of metrics.jsonl; those cut by a kill or a full disk are skipped."""
        lines = map(_read_line, self._metrics_texts())
        return [line for line in lines if line is not None]

    def _metrics_texts(self) -> list[str]:
        if not self.metrics_file.exists():
            return []
        return self.metrics_file.read_text(encoding="utf-8", errors="replace").split("\n")

    def close(self) -> None:
        """Close metrics.jsonl."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


def _lock(handle: IO[str]) -> bool:
    """Whether this process has the lock of a run now."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(_PATIENCE / 20)
        else:
            return True


def _read_line(text: str) -> dict[str, Any] | None:
    """A line of metrics.jsonl; None if it is none."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and isinstance(line.get("step"), int) else None


def _is_cut(text: str) -> bool:
    """Whether a line can be one that a kill or a full disk cut, or zeros of a power failure."""
    return '{"step"'.startswith(text.strip("\0")[:7])


def _is_leftover(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(".tmp")


def list_runs(root: str | Path) -> list[dict[str, str]]:
    """The state, step and result of every run below a folder, at any depth."""
    folders = sorted(path.parent for path in Path(root).rglob("config.yaml"))
    return [_summarize(RunDirectory(folder)) for folder in folders]


def _summarize(directory: RunDirectory) -> dict[str, str]:
    row = {"run": str(directory.path), "state": "not finished", "step": "0", "result": "-"}
    steps = Checkpoints(directory.checkpoints).steps()
    if steps:
        row["step"] = str(steps[-1])
    try:
        result = json.loads(directory.result_file.read_text(encoding="utf-8"))
        value = result["final"][result["metric"]]
        row["state"], row["step"] = "finished", str(result["steps"])
        row["result"] = f"{result['metric']} {value:.2f} at {result['eval_precision']}"
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError):
        row["state"] = "result.json is damaged"
    return row


def environment() -> dict[str, Any]:
    """Versions, processor, device, git revision and command of this process."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "bitcycle": VERSION,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "num_threads": torch.get_num_threads(),
        "num_cpus": os.cpu_count(),
        "git_revision": _git_revision(),
        "imports": list(imported_plugins()),
        "command": sys.argv,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def _git_revision() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def machine() -> dict[str, Any]:
    """Processor and versions, without anything that names this machine.

    >>> list(machine()) == list(MACHINE)
    True
    """
    found = environment()
    return {key: found[key] for key in MACHINE}


def measurement_info(seconds: float, *, threads: int) -> dict[str, Any]:
    """Machine, threads and wall-clock seconds, for files of measurements."""
    return {"machine": machine(), "threads": threads, "seconds": round(seconds, 3)}
