"""Studies: many runs and the question they answer.

>>> from bitcycle.study import find_study
>>> [method.label for method in find_study("demo").methods]
['float32', 'static 8/8', 'CPT 3-8/8', 'static 3/8']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitcycle.study.base import Method, Study
    from bitcycle.study.engines import make_engine
    from bitcycle.study.execute import run_study
    from bitcycle.study.find import find_study
    from bitcycle.study.results import StudyResult, read_study
    from bitcycle.study.summary import summarize
    from bitcycle.study.table import study_tables, write_tables

__all__ = [
    "Method",
    "Study",
    "StudyResult",
    "find_study",
    "make_engine",
    "read_study",
    "run_study",
    "study_tables",
    "summarize",
    "write_tables",
]

# imported when asked for: other commands use single files of this package and need no statistics
_HOMES = {
    "Method": "base",
    "Study": "base",
    "StudyResult": "results",
    "find_study": "find",
    "make_engine": "engines",
    "read_study": "results",
    "run_study": "execute",
    "study_tables": "table",
    "summarize": "summary",
    "write_tables": "table",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
