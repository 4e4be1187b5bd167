"""`PrecisionScheduler` sets the bits of a converted model at every training step.

It is used like a learning-rate scheduler. The constructor applies the bits of step 0, and `step()`
after every optimizer step applies the next ones. Each role of each layer has a schedule: the six
keywords `forward`, `backward`, `weight`, `act`, `error` and `grad` resolve to them
(`role_schedules`). The state is the number of steps, and the state of adaptive schedules.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, Literal, Protocol

from torch import nn

from bitcycle.bits import Bits, PlainBits, has_format, order
from bitcycle.model_precision import describe_bits, quantized_layers, rounded_roles
from bitcycle.nn.control import advance_clocks
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.nonfinite import NonFiniteCheck
from bitcycle.precision import (
    ROLES,
    BackwardOperands,
    Precision,
)
from bitcycle.registry import unknown_name
from bitcycle.role_schedules import (
    INHERIT,
    RoleSchedule,
    describe_keywords,
    find_logged,
    resolve_schedules,
)
from bitcycle.schedules import (
    Adaptive,
    Preview,
    Schedule,
)
from bitcycle.schedules.adaptive import AdaptiveStates, Metric
from bitcycle.schedules.base import check_total
from bitcycle.warnings import BitcycleWarning


class Meter(Protocol):
    """A `CostMeter`: counts the cost so far, relative to that at other bits."""

    def cost(self, baseline: Precision | dict[str, Precision]) -> Any:
        """The `Cost` so far."""


class PrecisionScheduler:
    """Set the bits of a converted model at every step of a run of `total_steps` optimizer steps.

    forward: the schedule of weights and activations. backward: that of the errors (the gradients
    with respect to a layer's output, which the backward pass multiplies) and of the weight
    gradients. weight, act, error and grad: the schedule of one role, in place of its parent's. Each
    takes a schedule, its text, an int, a format such as "nvfp4", None (float32), a list of bits
    (equal stages), a function of the step and `total_steps`, or a dict from layer patterns to
    those. A later pattern overrides an earlier one, and layers that no pattern matches inherit.

    Where backward is not given it is 8 bits on layers whose weights and activations have at most 8,
    and float32 on layers where both are float32; for other bits and for formats it must be given.
    Forward is float32 where it is not given.

    backward_operands: the bits of weights and activations in the backward products, grad_input and
    grad_weight. "forward": those that the forward product reads. "backward": those of the errors,
    so that a switch of `forward` leaves both backward products as they are; for formats and
    float32 only.

    The call of `step` after the last optimizer step keeps the final bits. One more warns, and all
    further ones keep them too.

    nonfinite: what `step` does if a NaN or infinity reached a quantized tensor since the last call:
    "raise" (with the names of the layers), "warn" or "ignore" (for a GradScaler, which skips such
    steps). The backward pass of a compiled model does not record its errors.

    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Linear(4, 2))
    >>> bits = PrecisionScheduler(model, forward="CR:3-8:1", backward=8, total_steps=6)
    >>> print(bits.precision)
    w3a3e8
    >>> for _ in range(6):
    ...     bits.step()
    >>> print(bits.precision, bits.step_count, bits.finished)
    w8a8e8 6 True
    >>> PrecisionScheduler(model, forward="CR:3-8:1", total_steps=6)
    PrecisionScheduler(step 0 of 6: w3a3e8; forward=CR:3-8:1, backward=8 by default)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        forward: RoleSchedule = INHERIT,
        backward: RoleSchedule = INHERIT,
        weight: RoleSchedule = INHERIT,
        act: RoleSchedule = INHERIT,
        error: RoleSchedule = INHERIT,
        grad: RoleSchedule = INHERIT,
        total_steps: int,
        backward_operands: BackwardOperands = "forward",
        nonfinite: Literal["raise", "warn", "ignore"] = "raise",
    ) -> None:
        by_keyword: dict[str, RoleSchedule] = {
            "forward": forward, "backward": backward,
            "weight": weight, "act": act, "error": error, "grad": grad,
        }  # fmt: skip
        if nonfinite not in ("raise", "warn", "ignore"):
            raise unknown_name("nonfinite action", nonfinite, ("raise", "warn", "ignore"))
        layers = quantized_layers(model)
        self.total_steps = check_total(total_steps)
        self._nonfinite = nonfinite
        self._layers = [layer for _, layer in layers]
        self._names = [entry.name for entry, _ in layers]
        resolved = resolve_schedules(layers, by_keyword, self.total_steps, backward_operands)
        self._backward_operands = backward_operands
        self._keywords = describe_keywords(layers, by_keyword, resolved)
        self._roles = rounded_roles(self._layers)
        self._logged = find_logged(layers, by_keyword, self._roles)
        self._groups = list(dict.fromkeys(resolved))  # of layers with the same schedules
        numbers = {schedules: number for number, schedules in enumerate(self._groups)}
        self._group_of = [numbers[schedules] for schedules in resolved]  # by layer
        self._schedules = list(dict.fromkeys(s for group in self._groups for s in group))
        places = {schedule: place for place, schedule in enumerate(self._schedules)}
        self._places = [tuple(places[s] for s in group) for group in self._groups]
        self._adaptive = AdaptiveStates(self._schedules, self.total_steps)
        self._step_count = 0
        for schedule in sorted(self._schedules, key=str):
            for note in schedule.notes(self.total_steps):
                warnings.warn(note, BitcycleWarning, stacklevel=2)
        for name, layer in zip(self._names, self._layers, strict=True):
            layer.rename(name)  # parts converted alone, and copies, share names and so noise
        self._announce_tops()
        self._health = NonFiniteCheck(self._names, self._layers)
        self._health.clear()
        self._apply(0)

    # -- reading --------------------------------------------------------------------------------

    @property
    def step_count(self) -> int:
        """The number of optimizer steps so far; the layers have the bits of this 0-based step."""
        return self._step_count

    @property
    def finished(self) -> bool:
        """Whether all `total_steps` steps are done; the layers keep the bits of the last one."""
        return self._step_count >= self.total_steps

    @property
    def precision(self) -> Precision | dict[str, Precision]:
        """The bits in force at this step: one Precision, or a dict by layer if layers differ.

        As in `get_precision`, a role that no quantizer of the model has a rule for is None.
        """
        return self.precision_at(self._step_count)

    def precision_at(self, step: int) -> Precision | dict[str, Precision]:
        """The bits of a step; step `total_steps` has those of the last step.

        The bits of an adaptive schedule are known up to the present step.
        """
        return self._by_layer(self._bits_at(step))

    def _by_layer(self, bits: list[Precision]) -> Precision | dict[str, Precision]:
        """The bits of each group of layers -> those in force on the model."""
        bits = [each.in_force(self._roles) for each in bits]
        if len(set(bits)) == 1:
            return bits[0]
        return {n: bits[group] for n, group in zip(self._names, self._group_of, strict=True)}

    @property
    def highest(self) -> Precision | dict[str, Precision]:
        """Each layer at the top of its schedules: the default bits of an evaluation.

        The top has the most bits per element: bf16 is above mxfp8.
        """
        highs = [[schedule.high for schedule in group] for group in self._groups]
        return self._by_layer([self._precision(row) for row in highs])

    @property
    def top(self) -> Precision:
        """The most bits of each role on any layer: the precision of the static upper bound."""
        by_role = zip(*self._groups, strict=True)
        tops = [max((s.high for s in schedules), key=order) for schedules in by_role]
        return self._precision(tops).in_force(self._roles)

    def history(self) -> list[tuple[int, Precision | dict[str, Precision]]]:
        """(first step, bits) of every segment of equal bits so far."""
        last = min(self._step_count, self.total_steps - 1)
        columns = [
            [self._adaptive.bits_at(schedule, step) for step in range(last + 1)]
            if isinstance(schedule, Adaptive)
            else schedule.values(self.total_steps)[: last + 1]
            for schedule in self._schedules
        ]
        every = enumerate(zip(*columns, strict=True))
        changes = (next(segment) for _, segment in groupby(every, key=lambda item: item[1]))
        return [(step, self._by_layer(self._combine(row))) for step, row in changes]

    def metrics(self, meter: Meter | None = None, *, step: int | None = None) -> dict[str, float]:
        """The bits of this step as numbers to log; call it before `step`.

        `bits/forward` and `bits/backward` are means over layers and over the roles that are
        rounded. Keywords that were given for one role or by pattern add `bits/act` or
        `bits/forward/PATTERN`. Float32 counts as 32, and a format as the bits of an element.
        meter: adds `cost/bitops` so far and `cost/saved`, the share that the bits save of the same
        steps with each layer at its `highest`. step: another step than this one.

        >>> from bitcycle.convert import quantize_model
        >>> model = quantize_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
        >>> forward = {"*": 4, "1": "bf16"}
        >>> bits = PrecisionScheduler(model, forward=forward, backward=8, total_steps=6)
        >>> bits.metrics()
        {'bits/forward': 10.0, 'bits/backward': 8.0, 'bits/forward/*': 4.0, 'bits/forward/1': 16.0}
        """
        bits = self._bits_at(self._step_count if step is None else step)
        bits = [each.in_force(self._roles) for each in bits]
        values = {
            key: sum(bits[self._group_of[layer]].bits[role].cost_bits for layer, role in places)
            / len(places)
            for key, places in self._logged.items()
        }
        if meter is not None:
            tops = self.highest
            by_layer = tops if isinstance(tops, dict) else dict.fromkeys(self._names, tops)
            cost = meter.cost(by_layer)  # layers of other schedulers count at their own bits
            values |= {"cost/bitops": float(cost.bitops), "cost/saved": cost.saving}
        return values

    def preview(self) -> dict[str, Preview]:
        """The preview of every distinct schedule, by its roles ('weight, act') and text."""
        previews: dict[str, Preview] = {}
        operands = self._backward_operands
        for weight, act, error, grad in self._groups:
            forward, backward = {"weight": weight, "act": act}, {"error": error, "grad": grad}
            for schedule, roles in self._roles_by_schedule(forward):
                errors = error.high if "error" in self._roles else None
                preview = Preview.of(
                    schedule, self.total_steps, backward=errors, backward_operands=operands
                )
                _add_preview(previews, f"{roles}: {schedule}", preview)
            for schedule, roles in self._roles_by_schedule(backward):
                preview = Preview.of(
                    schedule, self.total_steps, forward=weight.high, backward_operands=operands
                )
                _add_preview(previews, f"{roles}: {schedule}", preview)
        return previews

    def _roles_by_schedule(self, schedules: Mapping[str, Schedule]) -> list[tuple[Schedule, str]]:
        used = {role: schedule for role, schedule in schedules.items() if role in self._roles}
        return [
            (schedule, ", ".join(role for role, other in used.items() if other == schedule))
            for schedule in dict.fromkeys(used.values())
        ]

    def __repr__(self) -> str:
        place = f"step {self._step_count} of {self.total_steps}"
        keywords = self._keywords
        if self._backward_operands == "backward":
            keywords += ", backward_operands='backward'"
        return f"{type(self).__name__}({place}: {describe_bits(self.precision)}; {keywords})"

    # -- stepping -------------------------------------------------------------------------------

    @property
    def reads(self) -> frozenset[str]:
        """The names of the metrics that its adaptive schedules read at some step."""
        return self._adaptive.reads

    @property
    def rounds_errors(self) -> bool:
        """Whether the errors of any layer are rounded at some step."""
        errors = [group[ROLES.index("error")] for group in self._groups]
        has_rule = "error" in self._roles
        return has_rule and any(not Bits.of(schedule.low).is_float32 for schedule in errors)

    @property
    def needs(self) -> frozenset[str]:
        """The names of the metrics that the next `step` must be passed, such as "loss".

        Only adaptive schedules need any; `bitcycle.schedules.adaptive` lists the names.
        """
        return frozenset() if self.finished else self._adaptive.needs(self._step_count)

    def step(self, metric: Metric | None = None) -> None:
        """Apply the bits of the next step. Call after every optimizer step.

        metric: a number, or a dict of numbers by name, for adaptive schedules (`needs`). Other
        schedules ignore it. It must be the same in all processes.
        """
        if self._step_count == self.total_steps:
            warnings.warn(
                f"step {self._step_count + 1} of total_steps={self.total_steps}: the schedule is "
                "over, and the final bits stay; to schedule all steps, pass their number",
                BitcycleWarning,
                stacklevel=2,
            )
        self._check_converted()
        if self._nonfinite != "ignore":
            self._health.check(self._step_count, lambda: self.precision, action=self._nonfinite)
        if self._adaptive and not self.finished:
            self._adaptive.update(self._step_count, metric)
        self._step_count += 1
        self._apply(self._step_count)

    def _apply(self, step: int) -> None:
        self._check_converted()
        bits = self._bits_at(step)
        advance_clocks(self._layers, step)
        for layer, group in zip(self._layers, self._group_of, strict=True):
            layer.set_precision(bits[group])

    def _announce_tops(self) -> None:
        """Announce the most bits of the run to each layer before it gets the first ones."""
        most = {schedule: _most_bits(schedule, self.total_steps) for schedule in self._schedules}
        formats = {schedule: _formats(schedule, self.total_steps) for schedule in self._schedules}
        for layer, number in zip(self._layers, self._group_of, strict=True):
            by_role = dict(zip(ROLES, self._groups[number], strict=True))
            layer.expect_bits(
                {role: most[schedule] for role, schedule in by_role.items()},
                {role: formats[schedule] for role, schedule in by_role.items()},
            )

    def _check_converted(self) -> None:
        for name, layer in zip(self._names, self._layers, strict=True):
            if not isinstance(layer, QuantizedLayer):
                raise RuntimeError(f"layer {name!r} was converted back to float")

    def _bits_at(self, step: int) -> list[Precision]:
        """The bits of each group of layers."""
        at = min(step, self.total_steps - 1)  # after the last step its bits stay
        return self._combine(
            [
                self._adaptive.bits_at(schedule, at)
                if isinstance(schedule, Adaptive)
                else schedule(at, self.total_steps)
                for schedule in self._schedules
            ]
        )

    def _combine(self, values: Sequence[PlainBits]) -> list[Precision]:
        """The values of the distinct schedules -> the bits of each group of layers."""
        return [self._precision([values[place] for place in places]) for places in self._places]

    def _precision(self, by_role: Sequence[PlainBits]) -> Precision:
        bits = dict(zip(ROLES, by_role, strict=True))
        return Precision(**bits, backward_operands=self._backward_operands)

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The step count, the states of adaptive schedules, and what identifies the run.

        That is total_steps, the schedules and a digest of the bits of all steps. It has only
        numbers and text under fixed keys, so `torch.distributed.checkpoint` can save the scheduler
        as it is (`Stateful`).
        """
        state: dict[str, Any] = {
            "step_count": self._step_count,
            "total_steps": self.total_steps,
            "schedules": self._describe_schedules(),
            "digest": self._digest,
        }
        if self._adaptive:
            state["adaptive"] = self._adaptive.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, and apply the bits of its step."""
        if not isinstance(state, Mapping) or "step_count" not in state:
            raise ValueError(
                f"not a PrecisionScheduler state, which has a step_count: {state!r:.200}"
            )
        step = state["step_count"]
        is_same_run = state.get("total_steps") == self.total_steps
        is_count = isinstance(step, int) and not isinstance(step, bool) and step >= 0
        if not is_count or (step > self.total_steps and not is_same_run):
            raise ValueError(
                f"step_count must be a whole number from 0 to total_steps ({self.total_steps}), "
                f"got {step!r}"
            )
        if difference := self._difference_from(state):
            warnings.warn(
                f"the saved scheduler had {difference}: the bits from here on differ from those of "
                "the saved run",
                BitcycleWarning,
                stacklevel=2,
            )
        self._adaptive.load_state_dict(state.get("adaptive"), step)
        self._step_count = step
        self._apply(step)

    def _difference_from(self, state: Mapping[str, Any]) -> str:
        """How the schedules of a saved state differ from these; '' if their bits do not.

        Raises if they differ and have no text that says how.
        """
        if state.get("total_steps", self.total_steps) != self.total_steps:
            return f"total_steps {state['total_steps']!r}, this one has {self.total_steps}"
        if state.get("digest", self._digest) == self._digest:
            return ""
        saved, own = state.get("schedules", ""), self._describe_schedules()
        if "<" not in f"{saved}{own}":
            return f"schedules {saved!r}, this one has {own!r}"
        before, now = (str(text).split() for text in (state["digest"], self._digest))
        pairs = zip(ROLES, before, now, strict=False)
        roles = [role for role, old, new in pairs if old != new]
        raise ValueError(
            f"the schedule of {' and '.join(roles) or 'a role'} has other bits than in the saved "
            f"run: there {saved!r:.200}, here {own!r:.200}. Pass the functions and schedules of "
            "that run, or change to these on purpose: load_state_dict({'step_count': "
            f"{min(state['step_count'], self.total_steps)}}})"
        )

    @cached_property
    def _digest(self) -> str:
        """A hash by role of the bits of all steps on all layers; adaptive schedules by their text.

        A text, not a dict: a distributed checkpoint would look for each of its keys.
        """
        known = {
            schedule: str(schedule) if schedule.is_adaptive else schedule.digest(self.total_steps)
            for schedule in self._schedules
        }
        words = []
        for place, role in enumerate(ROLES):
            by_layer = [known[self._groups[group][place]] for group in self._group_of]
            if len(set(by_layer)) == 1:
                by_layer = by_layer[:1]
            words.append(f"{role}={hashlib.sha256(' '.join(by_layer).encode()).hexdigest()[:16]}")
        if self._backward_operands == "backward":
            words.append("backward_operands=backward")
        return " ".join(words)

    def _describe_schedules(self) -> str:
        """The schedules of the roles in one text, by layer where they differ.

        A text, not a dict: a distributed checkpoint would look for each of its keys.
        """
        texts = [
            " ".join(f"{role}={schedule}" for role, schedule in zip(ROLES, group, strict=True))
            for group in self._groups
        ]
        if self._backward_operands == "backward":
            texts = [f"{text} backward_operands=backward" for text in texts]
        if len(texts) == 1:
            return texts[0]
        by_layer = zip(self._names, self._group_of, strict=True)
        return "; ".join(f"{name}: {texts[group]}" for name, group in by_layer)


def _add_preview(previews: dict[str, Preview], key: str, preview: Preview) -> None:
    """Add it unless it is there; functions of one line of code have the same text."""
    same = [each for each in previews if each == key or each.startswith(f"{key} (")]
    if all(previews[each].schedule != preview.schedule for each in same):
        previews[f"{key} ({len(same) + 1})" if same else key] = preview


def _most_bits(schedule: Schedule, total_steps: int) -> int:
    """The most bits on a grid of integers; 0 without one."""
    if top := Bits.of(schedule.high).grid_bits:
        return top
    # some steps are float32 or formats: only the list of all steps has the most bits of the others
    return max(Bits.of(bits).grid_bits for bits in schedule.bit_widths(total_steps))


def _formats(schedule: Schedule, total_steps: int) -> frozenset[Bits]:
    """The formats of a run."""
    if not has_format(schedule.levels):  # the usual case, without a list of all steps
        return frozenset()
    found = map(Bits.of, schedule.bit_widths(total_steps))
    return frozenset(bits for bits in found if bits.is_format)
