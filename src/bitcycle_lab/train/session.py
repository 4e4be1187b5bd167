"""The objects of a training run: `build_session` makes them, `Session` saves and restores them.

A session holds the model, optimizer, schedulers, data and counters of one run. Its state dict is
what a checkpoint stores: a resumed run continues bit for bit.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from bitcycle.convert import quantize_model
from bitcycle.cost import CostMeter
from bitcycle.extras import require
from bitcycle.model_precision import kernel_state, restore_kernels
from bitcycle.ops.noise import hash_ints
from bitcycle.precision import Precision
from bitcycle.quantizers import QUANTIZERS
from bitcycle.range_criteria import RangeTest
from bitcycle.scheduler import PrecisionScheduler
from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.tasks import TASKS, Task, TrainBatches
from bitcycle_lab.train.checkpoint import join_state, split_state
from bitcycle_lab.train.config import RunConfig, steps_of
from bitcycle_lab.train.config_file import to_dict
from bitcycle_lab.train.data_fingerprint import data_changes, data_fingerprint
from bitcycle_lab.train.distributed import close_group_at_exit
from bitcycle_lab.train.feedback import check_feedback
from bitcycle_lab.train.optimizers import LearningRate, make_optimizer


@dataclass
class Best:
    """The best validation metric so far."""

    step: int
    metric: float


@dataclass(frozen=True)
class RangeTestOutcome:
    """The lower end of the forward schedule that the run's range test found, and its cost.

    bitops: of output, grad_input and grad_weight, over all steps of the test.
    """

    test: RangeTest
    bitops: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return {"test": self.test.to_dict(), "bitops": self.bitops}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RangeTestOutcome:
        """What `to_dict` wrote."""
        return cls(test=RangeTest.from_dict(data["test"]), bitops=dict(data["bitops"]))


@dataclass
class Session:
    """The objects of a run. `wrapped` is `model` as accelerate wraps it; the loop calls it."""

    config: RunConfig
    task: Task
    accelerator: Any
    model: nn.Module
    wrapped: nn.Module
    optimizer: Optimizer
    wrapped_optimizer: Any  # by accelerate
    lr: LearningRate
    scheduler: PrecisionScheduler | None  # None: float32
    meter: CostMeter
    swa: AveragedModel | None
    batches: TrainBatches
    total_steps: int
    step: int = 0
    seconds: float = 0.0
    best: Best | None = None
    window: dict[str, Tensor] = field(default_factory=dict)  # sums since the last metrics line
    pending_metrics: dict[str, float] = field(default_factory=dict)  # for the next scheduler step
    range_test: RangeTestOutcome | None = None  # for a forward schedule with `auto`

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return torch.device(self.accelerator.device)

    @property
    def rank(self) -> int:
        """The index of this process."""
        return int(self.accelerator.process_index)

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return int(self.accelerator.num_processes)

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    @property
    def needs_range_test(self) -> bool:
        """Whether a range test must replace `auto` in the forward schedule before training."""
        return self.config.precision.auto_high is not None and self.range_test is None

    def set_lower_bound(self, outcome: RangeTestOutcome) -> None:
        """Rebuild the precision scheduler with the lower end that the range test found."""
        self.range_test, low = outcome, outcome.test.low
        self.scheduler = make_scheduler(self.model, self.config, self.total_steps, low)

    @property
    def bitops(self) -> int:
        """BitOPs so far, with those of the range test."""
        return self.meter.bitops + (sum(self.range_test.bitops.values()) if self.range_test else 0)

    def relative_to(self, precision: Precision) -> float:
        """`bitops` divided by those of the same training steps at a static precision."""
        training = self.meter.bitops
        return self.meter.relative_to(precision) * (self.bitops / training if training else 1.0)

    def state_dict(self) -> dict[str, Any]:
        """The parts of a checkpoint. Every rank must call this."""
        own = {"window": self.window, "task": self.task.state_dict(), "random": random_state()}
        run = {
            "step": self.step,
            "seconds": self.seconds,
            "best": None if self.best is None else [self.best.step, self.best.metric],
            "lr": self.lr.state_dict(),
            "bits": None if self.scheduler is None else self.scheduler.state_dict(),
            "pending_metrics": self.pending_metrics,
            "cost": self.meter.state_dict(),
            "range_test": None if self.range_test is None else self.range_test.to_dict(),
            **kernel_state(self.model),
            "threads": torch.get_num_threads(),
            "optimizer": type(self.optimizer).__name__,
            "data": self.data_fingerprint if self.is_main else None,
            "ranks": self._gather(own),
        }
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "run": run,
            "config": to_dict(self.config),
        }
        if self.swa is not None:
            state["swa"] = self.swa.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore every part of a checkpoint."""
        run = state["run"]
        own = type(self.optimizer).__name__
        if run["optimizer"] != own:
            raise ValueError(
                f"the checkpoint was written with {run['optimizer']}, this run has {own}"
            )
        self._check_data(run["data"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = int(run["step"]), float(run["seconds"])
        if run["best"] is not None:
            step, metric = run["best"]
            self.best = Best(int(step), float(metric))
        self.lr.load_state_dict(run["lr"])
        if run["range_test"] is not None:
            self.set_lower_bound(RangeTestOutcome.from_dict(run["range_test"]))
        if self.scheduler is not None:
            self.scheduler.load_state_dict(run["bits"])
        pending = run["pending_metrics"].items()
        self.pending_metrics = {name: float(value) for name, value in pending}
        self.meter.load_state_dict(run["cost"])
        restore_kernels(self.model, run)
        if self.config.threads is None and len(run["ranks"]) == self.world_size:
            torch.set_num_threads(run["threads"])  # the order of sums depends on it
        if self.swa is not None:
            self.swa.load_state_dict(state["swa"])
            restore_kernels(self.swa, run)
        self._load_own(run["ranks"])

    @cached_property
    def data_fingerprint(self) -> dict[str, dict[str, Any]]:
        """The size and a digest of each split."""
        return data_fingerprint(self.task)

    def use_configured_rates(self) -> None:
        """Replace the checkpoint's learning rate, momentum, ... by those of the configuration."""
        fresh = make_optimizer(self.config.optimizer, [nn.Parameter(torch.zeros(1))])
        settings = {k: v for k, v in fresh.param_groups[0].items() if k not in ("params", "lr")}
        for group in self.optimizer.param_groups:
            group.update(settings)
        self.lr.rebase(self.config.optimizer.lr)

    def _check_data(self, was: Mapping[str, Any]) -> None:
        if not self.is_main:
            return
        if changes := data_changes(was, self.data_fingerprint):
            warnings.warn(
                f"the data are not those of the checkpoint: {', '.join(changes)}; what follows "
                "differs from an uninterrupted run",
                BitcycleWarning,
                stacklevel=3,
            )

    def _load_own(self, ranks: list[dict[str, Any]]) -> None:
        """Restore the state of this rank: metric sums, recurrent state, random generators."""
        if len(ranks) == self.world_size:
            own = ranks[self.rank]
            self.task.load_state_dict(own["task"])
            self.task.to(self.device)
            self.window = {name: value.to(self.device) for name, value in own["window"].items()}
        else:
            self.task.start_pass()
            sums = _add_up([rank["window"] for rank in ranks]) if self.is_main else {}
            self.window = {name: value.to(self.device) for name, value in sums.items()}
            warnings.warn(
                f"the checkpoint was written by {len(ranks)} processes and {self.world_size} "
                "resume it: weights, optimizer, bits and the order of the data are exact; rounding "
                "noise, dropout, recurrent state, batch statistics and the order of sums differ "
                "from an uninterrupted run",
                BitcycleWarning,
                stacklevel=3,
            )
        if self.rank < len(ranks):  # an additional rank keeps its own seed
            restore_random_state(ranks[self.rank]["random"])

    def _gather(self, own: dict[str, Any]) -> list[Any]:
        """The values of all ranks, with tensors on the CPU."""
        parts: list[Any] = [split_state(own)]
        if self.world_size > 1:
            parts = parts * self.world_size
            dist.all_gather_object(parts, parts[self.rank])
        return [join_state(plain, tensors) for plain, tensors in parts]


def _add_up(windows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    names = {name for window in windows for name in window}
    return {
        name: torch.stack([window[name] for window in windows if name in window]).sum(0)
        for name in sorted(names)
    }


_DETERMINISTIC: Any = torch.utils.deterministic  # stubs do not have its one setting


def build_session(config: RunConfig, folder: Path | None = None) -> Session:
    """Build the data, model, optimizer and schedulers of a run; the data first.

    folder: the run's folder, if it exists; a task may have written files into it.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
    # filling every new tensor is a debugging aid that takes up to 8 % of a step; no result changes
    _DETERMINISTIC.fill_uninitialized_memory = False
    if config.tracking.tensorboard:
        require("tensorboard", extra="train", purpose="TensorBoard events")
    task = TASKS[config.task](config.model, config.data, seed=config.seed)
    if folder is not None:
        task.take_files(folder)
    accelerator = _make_accelerator(config)
    device, rank, world_size = (
        accelerator.device, accelerator.process_index, accelerator.num_processes,
    )  # fmt: skip
    task.to(device)
    seed_everything(config.seed)
    model = task.build_model().to(device)
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = task.train_batches(rank=rank, world_size=world_size, num_micro=config.accumulate)
    total_steps = config.steps or max(1, round((config.epochs or 0) * batches.steps_per_epoch))
    scheduler = None
    if not config.precision.is_float:
        _convert(model, config)
        scheduler = make_scheduler(model, config, total_steps)
        check_feedback(config, task, scheduler, total_steps)
    meter = CostMeter(model, task.example_inputs(batches.batch_at(0).to(device)))
    optimizer = make_optimizer(config.optimizer, model.parameters())
    lr = LearningRate(config.lr, optimizer, total_steps, higher_is_better=task.higher_is_better)
    if lr.waits_for_metric and not task.has_validation:
        raise ValueError(
            "lr.policy 'plateau' needs a validation split: set data.validation, such as 0.1"
        )
    swa = None
    if config.swa.start is not None:
        if steps_of(config.swa.start, total_steps) > total_steps:
            raise ValueError(f"swa.start ({config.swa.start}) is beyond the run's {total_steps} "
                             "steps: nothing would be averaged")  # fmt: skip
        swa = AveragedModel(model)
    if rank > 0:
        seed_everything(seed_of_rank(config.seed, rank))  # own dropout, same weights
    return Session(
        config=config,
        task=task,
        accelerator=accelerator,
        model=model,
        wrapped=accelerator.prepare_model(model),
        optimizer=optimizer,
        wrapped_optimizer=accelerator.prepare_optimizer(optimizer),
        lr=lr,
        scheduler=scheduler,
        meter=meter,
        swa=swa,
        batches=batches,
        total_steps=total_steps,
    )


def _make_accelerator(config: RunConfig) -> Any:
    accelerate = require("accelerate", extra="train", purpose="training runs")
    # accelerate keeps mixed precision globally; runs in one process may differ in it
    accelerate.state.AcceleratorState._reset_state()
    accelerator = accelerate.Accelerator(
        cpu=not torch.cuda.is_available(), mixed_precision=config.autocast
    )
    kind = accelerator.distributed_type.value
    if kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        raise ValueError(
            f"accelerate is configured for {kind}; runs support DDP only, such as with torchrun"
        )
    if accelerator.num_processes > 1:
        close_group_at_exit()
    return accelerator


def _convert(model: nn.Module, config: RunConfig) -> None:
    precision = config.precision
    quantize_model(
        model,
        QUANTIZERS[precision.quantizer](**precision.quantizer_options),
        skip=precision.skip,
        only=precision.only,
        kernel=precision.kernel,
        max_bits=precision.max_bits,
        seed=config.seed,
    )


def make_scheduler(
    model: nn.Module, config: RunConfig, total_steps: int, low: int | None = None
) -> PrecisionScheduler:
    """The precision scheduler of a run; `low` replaces `auto` once the range test found it."""
    is_guess = low is None and config.precision.auto_high is not None
    auto = config.range_test.low if is_guess else low
    roles: dict[str, Any] = config.precision.schedule_texts(auto=auto)
    with warnings.catch_warnings():
        if is_guess:  # the bits may change, and with them the reason to warn
            warnings.simplefilter("ignore", BitcycleWarning)
        return PrecisionScheduler(
            model,
            **roles,
            total_steps=total_steps,
            backward_operands=config.precision.backward_operands,
        )


def swa_start(session: Session) -> int | None:
    """The first step whose weights are averaged; None without averaging."""
    start = session.config.swa.start
    return None if start is None else steps_of(start, session.total_steps)


@contextmanager
def preserve_torch_settings() -> Iterator[None]:
    """Restore torch's thread count and determinism after the `with`; a run sets its own."""
    threads = torch.get_num_threads()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fills_memory = _DETERMINISTIC.fill_uninitialized_memory
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warn_only)
        _DETERMINISTIC.fill_uninitialized_memory = fills_memory


def seed_everything(seed: int) -> None:
    """Seed the generators of torch, numpy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def seed_of_rank(seed: int, rank: int) -> int:
    """The seed of a rank: the run's seed on rank 0, a different one on each other rank.

    >>> seed_of_rank(7, 0)
    7
    """
    return seed if rank == 0 else hash_ints(seed, rank) % 2**32


def random_state() -> dict[str, Any]:
    """The states of all generators that a step may draw from."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [str(name), torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position),
                  int(has_gauss), float(gauss)],
        "python": random.getstate(),
    }  # fmt: skip


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Restore what `random_state` returned."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    random.setstate(state["python"])
