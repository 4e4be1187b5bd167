"""Pictures of plans."""

from __future__ import annotations

import pytest

import bitcycle as bc
from bitcycle.cost import Plan, plan
from bitcycle.report import plot
from tests import toys

pytest.importorskip("matplotlib")


def make_plan(**options: object) -> Plan:
    model = bc.quantize_model(toys.linears(4, 8))
    given = {"low": 3, "high": 8, "total_steps": 1000, "saving": 0.4, **options}
    return plan(model, toys.randn(1, 4), **given)  # type: ignore[arg-type]


def drawn(figure: object) -> list[object]:
    return [axes for axes in figure.axes if axes.axison]  # type: ignore[attr-defined]


def test_every_panel_shows_the_bits_of_one_line_in_the_tables_order() -> None:
    from matplotlib.patches import StepPatch

    found = make_plan()
    panels = drawn(plot(found))
    rows = [row for row, _ in found.lines()[:12]]
    assert [axes.get_title(loc="left") for axes in panels] == [row.forward for row in rows]
    for axes, row in zip(panels, rows, strict=True):
        assert axes.get_title(loc="right") == f"saves {row.saving:.1%}"
        data = [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)][-1]
        steps = [int(b) for b, n in zip(data.values, data.edges[1:] - data.edges[:-1], strict=True)
                 for _ in range(int(n))]  # fmt: skip
        assert steps == row.schedule.values(1000)


@pytest.mark.parametrize("limit", [1, 2, 4, 5])
def test_a_limit_is_the_number_of_panels_and_each_column_ends_with_the_steps(limit: int) -> None:
    panels = drawn(plot(make_plan(), limit=limit))
    assert len(panels) == limit
    assert sum(axes.get_xlabel() == "step" for axes in panels) == min(3, limit)


def test_the_title_tells_the_budget_and_what_is_left_out() -> None:
    found = make_plan()
    title = plot(found, limit=2).get_suptitle()
    assert title.startswith(f"{len(found.rows)} schedules save at least 40.0% of static 8/8")
    assert title.endswith(f"the 2 dearest kinds of {len(found.lines())}")
    assert "dearest" not in plot(found, limit=1000).get_suptitle()


def test_a_wide_range_of_bits_has_few_ticks() -> None:
    [axes, *_] = drawn(plot(make_plan(low=8, high=32, backward="fp32", saving=0.1, cycles=[2])))
    assert axes.get_yticks().tolist() == [32, 28, 24, 20, 16, 12, 8]


def test_a_limit_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        plot(make_plan(), limit=0)
