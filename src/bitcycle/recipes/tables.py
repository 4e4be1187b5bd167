"""The published tables, carried by the package as CSV, and the words they are written in."""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple

from bitcycle.recipes.base import Published

UNITS = {"accuracy": "%", "perplexity": "", "cost": "GBitOPs", "latency": "h"}
COLUMNS = {
    "accuracy": "accuracy",
    "cifar10_accuracy": "accuracy",
    "cifar100_accuracy": "accuracy",
    "perplexity": "perplexity",
    "gbitops": "cost",
    "latency_hours_zc706": "latency",
}


@cache
def read_table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of one file of `published/`.

    >>> read_table("table8_gradient_cycling")[2]["bw"]
    '6-8'
    """
    file = resources.files("bitcycle.recipes") / "published" / f"{name}.csv"
    return tuple(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def values(row: dict[str, str], where: str, *columns: str) -> tuple[Published, ...]:
    """The numbers of a row, with their units.

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


class Bits(NamedTuple):
    """A cell such as 3-8/8: a forward range (or one number) and the backward bits."""

    low: int
    high: int
    backward: int

    @classmethod
    def parse(cls, cell: str) -> Bits:
        """From the papers' way of writing.

        >>> Bits.parse("3-8/8"), Bits.parse("6/6")
        (Bits(low=3, high=8, backward=8), Bits(low=6, high=6, backward=6))
        """
        forward, _, backward = cell.partition("/")
        low, _, high = forward.partition("-")
        return cls(int(low), int(high or low), int(backward))

    @property
    def name(self) -> str:
        """The part of a recipe's name.

        >>> Bits.parse("3-8/8").name, Bits.parse("6/8").name
        ('3-8-8', '6-8')
        """
        parts = [self.low, self.backward]
        if self.low != self.high:
            parts.insert(1, self.high)
        return "-".join(map(str, parts))
