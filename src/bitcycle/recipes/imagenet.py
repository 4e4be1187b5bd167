"""CPT on ImageNet: Tables 3 and 4."""

from __future__ import annotations

from collections.abc import Iterator

from bitcycle.published import BitRange, read_table, values
from bitcycle.recipes.base import CPT_CYCLES, FAMILIES, Recipe, quantized, schedule_text
from bitcycle.tasks.config import DataConfig, ModelConfig
from bitcycle.train.config import (
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunConfig,
)

SKIP = ("conv1", "*.downsample.*", "fc")  # stem, shortcuts and classifier stay float32
EPOCHS = 90


def imagenet(name: str, model: str, precision: PrecisionConfig) -> RunConfig:
    """The paper's training settings: 90 epochs, the rate divided by 10 every 30."""
    return RunConfig(
        name=f"imagenet-{model}-{name}",
        task="images",
        model=ModelConfig(name=f"imagenet_{model}"),
        data=DataConfig(name="imagenet", batch_size=256, num_workers=8),
        optimizer=OptimizerConfig(name="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4),
        lr=LrConfig(policy="step", milestones=(1 / 3, 2 / 3), gamma=0.1),
        precision=precision,
        eval=EvalConfig(every=1 / EPOCHS),
        epochs=EPOCHS,
    )


@FAMILIES.register("cpt-table3")
def table3() -> Iterator[Recipe]:
    """CPT against static precision."""
    where = "CPT Table 3"
    for row in read_table("table3_imagenet"):
        bits = BitRange.parse(row["precision_fw_bw"])
        method = "static" if row["method"] == "sbm" else "cpt"
        precision = quantized(schedule_text(method, bits), bits.backward, skip=SKIP)
        yield Recipe(
            config=imagenet(f"{method}-{bits.name}", row["model"], precision),
            cells=(where,),
            published=values(row, where, "accuracy", "gbitops"),
            notes=("published costs count 1/14 of the samples of 90 epochs",),
        )


@FAMILIES.register("cpt-table4")
def table4() -> Iterator[Recipe]:
    """CPT between 8 bits and full precision."""
    where = "CPT Table 4"
    for row in read_table("table4_imagenet_full_precision"):
        if row["method"] == "full":
            config = imagenet("float32", row["model"], PrecisionConfig())
        else:
            precision = quantized(f"CR:{row['precision']}:{CPT_CYCLES}", "fp32", skip=SKIP)
            config = imagenet(f"cpt-{row['precision']}", row["model"], precision)
        yield Recipe(config=config, cells=(where,), published=values(row, where, "accuracy"))
