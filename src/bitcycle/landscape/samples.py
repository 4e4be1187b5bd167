"""The data a run's landscape is computed on: the first samples it trained on, un-augmented."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from bitcycle.data import Batch
from bitcycle.tasks import Task
from bitcycle.train.evaluate import reduce_sums


class FirstSamples:
    """The batches of the first `num` training samples (None: of all), as evaluation cuts them.

    Independent samples are counted exactly. Windows of a text, whose state is carried on, and
    graphs come in whole batches: as many as it takes.
    """

    def __init__(self, task: Task, num: int | None, device: torch.device) -> None:
        if num is not None and num < 1:
            raise ValueError(f"samples ({num}) must be at least 1")
        self._task, self._num, self._device = task, num, device
        self._kept = None if num is None else list(self._batches())
        self.num_samples = sum(_length(task, batch) for batch in self)

    def __iter__(self) -> Iterator[Batch]:
        return self._batches() if self._kept is None else iter(self._kept)

    def _batches(self) -> Iterator[Batch]:
        count = 0
        for batch in self._task.eval_batches("train"):
            left = None if self._num is None else self._num - count
            if left is not None and left <= 0:
                return
            part = batch if left is None else _first(batch, left)
            count += _length(self._task, part)
            yield part.to(self._device)

    def mean_loss(self, model: nn.Module) -> float:
        """As `bitcycle eval` computes it: the same sums, divided by the same count."""
        return mean_loss(self._task, model, self, self._device)


def mean_loss(
    task: Task, model: nn.Module, batches: Iterable[Batch], device: torch.device
) -> float:
    """The task's "loss" over some batches."""
    task.start_pass()
    totals: dict[str, Tensor] = {}
    for batch in batches:
        _, sums = task.loss(model, batch)
        for name, value in sums.items():
            totals[name] = totals[name] + value if name in totals else value
    return task.metrics(reduce_sums(totals, device, 1))["loss"]


def _length(task: Task, batch: Batch) -> int:
    return task.inputs(batch)[0].shape[0]


def _first(batch: Batch, num: int) -> Batch:
    if batch.indices is None or len(batch.indices) <= num:  # one that cannot be cut has none
        return batch
    return replace(
        batch,
        inputs=batch.inputs[:num],
        targets=batch.targets[:num],
        indices=batch.indices[:num],
    )
