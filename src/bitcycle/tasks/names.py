"""What the built-in tasks make of a configuration's names: entries of the registries."""

from __future__ import annotations

from bitcycle.data import DATASETS
from bitcycle.data.base import Kind
from bitcycle.models import MODELS
from bitcycle.models.base import ModelEntry
from bitcycle.registry import unknown_name
from bitcycle.tasks.config import DataConfig, ModelConfig


def check_names(kind: Kind, model: ModelConfig, data: DataConfig) -> None:
    """Raise unless both names are registered, fit this kind of data, and the options are known."""
    entry, info = MODELS[model.name], DATASETS[data.name]
    for option in model.options:
        if option not in entry.options:
            raise unknown_name(f"option of model {model.name!r}", option, entry.options)
    if model_kind(entry) != kind:
        fitting = [name for name, each in MODELS.items() if model_kind(each) == kind]
        raise _other_kind("model", model.name, model_kind(entry), kind, fitting)
    if info.kind != kind:
        fitting = [name for name, each in DATASETS.items() if each.kind == kind]
        raise _other_kind("dataset", data.name, info.kind, kind, fitting)
    if model.path is not None and kind != "pair":
        raise ValueError(
            f"model.path ({model.path}) is for the task pairs; {model.name!r} is built from its "
            "options: leave it null"
        )
    if data.vocabulary is not None and kind != "language":
        raise ValueError(
            f"data.vocabulary ({data.vocabulary}) is for the task language; {data.name!r} is of "
            f"kind {info.kind!r}: leave it null"
        )


def model_kind(entry: ModelEntry) -> Kind:
    """The kind of data a model takes, told by the sizes it asks for.

    >>> [model_kind(MODELS[name]) for name in ("resnet20", "lstm_lm", "gcn", "bert")]
    ['image', 'language', 'graph', 'pair']
    """
    if "vocab_size" in entry.options:
        return "pair" if "num_classes" in entry.options else "language"
    return "graph" if "in_features" in entry.options else "image"


def _other_kind(what: str, name: str, has: Kind, needs: Kind, fitting: list[str]) -> ValueError:
    return ValueError(
        f"{what} {name!r} is of kind {has!r}, the task takes kind {needs!r}: {', '.join(fitting)}"
    )
