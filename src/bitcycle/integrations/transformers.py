"""Precision schedules in Hugging Face Transformers, as a callback of its `Trainer`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from bitcycle.extras import require
from bitcycle.integrations.base import Nonfinite, PrecisionRun, Settings, agree_on_total
from bitcycle.model_precision import quantized_layers
from bitcycle.precision import BackwardOperands
from bitcycle.role_schedules import INHERIT, RoleSchedule
from bitcycle.scheduler import PrecisionScheduler
from bitcycle.schedules import parse_schedule
from bitcycle.warnings import BitcycleWarning

require("transformers", extra="transformers", purpose="Transformers callbacks")

from transformers.trainer import TRAINER_STATE_NAME  # noqa: E402
from transformers.trainer_callback import (  # noqa: E402
    CallbackHandler,
    ExportableState,
    TrainerCallback,
    TrainerState,
)


class PrecisionCallback(TrainerCallback, ExportableState):
    """Steps the bits of a converted model with the optimizer steps of a `Trainer`.

    Convert the model before you build the Trainer. The roles and the default for backward are those
    of `PrecisionScheduler`; layer patterns are names or globs, because the trainer's checkpoints
    hold only text. The state is in those checkpoints, and `train(resume_from_checkpoint=...)`
    restores it, with or without `restore_callback_states_from_checkpoint`.

    total_steps: only for a trainer that does not know its steps; otherwise it must agree.
    eval_precision: the bits of the model in evaluation mode and after `train`: "high" (the highest
    of each layer), "full", "scheduled", or bits such as "w8a8".
    example_inputs: keyword arguments of the model, to count cost; by default the first batch.
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
        roles: dict[str, Any] = {
            "forward": forward, "backward": backward,
            "weight": weight, "act": act, "error": error, "grad": grad,
        }  # fmt: skip
        given = {name: value for name, value in roles.items() if value is not INHERIT}
        others: dict[str, Any] = {
            "total_steps": total_steps, "eval_precision": eval_precision, "nonfinite": nonfinite,
            "backward_operands": backward_operands,
        }  # fmt: skip
        # for `restore_callback_states_from_checkpoint`, which cannot restore functions
        self._args = {**{name: _as_text(value) for name, value in given.items()}, **others}
        self._settings = Settings(**given, **others, example_inputs=example_inputs)
        self._run: PrecisionRun | None = None
        self._converted: nn.Module | None = None  # the model of the run
        self._model: nn.Module | None = None  # while it trains
        self._hook: RemovableHandle | None = None
        self._first_batch: Mapping[str, Any] | None = None
        self._num_processes = 1
        self._is_tracing = False

    @property
    def scheduler(self) -> PrecisionScheduler | None:
        """The scheduler of the run; None before `train`."""
        return None if self._run is None else self._run.scheduler

    def state(self) -> dict[str, Any]:
        """The state that the trainer writes to trainer_state.json."""
        saved = None
        if self._run is not None and self._converted is not None:
            # with the ranges, which `save_pretrained` leaves out
            saved = self._run.state_dict() | {"ranges": _ranges(self._converted)}
        return {"args": self._args, "attributes": {"saved": saved}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _move_to_front(self)
        model: nn.Module = kwargs["model"]
        _detach_others(model)
        total = agree_on_total(
            self._settings.total_steps, state.max_steps, "max_steps or num_train_epochs"
        )
        name = type(self).__name__  # as in the trainer's checkpoints
        saved = _saved(state, name) if state.global_step else None
        self._run, self._converted = PrecisionRun(self._settings, model, total), model
        self._run.resume_at(state.global_step, saved)
        _load_ranges(model, saved)
        state.stateful_callbacks[name] = self.state()  # the trainer updates existing keys only
        self._num_processes = args.world_size
        self._first_batch = None
        self._model = model
        self._hook = model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        model.__dict__["train"] = self._switch_mode
        if self._settings.example_inputs is not None:
            self._start_meter(self._settings.example_inputs)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        run = self._running()
        if run.meter is not None or self._first_batch is None:
            return
        try:
            self._start_meter(self._first_batch)
        except Exception as error:
            warnings.warn(
                f"no cost is counted: the first batch cannot be traced ({error}); pass "
                "example_inputs= that can",
                BitcycleWarning,
                stacklevel=2,
            )
        self._first_batch = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._running().step()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if self._run is None or logs is None or "loss" not in logs:
            return  # an evaluation, or the summary of the run
        values = self._run.metrics()
        logs.update(values)  # loggers are called after this callback
        state.log_history[-1].update(values)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._detach()
        best = Path(state.best_model_checkpoint or "") / TRAINER_STATE_NAME
        if args.load_best_model_at_end and best.is_file():
            saved = _saved(TrainerState.load_from_json(str(best)), type(self).__name__)
            _load_ranges(kwargs["model"], saved)
        self._running().leave_at_eval_bits()

    def _running(self) -> PrecisionRun:
        assert self._run is not None
        return self._run

    def _start_meter(self, example_inputs: Any) -> None:
        self._is_tracing = True
        try:
            self._running().start_meter(example_inputs)
        finally:
            self._is_tracing = False

    # The Trainer has no event before an evaluation, but it calls model.eval().

    def _switch_mode(self, mode: bool = True) -> nn.Module:
        """Replaces the model's `train`, which `eval` calls, to switch the bits too.

        A forward hook would miss `generate`, which calls the encoder alone.
        """
        assert self._model is not None
        if not self._is_tracing:
            if mode:
                self._running().end_evaluation()
            else:
                self._running().start_evaluation()
        return type(self._model).train(self._model, mode)

    def _before_forward(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if self._is_tracing or not model.training:
            return
        self._running().add_samples((args, kwargs), self._num_processes)
        if self._first_batch is None and self._running().meter is None and not args:
            self._first_batch = kwargs

    def _detach(self) -> None:
        """Remove the hooks from the model."""
        if self._model is None:
            return
        self._running().end_evaluation()
        self._model.__dict__.pop("train", None)
        self._model = None
        if self._hook is not None:
            self._hook.remove()


def _saved(state: TrainerState, name: str) -> dict[str, Any] | None:
    """The state of the callback in a trainer's."""
    callbacks: Any = state.stateful_callbacks  # by name, once a trainer has begun
    saved: dict[str, Any] | None = callbacks.get(name, {}).get("attributes", {}).get("saved")
    return saved


def _ranges(model: nn.Module) -> dict[str, list[list[float]]]:
    """The running ranges by the keys of the state dict, in JSON types."""
    return {
        f"{entry.name}.act_range".lstrip("."): layer.act_range.tolist()
        for entry, layer in quantized_layers(model)
    }


def _load_ranges(model: nn.Module, saved: Mapping[str, Any] | None) -> None:
    ranges = {} if saved is None else saved.get("ranges", {})
    if ranges:
        model.load_state_dict({k: torch.tensor(rows) for k, rows in ranges.items()}, strict=False)


def _detach_others(model: nn.Module) -> None:
    """Remove the hooks of a callback whose run was interrupted."""
    for hook in list(model._forward_pre_hooks.values()):
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, PrecisionCallback):
            owner._detach()


def _as_text(value: RoleSchedule) -> Any:
    """The schedules of a role as text."""
    if not isinstance(value, Mapping):
        return str(parse_schedule(value))  # type: ignore[arg-type]
    types = [pattern for pattern in value if not isinstance(pattern, str)]
    if types:
        raise ValueError(
            f"layer pattern {types[0]!r}: the trainer's checkpoints hold only text; name the "
            "layers, or use globs such as '*.attention.*'"
        )
    return {pattern: str(parse_schedule(inner)) for pattern, inner in value.items()}


def _move_to_front(callback: PrecisionCallback) -> None:
    """Move the callback before the loggers, which the Trainer calls first.

    The Trainer does not pass its list of callbacks, but its handler is on the call stack.
    """
    frame = sys._getframe(1)
    while not isinstance(handler := frame.f_locals.get("self"), CallbackHandler):
        if frame.f_back is None:
            return  # not called by a Trainer
        frame = frame.f_back
    if sum(isinstance(other, PrecisionCallback) for other in handler.callbacks) > 1:
        raise ValueError("two PrecisionCallbacks on one trainer")
    handler.callbacks.remove(callback)
    handler.callbacks.insert(0, callback)  # later callbacks keep their positions
