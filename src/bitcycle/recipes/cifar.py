"""CPT on CIFAR-10 and CIFAR-100: Tables 1, 2, 6, 7, 8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bitcycle.published import BitRange, read_table, values
from bitcycle.recipes.base import (
    CPT_CYCLES,
    ENDS,
    FAMILIES,
    FEW_CYCLES,
    TEN,
    Recipe,
    quantized,
    schedule_text,
)
from bitcycle.tasks.config import DataConfig, ModelConfig
from bitcycle.train.config import (
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunConfig,
)

SKIP = ("fc",)  # every convolution is quantized, the first and the shortcuts too
EPOCHS = 160  # as the paper counts the 64,000 steps
STEPS = 64_000


def train_cifar(
    name: str, dataset: str, model: str, precision: PrecisionConfig, **changes: Any
) -> RunConfig:
    """The paper's training settings for ResNets and MobileNetV2."""
    config = RunConfig(
        name=name,
        task="images",
        model=ModelConfig(name=model),
        data=DataConfig(name=dataset, batch_size=128),
        optimizer=OptimizerConfig(name="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4),
        lr=LrConfig(policy="step", milestones=(0.5, 0.75), gamma=0.1),
        precision=precision,
        eval=EvalConfig(every=0.0125),
        steps=STEPS,
    )
    return replace(config, **changes)


def cifar(
    dataset: str, model: str, method: str, cell: str, *, cycles: int = CPT_CYCLES
) -> RunConfig:
    """A method at a cell's bits: cifar("cifar100", "resnet74", "cpt", "3-8/8")."""
    bits = BitRange.parse(cell)
    variant = "" if cycles == CPT_CYCLES else f"-n{cycles}"
    precision = quantized(schedule_text(method, bits, cycles), bits.backward, skip=SKIP)
    return train_cifar(
        f"{dataset}-{model}-{method}-{bits.name}{variant}", dataset, model, precision
    )


@FAMILIES.register("cpt-table1")
def table1() -> Iterator[Recipe]:
    """The first half at low precision and one learning rate; then float32 at 0.01 and 0.001."""
    for row in read_table("table1_lr_vs_precision"):
        bits, first_lr = row["first_stage_bits"], float(row["first_stage_lr"])
        name = f"{row['dataset']}-{row['model']}-stage1-{bits}-lr{first_lr:g}"
        precision = PrecisionConfig()
        notes: tuple[str, ...] = ()
        if bits != "fp32":
            precision = quantized(f"stages:{bits}@0.5,fp32", "stages:8@0.5,fp32", skip=SKIP)
            notes = ("the error bits of the first stage are unpublished, 8 here",)
        config = train_cifar(
            name,
            row["dataset"],
            row["model"],
            precision,
            optimizer=OptimizerConfig(name="sgd", lr=0.01, momentum=0.9, weight_decay=1e-4),
            # the first stage is a warm-up held for half of the run, the only one at its own rate
            lr=LrConfig(
                policy="step", milestones=(0.75,), gamma=0.1, warmup=0.5, warmup_lr=first_lr
            ),
        )
        where = "CPT Table 1"
        published = values(row, where, "accuracy")
        yield Recipe(
            config=config,
            cells=(where,),
            published=published,
            notes=(f"first stage at learning rate {first_lr:g}", *notes),
        )


@FAMILIES.register("cpt-table2")
def table2() -> Iterator[Recipe]:
    """CPT against static precision, with sbm and with the other quantizers."""
    where = "CPT Table 2"
    for row in read_table("table2_cifar"):
        for dataset in ("cifar10", "cifar100"):
            method, cell = row["method"], row["precision_fw_bw"]
            if method in ("sbm", "cpt"):
                config = cifar(dataset, row["model"], METHODS[method], cell)
            else:
                config = baseline(dataset, row["model"], method, cell)
            columns = (f"{dataset}_accuracy", "gbitops", "latency_hours_zc706")
            yield Recipe(config=config, cells=(where,), published=values(row, where, *columns))


METHODS = {"sbm": "static", "cpt": "cpt", "cosine": "cpt"}


def baseline(dataset: str, model: str, quantizer: str, cell: str) -> RunConfig:
    """Static bits with another quantizer, whose authors keep the first and the last layer float."""
    bits = BitRange.parse(cell)
    precision = quantized(bits.high, bits.backward, skip=ENDS, quantizer=quantizer)
    if quantizer == "wageubn":  # whose gradients get coarser over the run
        precision = replace(precision, quantizer_options={"total_steps": STEPS})
    return train_cifar(f"{dataset}-{model}-{quantizer}-{bits.name}", dataset, model, precision)


@FAMILIES.register("cpt-table6")
def table6() -> Iterator[Recipe]:
    """Cosine cycles against triangles and cosine annealing."""
    where = "CPT Table 6"
    for row in read_table("table6_schedule_shapes"):
        method = METHODS.get(row["schedule"], row["schedule"])
        config = cifar(row["dataset"], row["model"], method, row["precision_fw_bw"])
        yield Recipe(config=config, cells=(where,), published=values(row, where, "accuracy"))


@FAMILIES.register("cpt-table7")
def table7() -> Iterator[Recipe]:
    """CPT that starts late; the lowest bits until then."""
    where = "CPT Table 7"
    for row in read_table("table7_delayed_start"):
        config = cifar(row["dataset"], row["model"], "cpt", row["precision_fw_bw"])
        epoch = int(row["start_epoch_of_160"])
        notes: tuple[str, ...] = ()
        if epoch:
            config = delayed(config, epoch)
            notes = ("the table's caption says CIFAR-10, its text and values CIFAR-100",)
        if epoch == EPOCHS:
            config = replace(config, eval=replace(config.eval, precision="scheduled"))
            notes += ("never starts: evaluated at the lowest bits, which it trained with",)
        yield Recipe(
            config=config, cells=(where,), published=values(row, where, "accuracy"), notes=notes
        )


def delayed(config: RunConfig, epoch: int) -> RunConfig:
    """The same run with its forward schedule beginning at an epoch of 160."""
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
        dataset, model = row["dataset"], row["model"]
        if "-" not in row["bw"]:
            config = cifar(dataset, model, "static", f"{row['fw']}/{row['bw']}")
        else:
            config = train_cifar(
                f"{dataset}-{model}-gradcycle-{row['fw']}-{row['bw']}",
                dataset,
                model,
                quantized(int(row["fw"]), f"CR:{row['bw']}:{CPT_CYCLES}", skip=SKIP),
            )
        yield Recipe(config=config, cells=(where,), published=values(row, where, "accuracy"))


RESNETS = ("resnet38", "resnet74", "resnet110", "resnet152", "resnet164")
ABLATED = ("resnet38", "resnet74")  # the networks of the paper's other ablations


def _ours(figure: str, *, is_cell_of_a_table: bool) -> tuple[str, ...]:
    return () if is_cell_of_a_table else (f"the grid of {figure} is unpublished, this one is ours",)


@FAMILIES.register("cpt-figure1")
def figure1() -> Iterator[Recipe]:
    """Static, progressive and cyclic precision on ResNet-74."""
    for method, cell in (("static", "8/8"), ("progressive", "3-8/8"), ("cpt", "3-8/8")):
        yield Recipe(config=cifar("cifar100", "resnet74", method, cell), cells=("CPT Fig. 1",))


@FAMILIES.register("cpt-figure2")
def figure2() -> Iterator[Recipe]:
    """Schedules whose loss landscapes are drawn: those of Fig. 1 on the network of Fig. 6."""
    notes = ("which runs CPT Fig. 2 draws is unpublished, these are ours",)
    for method, cell in (("static", "8/8"), ("progressive", "3-8/8"), ("cpt", "3-8/8")):
        config = cifar("cifar100", "resnet110", method, cell)
        yield Recipe(config=config, cells=("CPT Fig. 2",), notes=notes)


@FAMILIES.register("cpt-figure5")
def figure5() -> Iterator[Recipe]:
    """Accuracy against cost, static and cyclic, for six networks."""
    where = "CPT Fig. 5"
    costs = {
        (row["model"], METHODS[row["method"]], row["precision_fw_bw"]): row
        for row in read_table("figure5_cost")
    }
    deep = [("static", cell) for cell in ("8/8", "6/6", "4/6")]
    deep += [("cpt", cell) for cell in ("3-8/8", "3-6/6", "3-4/6")]
    mobile = [("static", "8/8"), ("static", "6/6"), ("cpt", "4-8/8"), ("cpt", "4-6/6")]
    for model in (*RESNETS, "mobilenetv2"):
        for method, cell in deep if model in RESNETS else mobile:
            row = costs.get((model, method, cell))
            notes = ("its cost is read off CPT Fig. 5",) if row else ()
            if (model, method) == ("mobilenetv2", "cpt"):
                notes = ("CPT Fig. 5 marks its lower bound 3 where the tables say 4",)
            yield Recipe(
                config=cifar("cifar100", model, method, cell),
                cells=(where,),
                published=values(row, where, "gbitops") if row else (),
                notes=notes,
            )


@FAMILIES.register("cpt-figure6")
def figure6() -> Iterator[Recipe]:
    """The runs whose loss landscapes are drawn."""
    for method, cell in (("static", "8/8"), ("cpt", "3-8/8"), ("cpt", "4-8/8")):
        yield Recipe(config=cifar("cifar100", "resnet110", method, cell), cells=("CPT Fig. 6",))


@FAMILIES.register("cpt-figure7")
def figure7() -> Iterator[Recipe]:
    """Upper bounds of the cycle."""
    for model in ABLATED:
        for high in (4, 5, 6, 7, 8, 12, 16):
            config = cifar("cifar100", model, "cpt", f"3-{high}/8")
            notes = _ours("CPT Fig. 7", is_cell_of_a_table=high == 8)
            yield Recipe(config=config, cells=("CPT Fig. 7",), notes=notes)


@FAMILIES.register("cpt-figure8")
def figure8() -> Iterator[Recipe]:
    """Numbers of cycles."""
    for model in ABLATED:
        for cycles in (2, 4, 8, 16, 32, 64):
            config = cifar("cifar100", model, "cpt", "3-8/8", cycles=cycles)
            notes = _ours("CPT Fig. 8", is_cell_of_a_table=cycles == 32)
            yield Recipe(config=config, cells=("CPT Fig. 8",), notes=notes)


@FAMILIES.register("cifar-float32")
def float32() -> Iterator[Recipe]:
    """The networks unquantized."""
    for dataset in ("cifar10", "cifar100"):
        for model in (*RESNETS, "mobilenetv2"):
            yield Recipe(config=float_run(dataset, model))


def float_run(dataset: str, model: str) -> RunConfig:
    """The same training in float32: float_run("cifar100", "resnet74")."""
    return train_cifar(f"{dataset}-{model}-float32", dataset, model, PrecisionConfig())


NOTES = ("follow-up paper", "the network on CIFAR is our choice: CPT's ResNet-74")


@FAMILIES.register("schedules-cifar")
def ten_schedules_on_cifar() -> Iterator[Recipe]:
    """Each at 8 cycles, on both datasets; the static run is that of CPT Table 2."""
    for dataset in ("cifar10", "cifar100"):
        for method in TEN:
            config = cifar(dataset, "resnet74", method, "3-8/8", cycles=FEW_CYCLES)
            yield Recipe(config=replace(config, name=config.name.lower()), notes=NOTES)
