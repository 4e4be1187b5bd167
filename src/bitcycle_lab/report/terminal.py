"""Schedules in the terminal: a block chart of bits over steps that fits the width.

Every column stands for a stretch of steps: solid up to the least bits in it, shaded up to the most.
Numbers of bits have a row each, from the least to the most. With formats, every precision that
occurs has a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bitcycle.bits import Bits, PlainBits, has_format, order
from bitcycle.schedules.base import sort_bits

MAX_ROWS = 12  # more bit-widths than this share rows
MIN_WIDTH = 20


@dataclass(frozen=True)
class Ink:
    """The characters of a chart."""

    solid: str
    shade: str
    wall: str
    floor: str
    corner: str


BLOCKS = Ink(solid="\u2588", shade="\u2591", wall="\u2502", floor="\u2500", corner="\u2514")
ASCII = Ink(solid="#", shade=":", wall="|", floor="-", corner="+")


def ink_for(encoding: str | None) -> Ink:
    """Blocks where the encoding has them, otherwise ASCII.

    >>> ink_for("utf-8") is BLOCKS, ink_for("ascii") is ASCII, ink_for(None) is ASCII
    (True, True, True)
    """
    try:
        "".join(vars(BLOCKS).values()).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def chart(
    values: list[PlainBits],
    *,
    width: int = 80,
    ink: Ink = BLOCKS,
    definition: Iterable[PlainBits] = (),
) -> str:
    """The values as rows of text, at most `width` characters wide.

    definition: bits in the order of the schedule's text, for formats with equally many bits.

    >>> print(chart([3, 3, 4, 5, 3, 3, 4, 5], width=22, ink=ASCII))
       5 |      ##      ##
       4 |    ####    ####
       3 |################
         +----------------
          0              8
    """
    if width < MIN_WIDTH:
        raise ValueError(f"width must be at least {MIN_WIDTH} characters, got {width}")
    levels = sort_bits(values, definition)
    if has_format(levels):
        places = {bits: place for place, bits in enumerate(levels)}
        rows = [(str(Bits.of(levels[place])), place) for place in _strided(0, len(levels) - 1)]
    else:
        places = {bits: order(bits) for bits in levels}
        rows = _rows(levels)
    label = max(4, *(len(name) for name, _ in rows))
    columns = _columns([places[bits] for bits in values], width - label - 2)
    lines = []
    for name, bottom in rows:
        cells = (
            ink.solid if least >= bottom else ink.shade if most >= bottom else " "
            for least, most in columns
        )
        lines.append(f"{name:>{label}} {ink.wall}{''.join(cells)}".rstrip())
    lines.append(f"{'':>{label}} {ink.corner}{ink.floor * len(columns)}")
    last = f"{len(values):,}"
    lines.append(f"{'':>{label}}  0{last:>{max(len(columns) - 1, len(last) + 1)}}")
    return "\n".join(lines)


def _rows(levels: list[PlainBits]) -> list[tuple[str, int]]:
    """(label, fewest bits that fill the row), from the top; float32 has a row of its own."""
    whole = [bits for bits in levels if isinstance(bits, int)]
    rows = [("fp32", order(None))] if len(whole) < len(levels) else []
    if whole:
        rows += [(str(bits), bits) for bits in _strided(min(whole), max(whole))]
    return rows


def _strided(low: int, high: int) -> list[int]:
    """From high down to low, both included, with steps in which all have a row."""
    stride = -(-(high - low + 1) // MAX_ROWS)
    picked = list(range(high, low - 1, -stride))
    return picked if picked[-1] == low else [*picked, low]


def _columns(heights: list[int], room: int) -> list[tuple[int, int]]:
    """(least, most) of the stretch behind every column; few steps get several columns each."""
    total = len(heights)
    if total < room:
        return [(height, height) for height in heights for _ in range(room // total)]
    cuts = [column * total // room for column in range(room + 1)]
    stretches = [heights[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
    return [(min(stretch), max(stretch)) for stretch in stretches]
