"""The sensitivity of a run's layers to few bits, on its own model and data."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from bitcycle.model_precision import LayerBits
from bitcycle.sensitivity import Sensitivity, sensitivity
from bitcycle_lab.data import Batch
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.loop import remaining_steps, train_step
from bitcycle_lab.train.session import build_session, preserve_torch_settings

STEPS = 50  # to train before the measurement, by default
BATCHES = 4


def measure_sensitivity(
    config: RunConfig,
    *,
    bits: LayerBits = 4,
    num_steps: int = STEPS,
    num_batches: int = BATCHES,
    say: Callable[[str], object] = lambda line: None,
) -> tuple[Sensitivity, dict[str, Any]]:
    """Train a configuration for some steps, then rank its layers; writes nothing.

    Returns the ranking, and a report of JSON types. The batches are those of the steps that follow.
    A run with `auto` in its schedule trains at the fewest bits of its range test.
    """
    if config.precision.is_float:
        raise ValueError(
            f"{config.name} trains in float32: no layer is converted; give --precision.forward 8 "
            "--precision.backward 8, or another recipe"
        )
    if num_steps < 0 or num_batches < 1:
        raise ValueError(
            f"steps to train ({num_steps}) must be at least 0, batches ({num_batches}) at least 1"
        )
    with preserve_torch_settings():
        session = build_session(config)
        num_steps = min(num_steps, session.total_steps)
        say(f"{config.model.name} on {config.data.name}, seed {config.seed}, {num_steps} steps")
        session.wrapped.train()
        steps = remaining_steps(session, is_endless=True)
        for group in islice(steps, num_steps):
            train_step(session, group)
        batches = [group[0] for group in islice(steps, num_batches)]
        steps.close()

        def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
            session.task.start_pass()
            return session.task.loss(model, batch)[0]

        found = sensitivity(session.model, batches, loss_fn, bits=bits, progress=say)
    report = {
        "name": config.name,
        "seed": config.seed,
        "model": config.model.name,
        "data": config.data.name,
        "steps": num_steps,
        "threads": torch.get_num_threads(),
        "sensitivity": found.to_dict(),
    }
    return found, report
