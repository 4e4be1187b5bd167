"""Pairs of sentences: the follow-up's multilingual BERT on XNLI, and a small BERT on SNLI."""

from __future__ import annotations

from collections.abc import Iterator

from bitcycle.published import BitRange
from bitcycle.recipes.base import FAMILIES, FEW_CYCLES, TEN, Recipe, quantized, schedule_text
from bitcycle.tasks.config import DataConfig, ModelConfig
from bitcycle.train.config import (
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunConfig,
)

XNLI_CYCLES = 2  # a cycle per epoch
BITS = BitRange.parse("5-8/8")


def xnli(name: str, precision: PrecisionConfig) -> RunConfig:
    """Fine-tuning for 2 epochs of 392,702 pairs; the model's folder lies where the run starts."""
    return RunConfig(
        name=f"xnli-mbert-{name}",
        task="pairs",
        model=ModelConfig(
            name="bert",
            options={  # of the folder: checked there, and enough to tell the cost without it
                "vocab_size": 119_547,
                "dim": 768,
                "ffn_dim": 3072,
                "num_layers": 12,
                "num_heads": 12,
            },
            path="bert-base-multilingual-cased",
        ),
        data=DataConfig(name="xnli", batch_size=64, eval_batch_size=128, sequence_length=128),
        optimizer=OptimizerConfig(name="adamw", lr=1e-5),
        lr=LrConfig(policy="constant"),
        precision=precision,
        eval=EvalConfig(every=0.25),
        epochs=2,
    )


def snli(name: str, precision: PrecisionConfig) -> RunConfig:
    """Two layers of 128 from scratch, 900 updates of 64 pairs."""
    return RunConfig(
        name=f"snli-bert-{name}-small",
        task="pairs",
        model=ModelConfig(
            name="bert",
            options={
                "vocab_size": 4096,
                "dim": 128,
                "ffn_dim": 256,
                "num_layers": 2,
                "num_heads": 4,
                "dropout": 0.1,
            },
        ),
        data=DataConfig(name="snli", batch_size=64, sequence_length=40),
        optimizer=OptimizerConfig(name="adamw", lr=5e-4, weight_decay=0.01),
        lr=LrConfig(policy="cosine"),
        precision=precision,
        eval=EvalConfig(every=0.5),
        steps=900,
    )


@FAMILIES.register("schedules-xnli")
def ten_schedules_on_xnli() -> Iterator[Recipe]:
    """Float32, static bits, and each schedule at 2 cycles."""
    notes = ("follow-up paper", "fine-tunes a downloaded model (--model.path)",
             "optimizer and rate policy are unpublished, AdamW and constant here")  # fmt: skip
    yield Recipe(config=xnli("float32", PrecisionConfig()), notes=notes)
    static = BITS._replace(low=BITS.high)
    for method in ("static", "cpt", *TEN):
        bits = static if method == "static" else BITS
        precision = quantized(schedule_text(method, bits, XNLI_CYCLES), bits.backward)
        config = xnli(f"{method.lower()}-{bits.name}", precision)
        yield Recipe(config=config, notes=notes)


@FAMILIES.register("snli")
def snli_runs() -> Iterator[Recipe]:
    """Float32, static 8 bits and CPT: minutes on two cores."""
    yield Recipe(config=snli("float32", PrecisionConfig()), scale="small")
    for forward, name in ((8, "static-8-8"), (schedule_text("cpt", BITS, FEW_CYCLES), "cpt-5-8-8")):
        config = snli(name, quantized(forward, BITS.backward))
        yield Recipe(config=config, scale="small")
