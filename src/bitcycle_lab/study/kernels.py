"""The kernels that a study's runs were trained with, and a note where they differ.

`auto` chooses kernels by processor, so that seeds that ran on different machines may have different
ones. Kernels agree up to rounding, and their times differ.
"""

from __future__ import annotations

from collections import Counter

from bitcycle.registry import list_some
from bitcycle_lab.study.results import MethodResult, StudyResult
from bitcycle_lab.train.result import RunResult

Used = tuple[tuple[str, str], ...]  # layer and kernel, sorted


def kernels_text(*results: RunResult) -> str:
    """The kernels of converted layers, such as `native avx2 and simulate`; empty in float32."""
    return " and ".join(sorted({kernel for result in results for _, kernel in _used(result)}))


def kernel_notes(result: StudyResult) -> list[str]:
    """A sentence for each group whose seeds or methods were trained with different kernels."""
    notes = []
    for group in result.study.groups:
        differing = []  # methods whose seeds differ
        by_text: dict[str, list[str]] = {}  # the other methods, by their kernels
        for each in result.of(group):
            by_kernels = _seeds_by_kernels(each)
            if len(by_kernels) > 1:
                runs = [f"{_layers(used)} ({_seeds(s)})" for used, s in by_kernels.items()]
                differing.append(f"{each.method.label} ran {' and '.join(runs)}")
            elif text := kernels_text(*each.results.values()):
                by_text.setdefault(text, []).append(each.method.label)
        if differing or len(by_text) > 1:
            others = [f"{list_some(labels)} ran {text}" for text, labels in by_text.items()]
            where = f" in {group}" if group else ""
            notes.append(f"kernels differ{where}: {'; '.join([*differing, *others])}")
    return notes


def _used(result: RunResult) -> Used:
    names = {"native": f"native {result.instruction_set}"} if result.instruction_set else {}
    kernels = result.kernels.items()
    return tuple(sorted((layer, names.get(kernel, kernel)) for layer, kernel in kernels))


def _seeds_by_kernels(method: MethodResult) -> dict[Used, list[int]]:
    found: dict[Used, list[int]] = {}
    for seed, result in method.results.items():
        if result.kernels:  # a float32 run has none
            found.setdefault(_used(result), []).append(seed)
    return found


def _layers(used: Used) -> str:
    """The kernels of one run, with the number of layers if there are several.

    >>> _layers((("conv", "native avx2"), ("fc", "simulate"), ("stem", "native avx2")))
    'native avx2 in 2 layers, simulate in 1'
    """
    [(first, number), *others] = sorted(Counter(kernel for _, kernel in used).items())
    if not others:
        return first
    counts = [f"{first} in {number} layer{'s' * (number > 1)}"]
    return ", ".join([*counts, *(f"{name} in {n}" for name, n in others)])


def _seeds(seeds: list[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
