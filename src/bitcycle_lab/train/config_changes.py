"""Settings of a run that changed since its last checkpoint, and which of them may change.

A checkpoint holds the configuration it was trained with, and env.json the first one. `resume`
compares config.yaml with the newest of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.config_file import from_dict, option_names, to_dict

# places and logs: they decide no weight, and take effect without being accepted
FREE = ("name", "output", "tracking", "checkpoint", "data.root", "data.num_workers",
        "data.cache_dir")  # fmt: skip
# these take effect from the resumed step on
ACCEPTABLE = ("threads", "deterministic", "clip_norm", "eval", "optimizer.momentum",
              "optimizer.nesterov", "optimizer.weight_decay", "optimizer.betas")  # fmt: skip
_RATES = ("optimizer.lr", "lr")
_STATEFUL_POLICIES = ("warm_restarts", "plateau")  # torch's scheduler holds their settings


@dataclass(frozen=True)
class Change:
    """A setting by its dotted key, its value in the checkpoint and in config.yaml."""

    key: str
    was: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key}: was {_text(self.was)}, is {_text(self.now)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def find_changes(was: RunConfig, now: RunConfig) -> list[Change]:
    """The settings that differ, in the order of the configuration.

    Those of the range test count in a run that has one.

    >>> [str(change) for change in find_changes(RunConfig(steps=9), RunConfig(steps=9, seed=1))]
    ['seed: was 0, is 1']
    """
    if was == now:
        return []
    before, after = (_flat(to_dict(from_dict(to_dict(config)))) for config in (was, now))
    has_test = any(config.precision.auto_high is not None for config in (was, now))
    return [
        Change(key, before[key], after[key])
        for key in after
        if before[key] != after[key] and (has_test or not _is_below(key, ("range_test",)))
    ]


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by dotted key, such as optimizer.lr."""
    flat: dict[str, Any] = {}
    for key in option_names():
        flat[key] = settings
        for part in key.split("."):
            flat[key] = flat[key][part]
    return flat


def is_free(change: Change) -> bool:
    """Whether a change decides no weight: places, logs, a moved folder of pretrained weights."""
    if change.key == "model.path" and None not in (change.was, change.now):
        return Path(change.was).name == Path(change.now).name
    return _is_below(change.key, FREE)


def is_acceptable(change: Change, policy: str) -> bool:
    """Whether a resumed run with this `lr.policy` can take a change; the others define the run."""
    if _is_below(change.key, ACCEPTABLE):
        return True
    is_rate = _is_below(change.key, _RATES) and change.key != "lr.policy"
    return is_rate and policy not in _STATEFUL_POLICIES


def changes_rates(changes: Sequence[Change]) -> bool:
    """Whether the optimizer's settings or the learning rates differ."""
    return any(_is_below(change.key, ("optimizer", "lr")) for change in changes)


def _is_below(key: str, names: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def check_changes(
    changes: Sequence[Change],
    policy: str,
    folder: Path,
    step: int | None,
    *,
    is_finished: bool,
    is_accepted: bool,
) -> None:
    """Raise ValueError for changes of config.yaml that are not accepted, or cannot be.

    step: of the checkpoint; None if there is none and the changes are since the run was created.
    """
    decisive = [change for change in changes if not is_free(change)]
    fixed = [c.key for c in decisive if is_finished or not is_acceptable(c, policy)]
    if not fixed and (is_accepted or not decisive):
        return
    since = "the run was created" if step is None else f"the checkpoint of step {step}"
    lines = [f"{folder}/config.yaml has changed since {since}:"]
    lines += [f"  {change}" for change in decisive]
    if fixed:
        why = "The run is finished" if is_finished else f"A run keeps its {', '.join(fixed)}"
        lines.append(f"{why}: undo this, or start a new run with another --name")
    else:
        lines.append(
            f"Undo this, or resume with the new values from step {step or 0} on: bitcycle resume "
            f"{folder} --accept-changes"
        )
    raise ValueError("\n".join(lines))
