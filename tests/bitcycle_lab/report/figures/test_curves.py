"""Learning curves."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bitcycle.schedules import parse_schedule
from bitcycle_lab.report.figures.curves import draw_comparison, draw_curves, quantities
from bitcycle_lab.report.runs import method_logs
from bitcycle_lab.study.comparison import collect_runs
from bitcycle_lab.tasks import DataConfig, ModelConfig
from tests.bitcycle_lab.report.made_up import STEPS
from tests.bitcycle_lab.study.made_up import config, write_run
from tests.bitcycle_lab.study.test_comparison import written


def drawn(made, number=0, **options):
    """Of each line of the upper panel: its steps and values."""
    methods = method_logs(made)
    quantity = quantities(methods, "accuracy")[number]
    upper, *_ = draw_curves(methods, quantity, **options).axes
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in upper.lines]


def test_every_seed_has_a_curve_and_every_method_their_mean(made):
    steps = list(range(4, STEPS + 1, 4))
    assert drawn(made)[:3] == [
        (steps, [50.0 + step for step in steps]),
        (steps, [51.0 + step for step in steps]),
        (steps, [50.5 + step for step in steps]),
    ]


def test_the_metric_and_the_losses_that_were_logged_can_be_shown(made):
    found = quantities(method_logs(made), "accuracy")
    assert [(quantity.kinds, quantity.key) for quantity in found] == [
        (("eval",), "accuracy"), (("train",), "loss"),
    ]  # fmt: skip
    assert quantities(method_logs(made)[3:], "accuracy") == []


@pytest.mark.parametrize(("num_evals", "kind"), [(2, "eval"), (1, "train")])
def test_the_metric_is_that_of_training_if_no_run_was_evaluated_twice(made, num_evals, kind):
    lines = [{"step": step, "kind": "train", "accuracy": 1.0} for step in (1, 2)]
    lines += [{"step": s, "kind": "eval", "split": "test", "accuracy": 2.0} for s in (1, 2)]
    log = made.methods[0].runs[0].directory / "metrics.jsonl"
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines[: 2 + num_evals]))
    [first, *_] = method_logs(made)
    alone = replace(first, runs=first.runs[:1])
    assert quantities([alone], "accuracy")[0].kinds == (kind,)


def test_runs_with_and_without_evaluations_are_compared_by_what_each_logged(tmp_path):
    counted = {"kind": "train", "bitops": 1.0, "seconds": 1.0}
    train = [{"step": step, "accuracy": 50.0 + step, **counted} for step in (1, 2, 3, 4)]
    tested = [{"step": s, "kind": "eval", "split": "test", "accuracy": 60.0 + s} for s in (2, 4)]
    lines = {8: train + tested, 6: train + tested[1:], 4: tested[1:]}
    folders = [write_run(config(bits, output=str(tmp_path)), None, logged)
               for bits, logged in lines.items()]  # fmt: skip
    upper, *_ = draw_comparison(collect_runs(folders)).axes
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in upper.lines]
    assert drawn == [([2, 4], [62, 64]), ([1, 2, 3, 4], [51, 52, 53, 54]), ([4], [64])]
    assert upper.lines[2].get_marker() not in (None, "", "None")
    assert "training" in upper.lines[1].get_label()
    assert "test and training" in upper.get_ylabel()


def test_long_logs_are_thinned(made):
    assert {len(steps) for steps, _ in drawn(made, limit=3)} == {3, 0}


def test_the_bits_can_be_left_out(made):
    methods = method_logs(made)
    figure = draw_curves(methods, quantities(methods, "accuracy")[0], with_bits=False)
    [axes] = figure.axes
    assert axes.get_xlabel() == "step"


def test_every_configuration_has_a_band_on_one_scale(tmp_path):
    folders = [written(tmp_path, forward, seed, 90.0)
               for forward in (8, "CR:3-8:8", "fp32") for seed in (0, 1)]  # fmt: skip
    upper, *bands = draw_comparison(collect_runs(folders)).axes
    assert len(upper.lines) == 3 * 3
    assert len({band.get_ylim() for band in bands}) == 1
    ticks = [[tick.get_text() for tick in band.get_yticklabels()] for band in bands]
    assert ticks == [["8"], ["3", "8"], ["fp32"]]


def test_a_band_has_the_bits_of_every_step_up_to_the_last_in_the_log(tmp_path):
    many = config("CR:3-8:300", output=str(tmp_path), steps=3000)
    lines = [{"step": 1205, "kind": "train", "accuracy": 50.0}]
    _, band = draw_comparison(collect_runs([write_run(many, None, lines)])).axes
    heights, edges, _ = band.patches[0].get_data()
    steps = np.diff(edges).astype(int)
    assert np.repeat(heights, steps).tolist() == parse_schedule("CR:3-8:300").values(3000)[:1205]


def test_a_run_without_a_line_is_drawn_empty(tmp_path):
    figure = draw_comparison(collect_runs([write_run(config(8, output=str(tmp_path)), None)]))
    assert len(figure.axes) == 2


def test_two_metrics_share_no_axis(tmp_path):
    words = config(
        8, output=str(tmp_path), name="words", task="language",
        model=ModelConfig(name="lstm_lm"), data=DataConfig(name="ptb", root="x"),
    )  # fmt: skip
    folders = [written(tmp_path, 8, 0, 90.0), write_run(words, None)]
    with pytest.raises(ValueError, match="accuracy and perplexity"):
        draw_comparison(collect_runs(folders))
