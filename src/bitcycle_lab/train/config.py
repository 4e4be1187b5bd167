"""The configuration of a run: frozen dataclasses that check their values, with YAML's keys.

Schedules and precisions are text (`forward: CR:3-8:32`). A time is a number of steps (int) or a
fraction of the run (float).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from bitcycle.bits import Bits, PlainBits
from bitcycle.precision import (
    ROLES,
    BackwardOperands,
    Precision,
    check_backward_operands,
    check_max_bits,
)
from bitcycle.range_criteria import RangeTestConfig as RangeTestConfig
from bitcycle.registry import unknown_name
from bitcycle.schedules import Schedule, parse_schedule
from bitcycle.schedules.base import default_backward
from bitcycle.schedules.text import auto_high, fill_auto
from bitcycle_lab.tasks.config import DataConfig, ModelConfig

Time = int | float
ScheduleText = int | str | dict[str, int | str | None] | None
LrPolicy = Literal["constant", "step", "cosine", "inverse_sqrt", "warm_restarts", "plateau"]

_ARE_NAMES_CHECKED = ContextVar("_ARE_NAMES_CHECKED", default=True)


@contextmanager
def unchecked_names() -> Iterator[None]:
    """Build configurations without looking their names up in the registries.

    The files of tasks, models, datasets, quantizers and kernels import torch, which a list of
    recipes and the state of a study do not need. Before such a configuration is used, call
    `RunConfig.check_names` outside the `with` block; inside it does nothing.
    """
    token = _ARE_NAMES_CHECKED.set(False)
    try:
        yield
    finally:
        _ARE_NAMES_CHECKED.reset(token)


def steps_of(time: Time, total_steps: int) -> int:
    """A time as a number of steps; a fraction is rounded to the nearest step.

    >>> steps_of(400, 64_000), steps_of(0.5, 64_000)
    (400, 32000)
    """
    return time if isinstance(time, int) else round(time * total_steps)


def _check_time(name: str, time: Time) -> None:
    if isinstance(time, float) and not 0 <= time <= 1:
        raise ValueError(f"{name} ({time}) as a fraction of the run must be between 0 and 1")
    if isinstance(time, int) and time < 0:
        raise ValueError(f"{name} ({time}) as a number of steps must not be negative")


def _check_choice(name: str, value: object, choices: Iterable[Any]) -> None:
    if value not in choices:
        raise unknown_name(name, value, [str(choice) for choice in choices])


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} ({value}) must be greater than 0")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """torch's SGD, Adam or AdamW; momentum and nesterov apply to SGD, betas to Adam."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        _check_choice("optimizer.name", self.name, ("sgd", "adam", "adamw"))
        _check_positive("optimizer.lr", self.lr)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"optimizer.momentum ({self.momentum}) must be in [0, 1)")
        if self.weight_decay < 0:
            raise ValueError(f"optimizer.weight_decay ({self.weight_decay}) must not be negative")


@dataclass(frozen=True, kw_only=True)
class LrConfig:
    """The learning-rate schedule, by torch's schedulers.

    step: multiply by `gamma` at each of `milestones`. cosine: anneal to `min_lr`. inverse_sqrt:
    linear over `warmup`, then as 1 / sqrt(step). warm_restarts: cosine to `min_lr` over `period`,
    then over periods `period_factor` times longer each. plateau: multiply by `gamma` when the
    validation metric has not improved for `patience` evaluations. warmup: with the other policies,
    train at `warmup_lr` first.
    """

    policy: LrPolicy = "step"
    milestones: tuple[Time, ...] = (0.5, 0.75)
    gamma: float = 0.1
    min_lr: float = 0.0
    warmup: Time = 0
    warmup_lr: float = 0.01
    period: Time = 0.0625
    period_factor: int = 2
    patience: int = 0

    def __post_init__(self) -> None:
        _check_choice("lr.policy", self.policy, get_args(LrPolicy))
        for milestone in self.milestones:
            _check_time("lr.milestones", milestone)
        _check_time("lr.warmup", self.warmup)
        _check_time("lr.period", self.period)
        _check_positive("lr.gamma", self.gamma)
        if self.policy == "inverse_sqrt" and not self.warmup:
            raise ValueError("lr.policy 'inverse_sqrt' needs lr.warmup, such as 4000 steps")
        if self.policy in ("warm_restarts", "plateau") and self.warmup:
            raise ValueError(f"lr.warmup does not combine with lr.policy {self.policy!r}")
        if self.period_factor < 1:
            raise ValueError(f"lr.period_factor ({self.period_factor}) must be at least 1")


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """Which layers are quantized, by which quantizer, and the schedule of each role.

    forward, backward, weight, act, error, grad: schedule text, a number of bits, a format such as
    nvfp4, or a dict from layer patterns to those; a role that is left out inherits. An error is the
    gradient with respect to a layer's output. With forward and backward "fp32" and no other role
    the model is not converted: the float32 baseline. backward "default" is 8 where forward has at
    most 8 bits and float32 where it is float32; for other bits and for formats backward must be
    given. A cyclic schedule may also be a mapping: {name: CR, low: 3, high: 8, cycles: 32}. With
    `auto` as the lower end of forward (CR:auto-8:32, or low: auto) the run begins with a precision
    range test. backward_operands "backward": both backward products read weights and activations at
    the bits of the errors, not of forward; for formats and float32 only.
    """

    quantizer: str = "sbm"
    quantizer_options: dict[str, Any] = field(default_factory=dict)
    skip: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    kernel: str = "auto"
    max_bits: int | None = None
    forward: ScheduleText = "fp32"
    backward: ScheduleText = "default"
    weight: ScheduleText = "inherit"
    act: ScheduleText = "inherit"
    error: ScheduleText = "inherit"
    grad: ScheduleText = "inherit"
    backward_operands: BackwardOperands = "forward"

    def __post_init__(self) -> None:
        self.check_names()
        check_max_bits(self.max_bits, "precision.max_bits")
        check_backward_operands(self.backward_operands)
        for role, text in self._given_texts().items():
            if isinstance(text, dict) and "name" in text:
                object.__setattr__(self, role, _schedule_text(role, text))
        self._check_auto()
        for role, text in self._given_texts(auto=1).items():
            for inner in text.values() if isinstance(text, dict) else [text]:
                if isinstance(inner, str) and inner.lower() in ("none", "null"):
                    raise ValueError(f"precision.{role}: {inner} is no precision; float32 is fp32")
                try:
                    parse_schedule(inner)
                except ValueError as error:
                    raise ValueError(f"precision.{role}: {error}") from None
        try:
            self.schedule_texts(auto=1)
        except ValueError as error:
            raise ValueError(f"precision.backward is not given: {error}") from None

    def check_names(self) -> None:
        """Raise ValueError for an unknown quantizer, option of a quantizer, or kernel."""
        if not _ARE_NAMES_CHECKED.get():
            return
        from bitcycle.kernels import make_kernel
        from bitcycle.quantizers import QUANTIZERS

        kind = QUANTIZERS[self.quantizer]
        try:
            kind(**self.quantizer_options)
        except TypeError as error:
            raise ValueError(
                f"precision.quantizer_options for {self.quantizer!r}: {error}"
            ) from None
        make_kernel(self.kernel)

    @property
    def auto_high(self) -> int | None:
        """The highest bits of the range test if forward's lower end is `auto`; None otherwise."""
        return auto_high(self.forward)

    def _check_auto(self) -> None:
        for role, text in self._given_texts().items():
            inner = text.values() if isinstance(text, dict) else [text]
            is_whole_forward = role == "forward" and not isinstance(text, dict)
            if not is_whole_forward and any(auto_high(each) is not None for each in inner):
                raise ValueError(
                    f"precision.{role} ({text}): auto is for one forward schedule of all layers"
                )

    def schedule_texts(self, auto: int | None = None) -> dict[str, ScheduleText]:
        """The schedule of each role that does not inherit; `auto` replaces forward's `auto`.

        backward "default" is replaced by the bits it stands for.
        """
        texts = self._given_texts(auto)
        if self.backward == "default" and not {"error", "grad"} <= set(texts):
            forward = {"forward": texts.pop("forward")} if "forward" in texts else {}
            texts = {**forward, "backward": self._default_backward(), **texts}
        return texts

    def with_backward(self) -> PrecisionConfig:
        """A copy with the bits that backward "default" stands for: what a run's folder keeps."""
        return replace(self, backward=self.schedule_texts().get("backward", self.backward))

    @property
    def rounded_roles(self) -> tuple[str, ...]:
        """The roles that the quantizer has a rule for; bits of others have no effect."""
        from bitcycle.quantizers import QUANTIZERS

        return tuple(role for role in ROLES if role in QUANTIZERS[self.quantizer].roles)

    def _default_backward(self) -> ScheduleText:
        """What `PrecisionScheduler` takes where backward is not given."""
        texts = self._given_texts(auto=1)
        forward = texts.get("forward", "fp32")
        weight, act = (texts.get(role, forward) for role in ("weight", "act"))
        try:
            if isinstance(weight, dict) and weight == act:
                by_pattern = {p: default_backward(parse_schedule(t)) for p, t in weight.items()}
                return {pattern: _plain(bits) for pattern, bits in by_pattern.items()}
            if isinstance(weight, dict) or isinstance(act, dict):
                raise ValueError("weight and act differ by layer; give backward, such as 8 or fp32")
            return _plain(default_backward(parse_schedule(weight), parse_schedule(act)))
        except ValueError:
            if {"error", "grad"} & set(self.rounded_roles) <= set(texts):
                return "fp32"  # backward would round nothing
            raise

    def _given_texts(self, auto: int | None = None) -> dict[str, ScheduleText]:
        texts = {
            role: getattr(self, role)
            for role in ("forward", "backward", "weight", "act", "error", "grad")
        }
        if auto is not None and isinstance(self.forward, str):
            texts["forward"] = fill_auto(self.forward, auto)
        if self.backward == "default":
            del texts["backward"]
        return {role: text for role, text in texts.items() if text != "inherit"}

    @property
    def is_float(self) -> bool:
        """Whether no role is ever quantized; the model is then not converted."""
        return all(
            isinstance(schedule, Schedule) and schedule.low is None
            for text in self.schedule_texts(auto=1).values()
            for schedule in (
                [parse_schedule(inner) for inner in text.values()]
                if isinstance(text, dict)
                else [parse_schedule(text)]
            )
        )


def _plain(bits: PlainBits) -> int | str:
    return bits if isinstance(bits, int) else str(Bits.of(bits))


def _schedule_text(role: str, mapping: dict[str, int | str | None]) -> str:
    """`{name: CR, low: auto, high: 8, cycles: 8}` as `CR:auto-8:8`."""
    known = ("name", "low", "high", "cycles")
    for key in mapping:
        _check_choice(f"key of precision.{role}", key, known)
    for key in known[:3]:
        if mapping.get(key) is None:
            raise ValueError(f"precision.{role} {mapping} lacks {key}; keys: {', '.join(known)}")
    cycles = "" if mapping.get("cycles") is None else f":{mapping['cycles']}"
    return f"{mapping['name']}:{mapping['low']}-{mapping['high']}{cycles}"


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """The bits and the period of evaluation; a run always evaluates at its end.

    precision: "high" (the highest of each schedule), "scheduled" (of the current step), "full"
    (float32), or bits such as "w4a4". every: a time; 0: only at the end.
    """

    precision: str = "high"
    every: Time = 0.1

    def __post_init__(self) -> None:
        if self.precision not in ("high", "scheduled", "full"):
            try:
                Precision.parse(self.precision)
            except ValueError as error:
                raise ValueError(
                    f"eval.precision is high, scheduled, full or bits: {error}"
                ) from None
        _check_time("eval.every", self.every)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """The period of checkpoints and how many to keep; the last and the best are always kept."""

    every: Time = 0.1
    keep: int = 2

    def __post_init__(self) -> None:
        _check_time("checkpoint.every", self.every)
        if self.keep < 1:
            raise ValueError(f"checkpoint.keep ({self.keep}) must be at least 1")


@dataclass(frozen=True, kw_only=True)
class SwaConfig:
    """Stochastic weight averaging: the mean of the weights every `every` steps from `start` on."""

    start: Time | None = None
    every: int = 100

    def __post_init__(self) -> None:
        if self.start is not None:
            _check_time("swa.start", self.start)
        if self.every < 1:
            raise ValueError(f"swa.every ({self.every}) must be at least 1")


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Logging while training: a line every `log_every` steps, TensorBoard events."""

    log_every: int = 50
    tensorboard: bool = True

    def __post_init__(self) -> None:
        if self.log_every < 1:
            raise ValueError(f"tracking.log_every ({self.log_every}) must be at least 1")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The whole configuration of one run.

    Give exactly one of steps (optimizer steps) and epochs. accumulate: micro-batches per step.
    autocast: "bf16" in and between the layers. threads: of torch; results are repeatable for a
    fixed number. output: the folder that holds the run's folder.
    """

    name: str = "run"
    task: str = "images"
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    lr: LrConfig = field(default_factory=LrConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    range_test: RangeTestConfig = field(default_factory=RangeTestConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    swa: SwaConfig = field(default_factory=SwaConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    steps: int | None = None
    epochs: float | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    autocast: Literal["no", "bf16"] = "no"
    channels_last: bool = False
    seed: int = 0
    threads: int | None = None
    deterministic: bool = True
    output: str = "runs"

    def __post_init__(self) -> None:
        self._check_task()
        if not self.name or any(c in self.name for c in "/\\\0\n") or self.name in (".", ".."):
            raise ValueError(f"name ({self.name!r}) must be usable as a folder name")
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"give exactly one of steps ({self.steps}) and epochs ({self.epochs})")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps ({self.steps}) must be at least 1")
        if self.epochs is not None:
            _check_positive("epochs", self.epochs)
        if self.accumulate < 1:
            raise ValueError(f"accumulate ({self.accumulate}) must be at least 1")
        if self.clip_norm is not None:
            _check_positive("clip_norm", self.clip_norm)
        _check_choice("autocast", self.autocast, ("no", "bf16"))
        if self.seed < 0:
            raise ValueError(f"seed ({self.seed}) must not be negative")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads ({self.threads}) must be at least 1")

    def with_backward(self) -> RunConfig:
        """A copy with the bits that precision.backward "default" stands for."""
        return replace(self, precision=self.precision.with_backward())

    def check_names(self) -> None:
        """Raise ValueError for an unknown name; building a configuration calls this."""
        self._check_task()
        self.precision.check_names()

    def _check_task(self) -> None:
        if not _ARE_NAMES_CHECKED.get():
            return
        from bitcycle_lab.tasks import TASKS

        TASKS[self.task].check(self.model, self.data)

    @property
    def run_name(self) -> str:
        """The folder of this run below `output`."""
        return f"{self.name}-seed{self.seed}"
