"""What a reader of a study's table must know: how the set-up differs from the published one."""

from __future__ import annotations

from collections.abc import Iterable

from bitcycle.study.published import sources
from bitcycle.study.results import MethodResult, StudyResult


def caption(result: StudyResult) -> str:
    """Set-up (scale, steps, seeds, evaluation bits), sources, notes and what is not done."""
    parts = [setup(result), *_published(result), *result.study.notes, *unfinished(result)]
    return " ".join(f"{part[:1].upper()}{part[1:].rstrip('.')}." for part in parts)


def setup(result: StudyResult) -> str:
    """Ours in one sentence: what is trained, for how long, with how many seeds."""
    configs = [row.method.config for row in result.methods]
    what = _listed(f"{config.model.name} on {config.data.name}" for config in configs)
    seeds = len(result.study.seeds)
    bits = _listed(run.eval_precision for row in result.methods for run in row.results.values())
    evaluated = f", evaluated at {bits}" if bits else ""
    scale = " (reduced scale)" if result.study.scale == "small" else ""
    return (
        f"Ours: {what}, {_length(result)}, {seeds} seed{'s' if seeds > 1 else ''}{evaluated}{scale}"
    )


def _length(result: StudyResult) -> str:
    steps = {run.steps for row in result.methods for run in row.results.values()}
    planned = [row.method.config for row in result.methods if not row.results]
    steps |= {config.steps for config in planned if config.steps is not None}
    texts = [f"{number:,}" for number in sorted(steps)]
    if len(texts) > 3:
        texts = [f"{texts[0]} to {texts[-1]}"]
    *some, last = texts or [""]
    lengths = [f"{', '.join(some)} or {last} steps" if some else f"{last} steps"] if last else []
    lengths += sorted({f"{c.epochs:g} epochs" for c in planned if c.epochs is not None})
    return ", ".join(lengths)


def _published(result: StudyResult) -> list[str]:
    where = sources(result)
    if not where:
        return []
    warning = "" if result.study.scale == "full" else ", a larger set-up: compare differences"
    return [f"Published: {', '.join(where)}{warning}"]


def unfinished(result: StudyResult) -> list[str]:
    """A sentence for the runs without a result; none when all are done."""
    counts = {
        "failed": result.count("failed"),
        "started and not finished": result.count("started"),
        "missing": result.count("missing"),
    }
    said = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
    return [f"Of {result.num_runs} runs {said}"] if said else []


def states_text(method: MethodResult) -> str:
    """What of a method is not done, such as `1 failed, 2 missing`; empty when all is.

    >>> states_text(MethodResult(method=None, runs=()))
    ''
    """
    words = {"failed": "failed", "started": "unfinished", "missing": "missing"}
    counts = ((method.count(state), word) for state, word in words.items())  # type: ignore[arg-type]
    return ", ".join(f"{number} {word}" for number, word in counts if number)


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))
