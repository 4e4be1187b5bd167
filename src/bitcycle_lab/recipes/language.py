"""Language models: Table 5 of CPT, the follow-up's LSTM, and small runs on WikiText-2.

The small Transformer also trains in formats: bf16, FP8, MXFP8, NVFP4 as published, and cycles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bitcycle_lab.published import read_table, values
from bitcycle_lab.recipes.base import (
    CPT_CYCLES,
    FAMILIES,
    FEW_CYCLES,
    FOLLOW_UP,
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
    RunConfig,
    ScheduleText,
)

WORDS = 5000  # of 33,278 in WikiText-2, 87 % of the text: the rest would take most of the time
# the layers that the NVFP4 recipe leaves in bf16: the head, and the end of the last block, whose
# two feed-forward layers are 2 of 12 linear layers; published (arXiv 2509.25149) is about 15 %
NVFP4_IN_BF16 = ("decoder", "layers.1.fc*")
HEALING = "stages:nvfp4@0.82,bf16"  # published: the switch after 8.2T of 10T tokens
LAYER_SIZE = ("ptb-lstm: the paper's layer size is unpublished, 650 here",)


def transformer() -> RunConfig:
    """The basic WikiText-103 recipe: 50,000 updates of 64 x 512 tokens."""
    return RunConfig(
        name="wikitext103-transformer",
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
        precision=float32(),
        eval=EvalConfig(every=0.05),
        steps=50_000,
        accumulate=16,
    )


def lstm(name: str, *, num_layers: int, size: int) -> RunConfig:
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
        precision=float32(),
        eval=EvalConfig(every=1 / 40),
        epochs=40,
        clip_norm=0.25,
    )


def ptb_lstm() -> RunConfig:
    """CPT's two layers."""
    return lstm("ptb-lstm", num_layers=2, size=650)


@FAMILIES.register("language")
def networks() -> Iterator[Recipe]:
    """The base recipes: CPT's Transformer and LSTM, and the follow-up's one layer of 800."""
    yield Recipe(config=transformer(), cycles=CPT_CYCLES)
    yield Recipe(config=ptb_lstm(), cycles=CPT_CYCLES, notes=LAYER_SIZE)
    yield Recipe(
        config=lstm("ptb-lstm800", num_layers=1, size=800),
        cycles=FEW_CYCLES,
        cells=(FOLLOW_UP,),
    )


@FAMILIES.register("cpt-table5")
def table5() -> Iterator[Recipe]:
    """CPT against static precision."""
    where = "CPT Table 5"
    for row in read_table("table5_language"):
        is_lstm = row["model"] != "transformer"
        method = "static" if row["method"] == "sbm" else "cpt"
        base = ptb_lstm() if is_lstm else transformer()
        yield Recipe(
            config=with_bits(base, method, row["precision_fw_bw"]),
            cells=(where,),
            published=values(row, where, "perplexity", "gbitops"),
            notes=LAYER_SIZE if is_lstm else (),
        )


def wikitext2_lstm() -> RunConfig:
    """One layer of 128 units, tied embeddings, 5,000 words; 500 windows of 20 x 35 words."""
    return RunConfig(
        name="wikitext2-lstm",
        task="language",
        model=ModelConfig(
            name="lstm_lm",
            options={"embedding_dim": 128, "hidden_dim": 128, "dropout": 0.2, "tie": True},
        ),
        data=DataConfig(
            name="wikitext-2",
            batch_size=20,
            eval_batch_size=20,
            sequence_length=35,
            vocabulary=WORDS,
        ),
        optimizer=OptimizerConfig(name="sgd", lr=20.0, momentum=0.0),
        lr=LrConfig(policy="cosine"),
        precision=float32(),
        eval=EvalConfig(every=0),
        steps=500,
        clip_norm=0.25,
        threads=1,
    )


def wikitext2_transformer() -> RunConfig:
    """Two layers of 128, 5,000 words; 400 updates of 16 x 64 words."""
    return RunConfig(
        name="wikitext2-transformer",
        task="language",
        model=ModelConfig(
            name="transformer_lm",
            options={"dim": 128, "ffn_dim": 512, "num_layers": 2, "num_heads": 4, "dropout": 0.1},
        ),
        data=DataConfig(
            name="wikitext-2",
            batch_size=16,
            eval_batch_size=16,
            sequence_length=64,
            vocabulary=WORDS,
        ),
        optimizer=OptimizerConfig(name="adamw", lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01),
        lr=LrConfig(policy="inverse_sqrt", warmup=100),
        precision=float32(),
        eval=EvalConfig(every=0),
        steps=400,
        threads=1,
    )


@FAMILIES.register("wikitext2")
def small_runs() -> Iterator[Recipe]:
    """Minutes on two cores."""
    yield from small(wikitext2_lstm(), "8/8", "6/8", "5-8/8", "5-6/8", suffix="-small")
    yield from small(wikitext2_transformer(), "8/8", "6/8", "4-8/8", "4-6/8", suffix="-small")


# -- formats --------------------------------------------------------------------------------------


def with_formats(
    name: str,
    forward: ScheduleText,
    backward: ScheduleText,
    *,
    quantizer: str = "sbm",
    **options: Any,
) -> RunConfig:
    """The small Transformer in these formats; options: of the quantizer."""
    base = wikitext2_transformer()
    precision = replace(
        base.precision,
        quantizer=quantizer,
        quantizer_options=options,
        forward=forward,
        backward=backward,
    )
    return replace(base, name=f"{base.name}-{name}", precision=precision)


def with_mx(name: str, forward: str, backward: str = "mxfp8", scale: str = "rceil") -> RunConfig:
    """MX with scales rounded up, as MXFP8 is trained (arXiv 2506.08027).

    The OCP rule rounds scales down ("floor"), which clips the largest values of a block: with e4m3
    elements those whose mantissa is above 1.75.
    """
    return with_formats(name, forward, backward, quantizer="mx", scale=scale)


def with_nvfp4(name: str, forward: str = "nvfp4", backward: str = "nvfp4") -> RunConfig:
    """NVFP4 as published: the head and the last layers are in bf16 from the first step.

    >>> with_nvfp4("nvfp4-heal", forward=HEALING).precision.forward
    {'*': 'stages:nvfp4@0.82,bf16', 'decoder': 'bf16', 'layers.1.fc*': 'bf16'}
    """
    in_bf16 = dict.fromkeys(NVFP4_IN_BF16, "bf16")
    return with_formats(
        name, {"*": forward, **in_bf16}, {"*": backward, **in_bf16}, quantizer="nvfp4"
    )


@FAMILIES.register("wikitext2-formats")
def formats() -> Iterator[Recipe]:
    """The small Transformer in formats: static, healed at the end of the run, and cycled."""
    cycle = f"CR:mxfp4,mxfp8,bf16:{FEW_CYCLES}"
    for config in (
        with_formats("bf16", "bf16", "bf16"),
        with_formats("fp8", "e4m3", "e5m2", quantizer="fp8"),
        with_mx("mxfp8", "mxfp8"),
        with_mx("mx-cpt", cycle),
        with_nvfp4("nvfp4"),
        with_nvfp4("nvfp4-heal", forward=HEALING),
        with_nvfp4("nvfp4-heal-both", forward=HEALING, backward=HEALING),
    ):
        yield Recipe(config=config, scale="small")
