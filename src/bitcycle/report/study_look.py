"""The colours and markers of a study's methods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bitcycle.study.summary import Row

INK = "#333333"
# Okabe and Ito: told apart with any colour vision
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("s", "o", "D", "^", "v", "P", "X")
PLAIN, FRONT = "#0072B2", "#D55E00"


@dataclass(frozen=True)
class Look:
    """Colour and marker of each label, the same in every panel.

    Without labels, and for more than there are looks, only the Pareto front stands out.
    """

    labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, labels: Iterable[str]) -> Look:
        """In their order, each once."""
        found = tuple(dict.fromkeys(labels))
        return cls(found if len(found) <= len(COLOURS) else ())

    def colour(self, row: Row) -> str:
        """Of a method."""
        if self.labels:
            return COLOURS[self.labels.index(row.label)]
        return FRONT if row.is_on_front else PLAIN

    def marker(self, row: Row) -> str:
        """Of a method."""
        if self.labels:
            return MARKERS[self.labels.index(row.label)]
        return "D" if row.is_on_front else "o"
