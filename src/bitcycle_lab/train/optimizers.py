"""Build torch's optimizers and learning-rate schedulers from their configurations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer, lr_scheduler

from bitcycle_lab.train.config import LrConfig, OptimizerConfig, steps_of


def make_optimizer(config: OptimizerConfig, parameters: Iterable[Parameter]) -> Optimizer:
    """SGD, Adam or AdamW."""
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
        )
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(
        parameters,
        lr=config.lr,
        betas=(config.betas[0], config.betas[1]),
        weight_decay=config.weight_decay,
    )


class LearningRate:
    """A torch scheduler that is stepped per optimizer step, or per evaluation (plateau)."""

    def __init__(
        self, config: LrConfig, optimizer: Optimizer, total_steps: int, *, higher_is_better: bool
    ) -> None:
        self.waits_for_metric = config.policy == "plateau"
        self._scheduler: Any = (
            lr_scheduler.ReduceLROnPlateau(
                optimizer,
                mode="max" if higher_is_better else "min",
                factor=config.gamma,
                patience=config.patience,
            )
            if self.waits_for_metric
            else _per_step(config, optimizer, total_steps)
        )
        self._optimizer = optimizer

    @property
    def value(self) -> float:
        """Return the present learning rate."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self) -> None:
        """Set the next rate. Call it after each optimizer step."""
        if not self.waits_for_metric:
            self._scheduler.step()

    def after_evaluation(self, metric: float) -> None:
        """Set the next rate from a validation metric. Call it after each evaluation."""
        if self.waits_for_metric:
            self._scheduler.step(metric)

    def rebase(self, lr: float) -> None:
        """Continue with another base rate and this object's settings, at the restored step.

        For the policies that are a function of the step; the others keep their restored rate.
        """
        if not isinstance(self._scheduler, lr_scheduler.LambdaLR):
            return
        self._scheduler.base_lrs = [lr for _ in self._optimizer.param_groups]
        factors = (rate(self._scheduler.last_epoch) for rate in self._scheduler.lr_lambdas)
        for group, factor in zip(self._optimizer.param_groups, factors, strict=True):
            group["initial_lr"], group["lr"] = lr, lr * factor

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the torch scheduler."""
        state: dict[str, Any] = self._scheduler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the torch scheduler."""
        self._scheduler.load_state_dict(state)


def lr_at(config: LrConfig, lr: float, step: int, total_steps: int) -> float:
    """The rate of a step, for the policies that are a function of the step alone.

    >>> [lr_at(LrConfig(milestones=(0.5, 0.75)), 1.0, step, 8) for step in (0, 3, 4, 6)]
    [1.0, 1.0, 0.1, 0.010000000000000002]
    """
    warmup = steps_of(config.warmup, total_steps)
    if config.policy == "inverse_sqrt":
        warmup = max(1, warmup)
        return lr * min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))
    if step < warmup:
        return config.warmup_lr
    if config.policy == "step":
        passed = sum(step >= steps_of(time, total_steps) for time in config.milestones)
        return float(lr * config.gamma**passed)
    if config.policy == "cosine":
        share = (1 + math.cos(math.pi * step / total_steps)) / 2
        return config.min_lr + (lr - config.min_lr) * share
    assert config.policy == "constant"
    return lr


def _per_step(config: LrConfig, optimizer: Optimizer, total_steps: int) -> Any:
    if config.policy == "warm_restarts":
        return lr_scheduler.CosineAnnealingWarmRestarts(
            optimizer,
            T_0=max(1, steps_of(config.period, total_steps)),
            T_mult=config.period_factor,
            eta_min=config.min_lr,
        )
    lr = float(optimizer.param_groups[0]["lr"])
    # by the step, not from rate to rate: a warm-up leaves milestones and cosine where they are
    return lr_scheduler.LambdaLR(optimizer, lambda step: lr_at(config, lr, step, total_steps) / lr)
