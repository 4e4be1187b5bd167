"""Pictures to files, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_path(path: str | Path, suffix: str = ".png") -> Path:
    """The path, if a file with this suffix can be written there; otherwise a ValueError."""
    target = Path(path).expanduser()
    if target.suffix.lower() != suffix:
        raise ValueError(f"{str(path)!r} must end in {suffix}, such as bits{suffix}")
    if target.is_dir():
        raise ValueError(f"{str(path)!r} is a directory; give a file name inside it")
    if not target.parent.is_dir():
        raise ValueError(f"the directory {str(target.parent)!r} does not exist; create it first")
    if not os.access(target.parent, os.W_OK):
        raise ValueError(f"the directory {str(target.parent)!r} is not writable; choose another")
    return target


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a PNG or SVG: beside the target first, then renamed: no half file is ever seen."""
    is_svg = Path(path).suffix.lower() == ".svg"
    target = check_path(path, ".svg" if is_svg else ".png")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            figure.savefig(file, format="svg" if is_svg else "png", dpi=200)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target
