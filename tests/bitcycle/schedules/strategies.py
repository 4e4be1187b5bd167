"""Random schedules for property tests, nested ones and walks over formats included."""

from dataclasses import replace

from hypothesis import strategies as st

from bitcycle.bits import order
from bitcycle.formats.catalogue import FORMATS
from bitcycle.schedules import (
    PROFILES,
    Anneal,
    Cycle,
    Delay,
    Ramp,
    Sequence,
    Stages,
    Static,
    Triangle,
)

bits = st.integers(1, 32)
formats = st.sampled_from(list(FORMATS.values()))
any_bits = st.none() | bits | formats
level_lists = st.lists(any_bits, min_size=2, max_size=30, unique=True).map(
    lambda chosen: tuple(sorted(chosen, key=order))
)
ranges = st.tuples(bits, bits).map(sorted)
cycles = st.integers(1, 64)
fractions = st.floats(0.0, 1.0, exclude_min=True, exclude_max=True)
times = st.integers(0, 100_000) | st.floats(0.0, 1.0)


def _build(schedule_type, **options):
    return st.builds(
        lambda pair, **rest: schedule_type(pair[0], pair[1], **rest), ranges, **options
    )


cycle_schedules = _build(
    Cycle,
    cycles=cycles,
    profile=st.sampled_from(PROFILES.names()),
    form=st.sampled_from(["repeated", "triangular"]),
    reflect=st.sampled_from(["horizontal", "vertical"]),
)


def _ends():
    """Growing end points, ints or floats or both, without the final 1.0."""
    steps = st.lists(st.integers(1, 100_000), max_size=2, unique=True).map(sorted)
    parts = st.lists(fractions, max_size=2, unique=True).map(sorted)
    return st.builds(lambda a, b: [*a, *b], steps, parts)


@st.composite
def _pieces(draw, inner):
    ends = [*draw(_ends()), 1.0]
    return [(draw(inner), end) for end in ends]


ranged = st.one_of(
    cycle_schedules,
    _build(Anneal, cycles=cycles),
    _build(Triangle, cycles=cycles),
    _build(Ramp, until=times),
)
listed = st.builds(
    lambda levels, schedule: replace(schedule, low=None, high=None, levels=levels),
    level_lists, ranged,
)  # fmt: skip
leaves = st.one_of(st.builds(Static, any_bits), ranged, listed, _pieces(any_bits).map(Stages))
schedules = st.recursive(
    leaves,
    lambda inner: st.builds(Delay, inner, times) | _pieces(inner).map(Sequence),
    max_leaves=6,
)
