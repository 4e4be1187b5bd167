"""Engines by name."""

import pytest

from bitcycle.study.engines import make_engine
from bitcycle.study.engines.local import LocalEngine


def test_local_is_one_run_at_a_time_unless_told_otherwise():
    assert isinstance(make_engine("local", num_jobs=None), LocalEngine)
    assert make_engine("local", num_jobs=None).num_jobs == 1
    assert make_engine("local", num_jobs=3).num_jobs == 3
    assert not make_engine("local", num_jobs=1).is_full


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "lokal", "num_jobs": 1}, "unknown engine 'lokal'.*did you mean 'local'"),
        ({"name": "local", "num_jobs": 0}, r"jobs \(0\) must be at least 1"),
        ({"name": "local", "num_jobs": 1, "address": "auto"}, "add --engine ray"),
    ],
)
def test_a_wrong_choice_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        make_engine(**options)
