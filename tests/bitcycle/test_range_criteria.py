"""The settings of the range test, its result, and the two criteria on known metrics."""

import json
import math
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.range_criteria import PrecisionRun, RangeTest, RangeTestConfig

NAN = math.nan


def relative(*runs, window=2, share=0.9, careful_below=1, **changes):
    """A test of (repeat, bits, metric)."""
    made = [PrecisionRun(*run) for run in runs]
    settings = RangeTestConfig(share=share, window=window, low=1, careful_below=careful_below)
    high, steps = max(run.bits for run in made), max(len(run.metric) for run in made)
    settings = settings.complete(high=high, steps_per_precision=max(steps, 2 * window))
    return RangeTest(settings=settings, runs=tuple(made), **changes)


def paper(metrics, *, window=2, threshold=20.0, **changes):
    """A test of rising bits: the metric of each."""
    settings = RangeTestConfig(threshold=threshold, window=window, low=min(metrics))
    settings = settings.complete(high=max(metrics), steps_per_precision=2 * window)
    runs = tuple(PrecisionRun(0, bits, tuple(row)) for bits, row in metrics.items())
    return RangeTest(settings=settings, runs=runs, **{"higher_is_better": True, **changes})


# -- relative criterion ---------------------------------------------------------------------------


def test_bits_pass_with_a_share_of_the_gain_at_the_most_bits():
    """L0 is 4 for all, and 8 bits end at 2; a gain equal to the share passes."""
    ends = {8: 2.0, 7: 2.1, 5: 2.6, 4: 3.0, 3: 3.1}
    runs = [(0, bits, (4.0 + 8 - bits, 4.0, end, end)) for bits, end in ends.items()]
    test = relative(*runs, share=0.5)
    gains = [test.verdicts[bits].gain for bits in (8, 5, 4, 3)]
    assert gains == pytest.approx([2.0, 1.4, 1.0, 0.9])
    assert test.verdicts[5].share == pytest.approx(0.7)
    assert test.low == 4
    for share, low in ((0.9, 7), (0.75, 7), (0.7, 5), (1.0, 8), (0.1, 3)):
        assert relative(*runs, share=share).low == low


def test_bits_that_pass_below_bits_that_fail_are_no_bound():
    rows = {8: 2.0, 6: 2.0, 5: 3.9, 4: 2.0}
    test = relative(*[(0, bits, (4.0, 4.0, end, end)) for bits, end in rows.items()])
    assert test.verdicts[4].passes
    assert test.low == 6


def test_bits_within_noise_do_not_pass_nor_do_bits_below_them():
    """5 bits gain 1.9 of a needed 1.8 on average, in a window of losses 0.8 apart."""
    rows = {8: (2.0, 2.0), 6: (2.1, 2.1), 5: (1.7, 2.5), 4: (2.0, 2.0)}
    test = relative(*[(0, bits, (4.0, 4.0, *last)) for bits, last in rows.items()])
    assert test.verdicts[5].gain == pytest.approx(1.9)
    assert [test.decision(bits) for bits in (8, 6, 5, 4)] == ["passes", "passes", "open", "passes"]
    assert not test.verdicts[5].passes
    assert test.low == 6


@pytest.mark.parametrize(
    ("end", "total_steps", "changes", "low"),
    [
        (2.0, 40, {}, 3),  # as good as 8 bits, over 4 steps of 40
        (2.0, 41, {}, 4),  # less than a tenth of the run
        (2.0, None, {}, 4),  # of an unknown run
        (2.03, 40, {}, 3),  # a share of 0.985
        (2.05, 40, {}, 4),  # a share of 0.975: less good, though it passes the share of 0.9
        (2.05, None, {"careful_below": 3}, 3),
        (2.1, 40, {"careful_below": 8}, 8),  # 4 bits have a share of 0.95
        (2.0, None, {"share": 0.5}, 4),
    ],
)
def test_fewer_than_4_bits_pass_if_as_good_over_a_tenth_of_the_run(end, total_steps, changes, low):
    rows = {8: 2.0, 4: 2.1, 3: end}
    runs = [(0, bits, (4.0, 4.0, end, end)) for bits, end in rows.items()]
    test = relative(*runs, **{"careful_below": 4, "total_steps": total_steps, **changes})
    assert test.low == low


def test_the_table_says_why_few_bits_fail():
    """Shares of 0.95, 0.95 and 0.5: without a length, in a run of 40 steps, and at any length."""
    top = (0, 8, (4.0, 4.0, 2.0, 2.0))
    for last, total_steps, reason in ((2.1, None, "steps"), (2.1, 40, "0.98"), (3.0, 40, "")):
        runs = top, (0, 3, (4.0, 4.0, last, last))
        row = str(relative(*runs, careful_below=4, total_steps=total_steps)).splitlines()[2]
        answer = row.rpartition("  no")[2]
        assert reason in answer
        assert bool(answer) == bool(reason)


def test_the_most_bits_of_a_test_pass_however_few_they_are():
    test = relative((0, 3, (4.0, 4.0, 2.0, 2.0)), (0, 2, (4.0, 4.0, 2.0, 2.0)), careful_below=4)
    assert test.low == 3


def test_the_result_says_on_how_many_steps_it_rests_and_what_share_of_the_run_that_is():
    run = (0, 8, (4.0, 4.0, 2.0, 2.0))
    test = relative(run, total_steps=80)
    assert test.run_share == 0.05
    assert "4 steps per precision, 5 % of the run's 80" in str(test)
    assert relative(run).run_share is None
    assert "4 steps per precision" in str(relative(run))


def test_the_error_of_one_repeat_comes_from_its_windows():
    """Losses of 1 and 3 have variance 2: over two steps 1, and nothing from the first window."""
    top = relative((0, 8, (9.0, 9.0, 1.0, 3.0))).verdicts[8]
    assert (top.gain, top.error) == (7.0, pytest.approx(1.0))


def test_noise_that_all_bits_share_does_not_blur_the_comparison():
    """The same hard batch raises both losses: differences step by step are constant."""
    runs = (0, 8, (8.0, 8.0, 1.0, 3.0)), (0, 2, (8.0, 8.0, 1.5, 3.5))
    assert relative(*runs, share=1.0).decision(2) == "fails"


losses = st.lists(st.floats(0.1, 5.0), min_size=6, max_size=6).map(tuple)


@given(
    tops=st.lists(losses, min_size=1, max_size=3),
    lows=st.lists(losses, min_size=1, max_size=3),
    share=st.sampled_from([0.5, 0.9, 1.0]),
)
def test_the_relative_criterion_is_its_formula(tops, lows, share):
    """Against a naive computation: margins of each repeat, their mean and standard error."""
    pairs = list(zip(lows, tops, strict=False))
    runs = [(r, 8, top) for r, top in enumerate(tops)]
    runs += [(r, 3, low) for r, (low, _) in enumerate(pairs)]
    test = relative(*runs, window=3, share=share)
    margins, variances = [], []
    for low, top in pairs:
        gain = fmean(top[:3]) - fmean(low[-3:])
        margins.append(gain - share * (fmean(top[:3]) - fmean(top[-3:])))
        last = [share * a - b for a, b in zip(top[-3:], low[-3:], strict=True)]
        variances.append(((1 - share) ** 2 * stdev(top[:3]) ** 2 + stdev(last) ** 2) / 3)
    between = stdev(margins) if len(margins) > 1 else 0.0
    error = max(math.sqrt(fmean(variances)), between) / math.sqrt(len(margins))
    margin = fmean(margins)
    verdict = test.verdicts[3]
    if abs(abs(margin) - 2 * error) > 1e-9:
        assert verdict.passes == (margin > 2 * error)
        assert verdict.is_clear == (abs(margin) > 2 * error)
    assert verdict.gain == pytest.approx(fmean(fmean(t[:3]) - fmean(b[-3:]) for b, t in pairs))


def test_an_accuracy_gains_by_rising():
    """From 4 to 9 at 8 bits: 6.5 is half of the way."""
    rows = {8: 9.0, 7: 6.5, 6: 6.0}
    runs = [(0, bits, (4.0, 4.0, end, end)) for bits, end in rows.items()]
    test = relative(*runs, share=0.5, higher_is_better=True, name="accuracy")
    assert test.low == 7
    assert (test.verdicts[7].gain, test.verdicts[7].end) == (2.5, 6.5)


def test_bits_that_diverge_fail_and_so_does_a_repeat_whose_top_diverged():
    good, bad = (4.0, 4.0, 2.0, 2.0), (4.0, NAN)
    test = relative((0, 8, good), (0, 3, good), (0, 2, bad))
    assert (test.decision(2), test.low) == ("fails", 3)
    test = relative((0, 8, good), (0, 3, good), (1, 8, bad), (1, 3, good))
    assert (test.decision(3), test.low) == ("fails", None)


# -- the paper's criterion ------------------------------------------------------------------------

RISING = {2: (10, 12, 12, 10), 3: (10, 14, 50, 54), 4: (60, 64, 78, 82), 5: (80, 80, 84, 84)}
FALLING = {"window": 1, "threshold": 0.5, "higher_is_better": False}


@pytest.mark.parametrize(
    ("metrics", "options", "low", "gains"),
    [
        (RISING, {}, 3, [0, 40, 18, 4]),  # the last window minus the first
        ({2: (0.0, 20.0)}, {"window": 1}, None, [20]),  # equal to the threshold
        ({2: (4.0, 4.0), 3: (4.0, 3.0)}, FALLING, 3, [0, 1]),  # the gain of a loss is its fall
        ({2: (0, NAN), 3: (0, 10, 50)}, {"window": 1}, 3, [NAN, 50]),
    ],
)
def test_the_first_gain_above_the_threshold_is_the_bound(metrics, options, low, gains):
    test = paper(metrics, **options)
    assert test.low == low
    assert [verdict.gain for verdict in test.verdicts.values()] == pytest.approx(gains, nan_ok=True)


# -- settings, files and text ---------------------------------------------------------------------


def test_a_threshold_selects_the_papers_criterion():
    assert not RangeTestConfig().is_paper
    assert RangeTestConfig(threshold=0.5).is_paper
    assert RangeTestConfig(criterion="paper").is_paper


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"criterion": "best"}, "best"),
        ({"criterion": "relative", "threshold": 0.5}, r"threshold \(0\.5\)"),
        ({"criterion": "paper", "share": 0.4}, r"share \(0\.4\)"),
        ({"threshold": 0.5, "repeats": 5}, r"repeats \(5\)"),
        ({"threshold": 0.5, "careful_below": 3}, r"careful_below \(3\)"),
        ({"careful_below": 0}, r"careful_below \(0\)"),
        ({"threshold": -1.0}, r"threshold \(-1\.0\)"),
        ({"threshold": NAN}, r"threshold \(nan\)"),
        ({"low": 0}, "low"),
        ({"low": None}, "low"),
        ({"low": "mxfp4"}, "mxfp4"),
        ({"low": 8, "high": 2}, r"low \(8\).*high \(2\)"),
        ({"share": 0.0}, r"share \(0\.0\)"),
        ({"share": 1.5}, r"share \(1\.5\)"),
        ({"repeats": 0}, r"repeats \(0\)"),
        ({"window": 1}, r"window \(1\)"),
        ({"window": 0, "threshold": 0.5}, r"window \(0\)"),
        ({"steps_per_precision": 4, "window": 3}, r"\(4\).*window \(3\)"),
        ({"steps_per_precision": 0}, r"steps_per_precision \(0\)"),
    ],
)
def test_settings_that_make_no_test_are_errors(wrong, match):
    with pytest.raises(ValueError, match=match):
        RangeTestConfig(**wrong)


def test_the_window_is_a_quarter_of_the_steps_unless_given():
    for asked, window in (
        (RangeTestConfig(), 5),
        (RangeTestConfig(window=3), 3),
        (RangeTestConfig(steps_per_precision=4), 2),  # at least two
        (RangeTestConfig(steps_per_precision=4, criterion="paper"), 1),
    ):
        assert asked.complete(high=8, steps_per_precision=20).window == window


TESTS = [
    relative(
        (0, 8, (4.0, 4.0, 2.0, 2.0)),
        (0, 3, (4.0, 4.0, 2.1, 2.1)),
        (0, 2, (4.0, NAN)),
        total_steps=40,
    ),  # fmt: skip
    paper({2: (0.1, NAN), 3: (0.1, 0.5)}, window=1, threshold=0.2, name="accuracy"),
]


@pytest.mark.parametrize("test", TESTS)
def test_a_test_survives_strict_json(test):
    data = json.loads(json.dumps(test.to_dict(), allow_nan=False))
    again = RangeTest.from_dict(data)
    assert again.to_dict() == test.to_dict()
    assert again.total_steps == test.total_steps
    assert (again.settings, again.low) == (test.settings, 3)
    assert data["verdicts"]["2"]["gain"] == "nan"
    assert data["verdicts"]["3"]["passes"] is True


def test_the_table_marks_the_lower_bound_and_what_is_within_noise_or_diverged():
    rows = {8: (2.0, 2.0), 7: (2.1, 2.1), 6: (2.0, 2.8), 5: (3.9, 3.9), 4: (2.0, NAN)}
    test = relative(*[(0, bits, (4.0, 4.0, *last)) for bits, last in rows.items()], share=0.7)
    table, _, notes = str(test).partition("\n\n")
    answers = [line.split("  ")[-1].strip() for line in table.splitlines()[2:]]
    assert answers == ["no: NaN or infinity", "no", "no: within noise", "yes: lower bound", "yes"]
    assert "6 bits are within noise" in notes
