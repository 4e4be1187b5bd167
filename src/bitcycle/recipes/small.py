"""Runs that finish in seconds (digits) or minutes (CIFAR-10, WikiText-2) on two cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from bitcycle.published import BitRange
from bitcycle.recipes.base import (
    CPT_CYCLES,
    FAMILIES,
    FEW_CYCLES,
    SKIPPED,
    TEN,
    Recipe,
    quantized,
    schedule_text,
)
from bitcycle.recipes.cifar import figure5, figure7, table1, table2, table6, table7, table8
from bitcycle.tasks.config import DataConfig, ModelConfig
from bitcycle.train.config import (
    CheckpointConfig,
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunConfig,
    ScheduleText,
    TrackingConfig,
)

SGD = OptimizerConfig(name="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4)
WORDS = 5000  # of 33,278 in WikiText-2, 87 % of the text: the rest would take most of the time
STEP = LrConfig(policy="step", milestones=(0.5, 0.75), gamma=0.1)


def digits(name: str, precision: PrecisionConfig) -> RunConfig:
    """A ResNet-8 of half the width on 8x8 digits: 240 steps, about 5 seconds, 98 to 99 %."""
    return RunConfig(
        name=f"digits-{name}",
        task="images",
        model=ModelConfig(name="digits_resnet"),
        data=DataConfig(name="digits", batch_size=64),
        optimizer=SGD,
        lr=STEP,
        precision=precision,
        checkpoint=CheckpointConfig(every=0.5),
        tracking=TrackingConfig(log_every=10),
        steps=240,
        threads=1,  # tensors this small are slower on two
    )


def cifar10(model: str, name: str, precision: PrecisionConfig) -> RunConfig:
    """The paper's settings for 512 steps on a fixed fifth of the training set."""
    return RunConfig(
        name=f"cifar10-{model}-{name}-small",
        task="images",
        model=ModelConfig(name=model),
        data=DataConfig(name="cifar10", batch_size=128, subset=10_000),
        optimizer=SGD,
        lr=STEP,
        precision=precision,
        eval=EvalConfig(every=0.5),
        steps=512,
        threads=1,  # so that two runs fit on two cores
    )


def wikitext2_lstm(name: str, precision: PrecisionConfig) -> RunConfig:
    """One layer of 128 units, tied embeddings, 5,000 words; 500 windows of 20 x 35 words."""
    return RunConfig(
        name=f"wikitext2-lstm-{name}-small",
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
        precision=precision,
        eval=EvalConfig(every=0),
        steps=500,
        clip_norm=0.25,
        threads=1,
    )


def wikitext2_transformer(name: str, precision: PrecisionConfig) -> RunConfig:
    """Two layers of 128, 5,000 words; 400 updates of 16 x 64 words."""
    return RunConfig(
        name=f"wikitext2-transformer-{name}-small",
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
        precision=precision,
        eval=EvalConfig(every=0),
        steps=400,
        threads=1,
    )


Build = Callable[[str, PrecisionConfig], RunConfig]


def compare(build: Build, cells: tuple[str, ...], skip: tuple[str, ...]) -> Iterator[Recipe]:
    """float32, and each cell: a range is CPT at 8 cycles, one number is static."""
    yield Recipe(config=build("float32", PrecisionConfig()), scale="small")
    for cell in cells:
        bits = BitRange.parse(cell)
        method = "static" if bits.low == bits.high else "cpt"
        precision = quantized(schedule_text(method, bits, FEW_CYCLES), bits.backward, skip=skip)
        config = build(f"{method}-{bits.name}", precision)
        yield Recipe(config=config, scale="small")


@FAMILIES.register("digits")
def digits_runs() -> Iterator[Recipe]:
    """Cells in the manner of CPT, and the ten schedules."""
    yield from compare(digits, ("8/8", "6/6", "3/8", "3-8/8", "3-6/6"), ("fc",))
    bits = BitRange(3, 8, 8)
    for method in TEN:
        precision = quantized(schedule_text(method, bits, FEW_CYCLES), 8, skip=("fc",))
        yield Recipe(config=digits(f"{method.lower()}-{bits.name}", precision), scale="small")


@FAMILIES.register("small")
def small_runs() -> Iterator[Recipe]:
    """CIFAR-10 and WikiText-2."""
    for model in ("resnet8", "resnet20"):

        def build(name: str, precision: PrecisionConfig, model: str = model) -> RunConfig:
            return cifar10(model, name, precision)

        yield from compare(build, ("8/8", "6/6", "3/8", "3-8/8", "3-6/6"), ("fc",))
    yield from compare(wikitext2_lstm, ("8/8", "6/8", "5-8/8", "5-6/8"), ())
    yield from compare(wikitext2_transformer, ("8/8", "6/8", "4-8/8", "4-6/8"), ())


PREFIX = "cifar100-resnet74-"
KEEP_FLOAT = ("fc",)


def on_digits(config: RunConfig) -> RunConfig:
    """The twin of a run of ResNet-74 on CIFAR-100."""
    precision = config.precision
    options = dict(precision.quantizer_options)
    twin = digits(config.name.removeprefix(PREFIX), precision)
    if "total_steps" in options:
        options["total_steps"] = twin.steps
    return replace(
        twin,
        optimizer=config.optimizer,
        lr=config.lr,
        eval=replace(twin.eval, precision=config.eval.precision),
        precision=replace(
            precision,
            quantizer_options=options,
            forward=_few_cycles(precision.forward),
            backward=_few_cycles(precision.backward),
        ),
    )


def _few_cycles(text: ScheduleText) -> ScheduleText:
    if not isinstance(text, str):
        return text
    return text.replace(f":{CPT_CYCLES}", f":{FEW_CYCLES}")


@FAMILIES.register("digits-tables")
def tables_on_digits() -> Iterator[Recipe]:
    """ResNet-74's cells of Tables 1, 2, 6, 7, 8 and Figs. 5 and 7; the bits of Tables 3 and 4."""
    for entries in (table1, table2, table6, table7, table8, figure5, figure7):
        for entry in entries():
            if entry.config.name.startswith(PREFIX):
                yield Recipe(config=on_digits(entry.config), scale="small")
    yield from compare(digits, ("4/8", "4-8/8", "4-6/6"), KEEP_FLOAT)
    full = quantized(f"CR:8-32:{FEW_CYCLES}", "fp32", skip=KEEP_FLOAT)
    yield Recipe(config=digits("cpt-8-32", full), scale="small")


@FAMILIES.register("digits-cycles")
def numbers_of_cycles_on_digits() -> Iterator[Recipe]:
    """Fig. 8; 8 cycles are the run without a number."""
    for cycles in (2, 4, 16, 32):
        precision = quantized(f"CR:3-8:{cycles}", 8, skip=KEEP_FLOAT)
        yield Recipe(config=digits(f"cpt-3-8-8-n{cycles}", precision), scale="small")


@FAMILIES.register("digits-quantizers")
def quantizers_on_digits() -> Iterator[Recipe]:
    """Every quantizer with the bits of CPT; sbm's cyclic run is elsewhere."""
    for quantizer in SKIPPED:
        if quantizer == "sbm":
            continue
        name = f"{quantizer.replace('_', '-')}-cpt-3-8-8"
        config = by_quantizer(digits, name, quantizer, BitRange(3, 8, 8))
        yield Recipe(config=config, notes=(f"CPT by the quantizer {quantizer}",), scale="small")


def by_quantizer(build: Build, name: str, quantizer: str, bits: BitRange) -> RunConfig:
    """A run with another quantizer than sbm, first and last layer as its authors have them."""
    skip = SKIPPED[quantizer]
    forward = schedule_text("cpt", bits, FEW_CYCLES)
    config = build(name, quantized(forward, bits.backward, skip=skip, quantizer=quantizer))
    if quantizer != "wageubn":
        return config
    options: dict[str, Any] = {"total_steps": config.steps}  # its gradients get coarser over them
    return replace(config, precision=replace(config.precision, quantizer_options=options))


def resnet8(name: str, precision: PrecisionConfig) -> RunConfig:
    """The smallest network on CIFAR-10."""
    return cifar10("resnet8", name, precision)


@FAMILIES.register("cifar10-methods")
def methods_on_cifar10() -> Iterator[Recipe]:
    """Other schedules and quantizers for the small CIFAR-10 run."""
    forwards = {
        f"cpt-3-8-8-n{CPT_CYCLES}": f"CR:3-8:{CPT_CYCLES}",
        "rr-3-8-8": f"RR:3-8:{FEW_CYCLES}",
        "er-3-8-8": f"ER:3-8:{FEW_CYCLES}",
        "progressive-3-8-8": "ramp:3-8@0.5",
        "cpt-3-8-8-start60": f"delay@0.375(CR:3-8:{FEW_CYCLES})",
    }
    for name, forward in forwards.items():
        config = resnet8(name, quantized(forward, 8, skip=KEEP_FLOAT))
        yield Recipe(config=config, scale="small")
    for quantizer in ("dorefa", "wageubn"):
        for bits in (BitRange(8, 8, 8), BitRange(6, 6, 6)):
            config = by_quantizer(resnet8, f"{quantizer}-{bits.name}", quantizer, bits)
            yield Recipe(config=config, scale="small")


@FAMILIES.register("schedules-wikitext2")
def ten_schedules_on_wikitext2() -> Iterator[Recipe]:
    """The ten schedules for the small LSTM."""
    bits = BitRange(5, 8, 8)
    for method in TEN:
        precision = quantized(schedule_text(method, bits, FEW_CYCLES), 8)
        config = wikitext2_lstm(f"{method.lower()}-{bits.name}", precision)
        yield Recipe(config=config, scale="small")
