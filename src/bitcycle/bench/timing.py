"""Times of several functions, taken in turn, so that a busy machine slows all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MIN_REPEATS = 3  # a function with time for fewer is measured once


@dataclass(frozen=True)
class Timing:
    """The seconds of every repeat.

    >>> timing = Timing((0.4, 0.1, 0.3, 0.2))
    >>> timing.fastest, timing.lower_quartile
    (0.1, 0.2)
    """

    seconds: tuple[float, ...]
    is_once: bool = False  # too slow for its budget: a warm-up step, not repeated

    @property
    def fastest(self) -> float:
        """What it takes when nobody disturbs; noise only ever adds."""
        return min(self.seconds)

    @property
    def lower_quartile(self) -> float:
        """Far above the fastest: a busy machine."""
        return sorted(self.seconds)[len(self.seconds) // 4]


def time_interleaved(
    functions: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    budget: float = float("inf"),
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Call each function `repeats` times, round-robin, after two calls that are not counted.

    A function may take about `budget` seconds in all: it gets fewer repeats if that is too little,
    and when not even three fit, the faster of its first calls is all there is. `tick` is called
    after every call.

    >>> timings = time_interleaved({"a": lambda: 1, "b": lambda: 2}, repeats=5)
    >>> [len(timing.seconds) for timing in timings.values()]
    [5, 5]
    """

    def take(function: Callable[[], object]) -> float:
        begin = time.perf_counter()
        function()
        seconds = time.perf_counter() - begin
        tick()
        return seconds

    timings: dict[str, Timing] = {}
    taken: dict[str, list[float]] = {}
    planned: dict[str, int] = {}
    for name, function in functions.items():
        first = take(function)  # compiles, allocates, decides on kernels
        if first <= budget:
            first = min(first, take(function))
        planned[name] = int(min(repeats, budget / max(first, 1e-9)))
        if planned[name] < min(MIN_REPEATS, repeats):
            timings[name], planned[name] = Timing((first,), is_once=True), 0
        else:
            taken[name] = []
    for repeat in range(repeats):
        for name in taken:
            if repeat < planned[name]:
                taken[name].append(take(functions[name]))
    timings |= {name: Timing(tuple(seconds)) for name, seconds in taken.items()}
    return {name: timings[name] for name in functions}
