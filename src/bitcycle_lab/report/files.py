"""Write figures to PNG and SVG files, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bitcycle.extras import require
from bitcycle_lab.report import plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bitcycle_lab.study.results import StudyResult


def check_path(path: str | Path, *suffixes: str) -> Path:
    """Return the path if it has one of the suffixes and can be written; else raise ValueError."""
    target = Path(path).expanduser()
    if target.suffix.lower() not in suffixes:
        raise ValueError(f"{str(path)!r} must end in {' or '.join(suffixes)}")
    if target.is_dir():
        raise ValueError(f"{str(path)!r} is a directory; give a file name inside it")
    if not target.parent.is_dir():
        raise ValueError(f"the directory {str(target.parent)!r} does not exist; create it first")
    if not os.access(target.parent, os.W_OK):
        raise ValueError(f"the directory {str(target.parent)!r} is not writable; choose another")
    return target


def save(figure: Figure, path: str | Path) -> Path:
    """Write a PNG or SVG, by the suffix, with the same bytes at every call.

    A failure leaves the old file untouched.
    """
    matplotlib = require("matplotlib", extra="report", purpose="pictures")
    target = check_path(path, ".png", ".svg")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file, matplotlib.rc_context({"svg.hashsalt": "bitcycle"}):
            if target.suffix.lower() == ".svg":
                figure.savefig(file, format="svg", metadata={"Date": None})
            else:
                figure.savefig(file, format="png", dpi=200)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


def save_study(result: StudyResult) -> list[Path]:
    """Write picture.png and picture.svg to the study's folder."""
    result.folder.mkdir(parents=True, exist_ok=True)
    figure = plot(result)
    return [save(figure, result.folder / f"picture.{kind}") for kind in ("png", "svg")]
