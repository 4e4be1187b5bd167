"""Names beside points."""

import pytest

from bitcycle_lab.report.figures.labels import label_points

figure_module = pytest.importorskip("matplotlib.figure")
text_module = pytest.importorskip("matplotlib.text")


def placed(points, texts, **options):
    figure = figure_module.Figure(figsize=(6, 4))
    axes = figure.add_subplot()
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 10)
    figure.draw_without_rendering()
    label_points(axes, points, texts, **options)
    figure.draw_without_rendering()
    extent = text_module.Text.get_window_extent  # without the line to the point
    return axes, [extent(text) for text in axes.texts]


def overlaps(boxes):
    return [
        (i, j)
        for i, one in enumerate(boxes)
        for j, other in enumerate(boxes)
        if i < j and one.overlaps(other)
    ]


def test_a_lone_point_has_its_name_at_its_right():
    axes, [box] = placed([(5.0, 5.0)], ["CPT"])
    x, y = axes.transData.transform((5.0, 5.0))
    assert x < box.x0 < x + 20
    assert box.y0 < y < box.y1


def test_near_points_have_names_apart():
    points = [(5.0, 5.0), (5.1, 5.05), (5.2, 4.95), (5.0, 5.1), (5.15, 4.9)]
    _, boxes = placed(points, [f"schedule {i}" for i in range(5)])
    assert overlaps(boxes) == []


def test_only_a_name_that_moved_away_has_a_line_to_its_point():
    near = [(5.0, 5.0), (5.1, 5.05), (5.2, 4.95), (5.0, 5.1), (5.15, 4.9), (5.1, 5.15)]
    axes, _ = placed(near, [f"schedule {i}" for i in range(6)])
    assert any(text.arrow_patch is not None for text in axes.texts)
    axes, _ = placed([(2.0, 2.0), (8.0, 8.0)], ["a", "b"])
    assert all(text.arrow_patch is None for text in axes.texts)


def test_a_name_at_the_edge_stays_inside():
    axes, [box] = placed([(9.9, 9.9)], ["a long name of a schedule"])
    frame = axes.get_window_extent()
    assert frame.x0 <= box.x0
    assert box.x1 <= frame.x1 + 1


def test_a_name_avoids_error_bars_and_lines():
    bars = [(x / 10, 3.0, 7.0) for x in range(52, 70, 2)]  # a fence at the right
    axes, [box] = placed([(5.0, 5.0)], ["CPT"], bars=bars)
    assert box.x1 < axes.transData.transform((5.2, 5.0))[0]
    axes, [box] = placed([(5.0, 5.0)], ["CPT"], spans=[(0.0, 5.0, 10.0)])
    line = axes.transData.transform((5.0, 5.0))[1]
    assert box.y0 > line or box.y1 < line
