"""The demo's picture."""

import pytest

from bitcycle.report import plot
from bitcycle.report.files import save
from bitcycle.schedules import parse_schedule
from bitcycle.study.demo import DemoResult, DemoRow

pytest.importorskip("matplotlib")

ROWS = [  # method, forward, accuracies, relative cost
    ("float32", "fp32", (98.1, 98.9, 99.4), 15.6),
    ("static 8/8", "8", (98.3, 99.4, 99.4), 1.0),
    ("CPT 3-8/8", "CR:3-8:8", (98.9, 98.6, 99.7), 0.634),
    ("static 3/8", "3", (98.1, 98.9, 98.6), 0.315),
]


def made_up(num_seeds=3):
    return DemoResult(
        tuple(
            DemoRow(
                method=method,
                forward=forward,
                num_steps=240,
                accuracies=accuracies[:num_seeds],
                relative_cost=cost,
                seconds=1.0,
                directories=("",) * num_seeds,
            )
            for method, forward, accuracies, cost in ROWS
        )
    )


@pytest.fixture
def figure():
    return plot(made_up())


def test_the_left_panel_has_every_seed_of_every_method_at_its_cost(figure):
    left, _ = figure.axes
    clouds = [c.get_offsets().tolist() for c in left.collections if len(c.get_offsets()) == 3]
    assert clouds == [[[cost, a] for a in accuracies] for _, _, accuracies, cost in ROWS]
    assert left.get_xscale() == "log"
    assert "3 seeds" in left.get_title(loc="left")


def test_the_right_panel_has_the_bits_of_every_step_exactly(figure):
    _, right = figure.axes
    drawn = [patch.get_data() for patch in right.patches]
    expected = [parse_schedule(text).values(240) for text in ("8", "CR:3-8:8", "3")]
    assert [data.values.tolist() for data in drawn] == expected
    assert all(data.edges.tolist() == list(range(241)) for data in drawn)


def test_float32_has_no_bits_to_draw_and_the_title_says_so(figure):
    _, right = figure.axes
    assert len(right.patches) == 3
    assert "float32 is not drawn" in right.get_title(loc="left")


def test_one_legend_names_every_method(figure):
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [row[0] for row in ROWS]


def test_a_single_seed_is_drawn_too(tmp_path):
    figure = plot(made_up(num_seeds=1))
    assert "one seed" in figure.axes[0].get_title(loc="left")
    assert save(figure, tmp_path / "demo.png").stat().st_size > 10_000
