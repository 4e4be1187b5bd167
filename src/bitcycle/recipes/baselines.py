"""What CPT is compared with: one recipe per method, on CIFAR-100 and on digits.

Each changes one thing of the static or the cyclic run of the same network, so that `digits-...` is
the small twin of `cifar100-resnet74-...`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bitcycle.recipes.base import (
    CPT_CYCLES,
    FAMILIES,
    FEW_CYCLES,
    SKIPPED,
    Recipe,
    Scale,
    quantized,
)
from bitcycle.recipes.cifar import train_cifar
from bitcycle.recipes.small import digits
from bitcycle.train.config import LrConfig, PrecisionConfig, RunConfig, SwaConfig

Build = Callable[[str, PrecisionConfig], RunConfig]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where the methods are tried: how a run is built, and the lengths that fit it."""

    build: Build  # (name without the network, precision) -> run
    cycles: int
    epoch: int  # steps: the window of loss-driven rules, the period of averaging
    measure_every: int  # steps between two measurements of gradient noise
    pfq: str  # thresholds of the loss-driven stages
    scale: Scale


def _resnet74(name: str, precision: PrecisionConfig) -> RunConfig:
    return train_cifar(f"cifar100-resnet74-{name}", "cifar100", "resnet74", precision)


FULL = Setting(
    build=_resnet74, cycles=CPT_CYCLES, epoch=400, measure_every=100, pfq="", scale="full"
)
SMALL = Setting(
    build=digits, cycles=FEW_CYCLES, epoch=8, measure_every=10, pfq=":eps=0.15:alpha=0.4",
    scale="small",
)  # fmt: skip


@FAMILIES.register("baselines")
def baselines() -> Iterator[Recipe]:
    """All of them at both sizes."""
    for setting in (FULL, SMALL):
        for methods in (quantizers, learning_rates, averages, stages, adaptive, by_layer):
            for config, note in methods(setting):
                yield Recipe(config=config, notes=(note,), scale=setting.scale)
    yield from _small_twins()


Described = Iterator[tuple[RunConfig, str]]


def _run(setting: Setting, name: str, forward: int | str, backward: int | str = 8) -> RunConfig:
    return setting.build(name, quantized(forward, backward, skip=("fc",)))


def quantizers(setting: Setting) -> Described:
    """Static bits by every quantizer but sbm, whose static runs are elsewhere."""
    for name, skip in SKIPPED.items():
        published = name in ("dorefa", "wageubn") and setting is FULL  # cells of CPT Table 2
        if name == "sbm" or published:
            continue
        precision = quantized(8, 8, skip=skip, quantizer=name)
        config = setting.build(f"{name.replace('_', '-')}-8-8", precision)
        if name == "wageubn":  # its gradients get coarser over the run
            options = {"total_steps": config.steps}
            config = replace(config, precision=replace(config.precision, quantizer_options=options))
        yield config, f"static bits by the quantizer {name}"


def learning_rates(setting: Setting) -> Described:
    """A cyclic learning rate at static bits: CPT's comparison of the two cycles."""
    config = _run(setting, "clr-8-8", 8)
    yield (
        replace(
            config,
            optimizer=replace(config.optimizer, lr=0.05, weight_decay=5e-4),
            lr=LrConfig(policy="warm_restarts", period=0.0625, period_factor=2),
        ),
        "the learning rate is cycled instead: ends ten epochs of 160 after a restart",
    )


def averages(setting: Setting) -> Described:
    """Averaged weights of a static and of a cyclic run."""
    for name, forward in (("static-8-8", 8), ("cpt-3-8-8", f"CR:3-8:{setting.cycles}")):
        config = _run(setting, f"{name}-swa", forward)
        yield (
            replace(config, swa=SwaConfig(start=0.75, every=setting.epoch)),
            "weights averaged once an epoch over the last quarter",
        )


def stages(setting: Setting) -> Described:
    """Low precision first and float32 at the end, and bits that only go down."""
    late = "stages:4@0.9,fp32"
    yield (
        _run(setting, "late-switch-4-8", late, "stages:8@0.9,fp32"),
        "float32 for the last tenth",
    )
    yield _run(setting, "late-switch-forward-4-8", late), "forward in float32 for the last tenth"
    ladder = _run(setting, "ladder-16-8-4", "stages:16@0.5,8@0.75,4")
    at_the_end = replace(ladder.eval, precision="scheduled")
    yield replace(ladder, eval=at_the_end), "always down; evaluated at the bits it ends with"


def adaptive(setting: Setting) -> Described:
    """Bits that follow the training."""
    window = f":window={setting.epoch}"
    pfq = _run(
        setting, "pfq-3-8-8", f"pfq:3,4,6,8{window}{setting.pfq}",
        f"pfq:6,6,8,8{window}{setting.pfq}",
    )  # fmt: skip
    yield (
        replace(pfq, eval=replace(pfq.eval, precision="scheduled")),
        "FracTrain's progressive half; evaluated at the bits of the moment",
    )
    yield (
        _run(setting, "plateau-3-8-8", f"plateau:3-8{window}:patience=1"),
        "a bit more when the loss stops falling",
    )
    yield (
        _run(setting, "noise-switch-8-4-8", 8, f"noise:4,8:every={setting.measure_every}"),
        "errors get 8 bits when rounding drowns them",
    )


def by_layer(setting: Setting) -> Described:
    """A schedule for most layers, and static bits where the image comes in."""
    config = _run(setting, "per-layer-3-8-8", 8)
    forward: dict[str, int | str | None] = {"*": f"CR:3-8:{setting.cycles}", "conv1": 8}
    yield (
        replace(config, precision=replace(config.precision, forward=forward)),
        "the first convolution stays at 8 bits",
    )


def _small_twins() -> Iterator[Recipe]:
    """On digits, the methods that CPT's tables and figures have on CIFAR-100."""
    cycles = FEW_CYCLES
    yield Recipe(config=_run(SMALL, "progressive-3-8-8", "ramp:3-8@0.5"), scale="small")
    start = _run(SMALL, "cpt-3-8-8-start60", f"delay@0.375(CR:3-8:{cycles})")
    yield Recipe(config=start, notes=("starts at epoch 60 of 160",), scale="small")
    cycled = _run(SMALL, "gradcycle-6-6-10", 6, f"CR:6-10:{cycles}")
    yield Recipe(config=cycled, notes=("errors are cycled, forward is static",), scale="small")
