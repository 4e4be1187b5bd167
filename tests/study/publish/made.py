"""Published studies with results that were never trained."""

from __future__ import annotations

from typing import Any

from bitcycle.study.adjust import StudyOptions
from bitcycle.study.publish.gather import gather
from bitcycle.study.publish.restore import Evidence, restore
from bitcycle.study.results import StudyResult
from tests.study.made_up import Values, method, study_result

STATIC: Values = {0: 91.0, 1: 92.0, 2: 91.5}


def made(
    cycled: Values, static: Values = STATIC, *, cost: float = 60.0, **changes: Any
) -> StudyResult:
    """Static 8 bits against cycles from 3 to 8."""
    entries = [
        (method("static 8/8", 8), static, 100.0),
        (method("CPT 3-8/8", "CR:3-8:8"), cycled, cost),
    ]
    return study_result(entries, **{"baseline": "static 8/8", **changes})


def data_of(result: StudyResult, **options: Any) -> dict[str, Any]:
    return gather(result, StudyOptions(**options))


def evidence_of(result: StudyResult) -> Evidence:
    return restore(data_of(result))


BETTER: Values = {0: 92.0, 1: 93.1, 2: 92.4}  # +1.0, +1.1, +0.9
WORSE: Values = {0: 90.0, 1: 90.9, 2: 90.6}  # -1.0, -1.1, -0.9
ALIKE: Values = {0: 91.5, 1: 91.6, 2: 91.6}  # +0.5, -0.4, +0.1
