"""ImageNet: Tables 3 and 4 of CPT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bitcycle_lab.published import read_table, values
from bitcycle_lab.recipes.base import (
    CPT_CYCLES,
    FAMILIES,
    Recipe,
    as_float32,
    float32,
    with_bits,
)
from bitcycle_lab.tasks.config import DataConfig, ModelConfig
from bitcycle_lab.train.config import EvalConfig, LrConfig, OptimizerConfig, RunConfig

EPOCHS = 90


def imagenet(model: str) -> RunConfig:
    """The paper's settings: 90 epochs; stem, shortcuts and classifier stay float32."""
    return RunConfig(
        name=f"imagenet-{model}",
        task="images",
        model=ModelConfig(name=f"imagenet_{model}"),
        data=DataConfig(name="imagenet", batch_size=256, num_workers=8),
        optimizer=OptimizerConfig(name="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4),
        lr=LrConfig(policy="step", milestones=(1 / 3, 2 / 3), gamma=0.1),
        precision=float32(skip=("conv1", "*.downsample.*", "fc")),
        eval=EvalConfig(every=1 / EPOCHS),
        epochs=EPOCHS,
    )


@FAMILIES.register("imagenet")
def networks() -> Iterator[Recipe]:
    """A base recipe for each network."""
    for model in ("resnet18", "resnet34", "resnet50"):
        yield Recipe(config=imagenet(model), cycles=CPT_CYCLES)


@FAMILIES.register("cpt-table3")
def table3() -> Iterator[Recipe]:
    """CPT against static precision."""
    where = "CPT Table 3"
    for row in read_table("table3_imagenet"):
        method = "static" if row["method"] == "sbm" else "cpt"
        yield Recipe(
            config=with_bits(imagenet(row["model"]), method, row["precision_fw_bw"]),
            cells=(where,),
            published=values(row, where, "accuracy", "gbitops"),
            notes=("published costs count 1/14 of the samples of 90 epochs",),
        )


@FAMILIES.register("cpt-table4")
def table4() -> Iterator[Recipe]:
    """CPT between 8 bits and full precision."""
    where = "CPT Table 4"
    for row in read_table("table4_imagenet_full_precision"):
        base = imagenet(row["model"])
        is_cpt = row["method"] != "full"
        config = up_to_float32(base, row["precision"]) if is_cpt else as_float32(base)
        yield Recipe(config=config, cells=(where,), published=values(row, where, "accuracy"))


def up_to_float32(config: RunConfig, bits: str, cycles: int = CPT_CYCLES) -> RunConfig:
    """CPT whose errors stay float32: up_to_float32(base, "8-32")."""
    precision = replace(config.precision, forward=f"CR:{bits}:{cycles}", backward="fp32")
    return replace(config, name=f"{config.name}-cpt-{bits}", precision=precision)
