"""`TrainingSpec`: the model, precision and length of a training run, from a name, without data.

`find_spec` finds it for a model, a recipe or a YAML file. `bitcycle cost` builds the model from it,
without values where shapes are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitcycle.bits import PlainBits
from bitcycle.convert import find_candidates, quantize_model
from bitcycle.precision import PARENTS
from bitcycle.quantizers import QUANTIZERS
from bitcycle.registry import unknown_name
from bitcycle.role_schedules import quantizer_for
from bitcycle.scheduler import PrecisionScheduler
from bitcycle.schedules import parse_schedule
from bitcycle.schedules.base import check_count
from bitcycle_lab.data import DATASETS, count_selected
from bitcycle_lab.models import MODELS, build_model
from bitcycle_lab.models.base import Model
from bitcycle_lab.recipes import find_config, recipe_names
from bitcycle_lab.tasks.config import model_kind
from bitcycle_lab.train.config import PrecisionConfig, RunConfig

STEPS, BATCH_SIZE = 64_000, 128  # of the CPT paper's runs on CIFAR
NUM_SAMPLES = {  # for training; of texts the words
    "cifar10": 50_000,
    "cifar100": 50_000,
    "digits": 1_437,
    "fashion-mnist": 60_000,
    "imagenet": 1_281_167,
    "mnist": 60_000,
    "ptb": 929_589,
    "snli": 549_367,
    "wikitext-103": 103_227_021,
    "wikitext-2": 2_088_628,
    "xnli": 392_702,
}
NUM_NODES = {"citeseer": 3_327, "cora": 2_708, "ogbn-arxiv": 169_343, "pubmed": 19_717}


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """A training run to count: the model by name, its precision, and the length of the run.

    batch_size: the samples of an optimizer step: images, sequences or, for a graph, nodes.
    num_samples: the samples of an epoch, whose last batch may be smaller; None: all are whole.
    input_shape: the shape of one sample, by default that of the model's own example.
    """

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    precision: PrecisionConfig
    total_steps: int = STEPS
    batch_size: int = BATCH_SIZE
    num_samples: int | None = None
    input_shape: tuple[int, ...] | None = None
    device: str = "meta"  # shapes are enough to count

    def __post_init__(self) -> None:
        check_count(self.total_steps, "total_steps")
        check_count(self.batch_size, "batch_size")

    def build(self, *, needs_conversion: bool = True) -> nn.Module:
        """Build and convert the model; on the meta device unless a graph needs its edges."""
        with torch.device(self._device):
            model = build_model(self.model, **self.options)
        precision = self.precision
        can_convert = any(candidate.reason is None for candidate in find_candidates(model))
        if precision.is_float or not (can_convert or needs_conversion):
            return model
        rules = QUANTIZERS[precision.quantizer](**precision.quantizer_options)
        return quantize_model(
            model,
            rules,
            skip=precision.skip,
            only=precision.only,
            kernel=precision.kernel,
            max_bits=precision.max_bits,
        )

    def shown_bits(self) -> dict[str, Any]:
        """The schedules by keyword, without those that are float32 or round nothing."""
        roles = self.precision.rounded_roles
        used = {*roles, *(PARENTS[role] for role in roles)}
        texts = self.precision.schedule_texts().items()
        shown = {keyword: text for keyword, text in texts if text != "fp32" and keyword in used}
        if shown and self.precision.backward_operands == "backward":
            shown["backward_operands"] = "backward"
        return shown

    def inputs(self, model: nn.Module, batch_size: int) -> tuple[Tensor, ...]:
        """Example inputs for the model."""
        assert isinstance(model, Model)
        example = model.example_inputs(batch_size, device=self._device)
        if self.input_shape is None:
            return example
        if self.is_graph:
            raise ValueError(f"{self.model} takes a graph, which has no input shape")
        if len(self.input_shape) != example[0].dim() - 1:
            raise ValueError(
                f"input shape {_by(self.input_shape)} does not fit {self.model}: a sample is "
                f"{_by(example[0].shape[1:])} in its example"
            )
        shape = (batch_size, *self.input_shape)
        return (torch.zeros(shape, dtype=example[0].dtype, device=self._device),)

    @property
    def samples_per_step(self) -> tuple[int, ...]:
        """The samples of each step of an epoch; one number if all steps have as many."""
        whole, rest = divmod(self.num_samples or self.batch_size, self.batch_size)
        sizes = (self.batch_size,) * whole + ((rest,) if rest else ())
        return tuple(dict.fromkeys(sizes)) if len(set(sizes)) == 1 else sizes

    @property
    def is_graph(self) -> bool:
        """Whether the model takes nodes and edges."""
        return model_kind(MODELS[self.model].options) == "graph"

    @property
    def example_size(self) -> int:
        """The samples of a batch that is traced: enough to count, since costs grow with them."""
        return 16 if self.is_graph else 1

    @property
    def _device(self) -> str:
        return "cpu" if self.is_graph else self.device


def find_spec(
    name: str,
    *,
    roles: Mapping[str, str],
    options: Mapping[str, Any] | None = None,
    skip: Sequence[str] | None = None,
    quantizer: str | None = None,
    total_steps: int | None = None,
    batch_size: int | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> TrainingSpec:
    """The spec of a model, a recipe or a YAML file; the other arguments override it.

    roles: keywords of `PrecisionConfig`: schedules and backward_operands. quantizer: by default the
    recipe's; for a model "sbm", or the one that its formats need.

    >>> find_spec("resnet74", roles={"forward": "CR:3-8:32", "backward": "8"}).total_steps
    64000
    """
    changes: dict[str, Any] = {
        "total_steps": total_steps, "batch_size": batch_size, "input_shape": input_shape,
    }  # fmt: skip
    changes = {key: value for key, value in changes.items() if value is not None}
    if name in MODELS:
        if not roles:
            raise ValueError(f"{name} is a model and has no bits: give --forward")
        by_default = quantizer_for(_bits_of(roles, total_steps or STEPS))
        precision = PrecisionConfig(
            quantizer=quantizer or by_default,
            **{"skip": tuple(skip or ()), **roles},  # type: ignore[arg-type]
        )
        return TrainingSpec(model=name, options=options or {}, precision=precision, **changes)
    if name not in recipe_names() and not Path(name).expanduser().suffix:
        raise unknown_name("model or recipe", name, [*MODELS, *recipe_names()])
    config = find_config(name)
    precision_changes: dict[str, Any] = dict(roles)
    if quantizer is not None:
        precision_changes["quantizer"] = quantizer
    if skip is not None:
        precision_changes["skip"] = tuple(skip)
    spec = spec_from_config(config, total_steps)
    spec = replace(spec, precision=replace(spec.precision, **precision_changes), **changes)
    return replace(spec, options={**spec.options, **(options or {})})


def _bits_of(roles: Mapping[str, str], total_steps: int) -> Iterator[PlainBits]:
    """The bits of schedules; those that cannot be read raise where they are checked."""
    for keyword, text in roles.items():
        if keyword == "backward_operands":
            continue
        try:
            yield from parse_schedule(text).bit_widths(total_steps)
        except ValueError:
            continue


def spec_from_config(config: RunConfig, total_steps: int | None = None) -> TrainingSpec:
    """The spec of a run's configuration; the sizes of its dataset are known without the data."""
    data, entry = config.data, MODELS[config.model.name]
    info, num_samples = DATASETS[data.name], _num_samples(config)
    sizes: dict[str, Any] = {"num_classes": info.num_classes}
    shape: tuple[int, ...] | None = None
    batch_size = data.batch_size
    if info.kind == "language":
        sizes = {"vocab_size": min(info.num_classes, data.vocabulary or info.num_classes)}
        shape = (data.sequence_length,)
    elif info.kind == "pair":
        sizes["max_length"] = data.sequence_length
        shape = (data.sequence_length,)
    elif info.kind == "graph":
        sizes["in_features"] = info.input_shape[0]
        batch_size = NUM_NODES.get(data.name, batch_size)
    else:
        shape = info.input_shape
        if "in_channels" in entry.options:
            sizes["in_channels"] = shape[0]
    return TrainingSpec(
        model=config.model.name,
        options={**sizes, **config.model.options},
        precision=config.precision,
        total_steps=total_steps or _num_steps(config, num_samples),
        batch_size=batch_size,
        num_samples=num_samples,
        input_shape=shape,
    )


def build_at_start(config: RunConfig) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model of a run with its bits of step 0, and example inputs; without data.

    With `auto` in the schedule the bits are the fewest of the range test.
    """
    spec = replace(spec_from_config(config, config.steps or STEPS), device="cpu")
    model = spec.build()
    if not spec.precision.is_float:
        roles: dict[str, Any] = spec.precision.schedule_texts(auto=config.range_test.low)
        operands = spec.precision.backward_operands
        PrecisionScheduler(model, **roles, total_steps=spec.total_steps, backward_operands=operands)
    return model, spec.inputs(model, spec.example_size)


def _num_samples(config: RunConfig) -> int | None:
    """The training samples of an epoch; None: not known, or every step has as many."""
    data, available = config.data, NUM_SAMPLES.get(config.data.name)
    if available is None:
        return None
    if DATASETS[data.name].kind != "language":
        return count_selected(available, subset=data.subset, validation=data.validation)
    is_recurrent = MODELS[config.model.name].family == "lstm_lm"  # has all columns in every step
    return None if is_recurrent else (available - 1) // data.sequence_length


def _num_steps(config: RunConfig, num_samples: int | None) -> int:
    if config.steps is not None:
        return config.steps
    if num_samples is None:
        raise ValueError(
            f"{config.name} runs for {config.epochs:g} epochs of data of unknown size: give "
            "--total-steps"
        )
    return round((config.epochs or 0) * -(-num_samples // config.data.batch_size))


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Read a model's options from texts such as "num_classes=100".

    >>> parse_options(["num_classes=100", "dropout=0.5", "tie=false"])
    {'num_classes': 100, 'dropout': 0.5, 'tie': False}
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not (key and equals and text):
            raise ValueError(f"{pair!r} is not NAME=VALUE, such as num_classes=100")
        options[key] = _value(key, text)
    return options


def _value(key: str, text: str) -> int | float | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise ValueError(f"{key}={text}: a model's option is a number, true or false")


def parse_shape(text: str) -> tuple[int, ...]:
    """Read the shape of one sample from "3x224x224" or "3,224,224".

    >>> parse_shape("3x224x224"), parse_shape("35")
    ((3, 224, 224), (35,))
    """
    parts = text.replace(",", "x").split("x")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"input shape {text!r} must be sizes with x between, such as 3x224x224")
    return tuple(int(part) for part in parts)


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "nothing"
