"""Pairs of sentences: the follow-up's multilingual BERT on XNLI, and a small BERT on SNLI."""

from __future__ import annotations

from collections.abc import Iterator

from bitcycle_lab.recipes.base import FAMILIES, FOLLOW_UP, Recipe, float32, small
from bitcycle_lab.tasks.config import DataConfig, ModelConfig
from bitcycle_lab.train.config import EvalConfig, LrConfig, OptimizerConfig, RunConfig

XNLI_CYCLES = 2  # one per epoch


def xnli_mbert() -> RunConfig:
    """Fine-tuning for 2 epochs of 392,702 pairs; the model's folder is in the working directory."""
    return RunConfig(
        name="xnli-mbert",
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
        precision=float32(),
        eval=EvalConfig(every=0.25),
        epochs=2,
    )


def snli_bert() -> RunConfig:
    """Two layers of 128 from scratch, 900 updates of 64 pairs."""
    return RunConfig(
        name="snli-bert",
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
        precision=float32(),
        eval=EvalConfig(every=0.5),
        steps=900,
    )


@FAMILIES.register("xnli")
def xnli() -> Iterator[Recipe]:
    """The follow-up's."""
    notes = (
        "xnli-mbert fine-tunes a downloaded model (--model.path); its optimizer and rate policy "
        "are unpublished, AdamW and constant here",
    )
    yield Recipe(config=xnli_mbert(), cycles=XNLI_CYCLES, cells=(FOLLOW_UP,), notes=notes)


@FAMILIES.register("snli")
def snli() -> Iterator[Recipe]:
    """Minutes on two cores."""
    yield from small(snli_bert(), "8/8", "5-8/8", suffix="-small")
