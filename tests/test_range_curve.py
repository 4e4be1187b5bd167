"""What is read from the metrics of a range test."""

import json
import math

import pytest

from bitcycle.range_curve import RangeCurve

NAN = math.nan
CURVE = RangeCurve(
    bits=(2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5),
    metric=(10, 12, 12, 10, 10, 14, 50, 54, 60, 64, 78, 82, 80, 80, 84, 84),
    window=2,
    threshold=20,
    name="accuracy",
)


def test_the_gain_is_the_last_window_minus_the_first():
    assert [CURVE.gain(bits) for bits in (2, 3, 4, 5)] == [0, 40, 18, 4]  # (50+54)/2 - (10+14)/2


def test_the_lower_bound_is_the_first_precision_whose_gain_exceeds_the_threshold():
    assert CURVE.first_passing == 3
    assert not CURVE.passes(2)


def test_a_gain_equal_to_the_threshold_does_not_pass():
    curve = RangeCurve(bits=(2, 2), metric=(0.0, 20.0), window=1, threshold=20)
    assert curve.first_passing is None
    assert curve.upper_bound is None


def test_the_upper_bound_is_where_more_bits_add_less_than_the_threshold():
    """Ends: 52 at 3 bits, 80 at 4 (+28), 84 at 5 (+4)."""
    assert CURVE.upper_bound == 4


def test_without_an_end_of_the_rise_the_upper_bound_is_the_last_precision():
    curve = RangeCurve(bits=(2, 2, 3, 3), metric=(0, 30, 40, 60), window=1, threshold=20)
    assert curve.upper_bound == 3


def test_nan_anywhere_at_a_precision_means_that_it_does_not_pass():
    curve = RangeCurve(
        bits=(2, 2, 2, 3, 3, 3), metric=(0, NAN, 90, 0, 10, 50), window=1, threshold=20
    )
    assert math.isnan(curve.gain(2))
    assert not curve.passes(2)
    assert curve.first_passing == 3


def test_more_bits_that_diverge_add_nothing():
    curve = RangeCurve(bits=(2, 2, 3), metric=(0, 50, NAN), window=1, threshold=20)
    assert curve.upper_bound == 2


def test_window_means_do_not_reach_into_the_precision_before():
    assert CURVE.window_means()[:6] == (10, 11, 12, 11, 10, 12)


def test_a_curve_survives_strict_json():
    curve = RangeCurve(
        bits=(2, 2, 3), metric=(0.1, NAN, 0.5), window=1, threshold=0.2, name="accuracy"
    )
    text = json.dumps(curve.to_dict(), allow_nan=False)
    assert RangeCurve.from_dict(json.loads(text)) == curve
    assert json.loads(text)["gains"] == {"2": None, "3": 0.0}
    assert json.loads(text)["steps"] == [0, 1, 2]


def test_the_table_shows_every_precision_and_marks_the_lower_bound():
    assert str(CURVE).splitlines() == [
        "bits  steps  start    end    gain  gain > 20",
        "----  -----  -----  -----  ------  ----------------",
        "   2      4  11.00  11.00   +0.00  no",
        "   3      4  12.00  52.00  +40.00  yes: lower bound",
        "   4      4  62.00  80.00  +18.00  no",
        "   5      4  80.00  84.00   +4.00  no",
    ]


def test_the_table_says_where_it_diverged():
    curve = RangeCurve(bits=(2, 2), metric=(0.1, NAN), window=1, threshold=0.2)
    assert str(curve).splitlines()[-1].split() == ["2", "2", "-", "-", "-", "no:", "NaN", "or",
                                                   "infinity"]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": (1.0,)}, r"as many bits \(16\) as metrics \(1\)"),
        ({"bits": tuple(reversed(CURVE.bits))}, "must not fall"),
        ({"window": 0}, r"window \(0\) must be at least 1"),
    ],
)
def test_what_is_no_curve_is_an_error(changes, message):
    data = {"bits": CURVE.bits, "metric": CURVE.metric, "window": 2, "threshold": 20, **changes}
    with pytest.raises(ValueError, match=message):
        RangeCurve(**data)
