"""Digits, which need no download: CPT, and one run of every method that it is compared with.

Each run changes one thing of the static or the cyclic one. At full size the same options go to a
base recipe: `bitcycle train cifar100-resnet74 --precision.forward plateau:3-8:window=400 ...`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bitcycle_lab.recipes.base import FAMILIES, FEW_CYCLES, Recipe, float32, small, with_bits
from bitcycle_lab.recipes.cifar import SGD, STEP, cycled_errors, delayed
from bitcycle_lab.tasks.config import DataConfig, ModelConfig
from bitcycle_lab.train.config import (
    CheckpointConfig,
    LrConfig,
    RunConfig,
    ScheduleText,
    SwaConfig,
    TrackingConfig,
)

EPOCH = 8  # steps: the window of rules that follow the loss, the period of averages


def digits() -> RunConfig:
    """A ResNet-8 of half the width on 8x8 images: 240 steps, about 5 seconds, 98 to 99 %."""
    return RunConfig(
        name="digits",
        task="images",
        model=ModelConfig(name="digits_resnet"),
        data=DataConfig(name="digits", batch_size=64),
        optimizer=SGD,
        lr=STEP,
        precision=float32(skip=("fc",)),
        checkpoint=CheckpointConfig(every=0.5),
        tracking=TrackingConfig(log_every=10),
        steps=240,
        threads=1,  # tensors this small are slower on two
    )


@FAMILIES.register("digits")
def digits_runs() -> Iterator[Recipe]:
    """CPT and static bits, and the methods below."""
    yield from small(digits(), "8/8", "6/6", "4/8", "3/8", "3-8/8", "3-6/6")
    for methods in (quantizers, schedules, adaptive, averages, learning_rates):
        yield from methods()


def listed(config: RunConfig, *notes: str) -> Recipe:
    """A small recipe; the notes are settings other than bits that make the difference."""
    return Recipe(config=config, notes=notes, scale="small")


def run(name: str, forward: ScheduleText, backward: ScheduleText = 8) -> RunConfig:
    """The base recipe with other schedules."""
    base = digits()
    precision = replace(base.precision, forward=forward, backward=backward)
    return replace(base, name=f"digits-{name}", precision=precision)


def quantizers() -> Iterator[Recipe]:
    """Static bits by every quantizer but sbm."""
    for name in ("absmax", "dorefa", "pow2", "sbm_full", "wageubn"):
        yield listed(with_bits(digits(), "static", "8/8", quantizer=name))


def schedules() -> Iterator[Recipe]:
    """Other schedules than cycles of all layers from the first step to the last."""
    base = digits()
    cpt = with_bits(base, "cpt", "3-8/8", FEW_CYCLES)
    yield listed(with_bits(base, "progressive", "3-8/8"))
    yield listed(delayed(cpt, 60))
    yield listed(cycled_errors(base, 6, "6-10", FEW_CYCLES))
    by_layer: ScheduleText = {"*": f"CR:3-8:{FEW_CYCLES}", "conv1": 8}
    yield listed(run("per-layer-3-8-8", by_layer))
    late = "stages:4@0.9,fp32"
    yield listed(run("late-switch-4-8", late, "stages:8@0.9,fp32"))
    yield listed(run("late-switch-forward-4-8", late))
    yield listed(
        at_scheduled_bits(run("ladder-16-8-4", "stages:16@0.5,8@0.75,4")),
        "evaluated at its last bits",
    )


def at_scheduled_bits(config: RunConfig) -> RunConfig:
    """Evaluated at the bits of the step, not at the highest of the schedule."""
    return replace(config, eval=replace(config.eval, precision="scheduled"))


def adaptive() -> Iterator[Recipe]:
    """Bits that follow the training."""
    rule = f":window={EPOCH}:eps=0.15:alpha=0.4"
    yield listed(
        at_scheduled_bits(run("pfq-3-8-8", f"pfq:3,4,6,8{rule}", f"pfq:6,6,8,8{rule}")),
        "evaluated at its last bits",
    )
    yield listed(run("plateau-3-8-8", f"plateau:3-8:window={EPOCH}:patience=1"))
    yield listed(run("noise-switch-8-4-8", 8, "noise:4,8:every=10"))


def averages() -> Iterator[Recipe]:
    """Weights of a static and of a cyclic run, averaged once an epoch over the last quarter."""
    for method, cell in (("static", "8/8"), ("cpt", "3-8/8")):
        config = with_bits(digits(), method, cell, FEW_CYCLES, suffix="-swa")
        yield listed(
            replace(config, swa=SwaConfig(start=0.75, every=EPOCH)),
            "averaged weights (SWA)",
        )


def learning_rates() -> Iterator[Recipe]:
    """A cyclic learning rate at static bits: CPT's comparison of the two cycles.

    The run ends ten epochs of 160 after a restart.
    """
    config = run("clr-8-8", 8)
    yield listed(
        replace(
            config,
            optimizer=replace(SGD, lr=0.05, weight_decay=5e-4),
            lr=LrConfig(policy="warm_restarts", period=0.0625, period_factor=2),
        ),
        "cyclic learning rate",
    )
