"""The scheduler: asks each role's schedule for the bits of a step and writes them to the layers.

Used like a learning-rate scheduler: built once (which applies step 0), stepped after every
optimizer step. Its own state is one integer, and what adaptive schedules have seen so far.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final, Literal

from torch import nn

from bitcycle.model_precision import quantized_layers
from bitcycle.nn.layer import QuantizedLayer, advance_clocks
from bitcycle.nonfinite import NonFiniteCheck
from bitcycle.patterns import NamedModule, Pattern, check_mapping, last_match
from bitcycle.precision import PARENTS, ROLES, Precision, is_float
from bitcycle.registry import unknown_name
from bitcycle.schedules import Adaptive, Bits, Preview, Schedule, ScheduleLike, parse_schedule
from bitcycle.schedules.adaptive import AdaptiveStates, Metric
from bitcycle.schedules.base import check_total
from bitcycle.warnings import BitcycleWarning


class _Inherit:
    def __repr__(self) -> str:
        return "INHERIT"


INHERIT: Final = _Inherit()  # weight and act take `forward`, error and grad take `backward`
RoleSchedule = ScheduleLike | Mapping[Pattern, ScheduleLike] | _Inherit

Plan = tuple[Schedule, ...]  # of one layer, in the order of ROLES


def role_schedules(
    layers: list[tuple[NamedModule, QuantizedLayer]],
    given: Mapping[str, RoleSchedule],
    total_steps: int,
) -> list[Plan]:
    """The schedule of each role of each layer, from the six keywords of a `PrecisionScheduler`.

    Checked: every keyword has an effect, every layer can take the bits of `total_steps` steps.
    """
    if all(isinstance(value, _Inherit) for value in given.values()):
        raise ValueError(
            "no role was given a schedule: pass forward=, backward=, weight=, act=, error= or "
            "grad= (forward='fp32' schedules float32)"
        )
    parsed = {key: _parse(value, layers, key) for key, value in given.items()}
    _check_use(layers, parsed)
    plans = [_plan(entry, parsed) for entry, _ in layers]
    for (entry, layer), plan in zip(layers, plans, strict=True):
        _check_rules(layer, plan, {r for r in ROLES if last_match(parsed[r], entry) is not None})
    _check_limits([layer for _, layer in layers], plans, total_steps)
    return plans


def _parse(
    value: RoleSchedule, layers: list[tuple[NamedModule, QuantizedLayer]], key: str
) -> dict[Pattern, Schedule]:
    if isinstance(value, _Inherit):
        return {}
    if isinstance(value, Mapping):
        check_mapping(value, [entry for entry, _ in layers], key)
        return {pattern: parse_schedule(inner) for pattern, inner in value.items()}
    return {"*": parse_schedule(value)}


def _plan(entry: NamedModule, parsed: Mapping[str, Mapping[Pattern, Schedule]]) -> Plan:
    """The schedule of each role of a layer."""
    float32 = parse_schedule("fp32")
    return tuple(
        last_match(parsed[role], entry) or last_match(parsed[PARENTS[role]], entry) or float32
        for role in ROLES
    )


def _check_use(
    layers: list[tuple[NamedModule, QuantizedLayer]],
    parsed: Mapping[str, Mapping[Pattern, Schedule]],
) -> None:
    """`forward` and `backward` must reach some layer that its two roles leave to them."""
    for parent in ("forward", "backward"):
        roles = [role for role in ROLES if PARENTS[role] == parent]
        if parsed[parent] and all(
            last_match(parsed[role], entry) is not None for entry, _ in layers for role in roles
        ):
            raise ValueError(
                f"{parent}= has no effect: {' and '.join(f'{role}=' for role in roles)} cover "
                f"every layer; drop {parent}= or one of them"
            )


def _check_rules(layer: QuantizedLayer, plan: Plan, named: set[str]) -> None:
    """A role that was named for a layer without a rule for it is an error."""
    quantizer = layer.settings.quantizer
    for role, schedule in zip(ROLES, plan, strict=True):
        if role in named and role not in quantizer.roles and not is_float(schedule.low):
            raise ValueError(
                f"{role}={schedule} has no effect: {type(quantizer).__name__} (layer "
                f"{layer.settings.name!r}) has no rule for {role}, only for "
                f"{', '.join(r for r in ROLES if r in quantizer.roles)}; drop {role}= or "
                "choose a quantizer that has one (bitcycle ls quantizers)"
            )


def _check_limits(layers: list[QuantizedLayer], plans: list[Plan], total_steps: int) -> None:
    """Bits that will exceed a layer's max_bits, or its kernel's, at some step are an error now."""
    limited = [
        (layer, p) for layer, p in zip(layers, plans, strict=True) if layer.settings.is_limited
    ]
    bits_of = {s: s.bit_widths(total_steps) for s in {s for _, plan in limited for s in plan}}
    for layer, plan in limited:
        for role, schedule in zip(ROLES, plan, strict=True):
            for bits in bits_of[schedule]:
                layer.check_precision(Precision(**{role: bits}))


class PrecisionScheduler:
    """Steps the bits of a converted model through a run of `total_steps` optimizer steps.

    A role takes a schedule, its text, an int, None ("fp32"), or a dict from layer patterns to
    those: later patterns win, layers that none matches keep what the role inherits. The call
    after the last optimizer step holds the final bits; one more raises.

    nonfinite: what `step` does when a NaN or infinity reached a quantized tensor in training since
    the last call: "raise" (names the layers), "warn" or "ignore" (a GradScaler skips such steps
    itself). The backward pass of a compiled model does not record its errors.

    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Linear(4, 2))
    >>> bits = PrecisionScheduler(model, forward="CR:3-8:1", backward=8, total_steps=6)
    >>> print(bits.precision)
    w3a3e8g8
    >>> for _ in range(6):
    ...     bits.step()
    >>> print(bits.precision, bits.step_count, bits.finished)
    w8a8e8g8 6 True
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
        nonfinite: Literal["raise", "warn", "ignore"] = "raise",
    ) -> None:
        given: dict[str, RoleSchedule] = {
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
        plans = role_schedules(layers, given, self.total_steps)
        self._plans = list(dict.fromkeys(plans))  # the distinct ones
        numbers = {plan: number for number, plan in enumerate(self._plans)}
        self._plan_of = [numbers[plan] for plan in plans]  # by layer
        self._schedules = list(dict.fromkeys(s for plan in self._plans for s in plan))
        places = {schedule: place for place, schedule in enumerate(self._schedules)}
        self._places = [tuple(places[s] for s in plan) for plan in self._plans]
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
        """Optimizer steps done; the bits that are set belong to this 0-based step."""
        return self._step_count

    @property
    def finished(self) -> bool:
        """Whether every step of the run was taken; the last step's bits are held."""
        return self._step_count >= self.total_steps

    @property
    def precision(self) -> Precision | dict[str, Precision]:
        """The scheduled bits of this step: one Precision, or a dict by layer when they differ."""
        return self.precision_at(self._step_count)

    def precision_at(self, step: int) -> Precision | dict[str, Precision]:
        """The bits of any step; `total_steps` itself holds those of the step before.

        An adaptive schedule has none yet for the steps to come.
        """
        return self._by_layer(self._bits_at(step))

    def _by_layer(self, bits: list[Precision]) -> Precision | dict[str, Precision]:
        """The bits of each distinct plan -> those of the model."""
        if len(set(bits)) == 1:
            return bits[0]
        return {n: bits[plan] for n, plan in zip(self._names, self._plan_of, strict=True)}

    @property
    def highest(self) -> Precision | dict[str, Precision]:
        """The most bits each layer reaches: what a model is evaluated at by default."""
        highs = [[schedule.high for schedule in plan] for plan in self._plans]
        return self._by_layer([Precision(**dict(zip(ROLES, row, strict=True))) for row in highs])

    @property
    def top(self) -> Precision:
        """The most bits each role reaches on any layer: what a static run would take throughout."""
        tops: dict[str, Bits] = {}
        for role, schedules in zip(ROLES, zip(*self._plans, strict=True), strict=True):
            highs = [schedule.high for schedule in schedules]
            tops[role] = None if None in highs else max(h for h in highs if h is not None)
        return Precision(**tops)

    def history(self) -> list[tuple[int, Precision | dict[str, Precision]]]:
        """(first step, bits) of every stretch of equal bits so far."""
        last = min(self._step_count, self.total_steps - 1)
        columns = [
            [self._adaptive.bits_at(schedule, step) for step in range(last + 1)]
            if isinstance(schedule, Adaptive)
            else schedule.values(self.total_steps)[: last + 1]
            for schedule in self._schedules
        ]
        every = enumerate(zip(*columns, strict=True))
        changes = (next(stretch) for _, stretch in groupby(every, key=lambda item: item[1]))
        return [(step, self._by_layer(self._combine(row))) for step, row in changes]

    def preview(self) -> dict[str, Preview]:
        """What every distinct schedule does over the run, by role ('weight, act') and text."""
        previews: dict[str, Preview] = {}
        for weight, act, error, grad in self._plans:
            forward, backward = {"weight": weight, "act": act}, {"error": error, "grad": grad}
            for schedule, roles in _roles_by_schedule(forward):
                preview = schedule.preview(self.total_steps, backward=error.high)
                previews.setdefault(f"{roles}: {schedule}", preview)
            for schedule, roles in _roles_by_schedule(backward):
                preview = schedule.preview(self.total_steps, forward=weight.high)
                previews.setdefault(f"{roles}: {schedule}", preview)
        return previews

    # -- stepping -------------------------------------------------------------------------------

    @property
    def reads(self) -> frozenset[str]:
        """All that its adaptive schedules want to be told, by name, at some step."""
        return self._adaptive.reads

    @property
    def rounds_errors(self) -> bool:
        """Whether any layer's errors have bits at some step."""
        errors = [plan[ROLES.index("error")] for plan in self._plans]
        return any(not is_float(schedule.low) for schedule in errors)

    @property
    def needs(self) -> frozenset[str]:
        """What the next `step` must be told by name, such as "loss"; empty: nothing.

        Adaptive schedules read it; see `bitcycle.schedules.adaptive` for the names.
        """
        return frozenset() if self.finished else self._adaptive.needs(self._step_count)

    def step(self, metric: Metric | None = None) -> None:
        """Call after every optimizer step.

        metric: a number or, by name, several, that adaptive schedules read (`needs`); others do
        not look at it. With several processes it must be the same in all of them.
        """
        if self.finished:
            raise RuntimeError(
                f"the schedule was built for total_steps={self.total_steps} and has been stepped "
                "that often; build it with the number of optimizer steps of the whole run"
            )
        self._check_converted()
        if self._nonfinite != "ignore":
            self._health.check(self._step_count, lambda: self.precision, action=self._nonfinite)
        if self._adaptive:
            self._adaptive.tell(self._step_count, metric)
        self._step_count += 1
        self._apply(self._step_count)

    def _apply(self, step: int) -> None:
        self._check_converted()
        bits = self._bits_at(step)
        advance_clocks(self._layers, step)
        for layer, plan in zip(self._layers, self._plan_of, strict=True):
            layer.set_precision(bits[plan])

    def _announce_tops(self) -> None:
        """Tell each layer the most bits it will be given, before it is given the first."""
        most = {schedule: _most_bits(schedule, self.total_steps) for schedule in self._schedules}
        for layer, number in zip(self._layers, self._plan_of, strict=True):
            plan = zip(ROLES, self._plans[number], strict=True)
            layer.expect_bits({role: most[schedule] for role, schedule in plan})

    def _check_converted(self) -> None:
        for name, layer in zip(self._names, self._layers, strict=True):
            if not isinstance(layer, QuantizedLayer):
                raise RuntimeError(
                    f"layer {name!r} was converted back to float under the scheduler; build a new "
                    "scheduler after converting the model"
                )

    def _bits_at(self, step: int) -> list[Precision]:
        """The bits of each distinct plan."""
        at = min(step, self.total_steps - 1)  # the call after the last step holds its bits
        return self._combine(
            [
                self._adaptive.bits_at(schedule, at)
                if isinstance(schedule, Adaptive)
                else schedule(at, self.total_steps)
                for schedule in self._schedules
            ]
        )

    def _combine(self, values: Sequence[Bits]) -> list[Precision]:
        """The values of the distinct schedules -> the bits of each distinct plan."""
        return [
            Precision(**{r: values[place] for r, place in zip(ROLES, places, strict=True)})
            for places in self._places
        ]

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The step, and what it is a step of, so that a mismatch is noticed on loading.

        With adaptive schedules also what they have seen so far. Plain numbers and texts under
        names that stay: `torch.distributed.checkpoint` takes the scheduler as it is (`Stateful`).
        """
        state: dict[str, Any] = {
            "step_count": self._step_count,
            "total_steps": self.total_steps,
            "schedules": self._describe_plans(),
        }
        if self._adaptive:
            state["adaptive"] = self._adaptive.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there: the bits of that step are applied at once."""
        step = state.get("step_count")
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= self.total_steps:
            raise ValueError(
                f"step_count must be a whole number from 0 to total_steps ({self.total_steps}), "
                f"got {step!r}"
            )
        for key, own in (("total_steps", self.total_steps), ("schedules", self._describe_plans())):
            if key in state and _in_words(state[key]) != own:
                warnings.warn(
                    f"the saved scheduler had {key} {_in_words(state[key])!r}, this one has "
                    f"{own!r}: the bits from here on differ from what the saved run would have "
                    "used",
                    BitcycleWarning,
                    stacklevel=2,
                )
        self._adaptive.load_state_dict(state.get("adaptive"), step)
        self._step_count = step
        self._apply(step)

    def _describe_plans(self) -> str:
        """The roles' schedules in words, by layer where they differ.

        One text, not a dict: a distributed checkpoint would look for each of its keys.
        """
        texts = [
            " ".join(f"{role}={schedule}" for role, schedule in zip(ROLES, plan, strict=True))
            for plan in self._plans
        ]
        if len(texts) == 1:
            return texts[0]
        plans = zip(self._names, self._plan_of, strict=True)
        words: str = _in_words({name: texts[plan] for name, plan in plans})
        return words


def _in_words(value: Any) -> Any:
    """By layer in one text; anything else as it is."""
    if not isinstance(value, Mapping):
        return value
    return "; ".join(f"{name}: {text}" for name, text in value.items())


def _most_bits(schedule: Schedule, total_steps: int) -> int:
    """The most bits below float32; listing every step only if the schedule gets to float32."""
    if schedule.high is not None and not is_float(schedule.high):
        return schedule.high
    return max([b or 0 for b in schedule.bit_widths(total_steps) if not is_float(b)] or [0])


def _roles_by_schedule(schedules: Mapping[str, Schedule]) -> list[tuple[Schedule, str]]:
    return [
        (schedule, ", ".join(role for role, other in schedules.items() if other == schedule))
        for schedule in dict.fromkeys(schedules.values())
    ]
