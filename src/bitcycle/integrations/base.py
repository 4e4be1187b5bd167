"""What the callbacks share: the bits, the cost and the evaluation of a run in a trainer."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bitcycle.cost import CostMeter
from bitcycle.model_precision import (
    at_precision,
    kernel_state,
    quantized_layers,
    restore_kernels,
    set_precision,
)
from bitcycle.precision import ROLES, BackwardOperands, Precision
from bitcycle.role_schedules import INHERIT, RoleSchedule, resolve_schedules
from bitcycle.scheduler import PrecisionScheduler
from bitcycle.schedules import Adaptive
from bitcycle.schedules.adaptive import Metric
from bitcycle.warnings import BitcycleWarning

Nonfinite = Literal["raise", "warn", "ignore"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of a callback; the roles are those of `PrecisionScheduler`."""

    forward: RoleSchedule = INHERIT
    backward: RoleSchedule = INHERIT
    weight: RoleSchedule = INHERIT
    act: RoleSchedule = INHERIT
    error: RoleSchedule = INHERIT
    grad: RoleSchedule = INHERIT
    total_steps: int | None = None
    eval_precision: str = "high"
    example_inputs: Any = None
    nonfinite: Nonfinite = "raise"
    backward_operands: BackwardOperands = "forward"

    def __post_init__(self) -> None:
        if self.eval_precision not in ("high", "full", "scheduled"):
            try:
                Precision.parse(self.eval_precision)
            except ValueError as error:
                raise ValueError(
                    f"eval_precision must be 'high', 'full', 'scheduled' or bits such as 'w8a8', "
                    f"got {self.eval_precision!r}: {error}"
                ) from None

    def make_scheduler(
        self, model: nn.Module, total_steps: int, measured: Collection[str] = ()
    ) -> PrecisionScheduler:
        """The scheduler of a run; ValueError if a schedule follows a metric not in `measured`."""
        roles = {name: getattr(self, name) for name in ("forward", "backward", *ROLES)}
        for by_role in resolve_schedules(quantized_layers(model), roles, total_steps):
            for schedule in by_role:
                if isinstance(schedule, Adaptive) and not set(schedule.reads) <= set(measured):
                    raise ValueError(
                        f"{schedule} follows the {' and the '.join(schedule.reads)} of the "
                        "training, which this trainer does not pass to callbacks; step a "
                        "PrecisionScheduler in a loop of your own"
                    )
        return PrecisionScheduler(
            model,
            **roles,
            total_steps=total_steps,
            backward_operands=self.backward_operands,
            nonfinite=self.nonfinite,
        )


def agree_on_total(asked: int | None, trainer: float, setting: str) -> int:
    """The optimizer steps of the run; `trainer`: those of the trainer, infinite or < 1 if unknown.

    >>> agree_on_total(None, 100, "max_steps"), agree_on_total(50, float("inf"), "max_steps")
    (100, 50)
    >>> agree_on_total(50, 100, "max_steps")
    Traceback (most recent call last):
    ...
    ValueError: total_steps=50, but the trainer will take 100 optimizer steps
    """
    if not 1 <= trainer < float("inf"):
        if asked is None:
            raise ValueError(
                "the trainer does not know how many optimizer steps it will take: set "
                f"{setting}, or pass total_steps="
            )
        return asked
    if asked is not None and asked != trainer:
        raise ValueError(
            f"total_steps={asked}, but the trainer will take {trainer:.0f} optimizer steps"
        )
    return int(trainer)


class PrecisionRun:
    """The precision scheduler and the cost meter of one run; call `step` per optimizer step.

    measured: the names of the metrics that the trainer will pass to `step`.
    """

    def __init__(
        self,
        settings: Settings,
        model: nn.Module,
        total_steps: int,
        measured: Collection[str] = (),
    ) -> None:
        self.scheduler = settings.make_scheduler(model, total_steps, measured)
        self.meter: CostMeter | None = None
        self._settings, self._model = settings, model
        self._check_eval_bits()
        self._num_samples = 0  # since the last optimizer step
        self._saved_meter: Mapping[str, Any] | None = None  # until there is a meter
        self._evaluation = ExitStack()

    def start_meter(self, example_inputs: Any) -> None:
        """Count cost from now on, or from the saved meter of a resumed run."""
        self.meter = CostMeter(self._model, example_inputs)
        if self._saved_meter is not None:
            self.meter.load_state_dict(self._saved_meter)

    def add_samples(self, batch: Any, num_processes: int = 1) -> None:
        """Count the samples of a micro-batch for the next optimizer step."""
        sizes = (x.shape[0] for x in tree_leaves(batch) if isinstance(x, Tensor) and x.dim() > 0)
        self._num_samples += next(sizes, 0) * num_processes

    def step(self, metric: Metric | None = None) -> None:
        """Advance bits and cost after an optimizer step."""
        if self.meter is not None:
            self.meter.step(self._num_samples or None)
        self._num_samples = 0
        self.scheduler.step(metric)

    def metrics(self) -> dict[str, float]:
        """`PrecisionScheduler.metrics` of the last step."""
        return self.scheduler.metrics(self.meter, step=max(self.scheduler.step_count - 1, 0))

    @property
    def eval_bits(self) -> Precision | dict[str, Precision]:
        """The bits of an evaluation now; float32 before activation ranges are observed."""
        if self.scheduler.step_count == 0 and not self._has_ranges():
            return Precision()
        return self._asked_bits()

    def _asked_bits(self) -> Precision | dict[str, Precision]:
        asked = self._settings.eval_precision
        if asked == "high":
            return self.scheduler.highest
        if asked == "scheduled":
            return self.scheduler.precision
        return Precision() if asked == "full" else Precision.parse(asked)

    def _check_eval_bits(self) -> None:
        """Raise ValueError at the start if a layer does not support them (`max_bits`)."""
        bits = self._asked_bits()
        for _, layer in quantized_layers(self._model):
            if isinstance(bits, Precision):  # a dict is the schedule's own
                layer.check_precision(bits)

    def _has_ranges(self) -> bool:
        return all(
            layer.is_observed or not layer.settings.quantizer.observes
            for _, layer in quantized_layers(self._model)
        )

    def start_evaluation(self) -> None:
        """Set the bits of evaluation until `end_evaluation`."""
        self.end_evaluation()
        self._evaluation.enter_context(at_precision(self._model, self.eval_bits))  # type: ignore[arg-type]

    def write_bits_again(self) -> None:
        """Restore the bits after others wrote to the buffers, as weight averaging does."""
        for _, layer in quantized_layers(self._model):
            layer.control.add_(0)  # bumps the version: the layer restores it at its next use
            layer.act_range.add_(0)

    def end_evaluation(self) -> None:
        """Set the bits of training again; does nothing outside an evaluation."""
        self._evaluation.close()

    def leave_at_eval_bits(self) -> None:
        """Leave the model at the bits of evaluation after training."""
        self.end_evaluation()
        self.write_bits_again()
        set_precision(self._model, self.eval_bits)  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """JSON types only. Contains the chosen kernels, on which rounding depends."""
        meter = self._saved_meter if self.meter is None else self.meter.state_dict()
        return {
            "scheduler": self.scheduler.state_dict(),
            "meter": meter,
            **kernel_state(self._model),
        }

    def resume_at(self, step: int, saved: Mapping[str, Any] | None) -> None:
        """Resume before this optimizer step, from the saved state if it is of this step.

        Without it, bits and noise are still exact: they are functions of the step.
        """
        if saved is None or saved["scheduler"]["step_count"] != step:
            if step != self.scheduler.step_count:
                self.scheduler.load_state_dict({"step_count": step})
                warnings.warn(
                    f"the trainer resumed at step {step}, and its checkpoint has no precision "
                    "state of it: the bits follow from the step, the cost is counted from now on",
                    BitcycleWarning,
                    stacklevel=2,
                )
            return
        self.scheduler.load_state_dict(saved["scheduler"])
        self._saved_meter = saved["meter"]
        if self.meter is not None and self._saved_meter is not None:
            self.meter.load_state_dict(self._saved_meter)
        restore_kernels(self._model, saved)
