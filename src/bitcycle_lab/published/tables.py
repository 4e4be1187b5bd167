"""Read the papers' tables from the CSV files in this folder.

These files are the only copy of a published number. Recipes and `bitcycle cost --paper` read
them.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NamedTuple

UNITS = {"accuracy": "%", "perplexity": "", "cost": "GBitOPs", "latency": "h"}
COLUMNS = {
    "accuracy": "accuracy",
    "cifar10_accuracy": "accuracy",
    "cifar100_accuracy": "accuracy",
    "perplexity": "perplexity",
    "gbitops": "cost",
    "latency_hours_zc706": "latency",
}
_DISPLAY_NAMES = {  # of networks and data, in the CSV files and in configurations
    "bert": "BERT",
    "digits_resnet": "small ResNet-8",
    "gcn": "GCN",
    "graphsage": "GraphSAGE",
    "lstm2": "LSTM",
    "lstm_lm": "LSTM",
    "mobilenetv2": "MobileNetV2",
    "transformer": "Transformer",
    "transformer_lm": "Transformer",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "citeseer": "CiteSeer",
    "cora": "Cora",
    "imagenet": "ImageNet",
    "ogbn-arxiv": "OGBN-Arxiv",
    "ptb": "PTB",
    "pubmed": "PubMed",
    "snli": "SNLI",
    "wikitext-2": "WikiText-2",
    "wikitext-103": "WikiText-103",
    "wikitext103": "WikiText-103",
    "xnli": "XNLI",
}


@dataclass(frozen=True, kw_only=True)
class Published:
    """A number as a paper prints it.

    >>> print(Published(where="CPT Table 2", metric="accuracy", value=72.35, unit="%"))
    accuracy 72.35 % (CPT Table 2)
    """

    where: str
    metric: str  # accuracy, perplexity, cost or latency
    value: float
    unit: str  # %, nothing for a perplexity, GBitOPs, h

    def __str__(self) -> str:
        number = f"{self.value:.3g}" if self.metric == "cost" else f"{self.value:g}"
        return f"{self.metric} {number}{f' {self.unit}' if self.unit else ''} ({self.where})"


@cache
def read_table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a CSV file by its name, without `.csv`.

    >>> read_table("table8_gradient_cycling")[2]["bw"]
    '6-8'
    """
    file = resources.files("bitcycle_lab.published") / f"{name}.csv"
    return tuple(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def values(row: dict[str, str], where: str, *columns: str) -> tuple[Published, ...]:
    """The numbers in some columns of a row, with their units.

    where: the table, as in "CPT Table 2".

    >>> values(read_table("table7_delayed_start")[0], "CPT Table 7", "accuracy")[0].value
    70.24
    """
    return tuple(
        Published(
            where=where,
            metric=COLUMNS[column],
            value=float(row[column]),
            unit=UNITS[COLUMNS[column]],
        )
        for column in columns
    )


def display_name(name: str) -> str:
    """A model or dataset, of a CSV file or of ours, as the papers write it.

    >>> display_name("resnet74"), display_name("imagenet_resnet18"), display_name("wikitext103")
    ('ResNet-74', 'ResNet-18', 'WikiText-103')
    """
    named = _DISPLAY_NAMES.get(name)
    return named or name.removeprefix("imagenet_").replace("resnet", "ResNet-")


class BitRange(NamedTuple):
    """Bits such as 3-8/8: a forward range (or one number) and the backward bits."""

    low: int
    high: int
    backward: int

    @classmethod
    def parse(cls, cell: str) -> BitRange:
        """Read the papers' notation.

        >>> BitRange.parse("3-8/8"), BitRange.parse("6/6")
        (BitRange(low=3, high=8, backward=8), BitRange(low=6, high=6, backward=6))
        """
        forward, _, backward = cell.partition("/")
        low, _, high = forward.partition("-")
        return cls(int(low), int(high or low), int(backward))
