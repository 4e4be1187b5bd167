"""The colours and markers of a study's methods, and the axes of cost against value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitcycle.study.numbers import UNITS
from bitcycle.study.summary import GroupSummary, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


def name_axes(axes: Axes, group: GroupSummary) -> None:
    """The metric against the training cost, with a quiet grid."""
    unit = UNITS.get(group.metric, "").strip()
    axes.set_ylabel(f"test {group.metric}{f', {unit}' if unit else ''}", color=INK)
    is_relative = group.baseline_row is not None and group.baseline_row.bitops is not None
    cost = f"training cost: BitOPs, {group.baseline} = 1" if is_relative else "training BitOPs"
    axes.set_xlabel(cost, color=INK)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
