"""Language models: CPT Table 5, and the follow-up's ten schedules on its LSTM."""

from __future__ import annotations

from collections.abc import Iterator

from bitcycle.published import BitRange, read_table, values
from bitcycle.recipes.base import FAMILIES, FEW_CYCLES, TEN, Recipe, quantized, schedule_text
from bitcycle.tasks.config import DataConfig, ModelConfig
from bitcycle.train.config import (
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunConfig,
)


def transformer(name: str, precision: PrecisionConfig) -> RunConfig:
    """The basic WikiText-103 recipe: 50,000 updates of 64 x 512 tokens."""
    return RunConfig(
        name=f"wikitext103-transformer-{name}",
        task="language",
        model=ModelConfig(
            name="transformer_lm",
            options={
                "dim": 512,
                "ffn_dim": 2048,
                "num_layers": 6,
                "num_heads": 8,
                "dropout": 0.1,
                "tie": True,
            },
        ),
        data=DataConfig(name="wikitext-103", batch_size=64, eval_batch_size=4, sequence_length=512),
        # the recipe's Adam decays weights apart from the gradient, which torch calls AdamW
        optimizer=OptimizerConfig(name="adamw", lr=5e-4, betas=(0.9, 0.98), weight_decay=0.01),
        lr=LrConfig(policy="inverse_sqrt", warmup=4000),
        precision=precision,
        eval=EvalConfig(every=0.05),
        steps=50_000,
        accumulate=16,
    )


def lstm(name: str, precision: PrecisionConfig, *, num_layers: int, size: int) -> RunConfig:
    """Penn Treebank, 40 epochs, the rate divided by 4 when an epoch does not improve."""
    return RunConfig(
        name=name,
        task="language",
        model=ModelConfig(
            name="lstm_lm",
            options={
                "embedding_dim": size,
                "hidden_dim": size,
                "num_layers": num_layers,
                "dropout": 0.5,
            },
        ),
        data=DataConfig(name="ptb", batch_size=20, eval_batch_size=10, sequence_length=35),
        optimizer=OptimizerConfig(name="sgd", lr=20.0, momentum=0.0),
        lr=LrConfig(policy="plateau", gamma=0.25, patience=0),
        precision=precision,
        eval=EvalConfig(every=1 / 40),
        epochs=40,
        clip_norm=0.25,
    )


@FAMILIES.register("cpt-table5")
def table5() -> Iterator[Recipe]:
    """CPT against static precision."""
    where = "CPT Table 5"
    for row in read_table("table5_language"):
        bits = BitRange.parse(row["precision_fw_bw"])
        method = "static" if row["method"] == "sbm" else "cpt"
        precision = quantized(schedule_text(method, bits), bits.backward)
        notes: tuple[str, ...] = ()
        if row["model"] == "transformer":
            config = transformer(f"{method}-{bits.name}", precision)
        else:
            name = f"ptb-lstm-{method}-{bits.name}"
            config = lstm(name, precision, num_layers=2, size=650)
            notes = ("the paper's layer size is unpublished, 650 here",)
        published = values(row, where, "perplexity", "gbitops")
        yield Recipe(config=config, cells=(where,), published=published, notes=notes)


@FAMILIES.register("schedules-lstm")
def ten_schedules() -> Iterator[Recipe]:
    """The follow-up's one layer of 800: static bits, and each schedule at 8 cycles."""
    for high, backward in ((8, 8), (6, 6)):
        for method in ("static", *TEN):
            bits = BitRange(high if method == "static" else 5, high, backward)
            precision = quantized(schedule_text(method, bits, FEW_CYCLES), backward)
            name = f"ptb-lstm800-{method.lower()}-{bits.name}"
            yield Recipe(
                config=lstm(name, precision, num_layers=1, size=800),
                notes=("follow-up paper",),
            )
    for name, num_layers, size in (("ptb-lstm", 2, 650), ("ptb-lstm800", 1, 800)):
        config = lstm(f"{name}-float32", PrecisionConfig(), num_layers=num_layers, size=size)
        yield Recipe(config=config)
    yield Recipe(config=transformer("float32", PrecisionConfig()))
