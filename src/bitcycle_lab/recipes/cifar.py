"""CIFAR-10 and CIFAR-100: Tables 1, 2, 6, 7, 8 of CPT, the costs of its Fig. 5, and small runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bitcycle_lab.published import read_table, values
from bitcycle_lab.recipes.base import (
    CPT_CYCLES,
    FAMILIES,
    Recipe,
    float32,
    small,
    with_bits,
)
from bitcycle_lab.tasks.config import DataConfig, ModelConfig
from bitcycle_lab.train.config import (
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunConfig,
)

STEPS = 64_000
EPOCHS = 160  # as the paper counts the steps
NETWORKS = {
    "cifar10": ("resnet74", "resnet164", "mobilenetv2"),
    "cifar100": ("resnet38", "resnet74", "resnet110", "resnet152", "resnet164", "mobilenetv2"),
}
METHODS = {"sbm": "static", "cosine": "cpt"}  # as the tables call them; other names are the same
SGD = OptimizerConfig(name="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4)
STEP = LrConfig(policy="step", milestones=(0.5, 0.75), gamma=0.1)


def cifar(dataset: str, model: str) -> RunConfig:
    """The paper's settings; every convolution is quantized, the first and the shortcuts too."""
    return RunConfig(
        name=f"{dataset}-{model}",
        task="images",
        model=ModelConfig(name=model),
        data=DataConfig(name=dataset, batch_size=128),
        optimizer=SGD,
        lr=STEP,
        precision=float32(skip=("fc",)),
        eval=EvalConfig(every=0.0125),
        steps=STEPS,
    )


@FAMILIES.register("cifar")
def networks() -> Iterator[Recipe]:
    """A base recipe for each network."""
    for dataset, models in NETWORKS.items():
        for model in models:
            yield Recipe(config=cifar(dataset, model), cycles=CPT_CYCLES)


@FAMILIES.register("cpt-table1")
def table1() -> Iterator[Recipe]:
    """The first half at low precision and one learning rate; then float32 at 0.01 and 0.001."""
    where = "CPT Table 1"
    for row in read_table("table1_lr_vs_precision"):
        bits, first_lr = row["first_stage_bits"], float(row["first_stage_lr"])
        base = cifar(row["dataset"], row["model"])
        precision = PrecisionConfig()
        notes: tuple[str, ...] = ()
        if bits != "fp32":
            forward, backward = f"stages:{bits}@0.5,fp32", "stages:8@0.5,fp32"
            precision = replace(base.precision, forward=forward, backward=backward)
            notes = ("the error bits of the first stage are unpublished, 8 here",)
        config = replace(
            base,
            name=f"{base.name}-stage1-{bits}-lr{first_lr:g}",
            precision=precision,
            optimizer=replace(SGD, lr=0.01),
            # the first stage is a warm-up of half of the run, the only one at its own rate
            lr=replace(STEP, milestones=(0.75,), warmup=0.5, warmup_lr=first_lr),
        )
        yield Recipe(
            config=config,
            cells=(where,),
            published=values(row, where, "accuracy"),
            notes=notes,
        )


@FAMILIES.register("cpt-table2")
def table2() -> Iterator[Recipe]:
    """CPT against static precision of three quantizers."""
    where = "CPT Table 2"
    for row in read_table("table2_cifar"):
        is_cpt = row["method"] == "cpt"
        quantizer = "sbm" if is_cpt else row["method"]
        for dataset in ("cifar10", "cifar100"):
            config = with_bits(
                cifar(dataset, row["model"]),
                "cpt" if is_cpt else "static",
                row["precision_fw_bw"],
                quantizer=quantizer,
            )
            columns = (f"{dataset}_accuracy", "gbitops", "latency_hours_zc706")
            yield Recipe(config=config, cells=(where,), published=values(row, where, *columns))


@FAMILIES.register("cpt-table6")
def table6() -> Iterator[Recipe]:
    """Cosine cycles against triangles and cosine annealing."""
    where = "CPT Table 6"
    for row in read_table("table6_schedule_shapes"):
        base = cifar(row["dataset"], row["model"])
        method = METHODS.get(row["schedule"], row["schedule"])
        config = with_bits(base, method, row["precision_fw_bw"])
        yield Recipe(config=config, cells=(where,), published=values(row, where, "accuracy"))


@FAMILIES.register("cpt-table7")
def table7() -> Iterator[Recipe]:
    """CPT that starts late; the lowest bits until then."""
    where = "CPT Table 7"
    for row in read_table("table7_delayed_start"):
        config = with_bits(cifar(row["dataset"], row["model"]), "cpt", row["precision_fw_bw"])
        epoch = int(row["start_epoch_of_160"])
        notes: tuple[str, ...] = ()
        if epoch:
            config = delayed(config, epoch)
            notes = ("the table's caption says CIFAR-10, its text and values CIFAR-100",)
        if epoch == EPOCHS:
            config = replace(config, eval=replace(config.eval, precision="scheduled"))
            notes += ("start160 never cycles: evaluated at the lowest bits, which it trained with",)
        yield Recipe(
            config=config, cells=(where,), published=values(row, where, "accuracy"), notes=notes
        )


def delayed(config: RunConfig, epoch: int) -> RunConfig:
    """The same run with its forward schedule beginning at an epoch of 160.

    >>> delayed(with_bits(cifar("cifar100", "resnet74"), "cpt", "3-8/8"), 60).precision.forward
    'delay@0.375(CR:3-8:32)'
    """
    forward = f"delay@{epoch / EPOCHS}({config.precision.forward})"
    return replace(
        config,
        name=f"{config.name}-start{epoch}",
        precision=replace(config.precision, forward=forward),
    )


@FAMILIES.register("cpt-table8")
def table8() -> Iterator[Recipe]:
    """Forward static at 6, errors static or cycled."""
    where = "CPT Table 8"
    for row in read_table("table8_gradient_cycling"):
        base = cifar(row["dataset"], row["model"])
        if "-" in row["bw"]:
            config = cycled_errors(base, int(row["fw"]), row["bw"])
        else:
            config = with_bits(base, "static", f"{row['fw']}/{row['bw']}")
        yield Recipe(config=config, cells=(where,), published=values(row, where, "accuracy"))


def cycled_errors(
    config: RunConfig, forward: int, backward: str, cycles: int = CPT_CYCLES
) -> RunConfig:
    """Static bits in the forward pass, a cycle for the errors: cycled_errors(base, 6, "6-10")."""
    precision = replace(config.precision, forward=forward, backward=f"CR:{backward}:{cycles}")
    return replace(
        config, name=f"{config.name}-gradcycle-{forward}-{backward}", precision=precision
    )


@FAMILIES.register("cpt-figure5")
def figure5() -> Iterator[Recipe]:
    """The runs whose costs can be read off Fig. 5; the others are cells of Table 2 or unnamed."""
    where = "CPT Fig. 5"
    for row in read_table("figure5_cost"):
        method = METHODS.get(row["method"], row["method"])
        yield Recipe(
            config=with_bits(cifar("cifar100", row["model"]), method, row["precision_fw_bw"]),
            cells=(where,),
            published=values(row, where, "gbitops"),
        )


def cifar10_small(model: str) -> RunConfig:
    """The paper's settings for 512 steps on a fixed fifth of the training set."""
    return replace(
        cifar("cifar10", model),
        data=DataConfig(name="cifar10", batch_size=128, subset=10_000),
        eval=EvalConfig(every=0.5),
        steps=512,
        threads=1,  # so that two runs fit on two cores
    )


@FAMILIES.register("cifar10-small")
def small_runs() -> Iterator[Recipe]:
    """Minutes on two cores."""
    yield from small(
        cifar10_small("resnet8"), "8/8", "6/6", "3/8", "3-8/8", "3-6/6", suffix="-small"
    )
    yield from small(cifar10_small("resnet20"), "8/8", "3-8/8", suffix="-small")
