"""Learning curves with bits underneath."""

from dataclasses import replace

import pytest

from bitcycle.report import plot
from bitcycle.report.runs import bits_of, curve
from bitcycle.schedules import parse_schedule
from bitcycle.study.compare import Comparison, compare_runs
from bitcycle.tasks import DataConfig, ModelConfig
from bitcycle.train.config import PrecisionConfig
from tests.study.made_up import config, write_run
from tests.study.test_compare import written

pytest.importorskip("matplotlib")


def train_line(step, accuracy, weight=4):
    return {"step": step, "kind": "train", "accuracy": accuracy, "bits": {"weight": weight},
            "bitops": 1.0, "seconds": 1.0}  # fmt: skip


def eval_line(step, accuracy):
    return {"step": step, "kind": "eval", "split": "validation", "accuracy": accuracy}


def test_the_curve_is_of_the_evaluations(tmp_path):
    lines = [train_line(1, 10.0), eval_line(1, 20.0), train_line(2, 30.0), eval_line(2, 40.0)]
    [entry] = compare_runs([write_run(config(8, output=str(tmp_path)), None, lines)]).entries
    assert curve(entry.runs[0], "accuracy") == ("validation", [1, 2], [20.0, 40.0])


def test_with_one_evaluation_the_curve_is_of_training(tmp_path):
    lines = [train_line(1, 10.0), train_line(2, 30.0), eval_line(2, 40.0)]
    [entry] = compare_runs([write_run(config(8, output=str(tmp_path)), None, lines)]).entries
    assert curve(entry.runs[0], "accuracy") == ("train", [1, 2], [10.0, 30.0])


def test_the_bits_are_the_schedules_at_every_step(tmp_path):
    [entry] = compare_runs([written(tmp_path, "CR:3-8:8", 0, 90.0)]).entries
    edges, bits = bits_of(entry)
    assert edges == list(range(241))
    assert bits == parse_schedule("CR:3-8:8").values(240)


@pytest.mark.parametrize(
    "precision",
    [
        PrecisionConfig(forward="CR:auto-8:8", backward=8),
        PrecisionConfig(forward={"fc1": 4, "fc2": 8}, backward=8),
        PrecisionConfig(forward="plateau:3-8:window=40", backward=8),
    ],
)
def test_bits_that_are_not_known_beforehand_are_those_logged(tmp_path, precision):
    lines = [train_line(10, 1.0, 3), train_line(20, 2.0, [4, 8])]
    settings = config(8, output=str(tmp_path), precision=precision)
    [entry] = compare_runs([write_run(settings, None, lines)]).entries
    assert bits_of(entry) == ([0, 10, 20], [3, 8])


def test_seeds_are_thin_and_their_mean_is_thick(tmp_path):
    folders = [written(tmp_path, 8, seed, 90.0 + seed) for seed in (0, 1)]
    upper, band = plot(compare_runs(folders)).axes
    widths = [line.get_linewidth() for line in upper.lines]
    assert widths == [0.8, 0.8, 2.0]
    assert upper.lines[2].get_ydata().tolist() == [56.0, 62.0]  # of both
    assert [text.get_text() for text in upper.get_legend().get_texts()] == ["run-8, 2 seeds"]
    assert [tick.get_text() for tick in band.get_yticklabels()] == ["8"]


def test_every_configuration_has_a_band_on_one_scale(tmp_path):
    folders = [written(tmp_path, f, 0, 90.0) for f in (8, "CR:3-8:8", "fp32")]
    _, static, cycled, floats = plot(compare_runs(folders)).axes
    assert static.get_ylim() == cycled.get_ylim() == floats.get_ylim()
    assert [tick.get_text() for tick in cycled.get_yticklabels()] == ["3", "8"]
    assert [tick.get_text() for tick in floats.get_yticklabels()] == ["fp32"]


def test_a_run_without_a_line_is_drawn_empty(tmp_path):
    figure = plot(compare_runs([write_run(config(8, output=str(tmp_path)), None)]))
    assert len(figure.axes) == 2


def test_two_metrics_share_no_axis(tmp_path):
    [images] = compare_runs([written(tmp_path, 8, 0, 90.0)]).entries
    words = config(
        8, output=str(tmp_path), name="words", task="language",
        model=ModelConfig(name="lstm_lm"), data=DataConfig(name="ptb", root="x"),
    )  # fmt: skip
    text = replace(images, runs=(replace(images.runs[0], config=words),))
    with pytest.raises(ValueError, match="accuracy and perplexity, which share no axis"):
        plot(Comparison(entries=(images, text), differing={}))
