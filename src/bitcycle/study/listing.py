"""The studies that come with the package, as rows."""

from __future__ import annotations

from bitcycle.study.study import STUDIES


def list_studies() -> list[dict[str, str]]:
    """Name, scale, size and question of each."""
    rows = []
    for name, make in STUDIES.items():
        study = make()
        runs = f"{len(study.methods)} x {len(study.seeds)}"
        rows.append(
            {"name": name, "scale": study.scale, "methods x seeds": runs, "what": study.description}
        )
    return rows
