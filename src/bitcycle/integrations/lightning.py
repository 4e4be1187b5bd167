"""Precision schedules in Lightning, as a callback of its `Trainer`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitcycle.extras import require
from bitcycle.integrations.base import Nonfinite, PrecisionRun, Settings, agree_on_total
from bitcycle.model_precision import quantized_layers
from bitcycle.precision import BackwardOperands
from bitcycle.role_schedules import INHERIT, RoleSchedule
from bitcycle.scheduler import PrecisionScheduler

require("lightning.pytorch", extra="lightning", purpose="Lightning callbacks")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import GradientAccumulationScheduler  # noqa: E402

# in the trainer's checkpoints; with `state_dict`, Lightning would raise its own error about keys
# for two callbacks before ours
_KEY = "bitcycle"
_MEASURED = ("loss",)  # the metrics that schedules can follow


class PrecisionCallback(Callback):
    """Steps the bits of a converted model with the optimizer steps of a `Trainer`.

    Convert the model first, in the LightningModule's `__init__` or before `fit`. The roles are
    those of `PrecisionScheduler`, with its default for backward, and with the names of layers as
    seen from the LightningModule. A schedule can follow the loss that `training_step` returns: the
    mean over the micro-batches and processes of an optimizer step.

    total_steps: only for a trainer that does not know its steps (`max_epochs=-1`, a dataset without
    length, a GradientAccumulationScheduler, manual optimization with fewer steps than batches).
    eval_precision: the bits of validation, test and prediction, and of the model after `fit`:
    "high" (the highest of each layer), "full", "scheduled", or bits such as "w8a8".
    example_inputs: arguments of the LightningModule's `forward`, to count cost; by default its
    `example_input_array`. Without either, cost is not logged.
    nonfinite, backward_operands: as in `PrecisionScheduler`.
    """

    def __init__(
        self,
        forward: RoleSchedule = INHERIT,
        backward: RoleSchedule = INHERIT,
        *,
        weight: RoleSchedule = INHERIT,
        act: RoleSchedule = INHERIT,
        error: RoleSchedule = INHERIT,
        grad: RoleSchedule = INHERIT,
        total_steps: int | None = None,
        eval_precision: str = "high",
        example_inputs: Any = None,
        nonfinite: Nonfinite = "raise",
        backward_operands: BackwardOperands = "forward",
    ) -> None:
        self._settings = Settings(
            forward=forward,
            backward=backward,
            weight=weight,
            act=act,
            error=error,
            grad=grad,
            total_steps=total_steps,
            eval_precision=eval_precision,
            example_inputs=example_inputs,
            nonfinite=nonfinite,
            backward_operands=backward_operands,
        )
        self._run: PrecisionRun | None = None
        self._saved: dict[str, Any] | None = None
        self._losses: list[Tensor] = []  # of the micro-batches since the last optimizer step

    @property
    def scheduler(self) -> PrecisionScheduler | None:
        """The scheduler of the run; None before `fit`."""
        return None if self._run is None else self._run.scheduler

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if sum(isinstance(other, PrecisionCallback) for other in callbacks) > 1:
            raise ValueError("two PrecisionCallbacks on one trainer")
        if stage == "fit" and self._run is not None:  # fit again: continue this run
            self._saved, self._run = self._run.state_dict(), None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        quantized_layers(pl_module)  # raises if there is none
        if len(trainer.optimizers) > 1:
            raise ValueError(
                f"{len(trainer.optimizers)} optimizers: a precision schedule counts the steps of "
                "one; step a PrecisionScheduler in your training_step instead"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # not in on_fit_start: asking the trainer for its steps loads the data, which must happen
        # after a checkpoint has restored its position
        total = agree_on_total(
            self._settings.total_steps,
            self._trainer_steps(trainer, pl_module),
            "max_steps or max_epochs",
        )
        run = self._run = PrecisionRun(self._settings, pl_module, total, _MEASURED)
        self._losses = []
        example = self._settings.example_inputs
        example = pl_module.example_input_array if example is None else example
        if example is not None:
            run.start_meter(pl_module.transfer_batch_to_device(example, pl_module.device, 0))
        run.resume_at(trainer.global_step, self._saved)
        self._saved = None

    def _trainer_steps(self, trainer: Trainer, pl_module: LightningModule) -> float:
        """The trainer's number of optimizer steps; infinite if unknown."""
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for each in callbacks:
            if (
                isinstance(each, GradientAccumulationScheduler)
                and each.going_to_accumulate_grad_batches()
            ):
                return float("inf")  # the trainer's number ignores it
        if not pl_module.automatic_optimization and self._settings.total_steps is not None:
            return float("inf")  # the trainer counts one per batch
        return trainer.estimated_stepping_batches

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        run = self._running()
        run.add_samples(batch, trainer.world_size)
        if run.scheduler.reads and outputs and outputs.get("loss") is not None:
            # Lightning has divided it by the number of micro-batches
            number = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            self._losses.append(outputs["loss"].detach() * number)
        if (
            trainer.global_step == run.scheduler.step_count
        ):  # a micro-batch of gradient accumulation
            if not pl_module.automatic_optimization and self._settings.total_steps is None:
                raise ValueError(
                    "training_step took no optimizer step, and the trainer counts one for each "
                    "batch; pass total_steps="
                )
            return
        loss = self._mean_loss(trainer)
        if loss is None and run.scheduler.needs:
            raise ValueError("a schedule follows the loss, and training_step returned none")
        run.step(loss)
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and trainer.global_step % every == 0:
            pl_module.log_dict(run.metrics(), batch_size=1)
        if trainer.global_step != run.scheduler.step_count:
            raise ValueError(
                f"training_step took {trainer.global_step - run.scheduler.step_count + 1} "
                "optimizer steps, PrecisionCallback follows one per batch; step a "
                "PrecisionScheduler in your training_step instead"
            )

    def _mean_loss(self, trainer: Trainer) -> float | None:
        """The loss of an optimizer step, the same in all processes, if a schedule follows it."""
        losses, self._losses = self._losses, []
        if not losses:
            return None
        mean = trainer.strategy.reduce(torch.stack(losses).mean(), reduce_op="mean")
        return float(mean)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._run is not None:  # None: nothing was left to train
            self._run.leave_at_eval_bits()

    def _running(self) -> PrecisionRun:
        assert self._run is not None
        return self._run

    def _start_evaluation(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._run is None and self._saved is not None:  # a checkpoint without a fit before
            total = self._saved["scheduler"]["total_steps"]
            self._run = PrecisionRun(self._settings, pl_module, total, _MEASURED)
            self._run.resume_at(self._saved["scheduler"]["step_count"], self._saved)
        if self._run is not None:
            self._run.start_evaluation()

    def _end_evaluation(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._run is not None:
            self._run.end_evaluation()

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._run is not None and batch_idx == dataloader_idx == 0:
            self._run.write_bits_again()  # WeightAveraging has swapped the buffers

    on_validation_start = on_test_start = on_predict_start = _start_evaluation
    on_validation_end = on_test_end = on_predict_end = _end_evaluation

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._end_evaluation(trainer, pl_module)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        state = self._saved if self._run is None else self._run.state_dict()
        if state is not None:
            checkpoint[_KEY] = state

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._saved = checkpoint.get(_KEY)
