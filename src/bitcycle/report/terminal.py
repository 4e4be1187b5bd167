"""Schedules in the terminal: a block chart of bits over steps that fits the width.

Every column stands for a stretch of steps: solid up to the least bits in it, shaded up to the most.
"""

from __future__ import annotations

from dataclasses import dataclass

from bitcycle.schedules.base import Bits, bits_text, order

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


def chart(values: list[Bits], *, width: int = 80, ink: Ink = BLOCKS) -> str:
    """The values as rows of text, at most `width` characters wide.

    >>> print(chart([3, 3, 4, 5, 3, 3, 4, 5], width=22, ink=ASCII))
       5 |      ##      ##
       4 |    ####    ####
       3 |################
         +----------------
          0              8
    """
    if width < MIN_WIDTH:
        raise ValueError(f"width must be at least {MIN_WIDTH} characters, got {width}")
    rows = _rows(values)
    label = max(4, *(len(name) for name, _ in rows))
    columns = _columns(values, width - label - 2)
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


def _rows(values: list[Bits]) -> list[tuple[str, int]]:
    """(label, fewest bits that fill the row), from the top; float32 has a row of its own."""
    whole = [bits for bits in values if bits is not None]
    rows = [("fp32", order(None))] if len(whole) < len(values) else []
    if whole:
        low, high = min(whole), max(whole)
        stride = -(-(high - low + 1) // MAX_ROWS)
        rows += [(bits_text(bits), bits) for bits in range(high, low - 1, -stride)]
        if rows[-1][1] != low:
            rows.append((bits_text(low), low))
    return rows


def _columns(values: list[Bits], room: int) -> list[tuple[int, int]]:
    """(least, most) of the stretch behind every column; few steps get several columns each."""
    heights = [order(bits) for bits in values]
    total = len(heights)
    if total < room:
        return [(height, height) for height in heights for _ in range(room // total)]
    cuts = [column * total // room for column in range(room + 1)]
    stretches = [heights[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
    return [(min(stretch), max(stretch)) for stretch in stretches]
