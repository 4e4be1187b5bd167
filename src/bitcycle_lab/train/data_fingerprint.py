"""The size and a digest of a few samples of each split, to notice that data were exchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from bitcycle_lab.data import Samples
from bitcycle_lab.tasks import Split, Task

NUM_SAMPLES = 8  # of each split, evenly spaced
_GRID = 1000  # values are rounded to 1 / _GRID: processors differ in the last bits


def data_fingerprint(task: Task) -> dict[str, dict[str, Any]]:
    """The size and a digest of each split.

    The digest is over eight samples, or over the first batch of data without samples.
    """
    found = {"train": _describe(task.train_batches())}
    splits: tuple[Split, ...] = ("validation", "test") if task.has_validation else ("test",)
    for split in splits:
        found[split] = _describe(task.eval_batches(split))
    return found


def _describe(batches: Any) -> dict[str, Any]:
    samples = getattr(batches, "samples", None)
    if isinstance(samples, Samples):
        chosen = np.unique(np.linspace(0, len(samples) - 1, NUM_SAMPLES).astype(np.int64))
        digest = _digest(*samples.fetch(chosen, None))
        return {"count": len(samples), "of": "samples", "sha256": digest}
    if hasattr(batches, "batch_at"):  # columns of text, a graph
        batch, count, of = batches.batch_at(0), batches.steps_per_epoch, "steps per epoch"
    else:
        batch = next(iter(batches))
        count, of = round(batch.num_targets / batch.share), "targets"
    return {"count": count, "of": of, "sha256": _digest(batch.inputs, batch.targets)}


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for x in tensors:
        values = (x.detach().cpu().double() * _GRID).round().long() if x.is_floating_point() else x
        digest.update(repr(tuple(values.shape)).encode())
        digest.update(values.cpu().long().contiguous().numpy().tobytes())
    return digest.hexdigest()


def data_changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two fingerprints, in words.

    >>> was, now = ({"train": {"count": count, "of": "samples"}} for count in (9, 8))
    >>> data_changes(was, now)
    ['train has 8 samples and had 9']
    """
    words = []
    for split in dict.fromkeys([*was, *now]):
        before, after = was.get(split), now.get(split)
        if before is None or after is None:
            words.append(f"{split} {'is new' if before is None else 'is gone'}")
        elif before["count"] != after["count"]:
            words.append(
                f"{split} has {after['count']:,} {after['of']} and had {before['count']:,}"
            )
        elif before != after:
            words.append(f"{split} has other contents")
    return words
